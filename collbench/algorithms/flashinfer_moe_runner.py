"""Runs FlashInfer's expert-parallel dispatch over NVLink through its own interface. Read in flashinfer-python 0.7.4.

Its dispatch writes each token into the memory of the rank of its expert, in a row that the order of arrival gives. Two
small kernels of torch's behind it put the rows where an all-to-all has them; what they take is evidence.
"""

import contextlib
import math
from typing import Any

from collbench.algorithms.base import Ranks
from collbench.algorithms.cuda_buffers import make_slots, stride_of, wait_event
from collbench.algorithms.library_build import Request, Step
from collbench.algorithms.library_modules import FLASHINFER_COMM, FLASHINFER_MOE
from collbench.algorithms.library_runner import LibraryRunner
from collbench.algorithms.library_uses import Use
from collbench.algorithms.moe_tokens import tokens_of
from collbench.results.records import Call

__all__ = ["USES", "Dispatch"]

_ONE_SIDED = FLASHINFER_MOE.rpartition(".")[0]
_COMMUNICATION, _KERNELS = FLASHINFER_MOE, f"{_ONE_SIDED}.kernels"
USES = (
    Use(_COMMUNICATION, "NVLinkOneSidedAlltoAll.__init__", (), 4),
    Use(_COMMUNICATION, "NVLinkOneSidedAlltoAll.dispatch", ("runtime_max_tokens_per_rank",), 3),
    Use(_COMMUNICATION, "NVLinkOneSidedAlltoAll.destroy", (), 1),
    Use(_COMMUNICATION, "check_round_owner", (), 2),
    Use(f"{_ONE_SIDED}.config", "NVLinkOneSidedConfig", ("comm_backend", "cft", "lamport", "timeout_sec")),
    Use("flashinfer.moe_ep.core.comm.communication", "MoEEpCommParams",
        ("num_experts", "top_k", "max_tokens_per_rank", "hidden_size", "dtype", "invalid_expert_id")),
    Use("flashinfer.moe_ep.core.comm.communication", "MoEEpDispatchResult",
        ("hidden_states", "topk_ids", "topk_weights", "tokens_per_rank")),
    Use("flashinfer.moe_ep.config", "BootstrapConfig", ("world_size", "rank", "process_group")),
    Use("flashinfer.comm.comm_backend", "TorchDistBackend.__init__", ("group",), 1),
    Use("flashinfer.comm.comm_backend", "TorchDistBackend.Split", (), 3),
    Use(_KERNELS, "get_nvlink_one_sided_alltoall_module"),
)  # fmt: skip
"""Everything that is called here."""

_TURNS = 2
"""Workspaces. The call that brings ranks together is of slot 0, like the first timed one behind it: a peer's rows for
the latter may come while the former's are read, and what that leaves in `y` the latter writes again."""

_REPEATS = 20


