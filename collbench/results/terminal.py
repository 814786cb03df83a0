"""How wide the place is that results are printed to, and text that fits it."""

import shutil
import sys
import textwrap

__all__ = ["terminal_width", "wrapped"]

_LEAST_WIDTH = 60


def terminal_width() -> int | None:
    """Characters of a line where stdout is a terminal, by COLUMNS or what it says itself; else None.

    With None every row is one line with all of its columns, which is what scripts read.
    """
    if not sys.stdout.isatty():
        return None
    return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)


def wrapped(text: str, width: int | None, indent: int = 0) -> str:
    """The text on lines of `width` at most, those behind the first indented; one line without a width.

    Words that are longer than a line stay whole.
    """
    if width is None:
        return text
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip
