"""The answer: the truth of a run is found, ties are called ties, and nothing is claimed that was not measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from collbench.report import answer
from collbench.report.cautions import cautions, not_run
from collbench.report.crossings import told
from collbench.report.series import CROWDED_TIE, EAGER_TIE, TIE, Panel, Point, Series, Spread, panels, spreads
from collbench.results.records import Fabric, Mode, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import synthetic_run


def _series(name: str, times: dict[int, float], flags: tuple[str, ...] = ()) -> Series:
    points = tuple(Point(size, us, Spread(us, us), None, None, flags) for size, us in times.items())
    return Series(name, "", (122,), 0, points)


def _panel(*series: Series) -> Panel:
    return Panel("graph", "chained", (122,), {}, series)


def test_the_finding_names_who_leads_where() -> None:
    panel = _panel(
        _series("a", {1024: 1.0, 4096: 2.0, 16384: 9.0, 65536: 40.0}),
        _series("b", {1024: 3.0, 4096: 3.5, 16384: 5.0, 65536: 30.0}),
        _series("c", {1024: 9.0, 4096: 9.5, 16384: 9.5, 65536: 10.0}),
    )

    assert answer.finding(panel) == "a is fastest up to 4K (1.00 to 2.00 us), b at 16K (5.00 us), c at 64K (10.0 us)."
    assert answer.finding(panel, times=False) == "a is fastest up to 4K, b at 16K, c at 64K."


def test_one_leader_and_one_runner_are_told_apart() -> None:
    slow, quick = _series("a", {1024: 2.0, 2048: 3.0}), _series("b", {1024: 1.0, 2048: 1.0})

    assert answer.finding(_panel(slow, quick)) == "b is fastest at every size (1.00 us)."
    assert answer.finding(_panel(slow)) == "Only a ran (2.00 to 3.00 us)."


def test_what_chooses_among_the_others_is_no_answer() -> None:
    """`auto` is as fast as what it took: it neither leads nor ties, unless it is all there is."""
    auto, push = _series("auto", {1: 0.99, 2: 0.99}), _series("push", {1: 1.0, 2: 1.0})
    pull = _series("pull", {1: 2.0, 2: 2.0})

    assert answer.finding(_panel(auto, push, pull)) == "push is fastest at every size (1.00 us)."
    assert [lead.ties for lead in answer.leads(_panel(auto, push, pull))] == [(), ()]
    assert [lead.best.name for lead in answer.leads(_panel(auto))] == ["auto", "auto"]


def test_a_leader_stays_while_tied() -> None:
    """Noise of a few percent makes no change of leader, and the table still says who was ahead."""
    panel = _panel(_series("a", {1: 1.0, 2: 1.02, 4: 1.0}), _series("b", {1: 1.02, 2: 1.0, 4: 1.01}))

    assert answer.finding(panel) == "No fastest can be told at any size: a and b are tied (1.00 to 1.02 us)."
    assert [(lead.best.name, lead.ties) for lead in answer.leads(panel)] == [
        ("a", ("b",)),
        ("b", ("a",)),
        ("a", ("b",)),
    ]


def test_no_winner_is_named_where_all_of_a_span_is_tied() -> None:
    a, b, c = {1: 1.0, 2: 1.0, 4: 9.0, 8: 9.0}, {1: 1.01, 2: 1.02, 4: 3.0, 8: 3.0}, {1: 9.0, 2: 9.0, 4: 8.0, 8: 3.1}
    panel = _panel(*(_series(name, times) for name, times in zip("abc", (a, b, c), strict=True)))

    assert answer.finding(panel, times=False) == (
        "b is fastest from 4; up to 2 a and b are tied; 3 of 4 sizes are ties in all."
    )


def test_headline_and_crossings_count_the_same_ties() -> None:
    a, b, c = {1: 1.0, 2: 1.0, 4: 9.0, 8: 9.0}, {1: 1.01, 2: 1.02, 4: 3.0, 8: 3.0}, {1: 9.0, 2: 9.0, 4: 8.0, 8: 3.1}
    panel = _panel(*(_series(name, times) for name, times in zip("abc", (a, b, c), strict=True)))

    assert "3 of 4 sizes are ties" in answer.finding(panel)
    assert "At 3 of 4 sizes the fastest is tied" in told([panel])["crossings"][0]["finding"]


def test_a_tie_that_another_one_heads_in_the_table_is_said_as_a_tie() -> None:
    """As at 1M on two H200: the table had two_stage_push first, the headline push."""
    a, b = _series("a", {1: 1.0, 2: 6.24, 4: 18.0}), _series("b", {1: 2.0, 2: 6.1, 4: 16.0})

    assert answer.finding(_panel(a, b), times=False) == "a is fastest at 1, b at 4; at 2 a and b are tied."
    assert answer.leads(_panel(a, b))[1].best.name == "b"


def test_who_led_and_did_not_run_elsewhere_is_named() -> None:
    """SGLang led where it ran, at 1K, and was not run beyond; push must not be called the fastest without that."""
    push, pull = _series("push", {1024: 2.1, 14336: 2.4, 65536: 2.5}), _series("pull", {1024: 3.0})
    led = (_series("sgl_one_shot", {1024: 1.6}), _series("sgl_custom", {1024: 1.65}))
    panel = _panel(*led, push, pull)

    assert answer.finding(panel, times=False).endswith(
        "Not run at 14K and 64K: sgl_one_shot and sgl_custom (first or tied at 1K)."
    )
    (caution,) = answer.open_sizes(panel)
    assert caution.startswith("Who is the fastest at 14K and 64K is open: sgl_one_shot and sgl_custom were not run")
    refused = dict.fromkeys(("sgl_one_shot", "sgl_custom"), frozenset({14336, 65536}))
    assert answer.open_sizes(replace(panel, unsupported=refused)) == []
    assert "Not run" not in answer.finding(_panel(push, pull))


def test_who_was_not_run_at_all_stands_in_the_first_lines(tmp_path: Path) -> None:
    """As with a budget that ended before one algorithm's chains: the rest must not look like all there is."""
    made = synthetic_run(tmp_path / "run", costs={"a": (5.0, 1.0), "b": (4.0, 0.5), "c": (9.0, 0.5)}, launches=5)
    late = {cell.cell_id for cell in made.run.cells if cell.algorithm == "b" and cell.calls > 1}
    samples = [
        replace(one, status=Status.NOT_RUN, reason="the budget ended", latency_us=()) if one.cell_id in late else one
        for one in RunFolder.open(made.path).samples()
    ]
    table = rows(made.run, samples)
    chained, isolated = sorted(panels(table, spreads(samples)), key=lambda panel: panel.cadence)
    (caution,) = not_run(table)

    assert answer.finding(chained, times=False).endswith(". Not run at any size: b.")
    assert "Not run" not in answer.finding(isolated)
    assert caution.startswith("4 of 24 planned cells were not run: b (4). Whoever is called the fastest is so of what")
    assert not_run(rows(made.run, RunFolder.open(made.path).samples())) == []


def test_a_leader_says_on_how_many_launches_it_rests() -> None:
    """Too few launches for intervals may be in that order by chance; where intervals tell two apart it is none."""

    def one(name: str, us: float, launches: dict[int, int]) -> Series:
        spread = {
            size: Spread(us, us, (us * 0.99, us * 1.01) if n > 4 else None, (us,) * n) for size, n in launches.items()
        }
        return Series(name, "", (1,), 0, tuple(Point(size, us, spread[size], None, None, ()) for size in launches))

    def found(*launches: dict[int, int], apart: float = 0.1) -> str:
        panel = _panel(
            *(one(name, 1.0 + apart * i, some) for i, (name, some) in enumerate(zip("ab", launches, strict=False)))
        )
        return answer.finding(panel, times=False)

    once, thrice, five = dict.fromkeys((1, 2), 1), dict.fromkeys((1, 2), 3), dict.fromkeys((1, 2), 5)
    assert found(once, once) == "a is fastest at every size. In one launch: the order may be chance."
    assert found(five, thrice).endswith(" In 3 launches, too few for an interval: the order may be chance.")
    assert found({1: 5, 2: 1}, five) == (
        "a is fastest at every size. At 2 in one launch: there the order may be chance."
    )
    assert found(five, five) == "a is fastest at every size."
    assert found(once) == "Only a ran."
    assert found(once, once, apart=1.5) == "a is fastest at every size."


