"""Accuracy is measured on rows that were not fitted, beside baselines, and every row left out is counted."""

import math
import shutil
import statistics
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.contention import published
from collbench.contention.bandwidths import flows_of
from collbench.contention.curves import assign, left_out_in_turn
from collbench.contention.predict import Model
from collbench.contention.prediction import BETWEEN_MACHINES
from collbench.contention.published import SYMMETRIC, Bandwidth, Latency, read
from collbench.contention.scores import Score, spread_between
from collbench.contention.splits import Split, is_single, on_symmetric_memory, split_file
from collbench.contention.validate import LEFT_OUT, PRIORS, Outcome, predicted, validate
from collbench.errors import InvalidError, UsageError
from collbench.results.records import Mode
from collbench.topology import catalog

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "docs" / "model" / "data"
LOSSES = "the solo row, and losses of other boards"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    latency, bandwidth, problems = read(TABLES)
    assert not problems
    return validate(latency, bandwidth)


def score(outcome: Outcome, table: str, split: str, model: str = "model") -> Score:
    found = [s for s in outcome.scores if (s.table, s.split, s.regime, s.model) == (table, split, "all", model)]
    assert len(found) == 1
    return found[0]


def test_every_row_is_scored_once_or_left_out_with_a_reason(outcome: Outcome) -> None:
    """The splits are never mixed: their rows and those left out add up to the tables."""
    latency, bandwidth, _ = read(TABLES)
    scored = sum(
        s.n for s in outcome.scores
        if s.regime == "all" and s.model == "model" and "losses" not in s.split and s.split != LEFT_OUT
    )  # fmt: skip
    assert scored + sum(outcome.left_out.values()) == len(latency) + len(bandwidth)
    by_size = [
        s for s in outcome.scores if s.table.startswith("latency") and s.model == "model" and s.split != LEFT_OUT
    ]
    assert sum(s.n for s in by_size if s.regime == "all") == sum(s.n for s in by_size if s.regime != "all")


def test_the_model_beats_the_busiest_link_everywhere(outcome: Outcome) -> None:
    for table in ("latency, one- and two-stage", "latency, NCCL"):
        for split in Split:
            assert score(outcome, table, split).median < score(outcome, table, split, "busiest link").median


def test_the_model_beats_nccls_own_table_everywhere(outcome: Outcome) -> None:
    for split in Split:
        table = score(outcome, "latency, NCCL", split, "NCCL's table")
        assert score(outcome, "latency, NCCL", split).median < table.median


def test_the_goals_that_are_reached(outcome: Outcome) -> None:
    """Of docs/measurements/model.md: medians, as there."""
    most = {
        ("latency, one- and two-stage", Split.SIZES): 0.05,
        ("latency, one- and two-stage", Split.EXTRAPOLATED): 0.09,
        ("latency, NCCL", Split.EXTRAPOLATED): 0.20,
        ("latency, one- and two-stage", Split.SYSTEMS): 0.25,
        ("latency, NCCL", Split.SYSTEMS): 0.25,
        ("bandwidth, sparse", LOSSES): 0.02,
        ("bandwidth, dense", LOSSES): 0.15,
    }
    for (table, split), goal in most.items():
        assert score(outcome, table, split).median < goal
    assert score(outcome, "bandwidth, sparse", LOSSES).p90 < 0.10
    for table in ("latency, one- and two-stage", "latency, NCCL"):
        line = score(outcome, table, Split.EXTRAPOLATED, "a + b*bytes")
        assert score(outcome, table, Split.EXTRAPOLATED).median < line.median


def test_a_fit_is_no_worse_than_priors_alone(outcome: Outcome) -> None:
    for table in ("latency, one- and two-stage", "latency, NCCL"):
        for split in Split:
            assert score(outcome, table, split).median <= score(outcome, table, split, PRIORS).median


def test_the_spread_between_machines_is_what_the_tables_ask_for(outcome: Outcome) -> None:
    assert outcome.between_machines == pytest.approx(BETWEEN_MACHINES, abs=0.01)


def test_intervals_of_systems_never_calibrated_hold(outcome: Outcome) -> None:
    """Their spread is learnt from all other systems."""
    some = [score(outcome, t, Split.SYSTEMS) for t in ("latency, one- and two-stage", "latency, NCCL")]
    held = sum(s.n * (s.coverage or 0.0) for s in some) / sum(s.n for s in some)
    assert held >= 0.80


def test_intervals_of_fitted_curves_hold_and_are_not_wide(outcome: Outcome) -> None:
    """Every row of a fitted curve left out in turn; half of an interval stays within twice what rows scatter."""
    for table, most in (("latency, one- and two-stage", 0.15), ("latency, NCCL", 0.30)):
        found = score(outcome, table, LEFT_OUT)
        assert found.n >= 30
        assert found.coverage is not None
        assert found.width is not None
        assert 0.85 <= found.coverage <= 0.97
        assert found.width < most
        assert found.p90 > found.width / 2, "wider than errors ask for"


