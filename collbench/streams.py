"""A stderr that cannot be written costs its text only: the exit code and the table on stdout stay what they are."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

__all__ = ["forgiving_stderr"]


class _Stderr:
    """Passes on what can be written, and drops what cannot: a full disk, a reader that went away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: it was closed
            with contextlib.suppress(OSError, ValueError):
                self._empty()

    def _empty(self) -> None:
        """Send what the stream still holds to nowhere, or Python fails at exit with 120 when it flushes."""
        number = self._stream.fileno()
        kept = os.dup(number)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, number)
            self._stream.flush()
        finally:
            os.dup2(kept, number)
            os.close(kept)
            os.close(nowhere)


@contextlib.contextmanager
def forgiving_stderr() -> Iterator[None]:
    """Inside, no error of writing to stderr is raised; `sys.stderr` may be None, as where the caller closed it."""
    if sys.stderr is not None:
        with contextlib.redirect_stderr(_Stderr(sys.stderr)):
            yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        yield
