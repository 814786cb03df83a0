"""b12x: small all-reduces for sm_12x on PCIe, as its dispatch chooses and its parts by themselves. Read in b12x 1.5.1.

collbench has run them on no GPU. What they send was read in their sources, and in what nvidia-cutlass-dsl 4.8.0 makes
of them for sm_120a: a message is copied into shared memory of its own rank, a flag is raised behind a fence, and peers
read the copy; two such buffers take turns, so that no second barrier is needed. Its plain all-reduce pushes at two
ranks alone, in CUDA graphs; B12X_PCIE_ONESHOT_PUSH=1 concerns the one that is fused with RMSNorm. That one has another
kernel for eight ranks and rows of 4096 or 6144 elements, two to eight of them: no rows here (`epilogues.HIDDEN`).
"""

from dataclasses import replace
from functools import partial

from collbench.algorithms.base import Foreign
from collbench.algorithms.epilogues import RESIDUAL_RMSNORM, hidden_size
from collbench.algorithms.known_system import (
    Check,
    at_least,
    is_assumed,
    needs_arch,
    needs_bytes,
    needs_p2p,
    needs_package,
    needs_ranks,
    one_host,
    sharing_unsaid,
)
from collbench.algorithms.library_modules import B12X
from collbench.algorithms.library_system import Way, library
from collbench.contention.traffic import Move, Schedule, one_stage, two_stage
from collbench.results.records import Call, Mode, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "shape_of"]

_REFERENCE = "https://github.com/local-inference-lab/b12x"
_SOURCE = "b12x 1.5.1 comm/pcie and preparation"
_REPORTS = "b12x 1.5.1 comm/pcie; sglang pull request 32479, local-inference-lab/vllm pull request 333, b12x issue 281"
_READ = "1.5.1"
_MOST_BYTES = 8 << 20  # pcie_oneshot.DEFAULT_MAX_SIZE
_RANKS = (2, 4, 6, 8)
_ABOVE = (9, 10, 12, 16)  # pcie_hierarchical.SUPPORTED_WORLD_SIZES
_TORCH = (2, 12)
_DSL = (4, 8, 0)

_PUSH_HIDDEN, _PUSH_ROWS = 4096, 512
"""Rows that its push of two ranks takes: TP2_PLAIN_REMOTE_PUSH_HIDDEN_SIZE and ..._MAX_ROWS of pcie_oneshot."""

_AT_ONCE = 4
"""Ranks whose copies a thread of the pull reads in one turn, as it is compiled for 2, 4, 6 and 8 ranks."""

_FUSED_ROWS = 36
"""Most rows of its fused kernel: a block for each, all of them resident."""

_FLAGGED = "flag in every 8 bytes"
_PLAIN_PUSH, _FUSED_PUSH, _OWNERS = (
    "B12X_PCIE_TP2_PLAIN_REMOTE_PUSH", "B12X_PCIE_ONESHOT_PUSH", "B12X_PCIE_TP8_OWNER_REDUCE",
)  # fmt: skip


def _push_rows(call: Call) -> int:
    """Rows of 4096 that a message is for the push of two ranks; 0 where it has to be pulled."""
    if call.world_size != 2 or call.itemsize != 2 or call.epilogue:  # noqa: PLR2004 - TP2, 16-bit floats
        return 0
    rows, rest = divmod(call.count, _PUSH_HIDDEN)
    return rows if not rest and rows <= _PUSH_ROWS else 0


