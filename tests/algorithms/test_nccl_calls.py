"""More of NCCL through ctypes: groups, windows, settings per call, estimates; with a library made up for two ranks."""

import contextlib
import ctypes
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.algorithms import nccl_runner
from collbench.algorithms.nccl_calls import SINCE, CollConfig, NcclCalls, SimInfo, missing
from collbench.algorithms.nccl_exchange_runner import AllToAll, SendRecv
from collbench.algorithms.nccl_library import NcclLibrary
from collbench.algorithms.nccl_log import Choice
from collbench.algorithms.nccl_per_call_runner import PerCallTreeLL
from collbench.algorithms.nccl_symmetric_runner import Symmetric, judge_symmetric
from collbench.algorithms.routing import Skew
from collbench.measure.verify import Check
from collbench.results.records import Call, Collective

SIZES = {2: 4, 6: 2, 7: 4, 9: 2}  # ncclDataType_t


class Function:
    """A C function with attributes, like those of ctypes."""

    restype: Any = None

    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)


class Hub:
    """A libnccl for several ranks of one process, told apart by their communicators (100 + rank).

    Messages are delivered when sender and receiver have both named them, as a group's would be.
    """

    def __init__(self, version: int = 23203, lacks: tuple[str, ...] = (), estimate: float = 20.5) -> None:
        self.version, self.estimate = version, estimate
        self.sent: dict[tuple[int, int], list[bytes]] = {}
        self.wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.memory: dict[int, Any] = {}
        self.windows: list[int] = []
        self.depth, self.refuses, self.log = 0, "", list[str]()
        for name in (
            "ncclGetErrorString", "ncclGetLastError", "ncclGetVersion", "ncclAllReduce", "ncclGroupStart",
            "ncclGroupEnd", "ncclGroupSimulateEnd", "ncclSend", "ncclRecv", "ncclAlltoAll", "ncclAllReduceConfig",
            "ncclMemAlloc", "ncclMemFree", "ncclCommWindowRegister", "ncclCommWindowDeregister",
        ):  # fmt: skip
            if name not in lacks:
                setattr(self, name, Function(self._named(name)))

    def _named(self, name: str) -> Any:
        def run(*arguments: Any) -> Any:
            self.log.append(name)
            if name == self.refuses:
                return 5
            return getattr(self, f"_{name[4:].lower()}", lambda *_: 0)(*arguments)

        return run

    def _geterrorstring(self, _code: Any) -> bytes:
        return b"invalid usage"

    def _getlasterror(self, _comm: Any) -> bytes:
        return b"said so"

    def _getversion(self, out: Any) -> None:
        out._obj.value = self.version

    def _groupstart(self) -> int:
        self.depth += 1
        return 0

    def _groupend(self) -> int:
        self.depth -= 1
        return 0

    def _groupsimulateend(self, info: Any) -> int:
        self.depth -= 1
        assert (info._obj.size, info._obj.magic) == (ctypes.sizeof(SimInfo), 0x74685283)
        info._obj.estimated_time = self.estimate
        return 0

    def _allreduce(self, x: Any, y: Any, count: Any, dtype: Any, _op: Any, _comm: Any, _stream: Any) -> int:
        ctypes.memmove(y.value, x.value, count.value * SIZES[dtype.value])
        return 0

    def _allreduceconfig(self, *arguments: Any) -> int:
        self.config = arguments[-1]._obj
        return self._allreduce(*arguments[:-1])

    def _send(self, address: Any, count: Any, dtype: Any, peer: Any, comm: Any, _stream: Any) -> int:
        data = ctypes.string_at(address.value, count.value * SIZES[dtype.value])
        self.sent.setdefault((comm.value - 100, peer.value), []).append(data)
        self._deliver(comm.value - 100, peer.value)
        return 0

    def _recv(self, address: Any, count: Any, dtype: Any, peer: Any, comm: Any, _stream: Any) -> int:
        size = count.value * SIZES[dtype.value]
        self.wanted.setdefault((peer.value, comm.value - 100), []).append((address.value, size))
        self._deliver(peer.value, comm.value - 100)
        return 0

    def _deliver(self, source: int, target: int) -> None:
        sent, wanted = self.sent.get((source, target), []), self.wanted.get((source, target), [])
        while sent and wanted:
            data, (address, size) = sent.pop(0), wanted.pop(0)
            assert len(data) == size
            ctypes.memmove(address, data, size)

    def _alltoall(self, x: Any, y: Any, count: Any, dtype: Any, comm: Any, stream: Any) -> int:
        step = count.value * SIZES[dtype.value]
        for peer in (0, 1):
            rank = ctypes.c_int(peer)
            self._send(ctypes.c_void_p(x.value + peer * step), count, dtype, rank, comm, stream)
            self._recv(ctypes.c_void_p(y.value + peer * step), count, dtype, rank, comm, stream)
        return 0

    def _memalloc(self, out: Any, size: Any) -> int:
        if size.value > 1 << 30:
            return 1
        block = ctypes.create_string_buffer(size.value)
        out._obj.value = ctypes.addressof(block)
        self.memory[ctypes.addressof(block)] = block
        return 0

    def _memfree(self, address: Any) -> int:
        del self.memory[address.value]
        return 0

    def _commwindowregister(self, _comm: Any, address: Any, size: Any, out: Any, flags: Any) -> int:
        assert (size.value % 4096, flags.value) == (0, 1)
        self.windows.append(address.value)
        out._obj.value = address.value
        return 0

    def _commwindowderegister(self, _comm: Any, window: Any) -> int:
        self.windows.remove(window.value)
        return 0


