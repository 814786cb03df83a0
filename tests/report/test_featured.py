"""Figures show the fastest and what runs where nobody chooses; colours follow what is shown."""

from collbench.report import figure
from collbench.report.canvas import COLOURS
from collbench.report.featured import featured, left_out, numbered
from collbench.report.latency import latency_figure
from collbench.report.series import Panel, Point, Series, Spread
from collbench.report.svg import Styles


def _series(name: str, us: float) -> Series:
    points = tuple(Point(size, us + size / 1e4, Spread(us, us), None, None, ()) for size in (1024, 4096))
    return Series(name, "", (122,), 0, points)


def _panel(count: int, *more: str) -> Panel:
    names = [*(f"a{i}" for i in range(count)), *more]
    return Panel("graph", "chained", (122,), {}, tuple(_series(name, 1.0 + i) for i, name in enumerate(names)))


def test_the_usual_algorithm_is_always_shown() -> None:
    names = [one.name for one in featured(_panel(20, "nccl_auto"))]

    assert len(names) == figure.MOST_CURVES
    assert names[0] == "a0"
    assert names[-1] == "nccl_auto"
    assert left_out(_panel(20, "nccl_auto")) == "The 11 fastest and nccl_auto of 21 algorithms."


def test_few_are_all_shown() -> None:
    assert len(featured(_panel(11, "nccl_auto"))) == 12
    assert left_out(_panel(12)) == ""
    assert left_out(_panel(13)) == "The 12 fastest of 13 algorithms."


def test_what_is_shown_first_has_a_colour_of_its_own() -> None:
    panels = numbered([_panel(20, "nccl_auto"), _panel(3, "b")])
    styles = [figure.style_of(one)[0] for one in featured(panels[0])]
    index = {one.name: one.index for one in panels[0].series}

    assert len(set(styles)) == figure.MOST_CURVES
    assert len(set(index.values())) == 21
    assert all(one.index == index[one.name] for one in panels[1].series if one.name in index)


def test_the_table_has_all_curves_and_points_say_their_numbers() -> None:
    panel = _panel(20, "nccl_auto")
    drawn = latency_figure(panel, "f0-", Styles(COLOURS))

    assert len(drawn.table.lines) == 21
    assert len(drawn.legend) == 12
    assert drawn.svg.count("<title>") == 24
    assert "<title>a0, 1024 bytes: 1.1024 us, middle half 1 to 1</title>" in drawn.svg
