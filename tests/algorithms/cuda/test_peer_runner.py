"""What a peer's kernel is told: layout of the region, table of inputs, record, grids; and how a runner leaves."""

import itertools
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.algorithms import flashinfer_runner, vllm_runner
from collbench.algorithms.base import Algorithm, registry
from collbench.algorithms.cuda import chain_time, peer_runner
from collbench.algorithms.cuda.peer_library import MAX_RANKS, Built
from collbench.algorithms.cuda.peer_runner import AT_WORKSPACE, PeerRunner, fill_setup, grids, input_table, plan_layout
from collbench.algorithms.cuda.tuning import Launch
from collbench.algorithms.vllm import RANKS
from collbench.results.records import Call

PEERS = [
    a
    for a in registry().values()
    if a.runner.startswith((f"{flashinfer_runner.__name__}:", f"{vllm_runner.__name__}:"))
]


@given(st.integers(0, 1 << 20), st.sampled_from([0, 64]), st.integers(16, 1 << 20), st.integers(1, 122))
def test_nothing_overlaps(workspace: int, entry: int, size: int, slots: int) -> None:
    """Page of the region, work space, table, inputs and outputs follow each other, each aligned to 256 bytes."""
    layout = plan_layout(workspace, entry, size, slots)
    assert layout.table >= AT_WORKSPACE + workspace
    assert layout.inputs >= layout.table + entry * slots
    assert layout.stride >= size
    assert layout.outputs >= layout.inputs + (slots - 1) * layout.stride + size
    assert layout.end >= layout.outputs + (slots - 1) * layout.stride + size
    assert all(at % 256 == 0 for at in (layout.table, layout.inputs, layout.outputs, layout.stride))


def test_the_table_names_every_ranks_input() -> None:
    """Row i holds where each rank's input of slot i is mapped here, in rank order, filled up with zeros."""
    layout, bases = plan_layout(1000, 64, 1024, 3), [0x10_0000_0000, 0x20_0000_0000]
    table = input_table(bases, layout, 3)
    assert len(table) == 3 * 8 * MAX_RANKS
    row = struct.unpack_from("<8Q", table, 2 * 8 * MAX_RANKS)
    assert row == tuple(base + layout.inputs + 2 * layout.stride for base in bases) + (0,) * 6


def test_the_record_points_into_the_own_region() -> None:
    """Work spaces of all ranks; input, output and table of this one."""
    layout, bases = plan_layout(1000, 64, 1024, 3), [1 << 32, 2 << 32, 3 << 32]
    setup = fill_setup(bases, layout, 1, 512, 36)
    assert list(setup.slab) == [base + AT_WORKSPACE for base in bases] + [0] * 5
    assert (setup.table, setup.input, setup.output) == tuple(
        (2 << 32) + at for at in (layout.table, layout.inputs, layout.outputs)
    )
    assert (setup.rank, setup.count, setup.stride, setup.max_blocks) == (1, 512, layout.stride, 36)


def test_grids_are_what_the_kernel_takes() -> None:
    """Blocks are rounded up to the multiple, each grid stands once, none has more blocks than admitted."""
    found = grids([Launch("", 1, 64), Launch("", 3, 64), Launch("", 9, 64)], 4, 8)
    assert found == [Launch("", 4, 64)]


@pytest.mark.parametrize("algorithm", PEERS, ids=lambda a: a.name)
def test_every_world_size_has_a_kernel_and_a_grid(algorithm: Algorithm) -> None:
    """What the record admits the runner knows: a kernel, its usual grid within its limits, and work for its threads."""
    kind: Any = algorithm.load_runner()
    ranks_known = getattr(kind, "by_ranks", RANKS)
    for ranks, size in itertools.product(ranks_known, (128, 14336, 8 << 20)):
        runner = kind(FakeRanks(ranks), Call(size, ranks), 1)
        usual = runner.usual()
        assert runner.kernels()
        assert runner.items() >= 1
        assert 1 <= usual.blocks <= runner.max_blocks
        assert ranks <= usual.threads <= runner.max_threads


def test_records_and_runners_know_the_same_world_sizes() -> None:
    """A world size that a record admits is one that its runner has a kernel for."""
    for algorithm in PEERS:
        if algorithm.family == "flashinfer":
            assert set(algorithm.support.args[0]) == set(algorithm.load_runner().by_ranks)  # type: ignore[attr-defined]


def test_only_sentinels_lose_the_sign_of_zero() -> None:
    """Ranks of vLLM hold the same bits, zeros too."""
    assert not vllm_runner.OneStage.unsigned_zeros
    assert flashinfer_runner.Push.unsigned_zeros


class FakeRanks:
    """One rank whose peers have said `others`."""

    rank, local_rank, device, deadline_s = 0, 0, "cuda:0", 1.0

    def __init__(self, world_size: int, others: tuple[Any, ...] = ()) -> None:
        self.world_size = self.local_world_size = world_size
        self.others = others

    def exchange(self, value: Any) -> list[Any]:
        return [value, *self.others]

    def barrier(self) -> None:
        return None

    def process_group(self, backend: str) -> Any:
        raise NotImplementedError(backend)


FAKE_TORCH = SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda _device: (9, 0)))


def compiled(monkeypatch: pytest.MonkeyPatch, made: Callable[[], Built], *others: dict[str, str]) -> PeerRunner:
    monkeypatch.setattr(peer_runner, "build", lambda _wrapper: made())
    monkeypatch.setattr(peer_runner, "load", lambda _built: object())
    runner = vllm_runner.OneStage(FakeRanks(2, others), Call(1024, 2), 1)
    runner._compile(FAKE_TORCH)
    return runner


def test_all_ranks_give_up_when_one_cannot_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nobody launches a kernel that would wait for a rank without one; other sources count as none."""
    good = Built(tmp_path / "x.so", 2.5, "13.0", "abc")
    same = {"error": "", "made": "abc"}
    assert compiled(monkeypatch, lambda: good, same)._notes["compiled"] == "nvcc 13.0, 2.5 s"
    with pytest.raises(NotImplementedError, match="rank 1: nvcc was not found"):
        compiled(monkeypatch, lambda: good, {"error": "nvcc was not found", "made": ""})
    with pytest.raises(NotImplementedError, match="different files"):
        compiled(monkeypatch, lambda: good, {"error": "", "made": "def"})

    def refused() -> Built:
        raise NotImplementedError("nvcc refused it")

    with pytest.raises(NotImplementedError, match="rank 0: nvcc refused it"):
        compiled(monkeypatch, refused, same)


@pytest.mark.parametrize("hangs", [False, True])
def test_memory_is_freed_unless_a_kernel_still_waits(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:  # noqa: FBT001 - pytest's
    """Freeing waits for the device: behind a kernel that never ends it would wait for ever."""

    def drain(_deadline_s: float, _what: str) -> None:
        if hangs:
            raise TimeoutError("the last calls did not end")

    monkeypatch.setattr(chain_time, "drain", drain)
    freed: list[bool] = []
    runner = vllm_runner.OneStage(FakeRanks(2), Call(1024, 2), 1)
    runner._close.callback(freed.append, True)
    runner.__exit__(None, None, None)
    assert freed == ([] if hangs else [True])
