"""Runs other people's kernels: their work space, our slots and their table of inputs in one shared region per rank."""

import contextlib
import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from collbench.algorithms.base import Proof, Ranks
from collbench.algorithms.cuda import chain_time
from collbench.algorithms.cuda.driver import DriverError
from collbench.algorithms.cuda.memory import SharedRegion
from collbench.algorithms.cuda.peer_library import MAX_RANKS, Built, Setup, Wrapper, build, load
from collbench.algorithms.cuda.tuning import Choice, Launch, best, candidates
from collbench.algorithms.cuda_buffers import ALIGNMENT
from collbench.algorithms.foreign_runner import ForeignRunner
from collbench.algorithms.kernel_nodes import KernelNode, capture_kernels
from collbench.results.records import Call

__all__ = ["Layout", "PeerRunner", "fill_setup", "grids", "input_table", "plan_layout"]

AT_WORKSPACE = 4096
"""Their work space begins behind the page of `SharedRegion` that says who has left."""

_SLOW_US = 500.0  # a call this slow at first says that the ranks' kernels do not run together: nothing to tune
_ADDRESS = struct.Struct(f"<{MAX_RANKS}Q")


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in a region, in bytes, and the distance from slot to slot."""

    table: int
    inputs: int
    outputs: int
    end: int
    stride: int


def plan_layout(workspace: int, table_entry: int, size_bytes: int, slots: int) -> Layout:
    """Where everything stands behind `AT_WORKSPACE`; every part and every slot is aligned to 256 bytes."""

    def up(size: int) -> int:
        return -(-size // ALIGNMENT) * ALIGNMENT

    stride, table = up(size_bytes), up(AT_WORKSPACE + workspace)
    inputs = table + up(table_entry * slots)
    outputs = inputs + slots * stride
    return Layout(table, inputs, outputs, outputs + slots * stride, stride)


def input_table(bases: Sequence[int], layout: Layout, slots: int) -> bytes:
    """Eight addresses per slot, one for each rank's input; those behind the last rank are 0."""
    absent = [0] * (MAX_RANKS - len(bases))
    rows = ([base + layout.inputs + i * layout.stride for base in bases] + absent for i in range(slots))
    return b"".join(_ADDRESS.pack(*row) for row in rows)


def fill_setup(bases: Sequence[int], layout: Layout, rank: int, count: int, max_blocks: int) -> Setup:
    """What is the same for every launch of this rank; kernel and grid are set when they are chosen."""
    own, setup = bases[rank], Setup(rank=rank, count=count, max_blocks=max_blocks, stride=layout.stride)
    setup.slab[: len(bases)] = [base + AT_WORKSPACE for base in bases]
    setup.table, setup.input, setup.output = own + layout.table, own + layout.inputs, own + layout.outputs
    return setup


