"""Gloo's rows: right sums out of place, several hosts, a chain that is short enough."""

from pathlib import Path
from typing import Any

import pytest

from collbench.algorithms.gloo import ALGORITHMS
from collbench.results.records import Call, Collective, Fabric
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

GLOO = ALGORITHMS[0]


def machine(**changes: Any) -> Machine:
    fields: dict[str, Any] = {
        "topology": Topology((), ()), "fabric": Fabric.HOST, "ranks": 8, "software": {"torch": "2.13.0+cpu"},
    }  # fmt: skip
    return Machine(**fields | changes)


@pytest.mark.parametrize("world", [1, 3])
def test_sums_are_right_and_inputs_stay(
    forked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    """Every dtype, an odd count, two slots; the input is not written; torch says that the backend is gloo."""
    torch = pytest.importorskip("torch")
    for name, value in GLOO.environment(machine()).items():
        monkeypatch.setenv(name, value)

    def body(ranks: Any) -> list[Any]:
        found: list[Any] = []
        group = ranks.process_group("gloo")
        ranks.process_group = lambda backend: group if backend == "gloo" else None
        for dtype, size in (("float32", 4), ("float16", 2), ("bfloat16", 2), ("int32", 4)):
            with GLOO.load_runner()(ranks, Call(33 * size, world, dtype=dtype), 2) as runner:
                for slot in (0, 1):
                    x, y = runner.inputs(slot)["x"], runner.outputs(slot)["y"]
                    x.fill_(ranks.rank + 1 + slot)
                    y.fill_(-7)
                for slot in (0, 1):
                    runner.launch(slot)
                for slot in (0, 1):
                    x, y = runner.inputs(slot)["x"], runner.outputs(slot)["y"]
                    want = world * (world + 1) // 2 + world * slot
                    right = y.dtype is getattr(torch, dtype) and y.shape == (33,) and bool((y == want).all())
                    found.append(right and bool((x == ranks.rank + 1 + slot).all()))
                found.append(runner.proof().reason)
        return found

    expected = [True, True, ""] * 4
    outcomes = forked(world, body, store=str(tmp_path / "store"))
    assert [(o.value, o.error) for o in outcomes] == [(expected, "")] * world


def test_a_failed_set_up_is_an_error_and_frees_the_tensors(tmp_path: Path) -> None:
    """Where no process group comes about, entering the runner raises what the group raised."""
    pytest.importorskip("torch")

    class Alone:
        rank = 0
        world_size = 1

        def process_group(self, backend: str) -> None:
            raise TimeoutError(f"nobody came for {backend}")

    runner: Any = GLOO.load_runner()(Alone(), Call(64, 1), 4)  # type: ignore[arg-type]  # it needs no more
    with pytest.raises(TimeoutError, match="nobody came for gloo"):
        runner.__enter__()
    assert (runner._x, runner._y) == ([], [])


def test_support() -> None:
    """One host or several; not without torch, not for what is not set up, and never with an exception."""
    assert GLOO.support(machine(), Call(1024, 8))
    assert GLOO.support(machine(hosts=2), Call(1024, 16))
    missing = GLOO.support(machine(software={}), Call(1024, 8))
    assert (bool(missing), missing.reason) == (False, "torch is not installed")
    assert "collbench[sweep]" in missing.remedy
    for call in (
        Call(1024, 8, Collective.ALL_TO_ALL), Call(1024, 8, op="max"), Call(1024, 8, dtype="float64"),
        Call(1023, 8, dtype="float32"), Call(1024, 8, epilogue="rms_norm"),
    ):  # fmt: skip
        assert not GLOO.support(machine(), call)
        assert GLOO.support(machine(), call).reason


def test_ranks_of_one_host_use_the_loopback_and_others_the_network() -> None:
    """The interface is fixed only where all ranks are on one host."""
    assert GLOO.environment(machine()) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert GLOO.environment(machine(hosts=2)) == {}


def test_chains_are_short() -> None:
    """At most 8 calls in a sample: 16 ms each with 8 ranks on 2 cores, which the estimate knows."""
    assert GLOO.max_calls == 8
    assert 4_000 < GLOO.cost_us(Call(1024, 8), machine()) < 64_000
    assert GLOO.cost_us(Call(1024, 2), machine()) < 2_000
    assert GLOO.traffic(Call(1024, 8), Topology((), ())).phases[0].steps == 14