def test_one_size_is_named_as_such() -> None:
    a, b = _series("a", {1024: 1.0, 2048: 3.0}), _series("b", {1024: 2.0, 2048: 2.0})

    assert answer.finding(_panel(a, b), times=False) == "a is fastest at 1K, b at 2K."
    assert answer.finding(_panel(_series("a", {1024: 1.0}), _series("b", {1024: 2.0})), times=False) == (
        "a is fastest at 1K."
    )


def test_eager_cells_that_the_host_launches_are_tied_within_its_noise(tmp_path: Path) -> None:
    a, b = _series("a", {1: 5.3}), _series("b", {1: 6.66})
    eager = replace(_panel(a, b), mode="eager", tie=EAGER_TIE)

    assert answer.leads(eager)[0].ties == ("b",)
    assert told([eager])["crossings_table"].lines == []
    assert answer.leads(_panel(a, b))[0].ties == ()
    assert "eager: 30 %" in answer.tie_rule(1, eager_tie=EAGER_TIE)
    made = synthetic_run(tmp_path / "run", modes=(Mode.EAGER, Mode.GRAPH))
    samples = RunFolder.open(made.path).samples()
    found = panels(rows(made.run, samples), spreads(samples), eager_tie=EAGER_TIE)
    assert {(panel.mode, panel.tie) for panel in found} == {("eager", EAGER_TIE), ("graph", TIE)}


def test_crowded_ranks_are_tied_within_what_launches_differ_by() -> None:
    """Ranks that take turns: a factor of 2.5 is no difference, one of 40 is; with intervals these decide."""
    near, far = _series("a", {1: 100.0}), _series("b", {1: 40.0})
    crowded = replace(_panel(near, far, _series("gloo", {1: 1600.0})), tie=CROWDED_TIE)

    assert answer.finding(crowded) == "No fastest can be told at any size: b and a are tied (40.0 us)."
    assert [(lead.ties, lead.runner_up, lead.ratio) for lead in answer.leads(crowded)] == [(("a",), "gloo", 40.0)]
    assert "within a factor of 10" in answer.tie_rule(1, CROWDED_TIE)
    assert "their intervals overlap" in answer.tie_rule(5, CROWDED_TIE)
    assert "their intervals overlap or, where one has none, medians are within 5 %" in answer.tie_rule(1, most=5)
    assert "intervals" not in answer.tie_rule(1, most=4)


def test_noise_ties_what_the_middle_halves_cannot_tell_apart() -> None:
    def one(name: str, us: float, low: float, high: float, *flags: str) -> Series:
        return Series(name, "", (1,), 0, (Point(1, us, Spread(low, high), None, None, flags),))

    assert answer.leads(_panel(one("a", 1.0, 0.9, 1.5, "noisy"), one("b", 1.4, 1.3, 1.6)))[0].ties == ("b",)
    assert answer.leads(_panel(one("a", 1.0, 0.9, 1.5), one("b", 1.4, 1.3, 1.6)))[0].ties == ()
    assert answer.leads(_panel(one("a", 1.0, 0.9, 1.1, "noisy"), one("b", 1.4, 1.3, 1.6)))[0].ties == ()


def test_a_name_within_a_name_is_not_confused() -> None:
    panel = _panel(_series("nccl_ring_ll", {1: 1.0, 2: 9.0}), _series("nccl_ring_ll128", {1: 5.0, 2: 2.0}))

    assert answer.finding(panel, times=False) == "nccl_ring_ll is fastest at 1, nccl_ring_ll128 at 2."


def test_many_changes_are_counted() -> None:
    a, b = {2**i: 1.0 + i % 2 for i in range(8)}, {2**i: 2.0 - i % 2 for i in range(8)}

    assert answer.finding(_panel(_series("a", a), _series("b", b))) == (
        "The fastest changes from size to size: a at 4, b at 4 of 8 sizes."
    )


def test_what_lies_below_the_floor_does_not_win() -> None:
    panel = _panel(_series("a", {1: 0.1}, ("implausible",)), _series("b", {1: 5.0}))

    assert [lead.best.name for lead in answer.leads(panel)] == ["b"]
    assert "nothing can be said" in answer.finding(_panel(_series("a", {1: 0.1}, ("implausible",))))


