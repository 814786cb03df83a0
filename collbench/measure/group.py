"""A group of workers, as its supervisor sees it: forked together, given commands together, ended together."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.measure import leftovers
from collbench.measure.conversation import GRACE_S, Conversation
from collbench.measure.server import START_DEADLINE_S, ForkServer, GroupFailure, how_it_ended, last_line

if TYPE_CHECKING:
    from collbench.measure.channel import Channel

__all__ = ["GroupFailure", "WorkerGroup"]

_SEND_S = 5.0
"""A worker that reads takes a message at once; one that is stopped takes what fits into its socket's buffer."""

_LOG_TAIL = 2000


class WorkerGroup:
    """The local workers of one algorithm: fresh processes that answer commands together, under a deadline."""

    def __init__(
        self,
        server: ForkServer,
        count: int,
        spec: Mapping[str, Any],
        environment: Mapping[str, str],
        folder: Path,
        limit_s: float = START_DEADLINE_S,
    ) -> None:
        # below the run's folder: a sweep that is killed leaves nothing elsewhere, and its resumption clears this away
        self.folder = Path(tempfile.mkdtemp(prefix="group-", dir=folder))
        self._server = server
        self._count = count
        self._shared_before = leftovers.snapshot()
        self._shared: set[str] = set()
        self._channels: list[Channel] = []
        self._pids: list[int] = []
        full = {**spec, "folder": str(self.folder), "supervisor": os.getpid()}
        try:
            self._channels, self._pids = server.fork(count, full, environment, limit_s)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers in local rank order."""
        return tuple(self._pids)

    def run(self, command: Mapping[str, Any], deadline_s: float, opening_s: float = 0.0) -> list[dict[str, Any]]:
        """Give every worker the command; gives their answers in local rank order. Serves their exchanges meanwhile.

        Raises:
            GroupFailure: a worker ended, or some did not answer within `deadline_s`, and `opening_s` more while a
                worker still opens its algorithm. The group is of no further use.
        """
        self.broadcast(command)
        return Conversation(self, self._channels, deadline_s, opening_s).finish()

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Send a message to all workers; one that takes none shows up in the conversation, as ended or hung."""
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.send(message, _SEND_S)

    def death(self, local_rank: int) -> str:
        """Say how a worker ended, with the last line of its log."""
        code = self._server.exit_code(self._pids[local_rank])
        how = "ended" if code is None else how_it_ended(code)
        if code is None and not self._server.alive:
            how = f"ended with the fork server, which {self._server.death()}"
        tail = last_line(self.log(local_rank))
        return f"rank {local_rank} {how}" + (f": {tail}" if tail else "")

    def log(self, local_rank: int) -> str:
        """End of what a worker printed."""
        path = self.folder / f"worker-{local_rank}.log"
        with contextlib.suppress(OSError):
            return path.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
        return ""

    def close(self, timeout_s: float = GRACE_S) -> None:
        """Ask the workers to leave, end those that do not within `timeout_s`, remove the group's folder.

        Their exchanges are served meanwhile: ranks that share memory of a GPU meet before they free it.
        """
        self.look()
        self.broadcast({"op": "close"})
        Conversation(self, self._channels, timeout_s).see_off()
        self.kill()

    def look(self) -> None:
        """Note what shared memory the workers hold now: of one that dies by itself the last look counts."""
        self._shared |= leftovers.held_by(pid for pid in self._pids if self._server.exit_code(pid, 0.0) is None)

    def running(self) -> bool:
        """Whether a worker has not ended yet."""
        return self._server.alive and any(self._server.exit_code(pid, 0.0) is None for pid in self._pids)

    def kill(self) -> None:
        """End the workers at once, remove the group's folder and the shared memory that they left."""
        self.look()
        for pid in self._pids:
            # reaped pids may belong to others by now
            if self._server.exit_code(pid, 0.0) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 1.0
        for pid in self._pids:
            self._server.exit_code(pid, max(0.0, end - time.monotonic()))
        for channel in self._channels:
            channel.close()
        leftovers.remove(self._shared_before, self._shared)
        self._channels, self._pids = [], []
        shutil.rmtree(self.folder, ignore_errors=True)
