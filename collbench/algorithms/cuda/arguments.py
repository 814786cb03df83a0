"""What a kernel is given: the argument record as the device code lays it out, and what lies in a shared region."""

import ctypes
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from collbench.algorithms.cuda.designs import COLLECTIVES, UNEVEN
from collbench.errors import UsageError
from collbench.results.records import Collective

__all__ = [
    "CONTROL_BYTES", "EMPTY_WORDS", "MAX_BLOCKS", "MAX_RANKS", "Args", "ErrorRecord", "Islands", "Plan", "first_count",
    "halves", "max_threads", "plan", "read_error", "splits_table", "splits_table_at",
]  # fmt: skip

MAX_RANKS = 16
MAX_BLOCKS = 64
"""Blocks that the flags of a control block have room for."""

CONTROL_BYTES = 20 * 1024
"""Control block at the start of every rank's region: epoch, abort word, error record, flags (common.cuh)."""

AT_ERROR = 64
ERROR_BYTES = 64
EMPTY_WORDS = {"bfloat16": 0x80008000, "float16": 0x80008000, "float32": 0x80000000, "int32": 0}
"""Word that stands for "not yet written" in data that announces itself: -0.0, which senders turn into +0.0."""

_EMPTY_FLOAT = 0x80000000
_TABLE_BYTES = 4 * 4 * MAX_RANKS
_PHASES = (
    "", "data of a peer", "the start barrier", "the end barrier", "a peer's staged copy", "a chunk to sum",
    "a summed chunk", "the middle barrier", "a chunk of its group", "a partial sum of another group",
    "a summed chunk of its group", "a partial sum on the ring", "a summed chunk on the ring", "flagged data of a peer",
    "a peer's part", "a peer at the barrier",
)  # fmt: skip


