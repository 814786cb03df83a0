"""Real outputs that people posted: each to its numbers, or to a named error that quotes the line."""

import csv
import re
from pathlib import Path

import pytest

from collbench.interop.nccl_tests.reading import read
from collbench.interop.nccl_tests.table import OutputError

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
FILES = sorted((CORPUS / "nccl-tests").glob("*.txt")) if CORPUS.is_dir() else []
NO_NUMBERS = {"19": "masked", "26": "failed"}
_ROW = re.compile(r"^\D*?(?:\[1,0\]<stdout>:)?\s*(\d+)\s+(\d+)\s+(float|half|uint32)\s+(.*\d.*)$")


def truth(path: Path) -> list[tuple[int, list[float]]]:
    """Size, and the numbers behind it that are times or rates, by a way of its own: the last eight columns."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        if match := _ROW.match(line):
            words = match[4].split()
            words = words[:-1] if "dcgm" in path.name else words
            found.append((int(match[1]), [float(words[i]) for i in (-8, -7, -6, -4, -3, -2)]))
    return found


@pytest.mark.skipif(not FILES, reason="the corpus is not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:40])
def test_every_number_of_every_file(path: Path) -> None:
    if path.name[:2] in NO_NUMBERS:
        with pytest.raises(OutputError, match=r"line \d+: ['\"].*\d.*"):
            read(str(path))
        return
    seen = []
    for row in (row for run in read(str(path)) for row in run.rows):
        both = [row.places[place] for place in ("out", "in")]
        seen.append((row.bytes, [x for f in both for x in (f.time_us, f.algbw_gbps, f.busbw_gbps)]))
    assert seen == truth(path)
    assert seen


@pytest.mark.skipif(not FILES, reason="the corpus is not here")
def test_ranks_are_those_that_the_index_names() -> None:
    with (CORPUS / "INDEX.csv").open(encoding="utf-8", newline="") as file:
        said = {row["file"]: row for row in csv.DictReader(file)}
    compared = 0
    for path in FILES:
        about = said[f"nccl-tests/{path.name}"]
        ranks = about["n_gpus"]
        if path.name[:2] in NO_NUMBERS or not ranks.isdigit() or "2 ranks on the same" in about["hardware"]:
            continue
        compared += 1
        assert {run.world_size for run in read(str(path))} == {int(ranks)}, path.name
    assert compared >= 10
