"""Runs torch's device-side all-to-all over NVSHMEM: `torch.ops.symm_mem.all_to_all_vdev`."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from collbench.algorithms.base import Proof, Ranks, Runner
from collbench.algorithms.cuda_buffers import wait_event
from collbench.algorithms.shapes import rows_of
from collbench.results.records import Call

__all__ = ["AllToAllVdev"]

_TURNS = 2


class AllToAllVdev(Runner):
    """Splits lie on the device and are exchanged in the call, which is what makes it fit for routing without a host.

    Every slot is a symmetric tensor of its own, as long as the longest buffer of any rank. Calls take turns between
    two tensors of splits: in torch's source a call ends, without a barrier, by writing where its peers write at the
    start of the next (source offsets, `exchangeSplitAndOffset` and `allToAllV`), so that one tensor for consecutive
    calls moves wrong data now and then. A rank that has met the others in call i + 1 knows that all have left call i.
    """

    def __init__(self, ranks: Ranks, call: Call, slots: int) -> None:
        super().__init__(ranks, call, slots)
        rows = rows_of(call)
        self._sent = list(rows[ranks.rank])
        self._got = sum(row[ranks.rank] for row in rows)
        n = call.world_size
        self._most = max(1, *(sum(row) for row in rows), *(sum(row[k] for row in rows) for k in range(n)))
        self._x: list[Any] = []
        self._y: list[Any] = []
        self._splits: Any = None
        self._came: list[Any] = []
        self._name = ""
        self._op: Any = None

    def __enter__(self) -> Self:
        """Allocate and meet.

        Raises:
            NotImplementedError: this torch has no NVSHMEM, or no such operation.
        """
        import torch
        import torch.distributed._symmetric_memory as symmetric

        torch.cuda.set_device(self.ranks.device)
        available = getattr(symmetric, "is_nvshmem_available", None)
        if available is None or not available():
            raise NotImplementedError(f"torch {torch.__version__} finds no NVSHMEM")
        if not hasattr(torch.ops.symm_mem, "all_to_all_vdev"):
            raise NotImplementedError(f"torch {torch.__version__} has no symm_mem::all_to_all_vdev")
        self._op = torch.ops.symm_mem.all_to_all_vdev
        symmetric.set_backend("NVSHMEM")
        group = self.ranks.process_group("nccl")
        self._name = group.group_name
        n, dtype = self.call.world_size, getattr(torch, self.call.dtype)

        def shared(shape: tuple[int, ...], kind: Any) -> Any:  # noqa: ANN401 - torch objects
            tensor = symmetric.empty(shape, dtype=kind, device=torch.device(self.ranks.device))
            symmetric.rendezvous(tensor, group)
            return tensor

        self._x, self._y = ([shared((self._most,), dtype) for _ in range(self.slots)] for _ in range(2))
        self._splits = shared((n,), torch.int64)
        self._came = [shared((2, n), torch.int64) for _ in range(_TURNS)]
        self._splits.copy_(torch.tensor(self._sent, dtype=torch.int64))
        for turn in range(_TURNS):
            self._call(min(turn, self.slots - 1), turn)
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        wait_event(event, self.ranks.deadline_s, "the first call over NVSHMEM")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._x, self._y, self._splits, self._came = [], [], None, []

    def inputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"x": self._x[i][: sum(self._sent)]}

    def outputs(self, i: int) -> Mapping[str, Any]:
        """See `Runner`."""
        return {"y": self._y[i][: self._got]}

    def launch(self, i: int) -> None:
        """See `Runner`."""
        self._call(i, i % _TURNS)

    def _call(self, i: int, turn: int) -> None:
        self._op(self._x[i], self._y[i], self._splits, self._came[turn], self._name)

    def proof(self) -> Proof:
        """The backend of torch's symmetric memory, and the splits that the operation says it got."""
        import torch
        import torch.distributed._symmetric_memory as symmetric

        got = [int(came[0].sum()) for came in self._came]
        strange = next((count for count in got if count != self._got), None)
        reason = "" if strange is None else f"the operation says that {strange} elements came, expected {self._got}"
        return Proof(reason, {"backend": str(symmetric.get_backend(torch.device(self.ranks.device)))})