def grids(launches: Sequence[Launch], multiple: int, most_blocks: int) -> list[Launch]:
    """Launches with their blocks rounded up to a multiple, each once, without those of more blocks than admitted."""
    rounded = [Launch(g.kernel, -(-g.blocks // multiple) * multiple, g.threads) for g in launches]
    return [g for g in dict.fromkeys(rounded) if g.blocks <= most_blocks]


class PeerRunner(ForeignRunner):
    """One kernel of somebody else's on one rank, or the fastest of a few. Subclasses say which."""

    source: ClassVar[str]
    """The wrapper that is compiled."""
    header: ClassVar[str]
    """The header that it includes."""
    max_blocks: ClassVar[int]
    max_threads: ClassVar[int]
    multiple = 1
    """What the number of blocks must be a multiple of."""

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._library: Any = None
        self._setup = Setup()
        self._pointer: Any = None
        self._stream: Any = None
        self._nodes: dict[tuple[str, int], KernelNode] = {}
        self._choice = Choice(Launch("", 0, 0))

    def kernels(self) -> Mapping[str, tuple[int, str]]:
        """Kernels among which the tuning chooses: their number in the wrapper, and what their symbol contains."""
        raise NotImplementedError

    def items(self) -> int:
        """Vectors of 16 bytes that the threads of one launch share."""
        return self.call.bytes // 16

    def usual(self) -> Launch:
        """The grid that the package itself takes for this call, tried beside ours; kernel left empty."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        import torch

        with contextlib.ExitStack() as stack:
            self._close = stack
            torch.cuda.set_device(self.ranks.device)
            torch.empty(1, device=self.ranks.device)  # makes the context
            index = torch.cuda.current_device()
            self._stream = lambda: torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001 - ten times cheaper than the public call
            self._compile(torch)
            self._open(torch)
            self._choice = self._choose(torch)
            self._use(self._choice.launch)
            self._close = stack.pop_all()
        return self

    def _drain(self, what: str) -> None:
        chain_time.drain(self.ranks.deadline_s, what)

    def launch(self, i: int) -> None:
        """See `Runner.launch`."""
        code = self._library.peer_launch(self._pointer, i, self._stream())
        if code:
            raise DriverError(f"launch of slot {i}: {self._library.peer_error(code).decode('ascii', 'replace')}")

    def proof(self) -> Proof:
        """The kernel that a launch enqueues, read from a captured one, and what it was compiled from."""
        launch, (_, symbol) = self._choice.launch, self.kernels()[self._choice.launch.kernel]
        node = self._nodes.get((launch.kernel, launch.threads))
        grid = f"{launch.text}{f': {node.text}' if node else ''}"
        evidence = {"kernel": grid, **self._notes}
        if self._choice.tried:
            evidence["tuning"] = self._choice.evidence
        if node is not None and symbol not in node.name:
            return Proof(f"{node.name} was launched, not {symbol}", evidence)
        return Proof("", evidence)

    # --- compiling and memory ---------------------------------------------------------------------------------------

    def _compile(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        """Compile on every rank (the first one does, the others wait and load), and agree before memory is shared."""
        major, minor = torch.cuda.get_device_capability(self.ranks.device)
        wrapper = Wrapper(self.source, self.header, self.call.world_size, self.call.dtype, f"sm_{major}{minor}")
        told, built = {"error": "", "made": ""}, None
        try:
            built = build(wrapper)
            self._library = load(built)
            told["made"] = built.header_sha256
        except (NotImplementedError, TimeoutError, OSError, RuntimeError) as error:
            told["error"] = str(error)
        everyone = self.ranks.exchange(told)
        for rank, entry in enumerate(everyone):
            if entry["error"]:
                raise NotImplementedError(f"rank {rank}: {entry['error']}")
        if built is None or len({entry["made"] for entry in everyone}) != 1:
            raise NotImplementedError(f"the ranks found different files {self.header}")
        self._note(built)

    def _note(self, built: Built) -> None:
        self._notes["source"] = f"{self.header} sha256:{built.header_sha256[:16]}"
        self._notes["compiled"] = f"nvcc {built.nvcc}, " + (
            f"{built.seconds:.1f} s" if built.seconds else "taken from the cache"
        )

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        workspace = self._library.peer_workspace_bytes(self.call.count, self.max_blocks)
        entry = self._library.peer_table_bytes()
        if workspace < 0 or entry not in {0, _ADDRESS.size}:
            raise NotImplementedError(f"{self.header}: another layout than the one that collbench knows")
        layout = plan_layout(workspace, entry, self.call.bytes, self.slots)
        region = self._close.enter_context(SharedRegion(self.ranks, layout.end))
        rank = self.ranks.rank
        if entry:
            region.write(layout.table, input_table(region.bases, layout, self.slots))
        self._setup = fill_setup(region.bases, layout, rank, self.call.count, self.max_blocks)
        self._pointer = ctypes.byref(self._setup)
        at = [region.bases[rank] + layout.inputs + i * layout.stride for i in range(2 * self.slots)]
        tensors = [_tensor(torch, address, self.call, self.ranks.device) for address in at]
        self._x, self._y = tensors[: self.slots], tensors[self.slots :]
        self._notes["shared_bytes"] = f"{workspace} and {2 * self.slots} slots of {layout.stride}"
        self._drain("setting up")
        self.ranks.barrier()

    # --- grid -------------------------------------------------------------------------------------------------------

    def _choose(self, torch: Any) -> Choice:  # noqa: ANN401 - the module, imported lazily
        uuid = str(torch.cuda.get_device_properties(self.ranks.device).uuid)
        sharing = self.ranks.exchange(uuid).count(uuid)
        processors = int(torch.cuda.get_device_properties(self.ranks.device).multi_processor_count)
        room = processors // sharing
        launches = [launch for kernel in self.kernels() for launch in self._candidates(kernel, room)]
        if not launches:
            raise NotImplementedError(f"not one block of each of {sharing} ranks fits on this GPU together")
        self._use(launches[0])
        first = chain_time.eager_us(self.launch, self.ranks.deadline_s)
        if max(self.ranks.exchange(first)) > _SLOW_US:
            self._notes["tuning"] = f"skipped: a call took more than {_SLOW_US:g} us"
            return Choice(launches[0])
        return best(launches, self._graph_us, self.ranks.exchange)

    def _candidates(self, kernel: str, room: int) -> list[Launch]:
        def most(threads: int) -> int:
            fit = max(1, self._node(kernel, threads).blocks_per_sm)  # their launch bounds promise one
            return min(self.max_blocks, fit * room) // self.multiple * self.multiple

        ours = candidates(self.items(), most, self.max_threads, self.call.world_size)
        found = grids([self.usual(), *ours], self.multiple, self.max_blocks)
        return [Launch(kernel, g.blocks, g.threads) for g in found if 0 < g.blocks <= most(g.threads)]

    def _node(self, kernel: str, threads: int) -> KernelNode:
        """The kernel as the driver knows it: captured, never run. Also loads it before any rank waits for another."""
        if (kernel, threads) not in self._nodes:
            self._set(Launch(kernel, self.multiple, threads))
            nodes = capture_kernels(lambda: self.launch(0))
            if len(nodes) != 1:
                raise NotImplementedError(f"{self.header}: a call enqueues {len(nodes)} kernels instead of one")
            self._nodes[kernel, threads] = nodes[0]
        return self._nodes[kernel, threads]

    def _graph_us(self, launch: Launch) -> float:
        self._use(launch)
        return chain_time.graph_us(self.launch, self.slots, self.ranks.barrier, self.ranks.deadline_s)

    def _use(self, launch: Launch) -> None:
        """Take a grid, when no rank runs anything."""
        self._drain("the calls before")
        self.ranks.barrier()
        self._set(launch)
        self.blocks, self.threads = launch.blocks, launch.threads
        self.blocks_per_sm = self._nodes[launch.kernel, launch.threads].blocks_per_sm

    def _set(self, launch: Launch) -> None:
        self._setup.kernel = self.kernels()[launch.kernel][0]
        self._setup.blocks, self._setup.threads = launch.blocks, launch.threads


class _Pointer:
    """Device memory as torch takes it from others, without a copy."""

    def __init__(self, address: int, count: int, code: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": code, "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip


def _tensor(torch: Any, address: int, call: Call, device: str) -> Any:  # noqa: ANN401 - torch objects
    words = torch.as_tensor(_Pointer(address, call.count, {2: "<i2", 4: "<i4"}[call.itemsize]), device=device)
    return words.view(getattr(torch, call.dtype))