class Ranks:
    """One of two ranks in this process; what it exchanges comes back from both."""

    world_size = local_world_size = 2
    device, deadline_s = "cpu", 1.0

    def __init__(self, rank: int = 0) -> None:
        self.rank = self.local_rank = rank

    def exchange(self, value: Any) -> list[Any]:
        return [value, value]

    def barrier(self) -> None:
        pass

    def process_group(self, backend: str) -> Any:
        assert backend == "nccl"
        return SimpleNamespace(_get_backend=lambda _device: SimpleNamespace(_comm_ptr=lambda: 100 + self.rank))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    made = Hub()
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, query=lambda: True))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_words: tensor)
    monkeypatch.setattr(NcclLibrary, "loaded", classmethod(lambda cls: cls("fake", made)))
    monkeypatch.setattr(nccl_runner, "capture_kernels", lambda _launch: ())
    monkeypatch.setattr(nccl_runner, "_log", [])
    monkeypatch.setattr(
        "collbench.algorithms.nccl_symmetric_runner.tensor_at",
        lambda torch, address, call, count, _device: torch.frombuffer(
            made.memory[address], dtype=getattr(torch, call.dtype), count=count
        ),
    )
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "")
    return made


@contextlib.contextmanager
def both(kind: Any, call: Call, slots: int) -> Iterator[list[Any]]:
    with kind(Ranks(0), call, slots) as first, kind(Ranks(1), call, slots) as second:
        yield [first, second]


EVEN = Call(64, 2, Collective.ALL_TO_ALL, "", "float32")


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (SendRecv, EVEN), (AllToAll, EVEN),
        (SendRecv, Call(64, 2, Collective.ALL_TO_ALL, "", "bfloat16", (3, 5, 0, 8))),
        (SendRecv, Call(64, 2, Collective.ALL_TO_ALL, "", "int32", (0, 0, 16, 0))),
        (SendRecv, Skew.parse("dispatch:1").call(4096, 2, "float16")),
    ],
)  # fmt: skip
def test_all_to_alls_bring_every_part_to_its_place(hub: Hub, kind: Any, call: Call) -> None:
    """Verified as a sweep verifies it; empty parts are neither sent nor waited for."""
    with both(kind, call, 2) as runners:
        hub.sent.clear()
        hub.wanted.clear()
        checks = [Check(runner, call, rank, seed=3) for rank, runner in enumerate(runners)]
        for turn in range(2):
            for check in checks:
                check.prepare(2, turn, exact=True)
            for slot in range(2):
                for runner in runners:
                    runner.launch(slot)
            assert [check.judge().reason for check in checks] == ["", ""]
        assert hub.depth == 0
        assert runners[0].proof().reason == ""
        # what is simulated stays queued in some releases: a send would then be made twice
        assert "ncclGroupSimulateEnd" not in hub.log
    assert not any(hub.sent.values())


def test_a_refused_send_ends_the_group(hub: Hub) -> None:
    """A group that stays open would swallow every later call of the process."""
    hub.refuses = "ncclRecv"
    with pytest.raises(RuntimeError, match="ncclRecv: invalid usage; said so"):
        SendRecv(Ranks(), EVEN, 1).__enter__()
    assert hub.depth == 0


def test_what_the_library_lacks_is_named_with_its_release(hub: Hub) -> None:
    delattr(hub, "ncclAlltoAll")
    hub.version = 22705
    with pytest.raises(NotImplementedError, match=r"NCCL 2\.27\.5 has no ncclAlltoAll, which came with 2\.28"):
        AllToAll(Ranks(), EVEN, 1).__enter__()


def test_windows_are_registered_used_and_given_back(hub: Hub) -> None:
    call = Call(1024, 2, dtype="float32")
    with Symmetric(Ranks(), call, 3) as runner:
        assert len(hub.windows) == 2
        runner.inputs(2)["x"].fill_(5)
        runner.launch(2)
        assert runner.outputs(2)["y"].tolist() == [5.0] * 256
        assert "symmetric windows" in runner.proof().evidence["call"]
    assert (hub.windows, hub.memory) == ([], {})


def test_windows_are_given_back_after_an_error(hub: Hub) -> None:
    hub.refuses = "ncclCommWindowRegister"
    runner = Symmetric(Ranks(), Call(1024, 2, dtype="float32"), 1)
    with pytest.raises(NotImplementedError, match="ncclCommWindowRegister: invalid usage"):
        runner.__enter__()
    runner.__exit__(None, None, None)
    assert (hub.windows, hub.memory) == ([], {})


