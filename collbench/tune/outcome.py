"""What a search found: rows for `--json`, a table to read, and lines to paste."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.results.records import SCHEMA, Status
from collbench.results.summary import clean
from collbench.tune.final import Final
from collbench.tune.search import Standing
from collbench.units import format_us

__all__ = ["Estimate", "Outcome", "paste_lines", "short_name"]

_SHOWN = 10
_SHOWN_OUT = 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """Three words on one cell of one candidate: measured, NCCL's own estimate (None: not asked), and our model's.

    `chosen` is what NCCL's log says that it ran, `transport` how the ranks reach each other.
    """

    candidate: str
    cell: str
    measured_us: float
    nccl_us: float | None = None
    model_us: float | None = None
    chosen: str = ""
    transport: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "candidate": self.candidate, "cell_id": self.cell, "measured_us": self.measured_us,
            "nccl_estimate_us": self.nccl_us, "predicted_us": self.model_us, "chosen": self.chosen,
            "transport": self.transport,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """A search's end. `finished` says that every rung was done; `finals` are the finalists in the order of their turn.

    `libraries` maps versions to file names, empty where one library is used.
    """

    algorithm: str
    fabric: str
    ranks: int
    standings: Sequence[Standing]
    finals: Sequence[Final]
    finished: bool
    space_size: int
    libraries: Mapping[str, str] = field(default_factory=dict)
    estimates: Sequence[Estimate] = ()
    note: str = ""

    @property
    def winner(self) -> Final | None:
        """The finalist that is faster than the default beyond its interval, if there is one."""
        return next((final for final in self.finals if final.is_faster), None)

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        winner = self.winner
        return {
            "schema": SCHEMA, "kind": "tune", "algorithm": self.algorithm, "fabric": self.fabric, "ranks": self.ranks,
            "finished": self.finished, "space_size": self.space_size, "note": self.note,
            "winner": winner.candidate.name if winner else None,
            "environment": dict(winner.candidate.settings) if winner else {},
            "library": winner.candidate.version if winner else "",
            "rows": [_row(one) for one in self.standings], "finals": [final.as_dict() for final in self.finals],
            "estimates": [one.as_dict() for one in self.estimates],
        }  # fmt: skip

    def text(self) -> str:
        """Standings, what is out and why, the final, estimates, and lines to paste."""
        blocks = [self._standings(), self._out(), self._finals(), self._estimates(), self._answer()]
        return "\n\n".join(block for block in blocks if block)

    def _standings(self) -> str:
        fit = [one for one in self.standings if one.is_in]
        cells = list(fit[0].us) if fit else []
        heads = ["candidate", *map(short_name, cells), "ratio", "launches"]
        shown = [*fit[:_SHOWN], *(one for one in fit[_SHOWN:] if one.candidate.is_default)]
        rows = [
            [one.candidate.name, *(format_us(one.us.get(key)) for key in cells), f"{one.ratio:.3g}", str(one.launches)]
            for one in shown
        ]
        left = [one for one in self.standings if one.status is Status.NOT_RUN]
        title = (
            f"{self.algorithm}, {self.ranks} ranks on {self.fabric}: {len(self.standings)} of {self.space_size} "
            f"combinations, {len(fit)} measured" + (f", {len(left)} left out by the budget" if left else "")
        )
        units = "microseconds per call; ratio: time over that of the default's launch made last before"
        return "\n".join([title, units, *_table([heads, *rows])])

    def _out(self) -> str:
        out = [one for one in self.standings if not one.is_in and one.status is not Status.NOT_RUN]
        if not out:
            return ""
        lines = [f"  {one.candidate.name}  {one.status}: {clean(one.reason)[:200]}" for one in out[:_SHOWN_OUT]]
        more = [f"  and {len(out) - _SHOWN_OUT} more"] if len(out) > _SHOWN_OUT else []
        return "\n".join([f"excluded: {len(out)}", *lines, *more])

    def _finals(self) -> str:
        lines = []
        for final in self.finals:
            if not final.pairs:
                continue  # the note says so
            pairs = f"{final.pairs} of {final.wanted}" if final.missing else str(final.pairs)
            lines.append(f"final: {final.candidate.name} against default, {pairs} pairs of launches, ABBA")
            if final.overall is None:
                lines.append(f"  {final.status}: {clean(final.reason)[:200]}")
                continue
            several = [("all cells", final.overall)] if len(final.cells) > 1 else []
            for name, (base, own, ratio, low, high) in [
                *((short_name(k), v) for k, v in final.cells.items()),
                *several,
            ]:
                told = f"{format_us(base)} -> {format_us(own)} us, ratio {ratio:.3g} ({low:.3g} to {high:.3g})"
                lines.append(f"  {name}: {told}")
        return "\n".join(lines)

    def _estimates(self) -> str:
        if not any(e.nccl_us is not None or e.model_us is not None or e.chosen for e in self.estimates):
            return ""
        heads = ["candidate", "cell", "measured_us", "nccl_estimate_us", "predicted_us", "chosen", "transport"]
        rows = [
            [e.candidate, short_name(e.cell), format_us(e.measured_us), format_us(e.nccl_us), format_us(e.model_us),
             e.chosen or "-", e.transport or "-"] for e in self.estimates
        ]  # fmt: skip
        return "\n".join(_table([heads, *rows]))

    def _answer(self) -> str:
        winner = self.winner
        if winner is None or winner.overall is None:
            return self.note or "no candidate is faster than the default: leave the settings as they are"
        _, _, ratio, low, high = winner.overall
        gain = f"{(1 - ratio) * 100:.1f} % less time ({(1 - high) * 100:.1f} to {(1 - low) * 100:.1f} %, 95 %)"
        lines = [*filter(None, [self.note]), f"winner: {winner.candidate.name}, {gain}"]
        if winner.candidate.version:
            named = self.libraries.get(winner.candidate.version, "libnccl.so.2")
            lines.append(f"# with NCCL {winner.candidate.version}: LD_PRELOAD its {named}")
        return "\n".join([*lines, *paste_lines(winner.candidate.settings)])


def paste_lines(settings: Mapping[str, str]) -> list[str]:
    """`export NAME=VALUE` of every variable, quoted for a shell."""
    return [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]


def _row(one: Standing) -> dict[str, Any]:
    return {
        "candidate": one.candidate.name, "environment": dict(one.candidate.settings), "library": one.candidate.version,
        "status": str(one.status), "reason": one.reason, "launches": one.launches,
        "ratio": one.ratio if one.is_in else None, "p50_us": dict(one.us),
    }  # fmt: skip


def short_name(cell_id: str) -> str:
    """`14336 graph x122`: what tells the cells of a search apart."""
    fields = cell_id.split("/")
    return f"{fields[5]} {fields[7]} x{fields[8]}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