def test_sparse_bandwidth_from_the_solo_row(outcome: Outcome) -> None:
    """Nothing is fitted: routes and fair shares explain published flows that run together within some percent."""
    found = score(outcome, "bandwidth, sparse", "only the solo row known")
    assert found.n >= 30
    assert found.median < 0.05
    assert found.p90 < 0.12
    assert found.p90 < score(outcome, "bandwidth, sparse", "only the solo row known", "busiest link").p90


def test_a_spread_between_machines_counts_every_system_the_same() -> None:
    assert spread_between([[(0.05, 0.04, 1.0)] * 9, [(0.05, 0.04, 1.0)]]) == 0.0
    many_rows_one_system = [[(1.0, 0.0, 1.0)] * 90, *([(0.0, 0.0, 1.0)] for _ in range(19))]
    assert spread_between(many_rows_one_system) == 0.0, "one of 20 systems may lie outside"
    assert spread_between([[(0.5, 0.0, 1.0)], [(-0.5, 0.0, 1.0)]]) == pytest.approx(0.5 / 1.645, rel=1e-6)
    assert spread_between([[(0.5, 0.0, 0.5)], [(-0.5, 0.0, 0.5)]]) == pytest.approx(1.0 / 1.645, rel=1e-6)
    assert spread_between([]) == 0.0


def test_in_sample_is_better_than_systems_never_seen(outcome: Outcome) -> None:
    """If it were not, the splits would be mixed up."""
    for table in ("latency, one- and two-stage", "latency, NCCL"):
        assert score(outcome, table, Split.IN_SAMPLE).median < score(outcome, table, Split.SYSTEMS).median


def test_unmapped_classes_and_low_confidence_are_counted(outcome: Outcome) -> None:
    assert outcome.left_out["low confidence"] > 100
    assert outcome.left_out["unmapped class unknown-4gpu"] > 0


def row(size: int, time_us: float, **changes: object) -> Latency:
    values: dict[str, object] = {
        "id": "x", "system": "a machine of nobody", "ranks": 8, "wiring": "1sock-2switch-flat(4gpu/sw)",
        "generation": 5, "algorithm": "oneshot-pull", "variant": "v", "mode": Mode.GRAPH, "bytes": size,
        "time_us": time_us, "confidence": "high",
    }  # fmt: skip
    return Latency(**{**values, **changes})  # type: ignore[arg-type]  # a row with some fields changed


def test_other_peoples_rows_are_held_out_systems() -> None:
    """A row that the split file does not name is predicted without fitting."""
    found = validate([row(1 << k, 10.0 + k) for k in range(10, 20)], [])
    assert {s.split for s in found.scores} == {Split.SYSTEMS}
    assert found.scores[0].n == 10


def test_a_curve_of_a_calibration_system_is_split_by_size() -> None:
    rows = [row(1 << k, 6.0 + (1 << k) / 3000, system="8 GPUs, root+leaf board") for k in range(10, 19)]
    found = validate(rows, [])
    counts = {s.split: s.n for s in found.scores if (s.regime, s.model) == ("all", "model")}
    assert counts == {Split.IN_SAMPLE: 4, Split.SIZES: 2, Split.EXTRAPOLATED: 3, LEFT_OUT: 9}
    extrapolated = score(found, "latency, one- and two-stage", Split.EXTRAPOLATED)
    assert extrapolated.median < 0.02, "times that are a line in bytes are met beyond the fitted sizes"


def test_a_fit_does_not_see_held_out_rows() -> None:
    """Ten times the time of every held-out row changes no factor."""
    rows = [row(1 << k, 6.0 + (1 << k) / 3000, system="8 GPUs, root+leaf board") for k in range(10, 19)]
    spoilt = [
        row(r.bytes, r.time_us * (10 if i >= 6 or i % 3 == 1 else 1), system=r.system) for i, r in enumerate(rows)
    ]
    one, two = (assign(predicted(some, Counter())) for some in (rows, spoilt))
    assert list(one) == ["8 GPUs, root+leaf board"]
    assert [fit.x.tolist() for fit in one.values()] == [fit.x.tolist() for fit in two.values()]


def test_a_row_left_out_in_turn_does_not_count_for_itself() -> None:
    """Ten times its time changes what others say of it by nothing."""
    rows = [row(1 << k, 6.0 + (1 << k) / 3000, system="8 GPUs, root+leaf board") for k in range(10, 19)]
    spoilt = [row(r.bytes, r.time_us * (10 if i == 4 else 1), system=r.system) for i, r in enumerate(rows)]
    told = []
    for some in (rows, spoilt):
        found = predicted(some, Counter())
        assign(found)
        told.append([us for one, us, _ in left_out_in_turn(found) if one.row.bytes == rows[4].bytes])
    assert len(told[0]) == 1
    assert told[0] == told[1]


