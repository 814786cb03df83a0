"""Detectors: each finds its state at the published figures, not on healthy ones, and says when nothing was tested."""

from pathlib import Path

import pytest

from collbench.contention.findings import told
from collbench.contention.regimes import CANNOT, REGIMES, Evidence, Finding, State, detect, entry_skew
from collbench.results.probes import Probe, append_probe
from collbench.results.records import Fabric, Samples, Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run
from collbench.topology import catalog
from collbench.topology.graph import Topology


def bandwidth(mechanism: str, pattern: str, value: float, *flows: tuple[int, int]) -> Probe:
    src, dst = flows[0] if len(flows) == 1 else (-1, -1)
    return Probe(f"bandwidth.{mechanism}", pattern, src, dst, flows, 1 << 20, value, "GB/s")


def box() -> Topology:
    return catalog.load(catalog.find("two-flat-gen5-switches"))


def find(regime: str, *probes: Probe, fabric: Fabric = Fabric.PCIE, topology: Topology | None = None) -> Finding:
    evidence = Evidence(probes, topology or box(), fabric)
    return next(one for one in detect(evidence) if one.regime == regime)


FOUR = tuple((a, b) for a in range(4) for b in range(4) if a != b)

CASES = [
    # published: 4 x RTX PRO 6000 without the driver's key 1.45 GB/s by loads; 42.8 with it
    ("staging through system memory", 0.2, lambda bad: [
        bandwidth("copy", "solo", 54.0, (0, 1)), bandwidth("load", "solo", 1.45 if bad else 42.8, (0, 1))]),
    # published: 2.7 GB/s to two roots, 40.3 to one (ASUS); 56.4 where there is none
    ("posted-write collapse", 0.5, lambda bad: [
        bandwidth("store", "2_below_one_root", 40.3, (0, 4), (1, 5)),
        bandwidth("store", "2_below_two_roots", 2.7 if bad else 40.0, (0, 4), (1, 6))]),
    # published: 12.0 GB/s into each of 4 GPUs (WRX90), 34.7 (ASUS)
    ("read fan-in", 0.4, lambda bad: [
        bandwidth("load", "solo", 42.8, (0, 1)),
        bandwidth("load", "all_to_all_4", 4 * (12.0 if bad else 25.0), *FOUR)]),
    # published: 50 GB/s both ways with ACS redirection, 103 without
    ("ACS redirect", 0.65, lambda bad: [
        bandwidth("copy", "solo", 53.5, (0, 1)),
        bandwidth("copy", "both_ways", 50.0 if bad else 103.0, (0, 1), (1, 0))]),
    # published: uplinks set to Gen2 carry 7.0 GB/s
    ("downtrained link", 0.8, lambda bad: [bandwidth("copy", "solo", 7.0 if bad else 53.4, (0, 4))]),
]  # fmt: skip


@pytest.mark.parametrize(("regime", "threshold", "probes"), CASES)
def test_published_figures_are_told_apart(regime: str, threshold: float, probes: object) -> None:
    """The degraded figure is found and has a remedy, the healthy one is not."""
    assert callable(probes)
    sick, well = find(regime, *probes(True)), find(regime, *probes(False))
    assert (sick.state, well.state) == (State.PRESENT, State.ABSENT)
    assert sick.value is not None
    assert sick.value < threshold == sick.threshold
    assert sick.remedy
    assert sick.evidence
    assert not well.remedy


def test_two_ranks_show_no_fan_in() -> None:
    """Seen on two H200: loads of both at once are a pair both ways, and say nothing of reads from several peers."""
    both = ((0, 1), (1, 0))
    one = find("read fan-in", bandwidth("load", "solo", 338.5, (0, 1)), bandwidth("load", "all_to_all", 617.6, *both))
    assert (one.state, one.value) == (State.UNTESTED, None)
    assert one.evidence.startswith(CANNOT)


@pytest.mark.parametrize("regime", [case[0] for case in CASES])
def test_nothing_measured_is_untested(regime: str) -> None:
    finding = find(regime)
    assert (finding.state, finding.value) == (State.UNTESTED, None)
    assert finding.evidence
    assert finding.threshold == REGIMES[regime].threshold, "what would count is said before anything is measured"


def test_findings_as_lines_for_people() -> None:
    """States that are there come first, with figure, threshold and remedy; untested ones stand together by reason."""
    sick = CASES[0][2](True)  # type: ignore[no-untyped-call]  # a table of lambdas
    lines = told(detect(Evidence(sick, box())))
    head, text = lines[0]
    assert head == "present"
    for part in ("staging through system memory", "1.4 GB/s by loads", "0.027", "ratio below 0.2", "ForceP2P"):
        assert part in text
    assert len([head for head, _ in lines if head == "untested"]) < len(REGIMES) - 1
    names = ", ".join(text for _, text in lines)
    assert all(name in names for name in REGIMES)