def test_intervals_decide_ties_where_there_are_some() -> None:
    def one(name: str, us: float, low: float, high: float) -> Series:
        return Series(name, "", (122,), 0, (Point(1, us, Spread(us, us, (low, high)), None, None, ()),))

    apart = _panel(one("a", 1.0, 0.99, 1.005), one("b", 1.02, 1.01, 1.03))
    near = _panel(one("a", 1.0, 0.9, 1.2), one("b", 1.15, 1.1, 1.3))

    assert answer.leads(apart)[0].ties == ()
    assert answer.leads(near)[0].ties == ("b",)


@pytest.mark.parametrize("fabric", [Fabric.HOST, Fabric.SHARED_GPU])
def test_fabrics_without_links_are_labelled(fabric: Fabric) -> None:
    text = " ".join(cautions(fabric, 1, 0, 5, finished=True))

    assert "launch, synchronisation and protocol cost, says nothing about PCIe links" in text
    assert "No interval: one launch" in text


def test_crowding_is_the_first_caution() -> None:
    first, second, *_ = cautions(Fabric.HOST, 1, 0, 5, finished=True, crowding="8 ranks took turns on 2 threads")

    assert first.startswith("8 ranks took turns on 2 threads, so times are mostly waiting")
    assert second.startswith("Fabric host")


def test_cautions_say_what_is_missing() -> None:
    assert cautions(Fabric.PCIE, 0, 0, 0, finished=True) == []
    text = " ".join(cautions(Fabric.PCIE, 3, 2, 5, finished=False))
    assert "No interval: 3 launches, at least 5 are needed" in text
    assert "2 of 5 measured cells are noisy" in text
    (some,) = cautions(Fabric.PCIE, 1, 0, 5, finished=True, short=2)
    assert some.startswith("No interval of 2 of 5 measured cells: fewer than 5 launches. Of the others: 95 %")
    (none,) = cautions(Fabric.PCIE, 3, 0, 5, finished=True, short=5)
    assert none.startswith("No interval: 3 launches")
    assert "stopped before its end" in text
    assert "Intervals: 95 %, from the medians of 5 launches" in cautions(Fabric.NVLINK, 5, 0, 5, finished=True)[0]


def test_the_known_truth_of_a_run_is_the_answer(tmp_path: Path) -> None:
    """Cost 5 us + 1 us/KiB against 20 us + 0.1 us/KiB: the lines cross at 16.7 KiB, between 8K and 64K."""
    made = synthetic_run(
        tmp_path / "run", costs={"slope": (20.0, 0.1), "start": (5.0, 1.0)}, sizes=(1024, 8192, 65536),
        modes=(Mode.EAGER, Mode.GRAPH), calls=(1, 122),
    )  # fmt: skip
    samples = RunFolder.open(made.path).samples()
    found = panels(rows(made.run, samples), spreads(samples))

    assert [(p.mode, p.cadence) for p in found] == [
        ("eager", "isolated"), ("eager", "chained"), ("graph", "isolated"), ("graph", "chained"),
    ]  # fmt: skip
    assert {answer.finding(p, times=False) for p in found} == {
        "start is fastest up to 8K, slope at 64K. At 8K in one launch: there the order may be chance."
    }
    best = answer.headline(found)
    assert best is not None
    assert best.title == "graph, chained (122 calls)"


def test_intervals_hold_the_truth_and_need_five_launches(tmp_path: Path) -> None:
    """8 launches: the interval of the median holds the median that was drawn around, at 19 of 20 cells or more."""
    made = synthetic_run(tmp_path / "run", launches=8, sizes=tuple(1024 * i for i in range(1, 9)), seed=5)
    samples = RunFolder.open(made.path).samples()
    found = spreads(samples)
    inside = [
        interval[0] <= made.truth_us[cell] <= interval[1] for cell, s in found.items() if (interval := s.interval_us)
    ]

    assert len(inside) == len(made.truth_us) == 96
    assert sum(inside) >= 0.9 * len(inside)
    assert all(s.interval_us is None for s in spreads(x for x in samples if x.launch < 4).values())


def test_cells_that_failed_have_no_spread() -> None:
    assert spreads([Samples("c", 0, Status.HUNG, "x")]) == {}
