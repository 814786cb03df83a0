"""Two sides beside each other: no change without what says how sure it is, and no reason told twice."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from collbench.gate.baseline import load_side
from collbench.gate.comparison import compare, table
from collbench.gate.sides import CellData, Side
from collbench.results.records import Call, Cell, Mode, Status
from collbench.testing import synthetic_run

RING, NCCL = ([Cell(name, Call(size, 8), Mode.EAGER, 1).cell_id for size in (1024, 4096)] for name in ("ring", "nccl"))
LOST = CellData(Status.UNSUPPORTED, "no CUDA device")


def _side(*medians: float, noisy: bool = False, lost: CellData = LOST) -> Side:
    """`ring` at two sizes with these medians of launches, `nccl` without a time."""
    timed = CellData(Status.OK, "", medians, (100,) * len(medians), noisy=noisy)
    return Side("s", {**dict.fromkeys(RING, timed), **dict.fromkeys(NCCL, lost)}, len(medians))


def test_one_launch_gives_no_interval_and_says_so() -> None:
    """What is 17 % apart after one launch each may be noise, and stands there as such."""
    text = table(compare(_side(10.0), _side(11.74, noisy=True)), 80)

    head, first, *_ = text.splitlines()
    assert head.split() == ["cell", "base_us", "current_us", "change", "flags"]
    assert first.split() == ["ring", "1024", "10.0", "11.7", "+17.4", "%", "noisy"]
    assert "no interval: 1 launch before and 1 now, 5 on each side give one" in " ".join(text.split())


def test_a_large_change_is_a_factor() -> None:
    assert " x197\n" in table(compare(_side(10.0), _side(1970.0)), 80)
    assert " +900.0 %\n" not in table(compare(_side(10.0), _side(100.0)), 80)
    assert " +899.0 %\n" in table(compare(_side(10.0), _side(99.9)), 80)


def test_five_launches_of_both_give_an_interval() -> None:
    base, now = _side(10.0, 10.1, 9.9, 10.05, 9.95), _side(12.0, 12.1, 11.9, 12.05, 11.95)
    rows = compare(base, now)
    text = table(rows, 80)

    assert rows[0]["low"] < 1.2 < rows[0]["high"]
    assert "+20.0 %" in text
    assert "no interval" not in text
    assert "no interval: 5 launches before and 1 now" in table(compare(base, _side(12.0)), 120)


def test_cells_without_a_time_are_told_once() -> None:
    rows = compare(_side(10.0), _side(10.0))
    text = table(rows, 80)

    assert text.splitlines()[-2:] == ["", "nccl, 2 cells: unsupported on both sides: no CUDA device"]
    assert text.count("nccl") == 1
    assert max(map(len, text.splitlines())) <= 80


def test_a_side_that_lost_its_time_says_why() -> None:
    now = _side(10.0)
    now = replace(now, cells={**now.cells, RING[0]: CellData(Status.CRASHED, "signal 11"), NCCL[0]: LOST})
    text = table(compare(_side(10.0), now), 100)

    assert "ring, 1 cell: base ok; current crashed (signal 11)" in text
    assert "crashed" in text.splitlines()[1]


def test_scripts_get_a_line_for_every_cell() -> None:
    rows = compare(_side(10.0), _side(11.0))
    head, *lines = table(rows).splitlines()

    assert head.split()[:4] == ["cell", "base_us", "current_us", "change"]
    assert [line.split()[0] for line in lines[:4]] == ["ring", "ring", "nccl", "nccl"]
    assert lines[2].split()[2:] == ["unsupported", "unsupported", "-", "-", "-"]


def test_nothing_timed_is_nothing_but_reasons() -> None:
    empty = Side("s", dict.fromkeys(NCCL, LOST), 1)

    assert table(compare(empty, empty), 80) == "nccl, 2 cells: unsupported on both sides: no CUDA device"


def test_times_of_several_launches_say_which_median_they_are(tmp_path: Path) -> None:
    """The gate's; with one launch on either side it is the median over all iterations too, and nothing is said."""
    several = load_side(synthetic_run(tmp_path / "several", launches=2).path)
    one = load_side(synthetic_run(tmp_path / "one").path)
    assert "base_us and current_us: median of the launches' medians" in table(compare(several, one))
    assert "medians" not in table(compare(one, one))


def test_cells_that_were_asked_for_alone(collbench: Callable[..., Any], tmp_path: Path) -> None:
    """Values of fields as `export --only` takes them; a baseline file has them in its `cell_id`s."""
    run = synthetic_run(tmp_path / "run", costs={"a": (5.0, 0.1), "b": (6.0, 0.1)}, sizes=(1024, 4096))
    assert collbench("baseline", "save", str(run.path), "--to", "base.json").returncode == 0
    done = collbench("compare", "base.json", str(run.path), "--only", "algorithm=b", "--only", "bytes=1K", "--json")
    found = {row["cell_id"].split("/")[1:6:4] == ["b", "1024"] for row in json.loads(done.stdout)["rows"]}
    assert found == {True}
    none = collbench("compare", "base.json", str(run.path), "--only", "algorithm=c")
    assert (none.returncode, none.stderr) == (2, "collbench: --only algorithm=c: none of 8 cells is one\n")