def test_other_systems_say_how_far_a_curve_may_scatter() -> None:
    """A curve that meets the model by chance is told with the scatter of others of its kind in mind."""
    smooth = [row(1 << k, 6.0 + (1 << k) / 3000, system="8 GPUs, root+leaf board") for k in range(10, 19)]
    noise = (1.4, 0.7, 1.5, 0.7, 1.4, 0.7, 1.5, 0.7, 1.4)
    rough = [
        row(r.bytes, r.time_us * n, system="8x B300/GB300", ranks=4, wiring="1switch-4gpu")
        for r, n in zip(smooth, noise, strict=True)
    ]
    alone, beside = (assign(predicted(some, Counter())) for some in (smooth, [*smooth, *rough]))
    assert beside["8 GPUs, root+leaf board"].scatter > 1.5 * alone["8 GPUs, root+leaf board"].scatter
    nccl = [
        row(r.bytes, r.time_us, system="Dual EPYC 9575F", wiring="2sock-direct(4gpu/sock)", algorithm="nccl")
        for r in rough
    ]
    others = assign(predicted([*smooth, *nccl], Counter()))
    assert others["8 GPUs, root+leaf board"].scatter == alone["8 GPUs, root+leaf board"].scatter


def test_rows_that_their_source_shows_on_symmetric_memory_are_read_so() -> None:
    """Of the split file's system only; the row keeps all else, and is NCCL's still."""
    plain = row(1024, 11.0, algorithm="nccl", wiring="nvswitch", generation=6)
    other = row(1024, 11.0, algorithm="nccl", system="8 GB200 nodes in one NVL72 IPC domain (32 GPUs)")
    assert on_symmetric_memory(plain) is plain
    assert on_symmetric_memory(other) == replace(other, algorithm=SYMMETRIC)
    change = {"algorithm": SYMMETRIC, "wiring": "nvswitch", "generation": 6}
    (found,) = predicted([row(1024, 11.0, **change)], Counter())
    assert found.is_nccl
    assert found.us["NCCL's table"] == pytest.approx(11.4, abs=0.3)
    left_out: Counter[str] = Counter()
    assert not predicted([row(1024, 11.0, algorithm=SYMMETRIC)], left_out)
    assert left_out == {"no schedule: nccl-symm": 1}, "not on PCIe"


def test_rows_timed_one_call_at_a_time_wait_for_their_launch() -> None:
    change = {"wiring": "1sock-4VS(2gpu/VS)", "algorithm": "nccl", "mode": Mode.EAGER}
    single = row(12_288, 60.0, system="16x RTX PRO 6000 WS host, adjacent", **change)
    chained = row(12_288, 60.0, **change)
    assert is_single(single)
    assert not is_single(chained)
    one, other = predicted([single, chained], Counter())
    assert one.prior.terms_us["launch"] > other.prior.terms_us["launch"]


def test_priors_of_single_calls_hold_on_a_host_that_had_no_part_in_them() -> None:
    """14 eager single calls of NCCL on 16 RTX PRO 6000; scored without a start, whose source says nothing of one."""
    rows = [one for one in predicted(read(published.folder())[0], Counter()) if is_single(one.row)]
    assert {one.row.mode for one in rows} == {Mode.EAGER}
    assert not [one for one in rows if "launch.start.eager" in one.prior.parts]
    told = []
    for one in rows:
        schedule = published.schedule(one.topology, one.row)
        assert schedule is not None
        model = Model(one.topology, ranks=one.row.ranks)
        told.append(model.predict(replace(schedule, launcher="torch"), one.row.mode, chained=False))
    assert all(p.interval_us[0] < one.row.time_us < p.interval_us[1] for one, p in zip(rows, told, strict=True))
    before = [abs(math.log(one.prior.total_us / one.row.time_us)) for one in rows]
    now = [abs(math.log(p.total_us / one.row.time_us)) for one, p in zip(rows, told, strict=True)]
    small = [i for i, one in enumerate(rows) if one.row.bytes <= 384 << 10]
    medians = [statistics.median(x) for x in (before, now, [before[i] for i in small], [now[i] for i in small])]
    assert len(rows) == 14
    assert len(small) == 6
    assert medians == pytest.approx([0.186, 0.116, 0.629, 0.087], abs=0.005)


