"""Commands of the pages in this folder: `python docs/model/refresh.py` runs them and puts back what they print.

A block of the language `console` holds one command behind `$ ` and its output. `<!-- not run: REASON -->` above a block
keeps it from being run. Commands run in the root of the repository.
"""

import argparse
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOLERANCE = 0.15
"""Numbers that are further off than this part are stale: below it the model was tuned, and no statement has changed."""

_BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```console\n\$ ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d,]*\.?\d*")


@dataclass(frozen=True)
class Block:
    """A command, the output that stands in the page, and whether the command is to be run."""

    command: str
    output: str
    is_run: bool


def blocks(text: str) -> Iterator[Block]:
    """Of a page, in order."""
    return (Block(m[2], m[3], m[1] is None) for m in _BLOCK.finditer(text))


def pages() -> list[Path]:
    """Those that hold commands."""
    return [page for page in sorted(HERE.glob("*.md")) if any(blocks(page.read_text(encoding="utf-8")))]


def printed(command: str) -> str:
    """What a command prints, stdout and stderr together.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "collbench"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m collbench "$@"\n', encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        paths = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", command], cwd=ROOT, env=os.environ | paths, text=True, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
    return done.stdout


def is_stale(page: str, now: str) -> str:
    """What differs between the output in a page and today's: words, or numbers by more than `TOLERANCE`; else empty.

    The order of lines does not count: rows are sorted by time, and near ones change places.
    """
    old, new = (sorted((_words(line), line) for line in text.splitlines()) for text in (page, now))
    if [words for words, _ in old] != [words for words, _ in new]:
        gone, come = ({words for words, _ in one} for one in (old, new))
        return f"words: {sorted(gone ^ come)}"
    for (_, was), (_, line) in zip(old, new, strict=True):
        for a, b in zip(_numbers(was), _numbers(line), strict=True):
            if abs(a - b) > TOLERANCE * max(a, b, 1.0):
                return f"{was!r} is now {line!r}"
    return ""


def _words(line: str) -> str:
    return " ".join(_NUMBER.sub("#", line).split())


def _numbers(line: str) -> list[float]:
    return [float(text.replace(",", "")) for text in _NUMBER.findall(line)]


def main() -> None:
    """Refresh all pages."""
    argparse.ArgumentParser(description="Run the commands of the pages in this folder anew.").parse_args()
    for page in pages():
        text = page.read_text(encoding="utf-8")

        def anew(match: "re.Match[str]") -> str:
            if match[1] is not None:
                return match[0]
            return f"```console\n$ {match[2]}\n{printed(match[2])}```"

        page.write_text(_BLOCK.sub(anew, text), encoding="utf-8")


if __name__ == "__main__":
    main()
