"""Degraded states in advice: those that were seen are told, those that could be here and were not tested are named."""

from collbench.contention.regimes import REGIMES, Evidence, Finding, State, detect
from collbench.results.records import Fabric
from collbench.topology import catalog
from collbench.workload.states import cautions


def untested(name: str, fabric: Fabric = Fabric.PCIE) -> tuple[str, ...]:
    return cautions(detect(Evidence(topology=catalog.load(catalog.find(name)), fabric=fabric)))


def test_what_is_there_is_told_with_its_figures() -> None:
    sick = Finding(REGIMES["posted-write collapse"], State.PRESENT, "2 store flows: 2.7 GB/s to two roots, 40.3", 0.067)
    well = Finding(REGIMES["read fan-in"], State.ABSENT, "34.7 GB/s", 0.8)
    (text,) = cautions([sick, well])
    assert text.startswith("posted-write collapse: 2 store flows")
    assert "0.067" in text


def test_what_was_not_tested_is_named_where_it_can_be() -> None:
    """A box with two root ports cannot write to two others at once; one with four can."""
    (two,) = untested("two-flat-gen5-switches")
    assert two.startswith("Not tested here: staging through system memory, read fan-in. ")
    (four,) = untested("two-pex890xx-virtual-switches")
    assert "posted-write collapse" in four


def test_ranks_without_links_have_no_such_states() -> None:
    for fabric in (Fabric.HOST, Fabric.SHARED_GPU):
        assert untested("two-pex890xx-virtual-switches", fabric) == ()
