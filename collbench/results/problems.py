"""Says on stderr what of a run could not be used."""

import sys
from collections.abc import Iterable

from collbench.errors import one_line

__all__ = ["warn"]


def warn(problems: Iterable[str]) -> None:
    """Print each problem as one line `collbench: ...` on stderr, once; give it what `RunFolder.problems` gives."""
    for text in dict.fromkeys(problems):
        sys.stderr.write(f"collbench: {one_line(text)}\n")