class Dispatch(LibraryRunner):
    """`NVLinkOneSidedAlltoAll.dispatch`, one expert per token, without the combine that a server runs behind it.

    The package asks for that combine before the next dispatch, since its ranks meet there again: without it a rank
    may write into a peer's rows before the peer has read them. Consecutive slots take turns between two workspaces
    instead, as a rank that has met the others in call i + 1 knows that all have left call i; the question for the
    combine is put aside. Its transports of counted writes and sentinels cannot do without, and stay off.
    """

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self.tokens = tokens_of(call, ranks.rank)
        self._torch: Any = None
        self._turns: list[Any] = []
        self._sent: list[Any] = []
        self._placed: list[Any] = []
        self._ids: Any = None
        self._places: Any = None
        self._rows: Any = None

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        step = Step(f"{_KERNELS}:get_nvlink_one_sided_alltoall_module")
        return Request("FlashInfer", (FLASHINFER_COMM, _COMMUNICATION), USES, (step,))

    def _allocate(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        """`y` has one row behind its end, for what a receive buffer holds beside tokens."""
        made, dtype, device = self.tokens, getattr(torch, self.call.dtype), self.ranks.device
        sent, came = len(made.chosen), made.came
        for rows, into in ((sent, self._sent), (came + 1, self._placed)):
            count = rows * made.width
            room = self.slots * stride_of(count, self.call.itemsize)
            block = torch.zeros(room, dtype=dtype, device=device)
            slots = make_slots(self.slots, count, self.call.itemsize, block)
            into.extend(slot.view(rows, made.width) for slot in slots)
        self._x = [rows.view(-1) for rows in self._sent]
        self._y = [rows[:came].view(-1) for rows in self._placed]
        self._ids = torch.tensor(made.chosen, dtype=torch.int32, device=device).view(sent, 1)
        self._places = torch.tensor(made.places, dtype=torch.int64, device=device)
        self._rows = torch.zeros(self.call.world_size * made.most, dtype=torch.int64, device=device)

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        import flashinfer.moe_ep.backends.split.comm.nvlink_one_sided.communication as theirs

        self._torch = torch
        self._past_attribute(theirs, "check_round_owner", lambda *_: None)
        self._close.callback(self._free)
        for turn in range(_TURNS):
            with _platform_refusals():
                self._turns.append(self._communication(torch, theirs, turn))
        made = self.tokens
        self._notes |= {
            "tokens": f"{len(made.chosen)} x {made.width}",
            "transport": "pushes, then flags behind a fence",
        }
        if self.on_gpu:
            self._notes["rows put in order"] = f"{self._order_us(torch):.1f} us, measured alone"

    def _communication(self, torch: Any, theirs: Any, turn: int) -> Any:  # noqa: ANN401 - the module, their objects
        """One workspace; those of the same layout would be one and the same, so each turn has room for more tokens."""
        from flashinfer.comm.comm_backend import TorchDistBackend
        from flashinfer.moe_ep.backends.split.comm.nvlink_one_sided.config import NVLinkOneSidedConfig
        from flashinfer.moe_ep.config import BootstrapConfig
        from flashinfer.moe_ep.core.comm.communication import MoEEpCommParams

        class Whole(TorchDistBackend):  # type: ignore[misc]  # theirs is not typed here
            """All ranks are of one colour; the original makes a group at every split, and ends none."""

            def Split(self, color: int, key: int) -> Any:  # noqa: N802, ANN401 - their name
                del color, key
                return self

        made, size, rank, group = self.tokens, self.call.world_size, self.ranks.rank, self.group
        parameters = MoEEpCommParams(
            num_experts=made.experts, top_k=1, max_tokens_per_rank=made.most + turn, hidden_size=made.width,
            dtype=getattr(torch, self.call.dtype), invalid_expert_id=made.experts,
        )  # fmt: skip
        config = NVLinkOneSidedConfig(
            comm_backend=Whole(group=group), cft=False, lamport=False,
            timeout_sec=max(1, math.ceil(self.ranks.deadline_s)),
        )  # fmt: skip
        bootstrap = BootstrapConfig(world_size=size, rank=rank, process_group=group)
        return theirs.NVLinkOneSidedAlltoAll(bootstrap, parameters, config)

    def _run(self, i: int) -> None:
        came = self._dispatched(i)
        self._put_in_order(came, i)

    def _dispatched(self, i: int) -> Any:  # noqa: ANN401 - their MoEEpDispatchResult
        return self._turns[i % _TURNS].dispatch(self._sent[i], self._ids, runtime_max_tokens_per_rank=self.tokens.most)

    def _put_in_order(self, came: Any, i: int) -> None:  # noqa: ANN401 - their MoEEpDispatchResult
        """Rows without a token carry the expert that nobody has, whose place is behind the end."""
        self._torch.index_select(self._places, 0, came.topk_ids.view(-1), out=self._rows)
        self._placed[i].index_copy_(0, self._rows, came.hidden_states)

    def _order_us(self, torch: Any) -> float:  # noqa: ANN401 - the module
        came, (start, end) = self._dispatched(0), (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._put_in_order(came, 0)
        start.record()
        for _ in range(_REPEATS):
            self._put_in_order(came, 0)
        end.record()
        wait_event(end, self.ranks.deadline_s, "the first dispatch")
        return float(start.elapsed_time(end)) * 1000 / _REPEATS

    def _read_kernels(self) -> None:
        """Only the last block of a rank waits for peers, when all its others are through: one has to be resident."""
        super()._read_kernels()
        self.blocks = min(self.blocks, 1)

    def _free(self) -> None:
        turns, self._turns = self._turns, []
        self._sent, self._placed, self._ids, self._places, self._rows = [], [], None, None, None
        self.ranks.barrier()
        while turns:
            turns.pop().destroy()


@contextlib.contextmanager
def _platform_refusals() -> Any:  # noqa: ANN401 - a generator of nothing
    """What the package says of a machine that it does not support makes the cell unsupported, on all ranks alike."""
    try:
        yield
    except RuntimeError as error:
        if "not supported" not in str(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise NotImplementedError(f"FlashInfer: {reason} (it wants NVLink, with every link up)") from error
