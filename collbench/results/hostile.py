"""Text of files that somebody else wrote: nothing in it may steer a terminal or flood it."""

import re
import unicodedata
from typing import Any

__all__ = ["MAX_LOG", "MAX_TEXT", "tamed"]

MAX_TEXT = 4096
"""Characters of a text that are kept; a reason, the longest of ours, has a few hundred."""

MAX_LOG = 1 << 20
"""Characters of a log that are kept."""

_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_NUMBERS = {int, float}
_SPACES = {"Zl", "Zp"}
_DROPPED = {"Cc", "Cf", "Cs", "Co"}


def tamed(value: Any, *, breaks: bool = False) -> Any:  # noqa: ANN401 - whatever JSON holds
    """The value with every text in it, keys too, on one line of at most `MAX_TEXT` characters.

    Line breaks and tabs become spaces; control, format (direction, zero width), surrogate and private characters go.
    Each character is judged alone, so that a text that is joined of others stays joined of them. With `breaks` line
    breaks and tabs stay, and a text may have `MAX_LOG` characters: logs.

    Raises:
        RecursionError: lists in lists without end.
    """
    if isinstance(value, str):
        return _text(value, breaks)
    if isinstance(value, dict):
        return {_text(key, breaks): tamed(one, breaks=breaks) for key, one in value.items()}
    if isinstance(value, list):
        if set(map(type, value)) <= _NUMBERS:  # a rank's samples, many
            return value
        return [tamed(one, breaks=breaks) for one in value]
    return value


def _text(text: str, breaks: bool) -> str:  # noqa: FBT001 - of this module alone
    if not _PLAIN.fullmatch(text):
        text = "".join(char if breaks and char in "\t\n" else _character(char) for char in text)
    most = MAX_LOG if breaks else MAX_TEXT
    return text if len(text) <= most else f"{text[:most]}..."


def _character(char: str) -> str:
    category = unicodedata.category(char)
    if char in "\t\n\r" or category in _SPACES:
        return " "
    return "" if category in _DROPPED else char