def test_small_sizes_alone_leave_the_rate_of_wires_where_it_was() -> None:
    """Three small sizes that scatter by 20 % say little of 16 MiB."""
    name = "Dual EPYC 9575F"
    change = {"system": name, "wiring": "2sock-direct(4gpu/sock)", "algorithm": "nccl", "variant": "ring Simple"}
    sizes = [1 << k for k in (10, 11, 12, 13, 14, 15, 20, 22, 24)]
    prior = {one.row.bytes: one.prior.total_us for one in predicted([row(s, 1.0, **change) for s in sizes], Counter())}
    noise = [1.0, 1.2, 0.8, 1.2, 0.85, 1.1, 1.0, 1.0, 1.0]
    found = validate([row(s, prior[s] * n, **change) for s, n in zip(sizes, noise, strict=True)], [])
    assert score(found, "latency, NCCL", Split.EXTRAPOLATED).median < 0.10


def test_another_algorithm_of_a_fitted_system_keeps_its_priors() -> None:
    name = "8 GPUs, root+leaf board"
    curve = [row(1 << k, 60.0 + (1 << k) / 300, system=name) for k in range(10, 19)]
    other = [row(1 << k, 10.0, system=name, algorithm="twoshot-pull", variant="w") for k in range(10, 13)]
    found = validate(curve + other, [])
    table, split = "latency, one- and two-stage", Split.ALGORITHMS
    assert score(found, table, split).median == score(found, table, split, PRIORS).median


def test_rows_of_the_split_file_name_machines_that_exist() -> None:
    for rule in split_file()["bandwidth"]:
        assert catalog.load(catalog.find(rule["topology"])).gpus
    for rule in split_file()["pattern"]:
        assert flows_of(rule["flows"])
    assert {rule.get("board") for rule in split_file()["bandwidth"] if "c-payne" in rule["system"]} == {"WRX90"}


def test_bad_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither"):
        read(tmp_path)
    head = "id,source,date,system,n_gpus,topology_class,pcie_gen,pcie_width,nvlink,algo,variant,graph,dtype,bytes,"
    head += "time_us,notes"
    good = 'L1,s,d,m,8,"1sock-2switch-flat(4gpu/sw)",5,16,no,oneshot-pull,v,graph,bf16,1024,7.0,conf=high'
    path = tmp_path / "public_latency.csv"
    path.write_text(f"{head}\n{good}\n{good.replace('7.0', 'nan')}\n{good.replace('7.0', '-1')}\n")
    latency, _, problems = read(tmp_path)
    assert (len(latency), len(problems)) == (1, 2)
    assert "line 3" in problems[0]
    path.write_text(f"{head}\n{good.replace('7.0', 'nan')}\n")
    with pytest.raises(InvalidError, match="none of 1 rows"):
        read(tmp_path)


def test_numbers_of_no_machine_are_left_out(tmp_path: Path) -> None:
    head = "id,system,mechanism,direction,pattern,total_GBps,uncontended_GBps"
    good = "B1,ASUS ESC8000A,CE copy,write,2 flows same chip diff GPU,100,53.5"
    bad = [good.replace("53.5", value) for value in ("0", "-5", "inf", "1e-300", "abc")]
    (tmp_path / "public_bandwidth.csv").write_text("\n".join([head, good, good.replace("53.5", ""), *bad]) + "\n")
    _, bandwidth, problems = read(tmp_path)
    assert (len(bandwidth), len(problems)) == (2, len(bad))
    assert all(f"line {number}" in text for number, text in enumerate(problems, 4))


def test_nothing_to_predict_is_an_error() -> None:
    with pytest.raises(InvalidError, match="the tables are empty"):
        validate([], [])
    with pytest.raises(InvalidError, match="no row can be predicted"):
        validate(
            [row(1024, 7.0, wiring="unknown-4gpu")], [Bandwidth("B", "m", "CE copy", "write", "1 PIX", 50, math.nan)]
        )


def test_an_installed_package_finds_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel they lie inside the package, in a checkout beside the documents."""
    assert published.folder() == TABLES
    package = tmp_path / "collbench"
    (package / "contention").mkdir(parents=True)
    shutil.copytree(TABLES, package / "published")
    monkeypatch.setattr(published, "__file__", str(package / "contention" / "published.py"))
    assert published.folder() == package / "published"
    assert published.read(published.folder())[0]


def test_the_wheel_holds_the_tables_where_they_are_looked_for(root: Path) -> None:
    built = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert built["wheel"]["force-include"]["docs/model/data"] == "collbench/published"
    assert "/docs" in built["sdist"]["include"]  # from which wheels are built too


def test_without_a_folder_the_command_takes_the_tables_that_come_with_it(
    collbench: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done, named = collbench("validate"), collbench("validate", str(TABLES))

    assert (done.returncode, done.stdout) == (0, named.stdout)
    assert "Kendall's tau" in done.stdout