def shape_of(call: Call) -> tuple[int, ...]:
    """How a message is given to b12x: in rows where it asks for them, else flat."""
    if call.epilogue:
        return (call.count // hidden_size(call), hidden_size(call))
    rows = _push_rows(call)
    return (rows, _PUSH_HIDDEN) if rows else (call.count,)


def _ranks(machine: Machine, call: Call) -> Support | None:
    if call.world_size not in _ABOVE:
        return needs_ranks("b12x", _RANKS, _SOURCE)(machine, call)
    reason = f"b12x joins islands of up to four GPUs at {call.world_size} ranks, which collbench does not start"
    return Support.no(reason, "start up to 8 ranks", "b12x 1.5.1 comm/pcie/pcie_hierarchical.py")


def _torch(machine: Machine, call: Call) -> Support | None:
    del call
    if at_least(machine, "torch", _TORCH) is not False:
        return None
    reason = f"b12x asks for torch 2.12 or later, and this is {machine.software['torch']}"
    return Support.no(reason, "install torch 2.12 or later, built for CUDA", "b12x 1.5.1 METADATA")


def _dsl(machine: Machine, call: Call) -> Support | None:
    """The compiler that its kernels are written for: its package pins one release."""
    del call
    remedy, pinned = "pip install nvidia-cutlass-dsl==4.8.0", "b12x 1.5.1 METADATA"
    told = machine.software.get("cutlass-dsl", "")
    if not told:
        reason = "b12x compiles its kernels with nvidia-cutlass-dsl, which is not installed"
        return None if is_assumed(machine) else Support.no(reason, remedy, pinned)
    if machine.version("cutlass-dsl") == _DSL:
        return None
    return Support.unknown(f"b12x 1.5.1 pins nvidia-cutlass-dsl 4.8.0, and {told} is installed", remedy, pinned)


def _one_order(machine: Machine, call: Call) -> Support | None:
    """Each rank begins a sum with its own message: in float32 that rounds differently, which no two ranks may."""
    del machine
    if call.dtype != "float32" or call.world_size == 2:  # noqa: PLR2004 - two terms have one sum
        return None
    reason = "each rank of b12x sums from its own message on: in float32 ranks end with different bits"
    return Support.no(reason, "use bfloat16 or float16, whose sums it takes in float32", "b12x 1.5.1 _oneshot_cute.py")


def _rows(machine: Machine, call: Call) -> Support | None:
    del machine
    rows = call.count // hidden_size(call) if call.epilogue else 0
    if rows <= _FUSED_ROWS:
        return None
    reason = f"{rows} rows: b12x fuses RMSNorm with up to {_FUSED_ROWS}"
    return Support.no(reason, "leave these to the plain all-reduce", _SOURCE)


def _pushes(machine: Machine, call: Call) -> Support | None:
    del machine
    if _push_rows(call):
        return None
    reason = (
        f"b12x pulls here: its plain all-reduce pushes at 2 ranks only, 1 to {_PUSH_ROWS} rows of {_PUSH_HIDDEN} "
        f"16-bit floats, in CUDA graphs; {_FUSED_PUSH}=1 concerns its fused one"
    )
    return Support.no(reason, "2 ranks and multiples of 8192 bytes, or b12x_fused_push with its epilogue", _SOURCE)


def _fuses(machine: Machine, call: Call) -> Support | None:
    del machine
    if call.epilogue:
        return None
    reason = f"{_FUSED_PUSH}=1 changes b12x's fused all-reduce only"
    return Support.no(reason, f"--epilogue {RESIDUAL_RMSNORM}", _SOURCE)


def _shares(machine: Machine, call: Call) -> Support | None:
    del machine
    share = 4 * 16  # a vector of 16 bytes for each rank
    if call.bytes % share == 0:
        return None
    reason = f"{call.bytes} bytes: b12x's two-shot takes multiples of {share} bytes"
    return Support.no(reason, "pad it", "b12x 1.5.1 pcie_twoshot_bf16.py")


def _fine(machine: Machine, call: Call) -> Support:
    """Nothing stands against it, and nobody here has seen it run."""
    del call
    told = machine.software.get("b12x", "")
    here = f", and {told} is installed" if told and told != _READ else ""
    reason = f"collbench has run it on no GPU: its calls were read in b12x {_READ}{here}; others report it on sm_120"
    return Support.unknown(reason, "a sweep tries it, and verifies every output", _REPORTS)


def _pulled(call: Call, topology: Topology) -> Schedule:
    """A copy into the rank's own buffer, a flag to each peer behind a fence, and every peer's copy read; no end.

    A thread has four or five ranks' copies on their way at once, so that six and eight ranks take two turns. Own reads
    that wait for one another: the epoch, where the buffer lies, the input, the flag's counter, where peers' are.
    """
    del topology
    found = one_stage(call, Move.PULL, protocol="barriers")
    turns = 1 if call.world_size <= _AT_ONCE else 2
    return replace(found, phases=tuple(replace(phase, turns=turns) for phase in found.phases), own_reads=5)


def _flagged(call: Call, topology: Topology) -> Schedule:
    """To the other rank's buffer, 8 bytes of every 16 and the epoch beside them, as NCCL's LL sends."""
    del topology
    return replace(one_stage(call, Move.PUSH, wire_factor=2.0, protocol=_FLAGGED), own_reads=2)


def _dispatched(call: Call, topology: Topology) -> Schedule:
    """What a captured call sends; an eager one is always pulled."""
    return (_flagged if _push_rows(call) else _pulled)(call, topology)


def _fused_push(call: Call, topology: Topology) -> Schedule:
    """Into a part of every peer's buffer, then flags behind a fence; what came is summed where it lies."""
    del topology
    return replace(one_stage(call, Move.PUSH, protocol="barriers"), own_reads=5)


def _pulled_twice(call: Call, topology: Topology) -> Schedule:
    """Behind a copy and a barrier its share of all messages at once, behind another the sums in turn: one kernel."""
    del topology
    return replace(two_stage(call, Move.PULL, turns=max(call.world_size - 1, 1), protocol="barriers"), own_reads=3)


_GPU: tuple[Check, ...] = (
    sharing_unsaid("b12x", _SOURCE), needs_arch("b12x", (12,), "use an algorithm for other GPUs", _SOURCE),
)  # fmt: skip
_HOST: tuple[Check, ...] = (
    one_host, needs_p2p, needs_package("b12x", "pip install b12x, with torch 2.12 or later"), _torch, _dsl,
)  # fmt: skip
_CALL: tuple[Check, ...] = (_ranks, needs_bytes("b12x", _MOST_BYTES, 16, _SOURCE), _one_order, _rows)
_CHECKS = (*_GPU, *_CALL, *_HOST)
_TWO_SHOT = (*_GPU, needs_ranks("b12x's two-shot", (4,), _SOURCE), _shares, *_HOST)
_RUNNER = "collbench.algorithms.b12x_runner"
_way = partial(Way, foreign=Foreign(B12X))
_library = partial(library, family="b12x")

ALGORITHMS = (
    _library(
        "b12x_all_reduce", "b12x's AllReduce as its dispatch chooses: pull; at 2 ranks in graphs push of rows of 4096",
        _REFERENCE, _CHECKS, _fine, _dispatched, way=_way(f"{_RUNNER}:AllReduce", epilogues=(RESIDUAL_RMSNORM,)),
    ),
    _library(
        "b12x_oneshot_pull", "stage the input, a flag on a line of its own behind a fence, pull; no end barrier",
        _REFERENCE, _CHECKS, _fine, _pulled,
        way=_way(f"{_RUNNER}:OneshotPull", epilogues=(RESIDUAL_RMSNORM,), environment={_PLAIN_PUSH: "0", _OWNERS: "0"}),
    ),
    replace(
        _library(
            "b12x_oneshot_push", "push to the other of 2 ranks with a flag in every 8 bytes", _REFERENCE,
            (*_GPU, _pushes, *_CALL, *_HOST), _fine, _flagged,
            way=_way(f"{_RUNNER}:OneshotPush", dtypes=("bfloat16", "float16"), environment={_PLAIN_PUSH: "1"}),
        ),
        modes=(Mode.GRAPH,),
    ),
    _library(
        "b12x_fused_push", f"the all-reduce that RMSNorm is fused with, {_FUSED_PUSH}=1: push to all, flags behind it",
        _REFERENCE, (*_GPU, _fuses, *_CALL, *_HOST), _fine, _fused_push,
        way=_way(f"{_RUNNER}:FusedPush", epilogues=(RESIDUAL_RMSNORM,), environment={_FUSED_PUSH: "1", _OWNERS: "0"}),
    ),
    _library(
        "b12x_twoshot_bf16", "PCIeTwoShotBF16 of 4 ranks: pull a share, then the sums, rounded once", _REFERENCE,
        _TWO_SHOT, _fine, _pulled_twice, way=_way(f"{_RUNNER}:TwoShot", dtypes=("bfloat16",)),
    ),
)  # fmt: skip
"""Its all-reduces, by its own classes."""
