"""What a person sees on stderr while a sweep runs: a bar with the time left, or one line per algorithm."""

import sys
import time
from collections import Counter
from typing import TextIO

from collbench.results.records import Cell, Samples

__all__ = ["Progress"]


class Progress:
    """Counts cells. A bar if `stream` is a terminal, else a line when an algorithm ends."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._bar = None
        if self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, file=self._stream, unit="cell", dynamic_ncols=True, leave=False)

    def start(self, algorithm: str) -> None:
        """An algorithm begins."""
        self._counts.clear()
        self._began = time.monotonic()
        if self._bar is not None:
            self._bar.set_description(algorithm)

    def cell(self, cell: Cell, samples: Samples) -> None:
        """A cell has ended."""
        del cell
        self._counts[samples.status] += 1
        if self._bar is not None:
            self._bar.update()

    def end(self, algorithm: str, reason: str = "") -> None:
        """An algorithm has ended; `reason` is the first one of a cell that is not ok."""
        if self._bar is None and self._counts:
            counts = ", ".join(f"{number} {status}" for status, number in self._counts.items())
            told = f" ({reason})" if reason else ""
            self.say(f"{algorithm}: {counts} in {time.monotonic() - self._began:.1f} s{told}")

    def say(self, text: str) -> None:
        """Print a line without tearing the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
