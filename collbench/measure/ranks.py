"""What a worker knows of its peers: the `Ranks` that runners get."""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from collbench.measure.channel import Channel

__all__ = ["WorkerRanks"]

_TICK_S = 0.25


class WorkerRanks:
    """`algorithms.base.Ranks` over the supervisor's channel; over torch's store where ranks live on several hosts."""

    def __init__(self, channel: Channel, spec: dict[str, Any], local_rank: int) -> None:
        self.local_rank = local_rank
        self.local_world_size = int(spec["local_world_size"])
        self.world_size = int(spec["world_size"])
        self.rank = int(spec["rank_offset"]) + local_rank
        self.device = str(spec["devices"][local_rank])
        self.deadline_s = float(spec["deadline_s"])
        self._channel = channel
        self._folder = str(spec["folder"])
        self._supervisor = int(spec.get("supervisor", 0))
        self._meeting: dict[str, Any] | None = spec.get("meeting")
        self._backend = ""
        self._turn = 0
        self._store: Any = None

    def exchange(self, value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
        """See `algorithms.base.Ranks`."""
        if self._meeting is not None:
            return self._exchange_by_store(value)
        self._channel.send({"exchange": value})
        answer = self._answer()
        if "exchange" not in answer:
            raise RuntimeError(f"expected the peers' values, got {sorted(answer)}")
        values: list[Any] = answer["exchange"]
        return values

    def _answer(self) -> dict[str, Any]:
        """The supervisor's next message. While it is stopped, as by Ctrl-Z, no time passes."""
        left = self.deadline_s
        while True:
            step = min(left, _TICK_S)
            try:
                return self._channel.receive(step)
            except TimeoutError:
                left -= 0.0 if _is_stopped(self._supervisor) else step
            if left <= 0:
                raise TimeoutError(f"no message within {self.deadline_s:.1f} s")

    def _exchange_by_store(self, value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
        self._turn += 1
        store = self._meeting_store()
        store.set(f"exchange/{self._turn}/{self.rank}", json.dumps(value))
        keys = [f"exchange/{self._turn}/{rank}" for rank in range(self.world_size)]
        try:
            store.wait(keys, timedelta(seconds=self.deadline_s))
        except Exception as error:  # torch's DistStoreError, which differs between releases
            raise TimeoutError(f"a rank on another host did not come: {str(error)[:200]}") from error
        return [json.loads(store.get(key)) for key in keys]

    def barrier(self) -> None:
        """See `algorithms.base.Ranks`."""
        self.exchange(None)

    def phase(self, name: str) -> None:
        """Tell the supervisor what this rank is doing, for the text of a hang."""
        self._channel.send({"phase": name})

    def process_group(self, backend: str) -> Any:  # noqa: ANN401 - torch may be absent
        """See `algorithms.base.Ranks`."""
        import torch.distributed as dist

        if not self._backend:
            limit = timedelta(seconds=self.deadline_s)
            dist.init_process_group(
                backend, store=self._store_of_group(), rank=self.rank, world_size=self.world_size, timeout=limit
            )
            self._backend = backend
        elif backend != self._backend:
            raise RuntimeError(f"this worker's process group is {self._backend}, asked for {backend}")
        return dist.group.WORLD

    def _store_of_group(self) -> Any:  # noqa: ANN401 - torch may be absent
        if self._meeting is not None:
            return self._meeting_store()
        from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch exports it without saying so

        return FileStore(f"{self._folder}/store", self.world_size)

    def _meeting_store(self) -> Any:  # noqa: ANN401 - torch may be absent
        """The store of torchrun, behind a prefix of this group: it is there already, on every host."""
        if self._store is None and self._meeting is not None:
            from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # as above

            host, port = str(self._meeting["host"]), int(self._meeting["port"])
            limit = timedelta(seconds=self.deadline_s)
            tcp = TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
            self._store = PrefixStore(str(self._meeting["prefix"]), tcp)
        return self._store

    def close(self) -> None:
        """Destroy the process group, if one was made."""
        if self._backend:
            import torch.distributed as dist

            dist.destroy_process_group()
            self._backend = ""


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}


def pin(local_rank: int, local_world_size: int) -> str:
    """Give each rank a core of its own where there are enough; gives the cores that this rank may use, as text."""
    cores = sorted(os.sched_getaffinity(0))
    if local_world_size <= len(cores):
        os.sched_setaffinity(0, {cores[local_rank]})
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
