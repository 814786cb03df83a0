"""Sizes at which the fastest changes: the known truth is found, and intervals need launches."""

import math
from pathlib import Path

from collbench.report.crossings import crossings, told
from collbench.report.series import Panel, Point, Series, Spread, panels, spreads
from collbench.results.records import Mode
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import synthetic_run

COSTS = {"slope": (20.0, 0.1), "start": (5.0, 1.0)}
"""Chained calls cost 70 % of the first number: 3.5 + KiB = 14 + 0.1 KiB at 11.7 KiB."""
TRUTH = 1024 * 10.5 / 0.9


def _panel(
    path: Path, launches: int, noise: float = 0.03, sizes: tuple[int, ...] = (1024, 8192, 16384, 65536)
) -> Panel:
    made = synthetic_run(
        path, costs=COSTS, sizes=sizes, modes=(Mode.GRAPH,), calls=(122,), launches=launches, noise=noise
    )
    samples = RunFolder.open(made.path).samples()
    (panel,) = panels(rows(made.run, samples), spreads(samples))
    return panel


def test_the_known_truth_lies_in_the_interval(tmp_path: Path) -> None:
    (found,) = crossings(_panel(tmp_path / "run", 8))

    assert (found.before, found.after, found.below, found.above) == ("start", "slope", 8192, 16384)
    assert abs(found.bytes / TRUTH - 1) < 0.05
    assert found.interval is not None
    low, high = found.interval
    assert low is not None
    assert high is not None
    assert low < found.bytes < high
    assert high / low < 1.1


def test_noise_makes_the_interval_wider(tmp_path: Path) -> None:
    quiet, noisy = (crossings(_panel(tmp_path / str(n), 6, n))[0].interval for n in (0.02, 0.3))

    assert quiet is not None
    assert noisy is not None
    assert math.log((noisy[1] or math.inf) / (noisy[0] or 1)) > 3 * math.log((quiet[1] or 0) / (quiet[0] or 1))


def test_one_launch_has_no_interval_and_says_so(tmp_path: Path) -> None:
    panel = _panel(tmp_path / "run", 1)
    words = told([panel])

    assert crossings(panel)[0].interval is None
    assert "slope overtakes start at about 1" in words["crossings"][0]["finding"]
    assert "(no interval: one launch)" in words["crossings"][0]["finding"]
    assert words["crossings_table"].lines[0][-1] == "no interval: one launch"


def _series(name: str, times: dict[int, float]) -> Series:
    return Series(name, "", (1,), 0, tuple(Point(s, us, Spread(us, us), None, None, ()) for s, us in times.items()))


def test_ties_make_no_crossing_and_are_counted() -> None:
    panel = Panel("graph", "chained", (1,), {}, (_series("a", {1: 1.0, 2: 1.02}), _series("b", {1: 1.01, 2: 1.0})))

    assert crossings(panel) == []
    assert told([panel])["crossings"][0]["finding"] == (
        "The fastest never changes beyond ties. At 2 of 2 sizes the fastest is tied with another one."
    )


def test_one_curve_or_one_size_crosses_nothing() -> None:
    for panel in (
        Panel("graph", "chained", (1,), {}, (_series("a", {1: 1.0, 2: 2.0}),)),
        Panel("graph", "chained", (1,), {}, (_series("a", {1: 1.0}), _series("b", {1: 2.0}))),
    ):
        assert "nothing can cross" in told([panel])["crossings"][0]["finding"]


def test_what_has_no_time_on_the_other_side_does_not_cross() -> None:
    """The fastest changes at 64 because a was not measured there: that is no crossing, and is said."""
    panel = Panel("graph", "chained", (1,), {}, (_series("a", {4: 1.0, 16: 1.0}), _series("b", {16: 2.0, 64: 1.0})))
    (found,) = crossings(panel)
    words = told([panel])

    assert found.absent == "a"
    assert words["crossings_table"].lines[0][-2:] == ["", "a has no time at 64"]
    assert words["crossings"][0]["finding"] == "b follows a only because a has no time at 64."
