"""Tables that nccl-tests prints, read by the names in their headers, whatever stands between the rows.

Layouts seen: `bytes N type op time algbw busbw res` in milliseconds (2017), an `error` column (before 2.12), `#wrong`,
`#bitdiff` and `i_min ... i_cv%` (2.19), `#iters`, `timestamp`, `cputime`; one or two places; blank redop; prefixes of
mpirun, srun and containers; NCCL's log in between, also in the middle of a row.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from collbench.interop.nccl_tests.builder import Builder
from collbench.interop.nccl_tests.figures import figures, number, wrong_of
from collbench.interop.nccl_tests.table import Figures, Invocation, OutputError, Row
from collbench.topology.captured_text import lines_of, quoted

__all__ = ["read_text"]

_LONGEST = 4000
_MOST_PROBLEMS = 20
_PREFIX = re.compile(
    r"\s*(?:\[[\w.-]{1,80}(?:,[\w.-]{1,80}){1,3}\]\s?<std(?:out|err|diag)>:? ?|\[\d{1,6}\]:? (?=[#\s])"
    r"|\d{1,6}: (?=\s*[#\d])|\[default\d{1,4}\]:?"
    r"|\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] "
    r"|[\w.-]{1,80}: (?=#|\s{2,}\d)|[A-Za-z][\w.-]{0,79}\s{0,8}\| )"
)
_LOG = re.compile(
    r"(?:\[[\d-]{10} [\d:.]{8,16}\] )?[A-Za-z][\w.-]{0,80}:\d{1,8}:\d{1,8} \[-?\d{1,4}\] "
    r"(?:[\w/.-]{1,200}:\d+ )?NCCL [A-Z]{4,7} .*"
)
_SIZE = re.compile(r"\d{1,18}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][\w]{0,23}", re.ASCII)
_VALUE = re.compile(r"[+-]?(?:\d[\d.]*(?:[eE][+-]?\d+)?|nan|inf)|N/?A", re.ASCII | re.IGNORECASE)
_EXPORT = re.compile(r"# collbench \d[\w.+]{0,40}: \d{1,6} ranks, fabric ")
_CLOCK = ("time", "cputime")
_FIRST = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
"""Names of the first releases, whose times are milliseconds and whose other lines have no `#`."""

_BARE = re.compile(r"\s*(?:nThread\s|Blocking Enabled:|Out of bounds values\s*:|Avg bus bandwidth\s*:)")
_NAMED = {"size", "count", "type"}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns: `left` before the first time, `body` of one place, how many places, how many more words behind."""

    left: tuple[str, ...]
    body: tuple[str, ...]
    places: int
    behind: int
    cputime: bool
    milliseconds: bool

    @property
    def right(self) -> int:
        return len(self.body) * self.places + self.behind

    @property
    def least(self) -> int:
        """Words of a row whose redop and root are blank."""
        return 3 + self.right

    @property
    def most(self) -> int:
        return len(self.left) + self.right


def read_text(text: str) -> list[Invocation]:
    """Every run in the text, in order; one without a single row has its failures and problems.

    Raises:
        OutputError: nothing of nccl-tests is in it, or no row of it can be read: the line is quoted.
    """
    reader = _Reader(lines_of(text))
    found = reader.read()
    if any(one.rows for one in found):
        return found
    _refuse(reader, found)
    return found


def _refuse(reader: "_Reader", found: Sequence[Invocation]) -> None:
    problems = [problem for one in found for problem in one.problems]
    failures = [failure for one in found for failure in one.failures]
    if problems:
        raise OutputError(f"{problems[0]}: no row can be read")
    if failures:
        raise OutputError(f"{failures[0]}: the program failed before its first row")
    if reader.looks_like_rows is not None:
        raise OutputError(
            f"{quoted(reader.lines, reader.looks_like_rows)}: rows without their header: expected the line # size "
            "count type redop root time algbw busbw #wrong before them"
        )
    if reader.seen:
        raise OutputError("the program's first lines without a single row: it was stopped, or the text was cut")
    first = next((index for index, line in enumerate(reader.lines) if line.strip()), 0)
    raise OutputError(
        f"{quoted(reader.lines, first)}: not the output of nccl-tests: expected a table under # size count type ... "
        "time algbw busbw, or the file of -J"
    )


