"""Short lists of names in sentences, and what parts a reason from the advice behind it."""

from collections.abc import Sequence

__all__ = ["ADVICE", "counted", "first_few", "first_of"]

ADVICE = "; this one takes "
"""Begins the part of a reason that helps whoever has the run at hand, and nobody who reads a table of it."""


def counted(count: int, word: str, ending: str = "s") -> str:
    """`1 cell`, `2 cells`; `ending` is what more than one have."""
    return f"{count} {word}{'' if count == 1 else ending}"


def first_few(names: Sequence[str], most: int) -> str:
    """`a, b`, or `a, b and 3 more` where there are more than `most` names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def first_of(texts: Sequence[str]) -> str:
    """The first of several texts, and how many follow: `a`, or `a (and 3 more)`."""
    more = len(texts) - 1
    return texts[0] + (f" (and {more} more)" if more else "")