class Args(ctypes.Structure):
    """`struct Args` of common.cuh, field by field."""

    _fields_ = (
        ("base", ctypes.c_uint64 * MAX_RANKS), ("in_", ctypes.c_uint64), ("out", ctypes.c_uint64),
        ("in_offset", ctypes.c_uint64), ("data", ctypes.c_uint64), ("deadline_ns", ctypes.c_uint64),
        ("rank", ctypes.c_uint32), ("bytes", ctypes.c_uint32), ("cap", ctypes.c_uint32),
        ("members", ctypes.c_uint32), ("owners_mask", ctypes.c_uint32), ("partners", ctypes.c_uint32),
        ("groups", ctypes.c_uint32), ("owners", ctypes.c_uint32), ("largest", ctypes.c_uint32),
        ("group", ctypes.c_uint8 * MAX_RANKS), ("index", ctypes.c_uint8 * MAX_RANKS),
        ("residual", ctypes.c_uint64), ("weight", ctypes.c_uint64), ("residual_out", ctypes.c_uint64),
        ("hidden", ctypes.c_uint32), ("epsilon", ctypes.c_float),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Islands:
    """Groups of ranks below one switch each, every rank in exactly one.

    Raises:
        UsageError: a rank is missing, stands twice, or a group is empty.
    """

    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = sorted(rank for group in self.groups for rank in group)
        if ranks != list(range(len(ranks))) or not ranks or not all(self.groups):
            raise UsageError(f"islands {self.text!r}: expected every rank once, such as 0,1,2,3;4,5,6,7")

    @classmethod
    def parse(cls, text: str) -> "Islands":
        """Read `0,1,2,3;4,5,6,7`.

        Raises:
            UsageError: not such a list.
        """
        try:
            return cls(tuple(tuple(int(rank) for rank in group.split(",")) for group in text.split(";")))
        except ValueError as error:
            raise UsageError(f"islands {text!r}: expected ranks in groups, such as 0,1,2,3;4,5,6,7") from error

    @property
    def text(self) -> str:
        """Inverse of `parse`."""
        return ";".join(",".join(map(str, group)) for group in self.groups)

    @property
    def owners(self) -> int:
        """Chunks of a message: members of the smallest group."""
        return min(map(len, self.groups))

    @property
    def largest(self) -> int:
        """Members of the largest group."""
        return max(map(len, self.groups))

    def fill(self, args: Args) -> None:
        """Write one rank's view into its arguments (`rank` is set)."""
        for g, group in enumerate(self.groups):
            for x, rank in enumerate(group):
                args.group[rank], args.index[rank] = g, x
        home, me = self.groups[args.group[args.rank]], args.index[args.rank]
        args.members = _mask(home)
        args.owners_mask = _mask(home[: self.owners])
        partners = [group[me] for group in self.groups if me < self.owners]
        args.partners = _mask(rank for rank in partners if rank != args.rank)
        args.groups, args.owners, args.largest = len(self.groups), self.owners, self.largest


def halves(world_size: int) -> Islands:
    """Two groups of neighbours where no topology says more; one group below four ranks."""
    cut = world_size // 2 if world_size >= 4 else world_size  # noqa: PLR2004 - two groups of two
    groups = (tuple(range(cut)), tuple(range(cut, world_size)))
    return Islands(tuple(group for group in groups if group))


@dataclass(frozen=True, slots=True)
class Plan:
    """Protocol buffers of a kernel for messages of up to `message_bytes`, behind the control block.

    `cap` is the slot length that the kernel is told; `fills` lists (offset, bytes, word) to write before all calls.
    """

    kernel: str
    message_bytes: int
    cap: int
    data_bytes: int
    fills: tuple[tuple[int, int, int], ...] = field(default=())

    @property
    def region_bytes(self) -> int:
        """Bytes of the region with its control block, without inputs and outputs; see docs of `plan` for the bound."""
        return CONTROL_BYTES + self.data_bytes


def plan(kernel: str, world_size: int, dtype: str, message_bytes: int, islands: Islands | None = None) -> Plan:
    """Buffers of a kernel. Together with the control block at most 3 x world_size x message + 64 KiB per rank.

    `message_bytes` is the largest message; it is rounded up to 16 bytes. The bound holds for islands of which at most
    one has a single rank; more of those are a one-stage exchange of fp32 and need up to 4 x world_size x message.
    For an all-to-all with splits, `message_bytes` is world_size times the longest part of any pair.
    """
    vectors = -(-message_bytes // 16)
    slot = 16 * -(-vectors // world_size)
    parts = 2 if EMPTY_WORDS[dtype] == EMPTY_WORDS["bfloat16"] else 1
    empty = EMPTY_WORDS[dtype]
    if kernel == UNEVEN:
        units = max(1, -(-message_bytes // world_size // 8))
        return _planned(kernel, message_bytes, units, 1, ((2 * (world_size - 1) * units * 16, 0), (_TABLE_BYTES, 0)))
    if kernel in COLLECTIVES or kernel == "push_flags":
        if COLLECTIVES.get(kernel) is Collective.BARRIER:
            return _planned(kernel, message_bytes, 1, 2, ((MAX_RANKS * 8, 0),))
        part = -(-message_bytes // world_size)
        units = -(-part // 8) if kernel in COLLECTIVES else _flag_units(world_size, message_bytes)
        return _planned(kernel, message_bytes, units, 1, ((2 * (world_size - 1) * units * 16, 0),))
    areas: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {
        "one_stage_pull": (1, ()),
        "one_stage_pull_flag": (2, ((vectors * 16, empty),)),
        "one_stage_pull_data": (4, ((vectors * 16, empty),)),
        "one_stage_pull_kept": (4, ((vectors * 16, empty),)),
        "push": (2, ((world_size * vectors * 16, empty),)),
        "push_fused": (2, ((world_size * vectors * 16, empty),)),
        "two_stage_pull_flag": (1, ((slot, empty),)),
        "two_stage_pull_data": (4, (((world_size + 1) * slot, empty),)),
        "two_stage_push": (2, ((2 * world_size * slot, empty),)),
        "staged_ring": (
            2,
            (((world_size - 1) * parts * slot, _EMPTY_FLOAT), ((world_size - 1) * slot, empty)),
        ),
    }
    if kernel.startswith("islands"):
        groups = islands or halves(world_size)
        slot = 16 * -(-vectors // groups.owners)
        wire = (len(groups.groups) - 1) * parts * slot
        sums = 0 if groups.largest == 1 and kernel == "islands" else groups.owners * slot
        areas[kernel] = (2, (((groups.largest - 1) * slot, empty), (wire, _EMPTY_FLOAT), (sums, empty)))
    sets, parts_of_set = areas[kernel]
    return _planned(kernel, message_bytes, vectors, sets, parts_of_set)


def splits_table(rows: Sequence[Sequence[int]], rank: int, itemsize: int) -> bytes:
    """What `push_all_to_all_uneven` reads: bytes for every rank and their places, bytes from every rank and theirs.

    `rows[a][b]` are the elements that rank a sends to rank b.
    """
    sent, got = list(rows[rank]), [row[rank] for row in rows]
    words = (sent, list(accumulate(sent, initial=0))[:-1], got, list(accumulate(got, initial=0))[:-1])
    return struct.pack(f"<{4 * len(rows)}I", *(count * itemsize for row in words for count in row))


def splits_table_at(made: Plan, world_size: int) -> int:
    """Where the table lies in a rank's region: behind the two sets."""
    return CONTROL_BYTES + 2 * (world_size - 1) * made.cap * 16


def max_threads(world_size: int) -> int:
    """Most threads of a block that the kernels are compiled for (MAX_THREADS of common.cuh)."""
    return 512 if world_size <= 8 else 256  # noqa: PLR2004 - as in common.cuh


def first_count(epoch: int) -> int:
    """Word that makes `epoch` the next call's: the low 16 bits count blocks of the present call."""
    return (epoch & (1 << 48) - 1) << 16


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Who waited for whom when a deadline expired in a kernel."""

    rank: int
    missing: tuple[int, ...]
    phase: str
    epoch: int
    block: int
    thread: int
    index: int
    waited_s: float

    def __str__(self) -> str:
        """One line for a cell's reason."""
        peers = ", ".join(map(str, self.missing))
        return (
            f"rank {self.rank} waited {self.waited_s:.2f} s for {self.phase} from rank {peers} "
            f"(call {self.epoch}, block {self.block}, thread {self.thread}, place {self.index})"
        )


def read_error(control: bytes) -> ErrorRecord | None:
    """The error record in a control block's first 128 bytes; None if no wait of this rank expired."""
    words = [int.from_bytes(control[at : at + 4], "little") for at in range(AT_ERROR, AT_ERROR + ERROR_BYTES, 4)]
    if words[0] == 0:
        return None
    missing = tuple(k for k in range(MAX_RANKS) if words[3] >> k & 1)
    phase = _PHASES[words[1]] if words[1] < len(_PHASES) else f"phase {words[1]}"
    epoch, waited = words[8] | words[9] << 32, words[10] | words[11] << 32
    return ErrorRecord(words[2], missing, phase, epoch, words[4], words[5], words[6], waited / 1e9)


def _mask(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in ranks)


def _flag_units(world_size: int, message_bytes: int) -> int:
    """Slot length of `push_flags`: the whole message if it fits the bound, else what three rounds need."""
    units = -(-message_bytes // 8)
    whole = CONTROL_BYTES + 2 * (world_size - 1) * units * 16
    return units if whole <= 3 * world_size * message_bytes + 65536 else -(-units // 3)


def _planned(kernel: str, message_bytes: int, cap: int, sets: int, areas: tuple[tuple[int, int], ...]) -> Plan:
    fills: list[tuple[int, int, int]] = []
    at = 0
    for _ in range(sets):
        for size, word in areas:
            fills.append((CONTROL_BYTES + at, size, word))
            at += size
    return Plan(kernel, message_bytes, cap, at, tuple(fills))
