"""Find the rows of a label matrix in captured text: what is a row, what a header, what only stands between."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = [
    "COLUMN_WORDS",
    "MOST_ROWS",
    "MOST_SEGMENTS",
    "Row",
    "Segment",
    "header_names",
    "is_gpu",
    "segments",
    "split_labels",
]

MOST_ROWS = 256
"""Most rows or labels in a row that are looked at; nvidia-smi lists 16 GPUs and some 64 NICs at most."""

MOST_SEGMENTS = 64
"""Most matrices of one capture that are looked at."""

COLUMN_WORDS = ("CPU", "NUMA", "GPU", "Memory", "Affinity", "ID")
_TOKEN = re.compile(r"\S+")
_INDEXED = re.compile(r"(?:GPU|NIC)\d{1,4}", re.IGNORECASE)
_NIC = re.compile(
    r"(?:mlx\d|bnxt|hfi|ib|roce|efa|rdma|irdma|erdma|cxi|hns|qedr|xscale|usnic|rxe|siw|opa|en|eth)[\w.\-]*\d[\w.\-]*"
)
_WORD = re.compile(r"[A-Za-z][\w.\-]*\d[\w.\-]*")
_SPACED = re.compile(r"\b(GPU|NIC) (\d{1,3})(?=\s)")
_FUSED = re.compile(r"((?:GPU|NIC)\d{1,4})([A-Z]\S*)")
_GLUE = re.compile(r"\S{0,80}[:>+\])](?=[A-Za-z])")
_DIGIT = re.compile(r"\d")
_PREFIX_TOKENS = 12
_MOST_ROWS_IN_ALL = 16 * MOST_ROWS  # a log of many hosts; more is noise, and would only cost time
_LONGEST_HEADER = 16 * MOST_ROWS
_LONGEST_TOKEN = 8 * MOST_ROWS


@dataclass(slots=True)
class Row:
    """A row as it stands: `labels` after `name`, `tail` what follows them; `more` lines that may continue it."""

    name: str
    labels: list[str]
    tail: str
    line: int
    body: str
    more: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Segment:
    """A header (empty where it is lost) and the rows below it; `line` is the index of its first line."""

    line: int
    header: str = ""
    rows: list[Row] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Append a row."""
        self.rows.append(row)
        self.names.add(row.name)

    def has(self, name: str) -> bool:
        """Whether it has a row of that name."""
        return name in self.names


def is_gpu(name: str) -> bool:
    """Whether a row's name is a GPU's."""
    return name[:3].upper() == "GPU" and name[3:].isdecimal()


def split_labels(text: str, label: re.Pattern[str]) -> tuple[list[str], str]:
    """Labels that `text` begins with, fused ones taken apart, and what follows the last of them."""
    labels: list[str] = []
    end = 0
    for token in _TOKEN.finditer(text):
        found, rest = _split_token(token[0], label)
        if not found or len(labels) > MOST_ROWS:
            break
        labels += found
        end = token.end() - len(rest)
        if rest:
            break
    return labels, text[end:]


def _split_token(token: str, label: re.Pattern[str]) -> tuple[list[str], str]:
    """Labels that make up a token; with a list of processors after them where a column ran over."""
    labels: list[str] = []
    place = 0
    while place < min(len(token), _LONGEST_TOKEN):
        match = label.match(token, place)
        if match is None:
            fused = labels and not labels[-1][-1].isdecimal() and token[place].isdecimal()
            return (labels, token[place:]) if fused else ([], "")
        labels.append(match[0])
        place = match.end()
    return labels, ""


