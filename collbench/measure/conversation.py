"""One command in flight: answers and exchanges of a group's workers, under a deadline."""

import selectors
import time
from typing import TYPE_CHECKING, Any

from collbench.measure.channel import BadMessage, Channel
from collbench.measure.server import GroupFailure

if TYPE_CHECKING:
    from collbench.measure.group import WorkerGroup

__all__ = ["GRACE_S", "Conversation"]

GRACE_S = 2.0
"""After one rank has failed, the others get this long to report on their own before the group is ended."""

_MOMENT_S = 0.02

_TICK_S = 0.25
_AWAY_S = 0.75
"""Two looks at the workers lie at most a tick and a moment's work apart: where it is more, this process was stopped."""

_OPENING = frozenset({"start", "opening"})
"""Phases of a worker whose algorithm is not open yet."""


class Conversation:
    """Collects answers and exchanges of all workers until all have answered."""

    def __init__(
        self, group: "WorkerGroup", channels: list[Channel], deadline_s: float, opening_s: float = 0.0
    ) -> None:
        self._group = group
        self._channels = channels
        self._deadline = time.monotonic() + deadline_s + opening_s
        self._looked = time.monotonic()
        self._limit_s = deadline_s
        self._opening = opening_s > 0
        self._failed = False
        self._answers: dict[int, dict[str, Any]] = {}
        self._values: dict[int, Any] = {}
        self._phase = ["start"] * len(self._channels)

    def finish(self) -> list[dict[str, Any]]:
        """Every worker's answer in local rank order.

        Raises:
            GroupFailure: a worker ended, sent what is no message, or did not answer in time.
        """
        with self._selector() as selector:
            while len(self._answers) < len(self._channels):
                self._wait(selector)
        return [self._answers[rank] for rank in range(len(self._channels))]

    def see_off(self) -> None:
        """Serve exchanges until all workers have ended or the deadline has passed."""
        with self._selector() as selector:
            while self._group.running() and time.monotonic() < self._deadline:
                for key, _ in selector.select(_MOMENT_S) if selector.get_map() else ():
                    try:
                        self._take(int(key.data))
                    except GroupFailure:  # it has left, or was ended within a word
                        selector.unregister(key.fileobj)

    def _selector(self) -> selectors.BaseSelector:
        made = selectors.DefaultSelector()
        for rank, channel in enumerate(self._channels):
            made.register(channel.fileno(), selectors.EVENT_READ, rank)
        return made

    def _wait(self, selector: selectors.BaseSelector) -> None:
        self._deadline += self._missed()
        left = self._deadline - time.monotonic()
        events = selector.select(max(0.0, min(left, _TICK_S)))
        # whoever talks without end is as late as whoever is silent
        if left <= 0 and (not events or left < -GRACE_S):
            self._give_up()
            return
        for key, _ in events:
            self._take(int(key.data))

    def _missed(self) -> float:
        """Seconds in which this process did not run itself, stopped by a signal or a debugger: nobody's fault."""
        before, self._looked = self._looked, time.monotonic()
        gap = self._looked - before
        return gap if gap > _TICK_S + _AWAY_S else 0.0

    def _take(self, rank: int) -> None:
        try:
            messages = self._channels[rank].arrived()
            for message in messages:
                self._heed(rank, message)
        except (EOFError, OSError):
            raise GroupFailure("crashed", self._group.death(rank)) from None
        except BadMessage as error:
            raise GroupFailure("crashed", f"rank {rank} sent no message of ours: {error}") from None

    def _heed(self, rank: int, message: dict[str, Any]) -> None:
        if "phase" in message:
            opened = self._phase[rank] in _OPENING
            self._phase[rank] = str(message["phase"])
            if opened and not _OPENING & set(self._phase):
                self._group.look()
            if self._opening and not _OPENING & set(self._phase):
                self._opening = False
                self._deadline = min(self._deadline, time.monotonic() + self._limit_s)
        elif "exchange" in message:
            self._values[rank] = message["exchange"]
            if len(self._values) == len(self._channels):
                values = [self._values[r] for r in range(len(self._channels))]
                self._values = {}
                self._group.broadcast({"exchange": values})
        else:
            self._answers[rank] = message
            if message.get("failed") and not self._failed:
                self._failed = True
                self._deadline = min(self._deadline, time.monotonic() + GRACE_S)

    def _give_up(self) -> None:
        told = {
            str(a["failed"]): f"rank {r}: {a.get('reason')}" for r, a in self._answers.items() if a.get("failed")
        }  # fmt: skip
        if set(told) - {"hung"}:
            # a rank failed and said why: the ranks that wait for it are not the story
            for rank in range(len(self._channels)):
                self._answers.setdefault(rank, {"failed": "peer", "reason": ""})
            return
        missing = [r for r in range(len(self._channels)) if r not in self._answers]
        where = ", ".join(f"rank {r} in {self._phase[r]}" for r in missing[:4])
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""  # noqa: PLR2004 - a short line
        waited = f" ({told['hung']})" if told else f" within {self._limit_s:.0f} s"
        raise GroupFailure("hung", f"no answer from {where}{more}{waited}")
