"""One record from the two things that a launch leaves: the file of `-J` and what was printed.

The file has the iterations, but it reaches the disk in blocks: of a program that hangs or dies its last rows are lost.
Each printed row is there when its size has ended. Only what is printed names the release of nccl-tests, and every GPU.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from collbench.interop.nccl_tests.builder import completed
from collbench.interop.nccl_tests.json_file import cut_short
from collbench.interop.nccl_tests.table import Invocation, Row

__all__ = ["joined"]


def joined(file: Invocation | None, printed: Invocation | None) -> Invocation | None:
    """What the file says, with what only the printed table says; rows behind the end of a cut file are as printed."""
    if file is None or printed is None:
        return file or printed
    later = [] if file.finished else _later(file.rows, printed.rows)
    problems = [text for text in file.problems if text != cut_short(len(file.rows))]
    return completed(
        replace(
            file, rows=(*file.rows, *later), program=file.program or printed.program,
            devices=max(file.devices, printed.devices, key=len), version=file.version or printed.version,
            nccl=file.nccl or printed.nccl, wrong=printed.wrong if file.wrong is None else file.wrong,
            failures=tuple(dict.fromkeys((*file.failures, *printed.failures))), problems=tuple(problems),
        )
    )  # fmt: skip


def _later(known: Sequence[Row], printed: Sequence[Row]) -> list[Row]:
    """Printed rows that the file does not have; a size may stand there once for each cycle (-N)."""
    left = Counter(map(_key, known))
    found = []
    for row in printed:
        if left[_key(row)]:
            left[_key(row)] -= 1
        else:
            found.append(row)
    return found


def _key(row: Row) -> tuple[int, str, str, int]:
    return row.bytes, row.dtype, "" if row.redop == "none" else row.redop, row.root
