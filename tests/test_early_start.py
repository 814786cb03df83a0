"""What docs/measurements/kernels.md says of early start is what the evidence of the kept runs holds."""

import json
import re
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from collbench.results.store import RunFolder
from collbench.units import format_bytes, format_us

FOLDER = Path(__file__).parents[1] / "docs" / "measurements"
RUNS = FOLDER / "systems" / "runs"
PAGE = (FOLDER / "kernels.md").read_text(encoding="utf-8")
TRIED = re.compile(r"(\S+) (\d+x\d+)(\+pdl)? ([\d.]+) us")
EARLY = [run for run in sorted(RUNS.iterdir()) if (run / "evidence.jsonl").exists()]
TABLES = {"8 ranks, one GPU": "pdl-8", "2 ranks, one GPU": "pdl-2", "2 GPUs": "pdl-pair"}


def evidence(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "evidence.jsonl").read_text(encoding="utf-8").splitlines()]


def tried(entry: dict[str, Any]) -> list[tuple[str, bool, float]]:
    """Kernel and grid, whether it starts early, and microseconds of what one opening has timed."""
    found = TRIED.findall(entry["evidence"].get("tuning", ""))
    return [(f"{kernel} {grid}", bool(early), float(us)) for kernel, grid, early, us in found]


def best_both_ways(run: str) -> dict[tuple[str, str], str]:
    """`plain, early` of each algorithm and size: the fastest grid of each, medians over openings that tried both."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for entry in evidence(RUNS / run):
        plain, early = ([us for _, is_early, us in tried(entry) if is_early is wanted] for wanted in (False, True))
        _, algorithm, _, _, _, size, *_ = entry["cell_id"].split("/")
        if plain and early and algorithm != "auto":
            found.setdefault((algorithm, format_bytes(int(size))), []).append((min(plain), min(early)))
    return {
        key: ", ".join(format_us(median(one[way] for one in pairs)) for way in (0, 1)) for key, pairs in found.items()
    }


@pytest.mark.parametrize(("where", "run"), TABLES.items())
def test_grids_timed_both_ways_are_those_of_the_table(where: str, run: str) -> None:
    lines = PAGE.split(f"{where}:\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
    head, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|---" not in line)
    told = {(name.strip("`"), size): text for name, *texts in rows for size, text in zip(head[1:], texts, strict=True)}
    assert told == best_both_ways(run)


def iterations(run: Path, early: set[tuple[str, int]]) -> int:
    """Captured iterations of these cells and launches."""
    with RunFolder.open(run) as folder:
        found = [one for one in folder.samples() if (one.cell_id, one.launch) in early and "/graph/" in one.cell_id]
    return sum(len(one.latency_us[0]) for one in found if one.latency_us)


def test_no_wait_was_given_up_and_all_are_counted() -> None:
    count: Counter[str] = Counter()
    for run in EARLY:
        chosen = set()
        for entry in evidence(run):
            assert "early start" not in entry["evidence"]
            ways = [early for _, early, _ in tried(entry)]
            count["openings"] += any(ways)
            count["grids"] += sum(ways)
            if any(ways) and "+pdl" in entry["evidence"]["kernel"]:
                chosen.add((entry["cell_id"], entry["launch"]))
        count["chosen"] += len(chosen)
        count["iterations"] += iterations(run, chosen)
    told = "{chosen} of {openings} openings chose it, {grids} grids were timed with it".format_map(count)
    assert told in PAGE
    assert f"({6 * count['grids']:,} replays)" in PAGE
    assert f"{count['iterations']:,} captured iterations" in PAGE
