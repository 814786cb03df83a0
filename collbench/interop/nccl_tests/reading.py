"""The door to everything that nccl-tests prints or writes: a text, a file, or stdin."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from collbench.errors import UsageError
from collbench.interop.nccl_tests.builder import completed
from collbench.interop.nccl_tests.environment import without_environment
from collbench.interop.nccl_tests.json_file import looks_like_json, read_json
from collbench.interop.nccl_tests.table import Invocation, OutputError
from collbench.interop.nccl_tests.text import read_text

__all__ = ["LARGEST", "parse", "read"]

LARGEST = 32 << 20
"""Bytes of the largest input that is read."""

_QUOTED = re.compile(r"^[ \t]{0,3}(?:>[ \t]?){1,9}", re.MULTILINE)
"""What a reply puts before each line that it quotes."""

_IN_NAMES = {
    "all_reduce": r"all[_-]?reduce", "all_gather": r"all[_-]?gather", "reduce_scatter": r"reduce[_-]?scatter",
    "alltoall": r"all[_-]?to[_-]?all(?!v)", "sendrecv": r"send[_-]?recv",
}  # fmt: skip


def parse(text: str) -> list[Invocation]:
    """Every run in a printed output or a JSON file, in order; at least one of them has rows.

    Nothing of the environment that `-J` writes is read or quoted.

    Raises:
        OutputError: nothing of nccl-tests is in it, or not one row can be read: the line is quoted.
    """
    if not text.strip("\ufeff\x00 \t\r\n"):
        raise OutputError("empty: expected what a program of nccl-tests printed, or the file of -J")
    text = without_environment(_QUOTED.sub("", text.removeprefix("\ufeff")))
    return read_json(text) if looks_like_json(text) else read_text(text)


def read(path: str) -> list[Invocation]:
    """The runs in a file, or in stdin where `path` is `-`. A file's name may say which program it was.

    Raises:
        UsageError: there is no such file.
        OutputError: as `parse`, with the file's name before it; or the file cannot be read.
    """
    name = "stdin" if path == "-" else path
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise UsageError(f"--parse {name}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputError(f"{name}: cannot be read: {reason}") from None
    if len(raw) > LARGEST:
        raise OutputError(f"{name}: larger than {LARGEST >> 20} MiB: expected the output of nccl-tests")
    utf16 = raw[:2] in {b"\xff\xfe", b"\xfe\xff"}  # what PowerShell's > writes
    try:
        found = parse(raw.decode("utf-16" if utf16 else "utf-8", "replace"))
    except OutputError as error:
        raise OutputError(f"{name}: {error}") from None
    return [_named(one, Path(name).stem) for one in found]


def _named(one: Invocation, stem: str) -> Invocation:
    said = [program for program, pattern in _IN_NAMES.items() if re.search(pattern, stem, re.IGNORECASE)]
    if one.program or len(said) != 1:
        return one
    name = f"program {said[0]} by the file's name"
    return completed(replace(one, program=said[0], inferred=", ".join(filter(None, (one.inferred, name)))))
