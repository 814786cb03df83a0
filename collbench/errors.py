"""Errors that a user sees: one line that says what was wrong, where, and what to do."""

from collections.abc import Iterable

__all__ = ["CollbenchError", "InvalidError", "UsageError", "nearest", "one_line"]

_MOST = 2000


class CollbenchError(Exception):
    """Base of every error that the command line prints as one line without a traceback.

    The message names what was wrong, where, and what to do. `exit_code` is the process's (docs/design.md section 4).
    """

    exit_code = 3


class UsageError(CollbenchError):
    """The call's words are off: an unknown name, a size that is no size, options that contradict each other. Exit 2."""

    exit_code = 2


class InvalidError(CollbenchError):
    """Data that cannot be used or compared: a damaged run, a newer schema, a machine in use. Exit 3."""

    exit_code = 3


def one_line(text: str) -> str:
    """Text without line breaks and control characters, of 2,000 characters at most: it may quote somebody's file."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MOST else f"{line[:_MOST]}..."


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that somebody who wrote `word` most likely meant; empty if none is like it."""
    import difflib

    found = difflib.get_close_matches(word, list(known), 1)
    return found[0] if found else ""
