"""Says on stderr what of a run could not be used."""

import sys
from collections.abc import Iterable

__all__ = ["warn"]


def warn(problems: Iterable[str]) -> None:
    """Print each problem as one line `collbench: ...` on stderr, once; give it what `RunFolder.problems` gives."""
    for text in dict.fromkeys(problems):
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        sys.stderr.write(f"collbench: {line}\n")
