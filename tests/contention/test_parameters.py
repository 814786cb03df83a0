"""Parameters say how sure they are and who says so."""

import json

import pytest

from collbench.contention.parameters import Parameter, Parameters, priors
from collbench.errors import InvalidError
from collbench.topology.graph import Link, LinkKind


def link(capacity: float | None = None, latency: float | None = None, source: str = "", generation: int = 5) -> Link:
    return Link("gpu0", "sw0", LinkKind.PCIE, generation, 16, 0, 0, capacity, latency, source)


def test_every_prior_has_a_source_and_a_spread() -> None:
    for name, prior in priors().known.items():
        assert prior.is_prior, name
        assert len(prior.provenance) > len("prior: assumption"), name
        assert 0 < prior.sd <= 1, name


def test_measured_numbers_of_a_topology_are_no_priors() -> None:
    source = "speed reported: somewhere; capacity measured: two copies; latency estimated: by hand"
    capacity = priors().capacity(link(53.0, 0.2, source))
    assert capacity == Parameter(53.0, 0.03, "topology: measured: two copies")
    latency = priors().latency(link(53.0, 0.2, source))
    assert latency.is_prior
    assert latency.provenance == "prior: topology: estimated: by hand"


def test_a_source_that_speaks_of_all_numbers_counts_for_each() -> None:
    assert not priors().latency(link(latency=0.2, source="measured: ping-pong")).is_prior


def test_a_link_without_numbers_takes_those_of_its_class() -> None:
    assert priors().capacity(link()) == priors()["capacity.pcie5x16"]
    assert priors().latency(link()) == priors()["latency.pcie"]
    assert priors().capacity(link(generation=0)) is None


def test_a_probed_link_overrules_the_topology() -> None:
    probed = priors().replaced({"capacity.gpu0->sw0": Parameter(41.0, 0.01, "probe: solo copy")})
    assert probed.capacity(link(53.0, source="measured: there")) == Parameter(41.0, 0.01, "probe: solo copy")
    assert priors().get("capacity.gpu0->sw0") is None


def test_parameters_survive_json() -> None:
    assert Parameters.from_dict(json.loads(json.dumps(priors().as_dict()))) == priors()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_values_that_are_none(value: float) -> None:
    with pytest.raises(InvalidError, match="no finite number above zero"):
        Parameter(value, 0.1, "probe: broken")


def test_a_spread_that_is_none() -> None:
    with pytest.raises(InvalidError, match="spread nan"):
        Parameter(1.0, float("nan"), "probe: broken")


@pytest.mark.parametrize("data", [{"x": {}}, {"x": {"value": "a", "sd": 1, "provenance": ""}}, {"x": 3}, []])
def test_data_that_are_no_parameters(data: object) -> None:
    with pytest.raises(InvalidError, match="parameters"):
        Parameters.from_dict(data)  # type: ignore[arg-type]  # what a damaged file holds


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(InvalidError, match="no parameter 'warp'"):
        priors()["warp"]
