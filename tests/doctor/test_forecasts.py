"""What the doctor says of a machine of which only the topology is known."""

import contextlib
import io
import json
import shlex

import pytest

from collbench.algorithms.predictions import Forecast
from collbench.cli import main
from collbench.doctor.forecasts import diagnose
from collbench.topology import catalog


def forecast(name: str) -> Forecast:
    return Forecast(catalog.load(catalog.find(name)))


@pytest.mark.parametrize(("name", "why"), [
    ("cube-mesh-8xv100", "it does not know machines of fabric mixed"),
    ("two-arc-b70", "no compute capability is known of these GPUs"),
])  # fmt: skip
def test_where_it_cannot_be_asked_it_says_why_and_knows_of_our_kernels_only(name: str, why: str) -> None:
    asked = forecast(name)
    found = diagnose(asked)
    own = [one.name for one in asked.algorithms if one.family == "own"]
    assert why in found.asked
    assert (found.rows, found.reasons, found.command) == ((), {}, "")
    assert found.verdicts == ({} if "b70" in name else dict.fromkeys(own, "does_not_run"))


def test_every_predicted_algorithm_has_a_verdict_and_what_is_unknown_a_reason() -> None:
    asked = forecast("two-flat-gen5-switches")
    found = diagnose(asked)
    assert {algorithm.name for algorithm in asked.algorithms} <= set(found.verdicts)
    assert found.verdicts["nccl_ring_ll"] == "runs"
    assert found.verdicts["nccl_ring_ll128"] == "unknown"
    assert all(found.reasons[name] for name, verdict in found.verdicts.items() if verdict == "unknown")


def test_the_command_asks_the_same() -> None:
    """Its options are the doctor's own, and its verdicts those of the forecast."""
    found, out = diagnose(forecast("direct-4x4090-no-p2p")), io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*shlex.split(found.command)[1:], "--json"]) == 0
    told = {row["algorithm"]: row["verdict"] for row in json.loads(out.getvalue())["rows"]}
    assert found.command.startswith("collbench doctor --for sm_89 --gpus 4 --fabric pcie --p2p off --torch ")
    assert {name: told[name] for name in found.verdicts} == dict(found.verdicts)
