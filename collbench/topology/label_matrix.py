"""A square matrix of labels between devices, read by the structure of its rows rather than by its header."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from collbench.topology.captured_text import quoted, refuse
from collbench.topology.graph import TopologyError
from collbench.topology.label_rows import MOST_ROWS, Row, Segment, header_names, is_gpu, segments, split_labels

__all__ = ["LabelMatrix", "read_matrices"]

_AFFINITY = re.compile(r"[\d,\-NA/ \t]{1,400}")
_MOST_WRAPS = 8


@dataclass(frozen=True, slots=True)
class LabelMatrix:
    """`labels[a, b]` is what row `a` says of column `b`; `tails` what follows the labels of a row, as it stands.

    `line` and `last` are the indices of its first and last line. `notes` says what is lost, such as rows of network
    cards.
    """

    names: tuple[str, ...]
    labels: Mapping[tuple[str, str], str]
    tails: Mapping[str, str]
    header: str
    line: int
    last: int
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs, in the order of the columns."""
        return tuple(name for name in self.names if is_gpu(name))


def read_matrices(
    lines: list[str], label: re.Pattern[str], expected: str
) -> tuple[list[LabelMatrix], list[TopologyError]]:
    """All matrices in the order of the file, and why the other runs of rows are none.

    `label` matches one label, `expected` says in words which there are.
    """
    found: list[LabelMatrix] = []
    failed: list[tuple[int, TopologyError]] = []
    for segment in segments(lines, label):
        if not segment.rows:
            continue
        try:
            found.append(_matrix(lines, segment, label, expected))
        except TopologyError as error:
            failed.append((-len(segment.rows), error))
    return found, [error for _, error in sorted(failed, key=lambda pair: pair[0])]


def _matrix(lines: list[str], segment: Segment, label: re.Pattern[str], expected: str) -> LabelMatrix:
    rows = segment.rows
    if len(rows) >= MOST_ROWS:
        refuse(lines, segment.line, f"{MOST_ROWS} rows or more: expected the matrix of one machine")
    _join_wrapped(rows, label)
    count = Counter(len(row.labels) for row in rows).most_common(1)[0][0]
    names = [row.name for row in rows]
    notes: list[str] = []
    header = header_names(segment.header, set(names).__contains__)
    _check_words(lines, rows, len(header), expected)
    if count > len(rows):
        names = _with_missing(lines, segment, header, count, notes)
    elif count == len(rows):
        _check_complete(lines, rows, header)
    else:
        refuse(lines, rows[0].line, f"{count} labels, but {len(rows)} rows follow: expected as many labels as rows")
    if not _on_diagonal(rows, names) and len(header) == count and set(names) == set(header):
        names = header  # rows in another order than columns
    for row in rows:
        _check(lines, row, names, expected, is_last=row is rows[-1], notes=notes)
    labels = {(row.name, name): text for row in rows for name, text in zip(names, row.labels, strict=False)}
    tails = {row.name: row.tail for row in rows}
    return LabelMatrix(tuple(names), labels, tails, segment.header, segment.line, rows[-1].line, tuple(notes))


def _join_wrapped(rows: list[Row], label: re.Pattern[str]) -> None:
    """Take the lines below a row as its rest where that gives it as many labels as there are rows.

    A row that has all its labels was wrapped inside its affinity, where nothing but affinity stands below it.
    """
    for row in rows:
        if not row.more:
            continue
        if len(row.labels) == len(rows):
            rest = row.more[:_MOST_WRAPS]
            row.tail += "".join(rest) if all(_AFFINITY.fullmatch(line) for line in rest) else ""
            continue
        rest = row.more
        for text in (row.body + "".join(rest), " ".join([row.body, *rest]), row.body.rstrip() + "".join(rest)):
            labels, tail = split_labels(text, label)
            if len(labels) == len(rows):
                row.labels, row.tail = labels, tail
                break


def _check_words(lines: list[str], rows: list[Row], most: int, expected: str) -> None:
    """A word where the header still has columns of labels is a label that nobody knows; said before rows are missed."""
    for row in rows:
        word = (row.tail.split() or [""])[0]
        if is_gpu(row.name) and len(row.labels) < most and word[:1].isalpha() and word not in {"N/A", "NA"}:
            refuse(lines, row.line, f"{word[:20]!r} after {len(row.labels)} of {most} labels: expected {expected}")


def _with_missing(lines: list[str], segment: Segment, header: list[str], count: int, notes: list[str]) -> list[str]:
    """Column names where rows are missing: a lost row of a network card costs nothing, a GPU's is refused."""
    last = segment.rows[-1]
    have = [row.name for row in segment.rows]
    missing = [name for name in header if name not in have]
    if len(header) != count or not set(have) <= set(header):
        named = f"; the header names {', '.join(missing[:8])}" if missing else ""
        refuse(lines, last.line, f"{len(have)} rows, but {count} labels each: rows after this one are missing{named}")
    gpus = [name for name in missing if is_gpu(name)]
    if gpus:
        word = "row" if len(gpus) == 1 else "rows"
        refuse(lines, last.line, f"{word} {', '.join(gpus[:16])} missing: expected one for each column of the header")
    notes.append(
        f"rows of {', '.join(missing[:16])} are missing: how they are joined to each other is unknown"
    )  # fmt: skip
    return header


def _check_complete(lines: list[str], rows: list[Row], header: list[str]) -> None:
    """As many rows as labels: unless the header knows of more GPUs, or labels of another kind follow the only one."""
    have = {row.name for row in rows}
    missing = [name for name in header if is_gpu(name) and name not in have]
    if missing:
        word = "row" if len(missing) == 1 else "rows"
        refuse(
            lines, rows[-1].line, f"{word} {', '.join(missing[:16])} missing: expected one for each GPU of the header"
        )
    rest = rows[0].tail.split()
    if len(rows) == 1 and rest and not (rest[0][0].isdecimal() or rest[0].startswith(("N/A", "-", '"', "`"))):
        refuse(lines, rows[0].line, f"{rest[0][:20]!r} after the label of a single GPU: expected its affinity")


def _on_diagonal(rows: list[Row], names: list[str]) -> bool:
    place = {name: index for index, name in enumerate(names)}
    return all(row.labels[place[row.name] : place[row.name] + 1] == ["X"] for row in rows)


def _check(lines: list[str], row: Row, names: list[str], expected: str, *, is_last: bool, notes: list[str]) -> None:
    """A row has a label for each column, and X at its own.

    Raises:
        TopologyError: it has not; a last row of a network card that is cut off is noted instead.
    """
    found = len(row.labels)
    if found != len(names):
        after = (row.tail.split() or ["the end of the line"])[0][:20]
        if found < len(names) and is_last and not is_gpu(row.name):
            notes.append(f"row {row.name} is cut off after {found} of {len(names)} labels ({quoted(lines, row.line)})")
            return
        refuse(
            lines, row.line,
            f"row {row.name} has {found} of {len(names)} labels, then {after!r}: expected {expected}",
        )  # fmt: skip
    at = names.index(row.name)
    if row.labels[at] != "X":
        refuse(lines, row.line, f"column {at + 1} of row {row.name} is {row.labels[at]}: expected X, the device itself")
    if row.labels.count("X") > 1:
        refuse(lines, row.line, f"row {row.name} has X in more than one column: expected it at {row.name} alone")
