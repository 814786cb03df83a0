"""Columns of text: all of them for scripts, and on a terminal those that fit, the most telling first."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Column", "aligned", "fitting"]

_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, the text of each row, and whether they stand to the right, as numbers do."""

    name: str
    texts: Sequence[str]
    right: bool = True

    @property
    def width(self) -> int:
        """Of the longest text, the heading among them."""
        return max(map(len, (self.name, *self.texts)))


def fitting(first: Sequence[Column], more: Sequence[Sequence[Column]], width: int) -> tuple[list[Column], list[str]]:
    """`first`, then each group of `more` that still fits `width`, whole; and the names of what did not."""
    shown, gone = list(first), list[str]()
    for group in more:
        if sum(one.width + _GAP for one in (*shown, *group)) - _GAP <= width:
            shown += group
        else:
            gone += [one.name for one in group]
    return shown, gone


def aligned(columns: Sequence[Column]) -> list[str]:
    """Lines below the headings."""
    parts = [
        [text.rjust(one.width) if one.right else text.ljust(one.width) for text in (one.name, *one.texts)]
        for one in columns
    ]
    return [(" " * _GAP).join(line).rstrip() for line in zip(*parts, strict=True)]
