"""The plan is the same for the same options and machine, and never leaves a cell out."""

from dataclasses import replace

import pytest

from collbench.algorithms.base import Algorithm, Foreign
from collbench.contention.traffic import Schedule
from collbench.errors import UsageError
from collbench.measure.plan import CHAINED, Options, make_plan, sizes
from collbench.results.records import Call, Cell, Collective, Fabric, Mode, Support
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine

HOST = Machine(Topology((Node("socket0", NodeKind.SOCKET),), ()), Fabric.HOST, ranks=8)


def algorithm(name: str, cost_us: float = 10.0, **changes: object) -> Algorithm:
    settings: dict[str, object] = {
        "collective": Collective.ALL_REDUCE, "summary": "", "reference": "", "runner": "nowhere:Nobody",
        "traffic": lambda _call, _topology: Schedule(()), "support": lambda _machine, _call: Support.yes(),
        "family": "test", "device": "cpu", "modes": (Mode.EAGER,), "cost_us": lambda _call, _machine: cost_us,
    }  # fmt: skip
    return Algorithm(name=name, **{**settings, **changes})  # type: ignore[arg-type]  # a test's shorthand


def test_sizes_grow_by_the_factor_up_to_the_last() -> None:
    assert sizes(1024, 65536, 4) == [1024, 4096, 16384, 65536]
    assert sizes(1024, 65535, 4) == [1024, 4096, 16384]
    assert sizes(7, 7, 2) == [7]


def test_b_alone_is_one_size() -> None:
    plan = make_plan(Options(first_bytes=14336), HOST, [algorithm("a")])
    assert {cell.call.bytes for cell in plan.cells} == {14336}


def test_cells_are_grouped_by_algorithm_and_their_ids_are_distinct() -> None:
    plan = make_plan(Options(), HOST, [algorithm("a"), algorithm("b")])
    names = [cell.algorithm for cell in plan.cells]
    assert names == sorted(names)
    assert len({cell.cell_id for cell in plan.cells}) == len(plan.cells)


@pytest.mark.parametrize(
    ("cost_us", "expected"), [(10.0, CHAINED), (491.0, CHAINED), (500.0, 64), (16_000.0, 2), (1e9, 1)]
)
def test_chains_of_slow_algorithms_are_cut_to_a_power_of_two(cost_us: float, expected: int) -> None:
    plan = make_plan(Options(first_bytes=1024), HOST, [algorithm("a", cost_us)])
    assert max(cell.calls for cell in plan.cells) == expected


def test_a_chain_that_is_cut_to_one_call_is_one_cell() -> None:
    plan = make_plan(Options(first_bytes=1024), HOST, [algorithm("a", 1e9)])
    assert [cell.calls for cell in plan.cells] == [1]


def test_slots_stay_within_memory() -> None:
    plan = make_plan(Options(first_bytes=8 << 20), HOST, [algorithm("a", 1.0)])
    assert max(cell.calls for cell in plan.cells) * 2 * (8 << 20) * 8 <= 1 << 30


def test_slots_are_those_of_the_longest_chain_of_the_same_call() -> None:
    plan = make_plan(Options(first_bytes=1024), HOST, [algorithm("a")])
    assert [plan.slots_of(cell) for cell in plan.cells] == [CHAINED, CHAINED]


def test_a_mode_that_an_algorithm_lacks_is_left_out_unless_it_is_the_only_one() -> None:
    both = make_plan(Options(first_bytes=1024, calls=(1,)), HOST, [algorithm("a")])
    assert [cell.mode for cell in both.cells] == [Mode.EAGER]
    only = make_plan(Options(first_bytes=1024, calls=(1,), modes=(Mode.GRAPH,)), HOST, [algorithm("a")])
    assert [cell.mode for cell in only.cells] == [Mode.GRAPH]


def test_the_estimate_never_exceeds_the_budget_and_grows_with_launches() -> None:
    one, five = (make_plan(Options(launches=n), HOST, [algorithm("a")]) for n in (1, 5))
    assert one.once_s > 0
    assert five.seconds - five.once_s == pytest.approx(5 * (one.seconds - one.once_s))
    assert make_plan(Options(budget_s=1.0), HOST, [algorithm("a")]).seconds == 1.0


def test_a_budget_changes_what_a_launch_is_expected_to_take_as_it_changes_what_it_takes() -> None:
    """Its cells share 0.6 of what others leave of it, two seconds each at most, and a quick one stops at 2000."""
    slow, quick = algorithm("slow", 1000.0), algorithm("quick", 1.0)

    def launch_s(budget_s: float, reserved_s: float = 0.0) -> tuple[float, ...]:
        options = Options(first_bytes=1024, calls=(1,), launches=5, budget_s=budget_s)
        return tuple(make_plan(options, HOST, [slow, quick], reserved_s).launch_s.values())

    long, short = launch_s(1000.0), launch_s(10.0)
    assert long[0] - short[0] == pytest.approx(2.0 - 0.6)
    assert short[0] - launch_s(10.0, 5.0)[0] == pytest.approx(0.3)
    assert long[1] == short[1] < 0.3


def test_calls_that_are_refused_cost_nothing() -> None:
    refused = algorithm("a", support=lambda _machine, _call: Support.no("not here"))
    able = algorithm("a")
    assert make_plan(Options(), HOST, [refused]).seconds == 0.0
    assert make_plan(Options(), HOST, [able]).seconds > 0.0