def segments(lines: list[str], label: re.Pattern[str]) -> list[Segment]:
    """Every run of rows, with the header before it. A name that comes again starts the next one."""
    found: list[Segment] = []
    last = -2
    rows = 0
    for index, line in enumerate(lines):
        if not line or line.isspace():
            continue
        if len(found) > MOST_SEGMENTS or rows >= _MOST_ROWS_IN_ALL:
            break
        if not found and "GPU" not in line and "gpu" not in line:
            continue
        open_ = found[-1] if found else None
        numbered = _DIGIT.search(line) is not None  # without a number a line holds no name, so is no row or header
        row = _row(line, index, label, open_) if numbered else None
        if row is not None:
            if open_ is None or open_.has(row.name) or len(open_.rows) >= MOST_ROWS:
                found.append(Segment(index))
            found[-1].add(row)
            rows += 1
        elif numbered and _is_header(line):
            if open_ is None or open_.rows or len(open_.header) > _LONGEST_HEADER:
                found.append(Segment(index))
            found[-1].header += f"{line}\n"
        elif open_ is not None and index == last + 1:
            _continue(open_, line)
        else:
            continue
        last = index
    return found


def _continue(segment: Segment, line: str) -> None:
    """What stands right below a row or a header may be its rest: terminals wrap at their width."""
    if "=" in line or ":" in line:
        return
    if segment.rows:
        segment.rows[-1].more.append(line)
    elif len(segment.header) <= _LONGEST_HEADER:
        segment.header = segment.header.removesuffix("\n") + line + "\n"


def _row(line: str, index: int, label: re.Pattern[str], segment: Segment | None) -> Row | None:
    line = _SPACED.sub(r"\1\2", line.replace("|", " ").replace("`", " "))
    for name, start in _names_in(line, segment):
        labels, tail = split_labels(line[start:], label)
        if not labels or label.fullmatch(name):  # NV18 begins a wrapped line, not a row
            continue
        if _INDEXED.fullmatch(name) or _NIC.fullmatch(name) or _fits(segment, labels):
            return Row(name, labels, tail, index, line[start:])
    return None


def _names_in(line: str, segment: Segment | None) -> Iterator[tuple[str, int]]:
    """Tokens among the first of a line that may name a row, with the place behind them."""
    for count, token in enumerate(_TOKEN.finditer(line)):
        if count >= _PREFIX_TOKENS:
            return
        glue = _GLUE.match(token[0])  # mpirun --tag-output, diff: no blank between the prefix and a name
        text = token[0][glue.end() if glue else 0 :].strip("*\"',>#")
        lead = token[0].rfind(text)
        fused = _FUSED.fullmatch(text)
        if fused:
            yield fused[1].upper(), token.start() + lead + len(fused[1])
        elif _INDEXED.fullmatch(text):
            yield text.upper(), token.end()
        elif _NIC.fullmatch(text) or (segment is not None and segment.rows and _WORD.fullmatch(text)):
            yield text, token.end()


def _fits(segment: Segment | None, labels: list[str]) -> bool:
    """Whether a row with a name of no known form belongs to the matrix above it."""
    return segment is not None and bool(segment.rows) and "X" in labels and len(labels) == len(segment.rows[-1].labels)


def _is_header(line: str) -> bool:
    line = _SPACED.sub(r"\1\2", line.replace("|", " ").replace("`", " "))
    first = re.search(r"(?<![\w/-])GPU\d", line)
    return first is not None and all(_is_heading(token) for token in header_tokens(line[first.start() :]))


def _is_heading(token: str) -> bool:
    named = _INDEXED.fullmatch(token) or _NIC.fullmatch(token) or _WORD.fullmatch(token)
    return named is not None or any(word.startswith(token) for word in COLUMN_WORDS)


def header_tokens(text: str) -> list[str]:
    """Names and words of a header, fused names taken apart."""
    apart = re.sub(r"((?:GPU|NIC)\d{1,4})(?=[A-Za-z])", r"\1 ", text)
    return apart.split()[: 2 * MOST_ROWS]


def header_names(header: str, known: Callable[[str], bool]) -> list[str]:
    """Column names of a header in order; `known` says which words of no usual form are such, because a row has them."""
    line = _SPACED.sub(r"\1\2", header.replace("|", " ").replace("`", " "))
    first = re.search(r"(?<![\w/-])GPU\d", line)
    names: list[str] = []
    for token in header_tokens(line[first.start() :] if first else ""):
        name = token.upper() if _INDEXED.fullmatch(token) else token
        if name not in names and (_INDEXED.fullmatch(name) or _NIC.fullmatch(name) or known(name)):
            names.append(name)
    return names
