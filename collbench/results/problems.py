"""Says on stderr what of a run could not be used."""

import sys
from collections.abc import Iterable

from collbench.errors import one_line

__all__ = ["warn"]

_MOST = 20
"""Lines at a time: of a run whose plan and samples do not belong together every sample is a problem."""


def warn(problems: Iterable[str]) -> None:
    """Print each problem as one line `collbench: ...` on stderr, once; give it what `RunFolder.problems` gives.

    Of very many the last line has their number.
    """
    told = list(dict.fromkeys(problems))
    shown = told if len(told) <= _MOST else told[: _MOST - 1]
    for text in shown:
        sys.stderr.write(f"collbench: {one_line(text)}\n")
    if len(told) > len(shown):
        sys.stderr.write(f"collbench: {len(told) - len(shown):,} more problems like these\n")