def test_what_every_rank_imports_takes_longer_to_start() -> None:
    able, library = algorithm("a"), replace(algorithm("a"), opening_s=300.0)
    assert make_plan(Options(), HOST, [library]).seconds > make_plan(Options(), HOST, [able]).seconds + 5.0


def test_a_library_that_a_fork_server_imports_is_paid_once() -> None:
    """By all records that share its list, however many launches there are; without one every launch pays."""

    def seconds(launches: int, *foreign: Foreign) -> float:
        plain = [algorithm(f"a{i}") for i in range(len(foreign))]
        slow = [replace(a, opening_s=300.0, foreign=f) for a, f in zip(plain, foreign, strict=True)]
        options = Options(launches=launches)
        return make_plan(options, HOST, slow).seconds - make_plan(options, HOST, plain).seconds

    once = seconds(1, Foreign(("vllm",)))
    assert once > 5.0
    assert seconds(5, Foreign(("vllm",)), Foreign(("vllm",))) == pytest.approx(once)
    assert seconds(5, Foreign(("vllm",)), Foreign(("sglang",))) == pytest.approx(2 * once)
    assert seconds(5, Foreign()) == pytest.approx(5 * once)


@pytest.mark.parametrize(
    "options",
    [
        Options(dtype="float65"),
        Options(first_bytes=1023),
        Options(factor=1),
        Options(first_bytes=2048, last_bytes=1024),
    ],
)
def test_impossible_options_are_refused(options: Options) -> None:
    with pytest.raises(UsageError):
        make_plan(options, HOST, [algorithm("a")])


def test_call_knows_its_elements() -> None:
    assert Call(14336, 8, dtype="bfloat16").count == 7168


def test_listed_sizes_are_taken_as_they_are() -> None:
    plan = make_plan(Options(sizes=(43008, 14336, 14336)), HOST, [algorithm("a")])
    assert list(dict.fromkeys(cell.call.bytes for cell in plan.cells)) == [14336, 43008]


def calls(collective: Collective, *, dtype: str = "float32", epilogue: str = "", **more: object) -> list[Call]:
    options = Options(collective=collective, dtype=dtype, epilogue=epilogue, calls=(1,), **more)  # type: ignore[arg-type]
    return [cell.call for cell in make_plan(options, HOST, [algorithm("a")]).cells]


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL])
def test_parts_are_of_equal_size(collective: Collective) -> None:
    """Sizes are rounded down to a multiple of ranks x element, at least one; what reduces nothing has no op."""
    found = calls(collective, sizes=(16, 20, 100, 1024))
    assert [call.bytes for call in found] == [32, 96, 1024]
    assert {call.op for call in found} == {"sum" if collective is Collective.REDUCE_SCATTER else ""}
    assert {call.collective for call in found} == {collective}


def test_a_barrier_has_one_size() -> None:
    """One element per rank, whatever sizes are asked for."""
    assert [call.bytes for call in calls(Collective.BARRIER)] == [8 * 4]


def test_rows_to_normalise_are_whole() -> None:
    """From 7168 elements on whole rows, below that one row of whole 16 bytes."""
    found = calls(
        Collective.ALL_REDUCE, dtype="bfloat16", epilogue="residual_rmsnorm", sizes=(1024, 1030, 16384, 43008)
    )
    assert [call.bytes for call in found] == [1024, 14336, 43008]
    assert {call.epilogue for call in found} == {"residual_rmsnorm"}


def test_cells_of_an_all_reduce_keep_their_names() -> None:
    """Options without a collective give what they gave before there was a choice."""
    cell = make_plan(Options(first_bytes=1024, calls=(1,)), HOST, [algorithm("a")]).cells[0]
    assert cell.cell_id == "all_reduce/a/-/sum/float32/1024/8/eager/1/out/warm/-/-"
    gather = make_plan(Options(first_bytes=1024, calls=(1,), collective=Collective.ALL_GATHER), HOST, [algorithm("a")])
    assert gather.cells[0].cell_id == "all_gather/a/-/-/float32/1024/8/eager/1/out/warm/-/-"
    assert Cell.from_row(gather.cells[0].row()) == gather.cells[0]


def test_skews_are_cells_of_their_own() -> None:
    """The name of the splits is in the cell's; even parts keep the name that they had."""
    options = Options(sizes=(57344,), calls=(1,), collective=Collective.ALL_TO_ALL, skews=("even", "dispatch-z1-s0"))
    even, skewed = make_plan(options, HOST, [algorithm("a")]).cells
    assert even.cell_id.endswith("/57344/8/eager/1/out/warm/-/-")
    assert skewed.cell_id.endswith("/57344/8/eager/1/out/warm/-/dispatch-z1-s0")
    assert not even.call.splits
    assert len(skewed.call.splits) == 64


def test_copies_of_one_algorithm_are_told_apart_by_their_variant() -> None:
    pair = [replace(algorithm("a"), variant=name) for name in ("2.28.9", "2.30.7")]
    plan = make_plan(Options(sizes=(1024,), calls=(1,), modes=(Mode.EAGER,)), HOST, pair)
    assert [cell.variant for cell in plan.cells] == ["2.28.9", "2.30.7"]
    assert [plan.cells_of(one)[0].variant for one in pair] == ["2.28.9", "2.30.7"]
