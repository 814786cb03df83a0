"""Text that people captured: colours, tags and odd line ends taken off, errors that quote the line."""

import re
from typing import NoReturn

from collbench.topology.graph import TopologyError

__all__ = ["failed_line", "lines_of", "quoted", "refuse"]

# Colours as terminals send them, with the escape character lost, replaced or spelled out.
_COLOUR = re.compile(
    r"(?:\x1b|\ufffd|\u241b|\^\[|\\033|\\e|\\x1[bB]|\\u001[bB])\[[0-9;?]{0,16}[A-Za-z]"
    r"|\[\d{1,3}(?:;\d{1,3}){0,5}m|\x1b[()][A-Za-z0-9]|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)"
)
_TAG = re.compile(r"</?(?:pre|code|br|p|span|div|td|tr|th|table|tbody|details|summary)\b[^<>]{0,200}>", re.IGNORECASE)
_ENTITIES = {"&nbsp;": " ", "&lt;": "<", "&gt;": ">", "&amp;": "&", "&#9;": "\t"}
_INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060\x00\x08")) | dict.fromkeys(
    map(ord, "\xa0\u3000\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), " "
)
_FAILURES = re.compile(
    r"Failed to (?:run|initialize|get|query)\b|NVIDIA-SMI has failed|couldn't communicate with the NVIDIA driver"
    r"|No devices were found|command not found|[Nn]o such file or directory|Insufficient Permissions"
    r"|[Uu]nable to (?:determine|locate|load|open)\b|is not recognized as|(?:Permission|Access) denied"
    r"|Driver/library version mismatch|GPU access blocked|Invalid combination of input arguments"
    r"|Could not collect|not supported on this|GPU is lost|Segmentation fault|[Cc]annot (?:find|open)\b"
)
_QUOTE = 90


def lines_of(text: str) -> list[str]:
    """Lines without colours, tags, entities and carriage returns; the n-th is line n + 1 of the text.

    A capture that was kept as one JSON string, with its line ends and tabs spelled out, is taken apart first.
    """
    if text.count("\\n") > max(1, text.count("\n")):
        text = text.replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_INVISIBLE)
    text = _COLOUR.sub("", text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "&" in text:
        for entity, character in _ENTITIES.items():
            text = text.replace(entity, character)
    return text.split("\n")


def quoted(lines: list[str], index: int) -> str:
    """`line 3: 'GPU1 X ...'`, shortened and printable."""
    line = " ".join(lines[index].split()) if 0 <= index < len(lines) else ""
    clean = "".join(c if c.isprintable() else "?" for c in line[: 4 * _QUOTE])
    short = clean if len(clean) <= _QUOTE else clean[: _QUOTE - 3] + "..."
    return f"line {index + 1}: {short!r}"


def refuse(lines: list[str], index: int, problem: str) -> NoReturn:
    """Raise the named error at a line.

    Raises:
        TopologyError: always; it quotes the line and says `problem`, which names what was expected.
    """
    raise TopologyError(f"{quoted(lines, index)}: {problem}")


def failed_line(lines: list[str]) -> int | None:
    """Place of the first line with which a program says that it failed; None where there is none."""
    return next((index for index, line in enumerate(lines) if line and _FAILURES.search(line[:400])), None)
