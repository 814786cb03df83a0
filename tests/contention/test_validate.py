"""Accuracy is measured on rows that were not fitted, beside baselines, and every row left out is counted."""

import math
from pathlib import Path

import pytest

from collbench.contention import validate as validating
from collbench.contention.published import Bandwidth, Latency, nccl_choice, nccl_table_us, read
from collbench.contention.validate import Outcome, Score, Split, flows_of, split_file, validate
from collbench.errors import InvalidError, UsageError
from collbench.results.records import Mode
from collbench.topology import catalog
from collbench.topology.classes import class_topology

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "docs" / "model" / "data"


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
        if s.regime == "all" and s.model == "model" and not s.split.startswith("other dense rows")
    )  # fmt: skip
    assert scored + sum(outcome.left_out.values()) == len(latency) + len(bandwidth)
    by_size = [s for s in outcome.scores if s.table.startswith("latency") and s.model == "model"]
    assert sum(s.n for s in by_size if s.regime == "all") == sum(s.n for s in by_size if s.regime != "all")


def test_the_model_beats_the_busiest_link_everywhere(outcome: Outcome) -> None:
    for table in ("latency, one- and two-stage", "latency, NCCL"):
        for split in Split:
            assert score(outcome, table, split).median < score(outcome, table, split, "busiest link").median


def test_sparse_bandwidth_from_the_solo_row(outcome: Outcome) -> None:
    """Nothing is fitted: routes and fair shares explain published flows that run together within some percent."""
    found = score(outcome, "bandwidth, sparse", "only the solo row known")
    assert found.n >= 30
    assert found.median < 0.05
    assert found.p90 < 0.12
    assert found.p90 < score(outcome, "bandwidth, sparse", "only the solo row known", "busiest link").p90


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
    assert counts == {Split.IN_SAMPLE: 4, Split.SIZES: 2, Split.EXTRAPOLATED: 3}
    extrapolated = score(found, "latency, one- and two-stage", Split.EXTRAPOLATED)
    assert extrapolated.median < 0.02, "times that are a line in bytes are met beyond the fitted sizes"


def test_a_fit_does_not_see_held_out_rows() -> None:
    """Ten times the time of every held-out row changes no factor."""
    rows = [row(1 << k, 6.0 + (1 << k) / 3000, system="8 GPUs, root+leaf board") for k in range(10, 19)]
    spoilt = [
        row(r.bytes, r.time_us * (10 if i >= 6 or i % 3 == 1 else 1), system=r.system) for i, r in enumerate(rows)
    ]
    one, two = (
        [
            validating._fit_curve(validating._predicted(some, validating.Counter()))  # type: ignore[attr-defined]
        ]
        for some in (rows, spoilt)
    )
    assert one == two


@pytest.mark.parametrize(
    ("text", "count"), [("0>4 1>5", 2), ("shift 3", 8), ("all 4", 12), ("all 8", 56), ("cross", 16)]
)
def test_patterns(text: str, count: int) -> None:
    flows = flows_of(text)
    assert len(set(flows)) == count
    assert all(a != b for a, b in flows)


def test_the_shift_test_of_two_flat_switches() -> None:
    """Of 8 flows, k cross each way and share the uplink; the others run at the port's rate."""
    topology = catalog.load(catalog.find("two-flat-gen5-switches"))
    for k, expected in ((1, 8 * 50.6), (2, 8 * 37.95), (3, 8 * 25.3), (4, 8 * 12.65)):
        total, _ = validating._total(topology, flows_of(f"shift {k}"), 50.6)
        assert total == pytest.approx(expected, rel=1e-6)


def test_rows_of_the_split_file_name_machines_that_exist() -> None:
    for rule in split_file()["bandwidth"]:
        assert catalog.load(catalog.find(rule["topology"])).gpus
    for rule in split_file()["pattern"]:
        assert flows_of(rule["flows"])


def test_nccls_own_table() -> None:
    """Floors of tuning.cc: ring LL on PCIe 12.6 us with 4 ranks, 20.6 with 8; LL at small sizes, Simple at large."""
    four = class_topology("1switch-4gpu", 5, 4)
    eight = class_topology("1sock-2switch-flat(4gpu/sw)", 5, 8)
    assert four is not None
    assert eight is not None
    assert nccl_table_us(four, 4, 1, "ring", "LL") == pytest.approx(12.6, abs=0.01)
    assert nccl_table_us(eight, 8, 1, "ring", "LL") == pytest.approx(20.6, abs=0.01)
    assert nccl_choice(eight, row(1024, 1.0))[1] == "LL"
    assert nccl_choice(eight, row(64 << 20, 1.0)) == ("ring", "Simple")
    assert nccl_choice(eight, row(1024, 1.0, variant="ring no XML (2 ch, Simple, type SYS)")) == ("ring", "Simple")


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


def test_nothing_to_predict_is_an_error() -> None:
    with pytest.raises(InvalidError, match="no row can be predicted"):
        validate(
            [row(1024, 7.0, wiring="unknown-4gpu")], [Bandwidth("B", "m", "CE copy", "write", "1 PIX", 50, math.nan)]
        )
