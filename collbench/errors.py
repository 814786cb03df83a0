"""Errors that a user sees: one line that says what was wrong, where, and what to do."""

__all__ = ["CollbenchError", "InvalidError", "UsageError"]


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
