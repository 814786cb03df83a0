"""What stands in docs/measurements/h200-x2 is what its run folders and captures say."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.base import registry
from collbench.algorithms.cell_predictions import predictor
from collbench.contention.parameter_file import read_parameters
from collbench.contention.parameters import priors
from collbench.contention.prediction import Prediction
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.units import format_bytes, format_us

FOLDER = Path(__file__).parents[1] / "docs" / "measurements" / "h200-x2"
README = (FOLDER / "README.md").read_text()
RUNS = sorted(path.name for path in (FOLDER / "runs").iterdir())


def measured(name: str) -> list[dict[str, Any]]:
    with RunFolder.open(FOLDER / "runs" / name) as folder:
        assert not folder.problems()
        return rows(folder.run, folder.samples())


def section(begin: str) -> Iterator[list[str]]:
    """Cells of the first table behind a text, its head first and without the rule below it."""
    for line in README.split(begin, 1)[1].split("\n\n")[1].splitlines():
        if not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


TABLES = [
    ("Captured, chains of 122:", "pair-base", "graph", True),
    ("Launched one by one, chains of 122:", "pair-base", "eager", True),
    ("Captured, single calls from an aligned start:", "pair-base", "graph", False),
    ("Launched one by one, single calls from an aligned start:", "pair-base", "eager", False),
]


@pytest.mark.parametrize(("begin", "run", "mode", "chained"), TABLES)
def test_a_table_is_what_its_run_holds(begin: str, run: str, mode: str, chained: bool) -> None:  # noqa: FBT001 - a case
    """Every measured cell stands there, and nothing else."""
    found = {
        (row["algorithm"], format_bytes(row["bytes"])): format_us(row["p50_us"])
        for row in measured(run)
        if row["status"] == "ok" and row["mode"] == mode and (row["calls"] > 1) is chained
    }
    head, *lines = section(begin)
    told = {
        (line[0].strip("`"), size): text
        for line in lines
        for size, text in zip(head[1:], line[1:], strict=True)
        if text != "-"
    }
    assert told == found
    assert len(found) >= 9


def test_nccl_tests_are_what_their_files_hold() -> None:
    """Means of chains and of graphs, medians of single calls, and ours beside them."""
    of = {
        name: {row["size"]: row for row in json.loads((FOLDER / "captures" / f"nt-{name}.json").read_text())["results"]}
        for name in ("plain", "graph", "each")
    }
    ours = {
        (row["bytes"], row["mode"], row["calls"] > 1): format_us(row["p50_us"])
        for row in measured("nt-same")
        if row["status"] == "ok"
    }
    _, *lines = section("## Does our timing agree with nccl-tests?\n\nThe same")
    assert [line[0] for line in lines] == [format_bytes(size) for size in of["plain"]]
    for size, line in zip(of["plain"], lines, strict=True):
        graph, plain = (format_us(of[name][size]["out_of_place"]["time"]) for name in ("graph", "plain"))
        each = format_us(of["each"][size]["out_of_place_per_iter"]["p50_us"])
        chains = [ours.get((size, mode, True), "-") for mode in ("graph", "eager")]
        singles = [ours[size, mode, False] for mode in ("eager", "graph")]
        assert [line[1], line[2], line[4], line[5], line[7], line[8], line[10]] == [
            chains[0], graph, chains[1], plain, singles[0], each, singles[1],
        ]  # fmt: skip


def test_cells_that_did_not_run_are_counted() -> None:
    found = [row["status"] for row in measured("pair-base")]
    told = {status: found.count(status) for status in ("ok", "not_run", "unsupported")}
    assert f"{told['ok']} cells `ok`, {told['not_run']} `not_run`, {told['unsupported']} `unsupported`" in README
    assert sum(told.values()) == len(found)
    multicast = [row for row in measured("pair-base") if row["algorithm"] == "symm_multimem"]
    assert len(multicast) == 28
    assert {row["reason"] for row in multicast} == {"NVLink multicast is off (TORCH_SYMM_MEM_DISABLE_MULTICAST=1)"}


@pytest.mark.parametrize("name", RUNS)
def test_runs_name_no_machine(name: str) -> None:
    """Neither paths nor kernel releases, UUIDs or hosts; and all of it stays small."""
    text = "".join(path.read_text() for path in (FOLDER / "runs" / name).glob("*.json*"))
    assert not re.search(r'"(?:/tmp|/home|/root|/opt|/usr)/|GPU-[0-9a-f]{8}|\d+\.\d+\.\d+-[a-z]', text)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 5 << 20


@pytest.mark.parametrize("path", sorted((FOLDER / "captures").glob("nt-*.json")))
def test_files_of_nccl_tests_hold_no_environment(path: Path) -> None:
    data = json.loads(path.read_text())
    assert data["env"] == []
    assert {device["hostname"] for device in data["config"]["devices"]} == {"host"}


Predicted = tuple[dict[str, Any], list[Prediction]]
KINDS = {
    "captured chains": ("graph", True), "eager chains": ("eager", True),
    "captured single calls": ("graph", False), "eager single calls": ("eager", False),
}  # fmt: skip


def predicted(name: str) -> Iterator[Predicted]:
    """Measured rows with what priors say of them, and what the probes of the pair do."""
    with RunFolder.open(FOLDER / "runs" / name) as folder:
        run = folder.run
    cells = {cell.cell_id: cell for cell in run.cells}
    both = [predictor(run, known) for known in (None, read_parameters(FOLDER / "runs" / "probe-pair", needed=True))]
    for row in measured(name):
        found = [one(cells[row["cell_id"]]) for one in both] if row["status"] == "ok" else []
        told = [one for one in found if one]
        if told:
            yield row, told


@pytest.fixture(scope="module")
def sweep() -> list[Predicted]:
    return list(predicted("pair-base"))


def score(cells: list[Predicted]) -> list[str]:
    """Rows; then twice error at the median and p90, bias, and how many lie inside: of priors, and of probes."""
    texts = [str(len(cells))]
    for known in (0, 1):
        errors = np.array([math.log(row["p50_us"] / told[known].total_us) for row, told in cells])
        size = [math.exp(x) for x in (np.median(abs(errors)), np.quantile(abs(errors), 0.9))]
        inside = [told[known].interval_us[0] <= row["p50_us"] <= told[known].interval_us[1] for row, told in cells]
        words = " / ".join(f"{100 * (x - 1):.0f} %" if x < 2 else f"x{x:.1f}" for x in size)
        texts += [words, f"{math.exp(np.median(errors)):.2f}", f"{100 * np.mean(inside):.0f} %"]
    return texts


def of_kind(cells: list[Predicted], kind: str) -> list[Predicted]:
    mode, chained = KINDS[kind]
    return [one for one in cells if one[0]["mode"] == mode and (one[0]["calls"] > 1) is chained]


def test_errors_of_the_model_are_those_of_the_table(sweep: list[Predicted]) -> None:
    known = registry()
    _, *lines = section("have no prediction.")
    assert len(lines) == 4 * len(KINDS)
    for name, *texts in lines:
        kind, _, family = name.strip("*").partition(", ")
        chosen = [one for one in of_kind(sweep, kind) if not family or known[one[0]["algorithm"]].family in family]
        assert texts == score(chosen), name


def test_errors_of_cells_that_had_no_part_in_the_priors_are_those_of_the_table(sweep: list[Predicted]) -> None:
    """Host and starts were taken from 1 and 4 KiB of one run; here are its larger sizes, and another run."""
    other = list(predicted("vdev"))
    _, *lines = section("had no part in these priors:")
    assert len(lines) == 6
    for name, *texts in lines:
        kind, _, where = name.partition(", ")
        chosen = of_kind(other if "vdev" in where else [one for one in sweep if one[0]["bytes"] > 4096], kind)
        assert texts == score(chosen), name


def test_priors_of_host_and_starts_are_medians_of_the_smallest_cells(sweep: list[Predicted]) -> None:
    """As priors.toml says; each pair of cells is of one algorithm at one size, 1 or 4 KiB."""
    known, prior = registry(), priors()
    us = {
        (one["algorithm"], one["bytes"], one["mode"], one["calls"] > 1): one["p50_us"]
        for one, _ in sweep if one["bytes"] <= 4096
    }  # fmt: skip
    names = sorted({key[:2] for key in us})
    host = {
        family: float(np.median([us[(*n, "eager", True)] for n in names if known[n[0]].family == family]))
        for family in ("own", "nccl")
    }  # fmt: skip
    ours = prior["launch.eager.own"].value + prior["launch.eager.call"].value
    assert host["own"] == pytest.approx(ours, rel=0.01)
    assert host["nccl"] == pytest.approx(prior["launch.eager.torch"].value, rel=0.01)
    whole = [
        n for n in names if all((*n, mode, chained) in us for mode in ("eager", "graph") for chained in (True, False))
    ]
    assert len(whole) == 32
    graph = [us[(*n, "graph", False)] - us[(*n, "graph", True)] for n in whole]
    assert np.median(graph) == pytest.approx(prior["launch.start.graph"].value, rel=0.02)
    launch = 0.66  # as the probes say; the host's comes in its place
    hosts = {name: host["own" if known[name].family == "own" else "nccl"] - launch for name, _ in whole}
    eager = [us[(*n, "eager", False)] - us[(*n, "graph", True)] - hosts[n[0]] for n in whole]
    assert np.median(eager) == pytest.approx(prior["launch.start.eager"].value, rel=0.02)
