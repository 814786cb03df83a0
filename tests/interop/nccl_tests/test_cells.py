"""From rows to samples: which time, how many calls, whose, and nothing that the program did not say."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from collbench.errors import InvalidError
from collbench.interop.nccl_tests.cells import measured, with_said
from collbench.interop.nccl_tests.printing import statistic
from collbench.interop.nccl_tests.reading import parse
from collbench.interop.nccl_tests.table import Invocation, Settings
from collbench.results.records import Collective, Mode, Status
from tests.interop.nccl_tests.layouts import CONFIG, FOOTER, PLAIN, RANKS, TIMES_US, json_text, table

Change = Callable[[Invocation], Invocation]


def run_of(text: str) -> Invocation:
    (found,) = parse(text)
    return found


def with_settings(**changes: object) -> Change:
    return lambda one: replace(one, settings=replace(one.settings, **changes))  # type: ignore[arg-type]


def test_a_mean_is_one_sample_of_many_calls() -> None:
    """20 iterations back to back: one value, one row, and the variant says whose mean it is."""
    found = measured([run_of(PLAIN)])
    assert len(found.cells) == 2 * len(TIMES_US)
    cell, samples = found.cells[0], found.samples[0]
    assert (cell.calls, cell.mode, cell.variant, cell.place) == (20, Mode.EAGER, "avg", "out")
    assert (cell.call.dtype, cell.call.op, cell.call.world_size) == ("float32", "sum", RANKS)
    assert (samples.latency_us, samples.calls, samples.status) == (((12.5,),), 20, Status.OK)
    assert {one.place for one in found.cells} == {"out", "in"}


@pytest.mark.parametrize(
    ("settings", "calls", "variant"),
    [
        ({"aggregated": 4}, 80, "avg m4"),
        ({"graph": 10}, 200, "avg"),
        ({"blocking": 1}, 1, "avg z1"),
        ({"blocking": 2}, 1, "avg z2"),
        ({"blocking": 3}, 1, "avg z3"),
        ({"blocking": 3, "aggregated": 4}, 4, "avg z3 m4"),
        ({"average": "max"}, 20, "max"),
        ({"others": ("R2", "y1")}, 20, "avg R2 y1"),
    ],
)
def test_what_may_not_be_compared_is_told_apart(settings: dict[str, object], calls: int, variant: str) -> None:
    """Calls of one sample, and the cell's variant: who waited, whose time, aggregated, registered, on which stream."""
    found = measured([with_settings(**settings)(run_of(PLAIN))])
    assert (found.cells[0].calls, found.cells[0].variant) == (calls, variant)
    assert (found.cells[0].mode is Mode.GRAPH) == ("graph" in settings)


def test_a_mean_of_graphs_says_how_many_calls_each_had() -> None:
    """`-G 10 -n 20`: ten launches of one graph with 20 calls, not 200 in a row."""
    one = run_of(PLAIN)
    assert "mean of 200 calls" in (text := statistic(replace(one, settings=replace(one.settings, graph=10))))
    assert text.endswith("; 10 graphs of 20 back to back")
    assert statistic(one).endswith("; 20 calls back to back")


def test_iterations_are_samples() -> None:
    """One process: the group's time in one row. A process per rank: every rank's."""
    single = measured([run_of(json_text())])
    assert single.cells[0].variant == "2.30.7 events z3"
    assert single.samples[0].latency_us == ((12.6, 12.7, 12.8, 12.9, 13.0),)
    each = measured([run_of(json_text(processes=RANKS))])
    assert len(each.samples[0].latency_us) == RANKS
    assert single.evidence[single.cells[0].cell_id, 0]["proto"] == "LL"


def test_several_processes_with_several_gpus_are_folded() -> None:
    """Rows of processes are no rows of ranks: only the largest in each iteration is known of the group."""
    found = measured([run_of(json_text(processes=4))])
    assert found.world_size == RANKS
    (group,) = found.samples[0].latency_us
    assert group == pytest.approx((12.63, 12.73, 12.83, 12.93, 13.03))


def test_aggregated_iterations_are_not_trusted() -> None:
    found = measured([with_settings(aggregated=2)(run_of(json_text()))])
    assert found.samples[0].latency_us == ((12.5,),)
    assert "events" not in found.cells[0].variant


def test_wrong_elements_have_no_time_and_unchecked_ones_say_so() -> None:
    text = CONFIG + table() + FOOTER
    row = next(line for line in text.splitlines() if line.startswith("        1024"))
    wrong = measured([run_of(text.replace(row, row[:-1] + "3"))])
    assert [one.status for one in wrong.samples].count(Status.WRONG) == 1
    assert next(one for one in wrong.samples if one.status is Status.WRONG).latency_us == ()
    unchecked = measured([run_of(CONFIG + table(wrong="N/A") + FOOTER)])
    assert {cell.variant for cell in unchecked.cells} == {"avg unverified"}


def test_later_runs_are_launches_and_cycles_are_iterations() -> None:
    found = measured(parse(PLAIN + PLAIN + PLAIN))
    assert found.launches == 3
    assert {one.launch for one in found.samples} == {0, 1, 2}
    cycles = CONFIG + table() + "\n".join(table().splitlines()[4:]) + "\n" + FOOTER
    assert measured(parse(cycles)).samples[0].latency_us == ((12.5, 12.5),)


def test_rows_of_no_bytes_are_left_out_and_told() -> None:
    row = next(line for line in PLAIN.splitlines() if line.startswith("        1024"))
    zero = re.sub(r"0\.\d\d", "0.00", row.replace("        1024", "           0", 1))
    found = measured([run_of(PLAIN.replace(row, f"{zero}\n{zero}\n{row}"))])
    assert len(found.cells) == 6
    assert found.left_out == ("2 rows of 0 bytes: nothing is called",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: replace(one, program=""), "--collective"),
        (lambda one: replace(one, world_size=0), "--nproc"),
        (lambda one: replace(one, program="broadcast"), "no word for this collective"),
        (with_settings(cputime=True), "-C 1"),
        (lambda one: replace(one, rows=tuple(replace(row, bytes=0) for row in one.rows)), "nothing that a run folder"),
    ],
)
def test_what_cannot_be_kept_is_named(change: Change, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        measured([change(run_of(PLAIN))])


def test_worlds_are_not_mixed() -> None:
    one = run_of(PLAIN)
    with pytest.raises(InvalidError, match="2, 8 ranks"):
        measured([one, replace(one, world_size=2)])


def test_what_the_user_says_fills_gaps_and_contradicts_nothing() -> None:
    one = replace(run_of(PLAIN), program="", world_size=0)
    told = with_said(one, program="all_gather", ranks=4)
    assert (told.collective, told.world_size) == (Collective.ALL_GATHER, 4)
    with pytest.raises(InvalidError, match="the output says 8"):
        with_said(run_of(PLAIN), ranks=4)


def test_settings_default_to_the_programs() -> None:
    assert (Settings().iterations, Settings().average) == (20, "avg")