def test_a_window_that_is_none_is_unsupported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases that cannot make one say success and give nothing."""
    monkeypatch.setattr(hub, "_commwindowregister", lambda *_: 0, raising=False)
    with pytest.raises(NotImplementedError, match="registered no symmetric window"):
        Symmetric(Ranks(), Call(1024, 2, dtype="float32"), 1).__enter__()


def test_no_memory_says_how_much_was_asked_for(hub: Hub) -> None:
    with pytest.raises(MemoryError, match=r"ncclMemAlloc: 2147483648 bytes asked for: invalid usage"):
        Symmetric(Ranks(), Call(1 << 30, 2, dtype="float32"), 2).__enter__()


@pytest.mark.parametrize(
    ("choice", "kernels", "reason"),
    [
        (Choice("symmetric AllReduce_AGxLL_R", ""), [], ""),
        (None, ["ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16"], ""),
        (None, ["_Z43ncclSymDevKernel_AllReduce_AGxLL_R_sum_bf1614ncclSymDevArgs"], ""),
        (Choice("Ring", "LL"), ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"], "NCCL ran Ring/LL instead"),
        (None, ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"], "NCCL ran ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        (None, [], "an unknown kernel"),
    ],
)
def test_only_a_symmetric_kernel_is_one(choice: Choice | None, kernels: list[str], reason: str) -> None:
    """Registered windows do not mean that NCCL uses its symmetric kernels: the log or the kernel's name must say so."""
    told = judge_symmetric(choice, kernels)
    assert reason in told if reason else not told


def test_the_algorithm_of_one_call(hub: Hub) -> None:
    """The selection must be followed: NCCL may not choose something else in silence."""
    with PerCallTreeLL(Ranks(), Call(64, 2, dtype="float32"), 1) as runner:
        runner.launch(0)
        assert hub.config.selection == b"TREE_LL"
        assert (hub.config.force_selection, hub.config.version) == (1, 23203)
        assert hub.config.size == ctypes.sizeof(CollConfig)


def test_settings_of_one_call_have_the_size_of_their_release() -> None:
    """Bytes of ncclCollConfig_t of 2.32.3 and 2.31.2, and where the selection stands in it, as a C compiler sees it."""
    assert CollConfig.selecting("RING_LL", (2, 32, 3)).size == 72
    assert CollConfig.selecting("RING_LL", (2, 31, 2)).size == 64


def test_nccls_own_estimate_is_in_the_evidence(hub: Hub) -> None:
    with nccl_runner.Auto(Ranks(), Call(64, 2, dtype="float32"), 1) as runner:
        assert runner.proof().evidence["nccl_estimate_us"] == "20.500"
    assert hub.depth == 0


def test_no_estimate_is_no_fault(hub: Hub) -> None:
    hub.estimate = -1.0
    with nccl_runner.Auto(Ranks(), Call(64, 2, dtype="float32"), 1) as runner:
        assert "nccl_estimate_us" not in runner.proof().evidence
    old = NcclLibrary("fake", Hub(22109, lacks=("ncclGroupSimulateEnd",)))
    assert NcclCalls(old).estimate_us(lambda: None) is None


def test_a_simulated_group_is_ended_when_the_call_is_refused(hub: Hub) -> None:
    calls = NcclCalls(NcclLibrary("fake", hub))

    def refuse() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        calls.estimate_us(refuse)
    assert hub.depth == 0


def _installed() -> list[str]:
    """libnccl.so.2 of installed wheels."""
    found = []
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            files = importlib.metadata.files(name) or ()
            found += [str(Path(str(f.locate()))) for f in files if f.name == "libnccl.so.2"]
    return found


def test_an_installed_library_has_what_its_version_promises() -> None:
    """An entry point that moves is noticed by name. The library loads without a GPU."""
    paths = _installed()
    if not paths:
        pytest.skip("no nvidia-nccl wheel is installed")
    for path in paths:
        library = NcclLibrary(path)
        for name, since in SINCE.items():
            assert (not missing(library, (name,))) == (library.version >= since), name


@pytest.mark.gpu
def test_every_way_through_nccl_on_real_gpus() -> None:
    """On two GPUs the sweep is the test: every row is right, or says why it does not run."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("fewer than two CUDA devices")
    base = [sys.executable, "-m", "collbench", "sweep", "--nproc", "2", "-n", "20", "--calls", "1,8", "--json"]
    calls = (
        ["--algorithms", "nccl_symmetric,nccl_per_call_ring_ll,nccl_per_call_tree_ll,nccl_auto", "--sizes", "14336"],
        ["--algorithms", "coalesced", "--sizes", "14336"],
        ["--collective", "all_to_all", "--skew", "even,dispatch:1,combine:1", "--algorithms", "expert,own", "--sizes",
         "57344"],
    )  # fmt: skip
    for words in calls:
        done = subprocess.run([*base, *words], capture_output=True, text=True, timeout=300, check=True)
        rows = json.loads(done.stdout)["rows"]
        assert {row["status"] for row in rows} <= {"ok", "unsupported"}, [r for r in rows if r["status"] == "wrong"]
        assert any(row["status"] == "ok" for row in rows)
        assert all(row["reason"] for row in rows if row["status"] == "unsupported")
