"""Figures: the same bytes twice, a look of its own for each curve, and the floor where it can be seen."""

from collbench.report import figure
from collbench.report.series import Panel, Point, Series, Spread


def _panel(count: int, floor: float | None = None, predicted: float | None = None) -> Panel:
    def point(size: int, us: float) -> Point:
        return Point(size, us, Spread(us * 0.9, us * 1.1), floor, predicted, ())

    curves = tuple(
        Series(f"a{i}", "", (122,), i, tuple(point(size, (i + 1) * size / 500) for size in (1024, 4096)))
        for i in range(count)
    )
    return Panel("eager", "chained", (122,), {}, curves)


def test_two_drawings_are_the_same_bytes() -> None:
    panel = _panel(3)

    assert figure.draw(panel, panel.series) == figure.draw(panel, panel.series)


def test_curves_of_a_full_run_all_look_different() -> None:
    """Colour and marker together stay unique for 144 algorithms, colours alone for the 12 of the first figure."""
    styles = [figure.style_of(one) for one in _panel(144).series]

    assert len(set(styles)) == 144
    assert len({colour for colour, _ in styles[:12]}) == 12
    assert len(set(figure.MARKERS)) == len(figure.MARKERS) == figure.MOST_CURVES


def test_only_stand_in_colours_are_drawn() -> None:
    """So that the page's variables, and with them light and dark, reach every stroke."""
    panel = _panel(12, floor=3.0, predicted=4.0)
    drawn = figure.draw(panel, panel.series)
    colours = {part[:7] for part in drawn.split("#")[1:] for part in ["#" + part[:6]] if part[1:7].isalnum()}
    hexes = {c for c in colours if all(x in "0123456789abcdef" for x in c[1:])}

    assert hexes <= set(figure.COLOURS)
    assert len(hexes) >= 12


def test_floor_and_prediction_are_drawn_where_they_are() -> None:
    plain, floored, told = (
        figure.draw(p, p.series) for p in (_panel(1), _panel(1, floor=3.0), _panel(1, predicted=3.0))
    )
    floor_colour = next(k for k, v in figure.COLOURS.items() if v == "var(--floor)")

    assert floor_colour in floored
    assert floor_colour not in plain
    assert "stroke-dasharray" in told
    assert "stroke-dasharray" not in plain
    low = _panel(1, floor=0.001)
    assert floor_colour not in figure.draw(low, low.series)
    assert figure.floor_line(low) == {1024: 0.001, 4096: 0.001}


def test_a_glyph_fits_its_box() -> None:
    for marker in figure.MARKERS:
        outline = figure.glyph(marker).replace("M", " ").replace("L", " ").replace("Z", " ")
        assert all(abs(float(number)) <= 6.5 for number in outline.split())