def test_one_noisy_cell_is_no_state_of_the_fabric() -> None:
    late = Samples("late", 0, Status.OK, latency_us=((100.0,), (10.0,)))
    even = [Samples(f"even{i}", 0, Status.OK, latency_us=((10.0,), (10.0,))) for i in range(4)]
    found = {one.regime: one for one in detect(Evidence(topology=box(), samples=[late, *even]))}
    assert found["entry skew"].state is State.ABSENT
    assert "late 90%" in found["entry skew"].evidence


def test_a_run_folder_is_evidence(tmp_path: Path) -> None:
    """Its probes, samples and logs; what is damaged is told and leaves its tests untested."""
    with RunFolder.open(synthetic_run(tmp_path / "run").path) as folder:
        append_probe(folder.path, bandwidth("copy", "solo", 54.0, (0, 1)))
        whole = Evidence.of_run(folder)
        assert (len(whole.probes), whole.fabric, whole.problems) == (1, Fabric.HOST, [])
        assert len(whole.samples) == len(folder.run.cells)
        (folder.path / "probes.jsonl").write_text("{")
        (folder.path / "samples.jsonl").write_text("no JSON\n" * 2)
        (folder.path / "samples.parquet").unlink()
        torn = Evidence.of_run(folder)
    assert (torn.probes, torn.samples) == ([], [])
    assert len(torn.problems) == 2


def test_a_failed_probe_is_no_number() -> None:
    hung = Probe("bandwidth.load", "solo", 0, 1, ((0, 1),), unit="GB/s", status=Status.HUNG, reason="waited")
    assert find("staging through system memory", bandwidth("copy", "solo", 54.0, (0, 1)), hung).state is State.UNTESTED


@pytest.mark.parametrize("fabric", [Fabric.HOST, Fabric.SHARED_GPU])
def test_links_are_not_judged_where_there_are_none(fabric: Fabric) -> None:
    probes = CASES[0][2](True)  # type: ignore[no-untyped-call]  # a table of lambdas
    finding = find("staging through system memory", *probes, fabric=fabric)
    assert finding.state is State.UNTESTED
    assert str(fabric) in finding.evidence


def test_transports_in_the_log() -> None:
    for pairs, state in (("0->1 P2P/CUMEM; 1->0 SHM/direct/direct", State.PRESENT), ("0->1 P2P/IPC", State.ABSENT)):
        evidence = Evidence(topology=box(), texts={("cell", 0): {"pairs": pairs}})
        finding = next(one for one in detect(evidence) if one.regime.startswith("NCCL"))
        assert finding.state is state


@pytest.mark.parametrize(("texts", "state", "where"), [
    ([{"pcie_generation_now": "1", "pcie_width_now": "16"}, {"pcie_generation_now": "5", "pcie_width_now": "16"}],
     State.ABSENT, "Gen5 x16 under load"),
    ([{"pcie_generation_now": "5", "pcie_width_now": "16", "pcie_width_now@3": "4"}],
     State.PRESENT, "rank 3: Gen5 x4 under load, Gen5 x16 at best"),
    ([{"pcie_generation_now": "?", "pcie_width_now": "16"}], State.UNTESTED, "no link seen"),
])  # fmt: skip
def test_links_that_a_sweep_saw_under_load(texts: list[dict[str, str]], state: State, where: str) -> None:
    """Without a probe: the best state of each rank's link counts, since a link may rest in one cell."""
    evidence = Evidence(topology=box(), texts=dict(enumerate(texts)))
    finding = next(one for one in detect(evidence) if one.regime == "downtrained link")
    assert finding.state is state
    assert where in finding.evidence


def test_skew_and_wrong_results_of_a_run() -> None:
    """Ranks that wait for a late one differ; a wrong answer is named whatever its time."""
    late = Samples("a", 0, Status.OK, latency_us=((100.0, 90.0), (10.0, 12.0)))
    wrong = Samples("b", 0, Status.WRONG, "rank 1: 3 is 4")
    found = {one.regime: one for one in detect(Evidence(topology=box(), samples=[late, wrong]))}
    assert found["entry skew"].state is State.PRESENT
    assert found["wrong result"].state is State.PRESENT
    assert "3 is 4" in found["wrong result"].evidence
    even = Samples("a", 0, Status.OK, latency_us=((10.0, 10.5), (10.0, 10.0)))
    well = {one.regime: one.state for one in detect(Evidence(topology=box(), samples=[even]))}
    assert (well["entry skew"], well["wrong result"]) == (State.ABSENT, State.ABSENT)
    assert entry_skew(((0.0,), (0.0,))) == 0.0


def test_order_of_memory_is_judged_by_the_litmus() -> None:
    pair = Probe("litmus_message", "pair", 0, 1, ((0, 1),), 16, 3.0, "violations")
    found = find("memory order", pair, fabric=Fabric.SHARED_GPU)
    assert found.state is State.PRESENT
    assert "rank 0 to 1" in found.evidence
