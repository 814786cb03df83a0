"""The gain over what runs where nobody chooses."""

from collbench.report import gain
from collbench.report.answer import leads
from collbench.report.series import Panel, Point, Series, Spread
from collbench.results.records import Fabric


def _series(name: str, times: dict[int, float], medians: int = 1, flags: tuple[str, ...] = ()) -> Series:
    def point(size: int, us: float) -> Point:
        around = tuple(us * (1 + 0.01 * (i - medians // 2)) for i in range(medians))
        return Point(
            size, us, Spread(us, us, (us * 0.99, us * 1.01) if medians > 4 else None, around), None, None, flags
        )

    return Series(name, "", (122,), 0, tuple(point(size, us) for size, us in times.items()))


def _told(*series: Series, fabric: Fabric = Fabric.PCIE) -> str:
    panel = Panel("graph", "chained", (122,), {}, series)
    return gain.sentence(panel, leads(panel), fabric)


def test_the_size_of_a_decode_step_is_told_and_the_extremes() -> None:
    a = _series("push", {1024: 4.0, 14336: 5.0, 65536: 20.0})
    b = _series("nccl_auto", {1024: 40.0, 14336: 25.0, 65536: 30.0})

    assert _told(a, b) == (
        "At 14K push takes 5.00 us and nccl_auto 25.0 us: 5.00 times as fast; "
        "over all sizes 1.50x at 64K to 10.0x at 1K."
    )


def test_sizes_without_the_usual_algorithm_are_no_part_of_the_extremes() -> None:
    """A run whose budget ended before NCCL's large sizes does not say that NCCL is the fastest there."""
    a, b = _series("push", {1024: 4.0, 14336: 5.0, 65536: 20.0}), _series("nccl_auto", {1024: 40.0, 14336: 25.0})
    found = leads(Panel("graph", "chained", (122,), {}, (a, b)))

    assert _told(a, b).endswith("; over the 2 sizes with both 5.00x at 14K to 10.0x at 1K.")
    assert gain.no_gain(found[-1], b) == "not measured"
    assert gain.no_gain(found[-1], a) == "is the fastest"


def test_what_nccl_chooses_counts_before_forced_rows_and_gloo() -> None:
    rows = [_series(name, {1: us}) for name, us in (("gloo", 9.0), ("nccl_ring_ll", 2.0), ("nccl_auto", 3.0))]

    found = [gain.usual(Panel("graph", "chained", (1,), {}, tuple(some))) for some in (rows, rows[:2], rows[:1], [])]
    assert [one and one.name for one in found] == ["nccl_auto", "nccl_ring_ll", "gloo", None]


def test_intervals_come_from_launches_and_hold_the_ratio() -> None:
    panel = Panel("graph", "chained", (1,), {}, (_series("push", {1: 4.0}, 5), _series("nccl_auto", {1: 8.0}, 5)))
    (one,) = gain.gains(panel, leads(panel)).values()

    assert one.interval is not None
    assert 1.9 < one.interval[0] < 2.0 < one.interval[1] < 2.1
    few = Panel("graph", "chained", (1,), {}, (_series("push", {1: 4.0}, 4), _series("nccl_auto", {1: 8.0}, 5)))
    assert next(iter(gain.gains(few, leads(few)).values())).interval is None


def test_nothing_is_gained_where_nccl_leads_or_is_absent() -> None:
    assert "there is nothing to gain over it" in _told(_series("nccl_auto", {1: 1.0}), _series("push", {1: 2.0}))
    assert "NCCL was not measured in this mode" in _told(_series("push", {1: 2.0}))
    assert _told(_series("host_ring", {1: 2.0}), fabric=Fabric.HOST) == ""
    assert "there is nothing" in _told(
        _series("push", {1: 2.0}), _series("nccl_auto", {1: 9.0}, flags=("implausible",))
    )


def test_where_nothing_else_was_measured_there_is_nothing_to_say_of_gains() -> None:
    """As of a table of nccl-tests: it is not the fastest of anything."""
    mean = Series("nccl_tests", "avg", (1,), 0, _series("", {1: 2.0, 2: 2.0}).points)
    slowest = Series("nccl_tests", "events", (1,), 1, _series("", {1: 2.5, 2: 3.0}).points)

    assert _told(mean) == ""
    assert _told(mean, slowest) == "Nothing but nccl_tests was measured, so there is no gain to tell."


def test_what_is_tied_with_the_fastest_is_nothing_to_gain_over() -> None:
    told = _told(_series("nccl_auto", {1: 1.02, 2: 1.0}), _series("push", {1: 1.0, 2: 2.0}))

    assert told == (
        "nccl_auto is the fastest itself, or tied with it, wherever it was measured: there is nothing to gain over it."
    )


def test_a_gain_among_crowded_ranks_is_of_this_machine_only() -> None:
    panel = Panel("eager", "isolated", (1,), {}, (_series("push", {1: 4.0}), _series("gloo", {1: 400.0})))
    text = gain.sentence(panel, leads(panel), Fabric.HOST, "8 ranks took turns on 2 hardware threads")

    assert text.startswith("At 1 push takes 4.00 us and gloo 400 us: 100 times as fast. 8 ranks took turns on 2 ")
    assert text.endswith("no such gain is to be expected elsewhere.")
