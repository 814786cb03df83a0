"""What stands in docs/measurements/h200-x2 is what its run folders and captures say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    ("has what each enqueues:", "pair-libs", "graph", True),
    ("what NCCL chose was Ring/LL:", "nccl231", "graph", True),
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
