"""Copies of runs that documents keep: `python -m tests.kept_runs RUN ... FOLDER` makes them below a folder.

What names a machine is taken out: paths, UUIDs, hosts, the kernel's release behind its first two numbers. Samples stand
in the parquet file alone, each to a nanosecond, which halves it; `--decimals 2` keeps ten, for runs that are too large
otherwise. Launches, evidence and reasons stay.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collbench.errors import CollbenchError
from collbench.results.columns import write_parquet
from collbench.results.private import public
from collbench.results.reading import EVIDENCE, PARQUET, RUN
from collbench.results.records import Samples
from collbench.results.store import RunFolder

MOST_BYTES = 1_000_000
"""Largest file that the repository takes (tests/test_hygiene.py)."""

_RELEASE = re.compile(r"^(\d+\.\d+)[\d.]*-\S+$")
_PERSONAL = re.compile(r"host(?!s$|_(?:arch|memory))|user|serial|uuid|mac_?address", re.IGNORECASE)
_OTHERS = ("probes.jsonl", "parameters.json")


def kept(value: Any) -> Any:
    """The JSON value without what names a machine; a text that is a path keeps its last part."""
    if isinstance(value, dict):
        return {key: kept(one) for key, one in value.items() if not (_PERSONAL.search(key) and key != "hosts")}
    if isinstance(value, list):
        return [kept(one) for one in value]
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    if text.startswith("/") and " " not in text:
        return text.rpartition("/")[2]
    found = "\n".join(public(line) for line in text.splitlines()) if "\n" in text else public(text)
    return _RELEASE.sub(r"\1", found)


def keep(run: Path, below: Path, decimals: int = 3) -> Path:
    """Copy a finished run into a folder of its name, times with so many decimals of a microsecond; gives the folder.

    Raises:
        CollbenchError: no run. ValueError: something of it is lost, it is still being made, or a file is too large.
        FileExistsError: the copy is there.
    """
    with RunFolder.open(run) as folder:
        samples, lost = folder.samples(), [*folder.problems(), folder.lost_evidence()]
        if any(lost) or not folder.run.finished:
            raise ValueError(f"{run}: {'; '.join(filter(None, lost)) or 'not finished'}")
        record = folder.run.as_dict()
    copy = below / run.name
    copy.mkdir(parents=True)
    try:
        _fill(copy, run, record, [_rounded(one, decimals) for one in samples])
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return copy


def _fill(copy: Path, run: Path, record: dict[str, Any], samples: Sequence[Samples]) -> None:
    with (copy / RUN).open("w", encoding="utf-8") as file:
        json.dump(kept(record), file, indent=1, allow_nan=False)
        file.write("\n")
    with (copy / PARQUET).open("wb") as file:
        write_parquet(file, samples)
    for name in (EVIDENCE, *_OTHERS):
        if (run / name).exists():
            _copy(run / name, copy / name)
    large = [path.name for path in copy.iterdir() if path.stat().st_size > MOST_BYTES]
    if large:
        raise ValueError(f"{copy}: larger than {MOST_BYTES} bytes: {', '.join(large)}: measure fewer iterations")


def _rounded(one: Samples, decimals: int) -> Samples:
    latency = tuple(tuple(round(us, decimals) for us in rank) for rank in one.latency_us)
    return replace(one, reason=public(one.reason), latency_us=latency)


def _copy(source: Path, target: Path) -> None:
    """Objects of a file, of one in it or of one per line."""
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".jsonl":
        lines = [json.dumps(kept(json.loads(line)), separators=(",", ":")) for line in text.splitlines()]
        target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    else:
        target.write_text(json.dumps(kept(json.loads(text)), indent=1) + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Copy each run; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kept_runs", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--decimals", type=int, choices=(2, 3), default=3, help="of a time in microseconds (default 3)")
    args = parser.parse_args(words)
    for run in args.runs:
        try:
            copy = keep(run, args.folder, args.decimals)
        except (CollbenchError, OSError, ValueError) as error:
            sys.stderr.write(f"{parser.prog}: {error}\n")
            return 3
        sizes = sum(path.stat().st_size for path in copy.iterdir())
        sys.stdout.write(f"{copy}: {sizes / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
