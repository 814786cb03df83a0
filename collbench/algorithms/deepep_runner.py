"""Runs DeepEP's dispatch inside a host through its own interface. Read in sgl-deep-ep 0.1.2.post1: DeepEP 2.1.0.

Its intranode kernels bring tokens rank by rank, in the order in which each rank gave them: with one expert per rank and
one choice per token that is `y` of an all-to-all, without anything behind it.
"""

import itertools
from typing import Any

from collbench.algorithms.base import Ranks
from collbench.algorithms.cuda_buffers import make_slots, stride_of
from collbench.algorithms.library_build import Request
from collbench.algorithms.library_modules import DEEPEP
from collbench.algorithms.library_runner import LibraryRunner
from collbench.algorithms.library_uses import Use
from collbench.algorithms.moe_tokens import width_of
from collbench.algorithms.shapes import rows_of
from collbench.results.records import Call

__all__ = ["USES", "IntranodeDispatch"]

_LEGACY = "deep_ep.buffers.legacy"
USES = (
    Use(_LEGACY, "Buffer.__init__", ("group", "num_nvl_bytes", "explicitly_destroy"), 1),
    Use(_LEGACY, "Buffer.get_dispatch_config", (), 1),
    Use(_LEGACY, "Buffer.dispatch",
        ("x", "handle", "num_tokens_per_rank", "is_token_in_rank", "num_tokens_per_expert", "config"), 1),
    Use(_LEGACY, "Buffer.destroy", (), 1),
)  # fmt: skip
"""Everything that is called here and written in Python."""

_SOURCE_INDEX = 3
"""Where the handle of a dispatch has, for every row that came, its number at its sender."""


class IntranodeDispatch(LibraryRunner):
    """`Buffer.dispatch` with the handle of a first dispatch, as a server's later layers call it: no count is exchanged.

    It returns a tensor of its own: outputs are what it returned last, so that nothing is copied.
    """

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        self._width = width_of(call)
        self._counts = [[part // self._width for part in row] for row in rows_of(call)]
        self._tokens: list[Any] = []
        self._buffer: Any = None
        self._handle: Any = None
        self._config: Any = None

    def request(self) -> Request:
        """See `LibraryRunner.request`."""
        return Request("DeepEP", DEEPEP, USES)

    def _allocate(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        me, width, dtype = self.ranks.rank, self._width, getattr(torch, self.call.dtype)
        for rows, into in ((sum(self._counts[me]), self._x), (sum(row[me] for row in self._counts), self._y)):
            room = self.slots * stride_of(rows * width, self.call.itemsize)
            block = torch.zeros(room, dtype=dtype, device=self.ranks.device)
            into.extend(make_slots(self.slots, rows * width, self.call.itemsize, block))
        self._tokens = [x.view(sum(self._counts[me]), width) for x in self._x]

    def _open(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported lazily
        from deep_ep import Buffer

        size, me, counts = self.call.world_size, self.ranks.rank, self._counts
        self._config = Buffer.get_dispatch_config(size)
        room = int(self._config.get_nvl_buffer_size_hint(self._width * self.call.itemsize, size))
        refused = ""
        try:
            self._buffer = Buffer(self.group, num_nvl_bytes=room, explicitly_destroy=True)
        except AssertionError as error:
            refused = str(error).strip() or "an assertion of its Buffer failed"
        if any(told := self.ranks.exchange(refused)):
            raise NotImplementedError(f"DeepEP: {next(filter(None, told))}")
        self._close.callback(self._free)
        sent = torch.tensor(counts[me], dtype=torch.int32, device=self.ranks.device)
        targets = torch.tensor([k for k, count in enumerate(counts[me]) for _ in range(count)], dtype=torch.int64)
        chosen = targets.view(-1, 1) == torch.arange(size).view(1, -1)
        _, _, _, _, self._handle, _ = self._buffer.dispatch(
            x=self._tokens[0], num_tokens_per_rank=sent, is_token_in_rank=chosen.to(self.ranks.device),
            num_tokens_per_expert=sent, config=self._config,
        )  # fmt: skip
        self._look_at_order()
        self._notes |= {"tokens": f"{sum(counts[me])} x {self._width}", "buffer": f"{room} bytes on each rank"}

    def _look_at_order(self) -> None:
        """Rows have to come rank by rank as they were given: then nothing has to be put in order."""
        me, counts = self.ranks.rank, self._counts
        firsts = [sum(row[:me]) for row in counts]
        parts = (range(first, first + row[me]) for first, row in zip(firsts, counts, strict=True))
        came = self._handle[_SOURCE_INDEX].tolist() == list(itertools.chain(*parts))
        if not all(self.ranks.exchange(came)):
            raise NotImplementedError("DeepEP: rows come in another order than that in which each rank gave them")

    def _run(self, i: int) -> None:
        self._y[i] = self._buffer.dispatch(x=self._tokens[i], handle=self._handle, config=self._config)[0].view(-1)

    def _free(self) -> None:
        self._tokens, self._handle, self._config = [], None, None
        buffer, self._buffer = self._buffer, None
        self.ranks.barrier()
        buffer.destroy()