class _Reader:
    """Goes through the lines once; what one run says collects in a `Builder`."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.seen = False
        self.looks_like_rows: int | None = None
        self._done: list[Invocation] = []
        self._now = Builder()
        self._layout: _Layout | None = None
        self._pending: list[str] = []
        self._pending_at = 0
        self._prefix = ""

    def read(self) -> list[Invocation]:
        for index, line in self._stripped():
            self._line(index, line)
        self._cut_off()
        self._finish()
        return _unmixed(self._done)

    def _stripped(self) -> Iterator[tuple[int, str]]:
        """Lines without prefixes and without what NCCL logs; the log is looked at for versions and warnings."""
        for index, raw in enumerate(self.lines):
            line = raw[:_LONGEST]
            if not line.strip("#|* \t"):
                continue
            if self._prefix and line.startswith(self._prefix):
                line = line[len(self._prefix) :]
            if match := _PREFIX.match(line):
                line = line[match.end() :]
            self._now.hear(line, quoted(self.lines, index) if "NCCL" in line or "ailure" in line else "")
            if "NCCL" in line and (match := _LOG.search(line)):
                line = line[: match.start()]
            if line.strip():
                yield index, line

    def _line(self, index: int, line: str) -> None:
        body = line.replace("|", " ").strip()
        words = body.lstrip("#* ").split()
        if words[:2] == ["bytes", "N"]:
            words = [_FIRST.get(word, word) for word in words]
        if self._is_header(words):
            self._header(words, line)
        elif (body.startswith("#") or _BARE.match(line)) and not self._is_row(words):
            self._comment(index, body)
        elif self._now.failed(line, lambda: quoted(self.lines, index)):
            self._cut_off()
        else:
            self._row(index, words)
            self._now.command(line)

    @staticmethod
    def _is_header(words: Sequence[str]) -> bool:
        return words[:1] == ["size"] and set(words) >= _NAMED and any(clock in words for clock in _CLOCK)

    def _is_row(self, words: Sequence[str]) -> bool:
        """A whole row behind `#`: people comment out what they keep in a script."""
        if self._layout is None or not self._layout.least <= len(words) <= self._layout.most:
            return False
        return all(_SIZE.fullmatch(word) for word in words[:2]) and _TYPE.fullmatch(words[2]) is not None

    def _header(self, words: Sequence[str], line: str) -> None:
        self._cut_off()
        if self._now.footer:
            self._finish()
        self.seen = True
        before = line.partition("#")[0]
        self._prefix = before if before.strip() else ""
        columns = [word for word in words if not word.startswith("(")]
        at = [index for index, word in enumerate(columns) if word in _CLOCK]
        width = at[1] - at[0] if len(at) > 1 else len(columns) - at[0]
        body = tuple(columns[at[0] : at[0] + width])
        behind = columns[at[0] + width * min(len(at), 2) :]
        extra = len(behind) + behind.count("timestamp")
        first = "bytes" in line.split()
        self._layout = _Layout(tuple(columns[: at[0]]), body, min(len(at), 2), extra, "cputime" in body, first)
        self._now.table_begins(cputime="cputime" in body)

    def _comment(self, index: int, body: str) -> None:
        self._cut_off()
        if _EXPORT.match(body):
            raise OutputError(f"{quoted(self.lines, index)}: collbench wrote this table: use the run that it is of")
        if self._now.begins_anew(body):
            self._finish()
            self._layout = None
        self.seen |= self._now.comment(body, lambda: quoted(self.lines, index))

    def _row(self, index: int, words: list[str]) -> None:
        begins = len(words) >= 2 and all(_SIZE.fullmatch(word) for word in words[:2])  # noqa: PLR2004
        begins = begins and (len(words) == 2 or _TYPE.fullmatch(words[2]) is not None)  # noqa: PLR2004
        if begins and self._layout is None:
            if len(words) > 6 and self.looks_like_rows is None:  # noqa: PLR2004 - a row and not a list of numbers
                self.looks_like_rows = index
            return
        if self._layout is None:
            return
        if begins:
            self._cut_off()
            self._pending, self._pending_at = words, index
        elif self._pending and all(_VALUE.fullmatch(word) for word in words[: self._layout.most]):
            self._pending += words
        else:
            return
        if len(self._pending) >= self._layout.least:
            self._take(self._layout)

    def _take(self, layout: _Layout) -> None:
        words, self._pending = self._pending, []
        try:
            self._now.rows.append(_row(layout, words))
        except ValueError as error:
            self._problem(str(error))

    def _cut_off(self) -> None:
        if self._pending and self._layout is not None:
            count = len(self._pending)
            self._problem(
                f"{count} columns, expected {self._layout.most} under the header: cut off, or of another layout"
            )
        self._pending = []

    def _problem(self, text: str) -> None:
        if len(self._now.problems) < _MOST_PROBLEMS:
            self._now.problems.append(f"{quoted(self.lines, self._pending_at)}: {text}")

    def _finish(self) -> None:
        if self._now.heard:
            self._done.append(self._now.build())
        self._now = Builder(self._now.next_command)


def _unmixed(found: list[Invocation]) -> list[Invocation]:
    """With a word at runs that began while others had no row yet: they ran at once, and their rows stand in turn."""
    begun = 0
    for index, one in enumerate(found):
        if one.rows:
            if begun:
                why = (
                    f"{begun} other run{'s' * (begun > 1)} began before its first row: under mpirun, a program without "
                    "MPI runs once per process, and the rows of all of them mix"
                )
                found[index] = replace(one, problems=(*one.problems, why))
            begun = 0
        elif one.devices and not one.failures:
            begun += 1
    return found


def _row(layout: _Layout, words: Sequence[str]) -> Row:
    """One row.

    Raises:
        ValueError: a column that does not hold what its name says.
    """
    if len(words) > layout.most:
        raise ValueError(f"{len(words)} columns, expected {layout.most} under the header")
    left, right = words[: len(words) - layout.right], words[len(words) - layout.right :]
    redop, root = _middle(layout, left[3:])
    size, width = int(left[0]), len(layout.body)
    places: dict[str, Figures] = {}
    for index, place in enumerate(("out", "in")[: layout.places]):
        values = dict(zip(layout.body, right[index * width : (index + 1) * width], strict=True))
        places[place] = _figures(layout, size, values)
    return Row(size, int(left[1]), left[2], redop, root, places)


def _middle(layout: _Layout, words: Sequence[str]) -> tuple[str, int]:
    """Redop and root; either may be blank."""
    redop, root = "", -1
    for word in words:
        if "root" in layout.left and re.fullmatch(r"-?\d{1,6}", word, re.ASCII):
            root = int(word)
        elif "redop" in layout.left and _TYPE.fullmatch(word) and not redop:
            redop = word
        else:
            raise ValueError(f"column {word[:24]!r}, expected redop or root under the header")
    return redop, root


def _figures(layout: _Layout, size: int, values: dict[str, str]) -> Figures:
    clock = "cputime" if layout.cputime else "time"
    missing = {"algbw", "busbw"} - set(values)
    if missing:
        raise ValueError(f"the header names no {' and no '.join(sorted(missing))}")
    wrong = None
    if "#wrong" in values:
        wrong = wrong_of(values["#wrong"])
    elif values.get("error", "N/A").lower() not in {"n/a", "na"}:
        number(values["error"], "error")
        wrong = -1  # the old column is a size of errors: whether it is too large stands in the footer alone
    time = f"{values[clock]}e3" if layout.milliseconds and "e" not in values[clock] else values[clock]
    return figures(size, time, values["algbw"], values["busbw"], wrong, cputime=layout.cputime)
