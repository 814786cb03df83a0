"""Advice worked out by hand: step times, intervals, break-even, joining, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.errors import InvalidError
from collbench.results.records import Call, Cell, Collective, Fabric, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import rows
from collbench.testing import synthetic_run
from collbench.topology import catalog
from collbench.workload import ModelTimes, RunTimes, Workload, advise, find, load, tables
from collbench.workload.advice import CAUTION
from collbench.workload.catalog import Calls, Speculation
from collbench.workload.settings import WORKSPACE, Server, servers
from collbench.workload.times import CallTime

ALL_REDUCE, ALL_TO_ALL = Collective.ALL_REDUCE, Collective.ALL_TO_ALL


class Known:
    """Times that are known: a + b per KiB, by algorithm."""

    source, mode, launches, ranks = "run", Mode.GRAPH, 5, 8
    arch, epilogue = 120, ""
    measured: Mapping[int, CallTime] = {}
    notes: Sequence[str] = ()

    def __init__(
        self, costs: Mapping[str, tuple[float, float]], kind: Collective = ALL_REDUCE, fabric: Fabric = Fabric.PCIE
    ) -> None:
        self.costs, self.kind, self.fabric = costs, kind, fabric

    def algorithms(self, collective: Collective) -> Sequence[str]:
        return list(self.costs) if collective is self.kind else []

    def at(self, algorithm: str, collective: Collective, size_bytes: int) -> CallTime | None:
        if size_bytes > 1 << 20:
            return None
        a, b = self.costs[algorithm]
        us = a + b * size_bytes / 1024
        return CallTime(us, (0.9 * us, 1.1 * us))

    def curve(self, algorithm: str, collective: Collective) -> Mapping[int, CallTime]:
        del algorithm, collective
        return {}

    def refuses(self, algorithm: str, collective: Collective, size_bytes: int) -> bool:
        del algorithm, collective, size_bytes
        return False

    def joined(self, algorithm: str, collective: Collective, size_bytes: int, batch: int) -> CallTime | None:
        del algorithm, collective, size_bytes
        return self.measured.get(batch)


COSTS = {"nccl_ring_ll": (20.0, 0.1), "push": (4.0, 0.5)}
DECODE = Workload("decode", "", (1, 4), (Calls(ALL_REDUCE, 100, 10240),), 8000.0, 100.0, fusion_us=1.0)
VERIFY = replace(
    DECODE, name="verify", batches=(1,), tokens_per_sequence=3, speculation=Speculation("decode", 2, 2.0, 500.0, "")
)


def test_a_step_is_its_calls_and_the_rest() -> None:
    """Batch 1: 100 calls of 10 KiB and 8,100 us; tokens per second from that; fastest first."""
    advice = advise(DECODE, Known(COSTS))
    push, ring = (step for step in advice.steps if step.batch == 1)
    assert (push.algorithm, ring.algorithm) == ("push", "nccl_ring_ll")
    assert push.comm_us == pytest.approx(100 * 9)
    assert push.step_us == pytest.approx(9000)
    assert push.tokens_per_s == pytest.approx(1e6 / 9000)
    assert push.interval_us == pytest.approx((8100 + 810, 8100 + 990))
    assert ring.step_us == pytest.approx(8100 + 100 * 21)
    assert advice.best(4).tokens_per_s == pytest.approx(4 / (8400 + 100 * 24.0) * 1e6)


def test_joining_is_taken_as_measured_where_it_was() -> None:
    """Two messages in one call took 5 us each instead of 9: 100 calls save 400 us; four were not measured as such."""
    times = Known(COSTS)
    times.measured = {2: CallTime(5.0, (4.5, 5.5))}
    saved = {one.k: one for one in advise(DECODE, times).coalescing if one.batch == 1}
    assert saved[2].saved_us == pytest.approx(100 * (9 - 5))
    assert saved[2].interval_us == pytest.approx((100 * (8.1 - 5.5), 100 * (9.9 - 4.5)))
    assert saved[4].saved_us == pytest.approx(100 * (9 - (4 + 0.5 * 40) / 4))


@pytest.mark.parametrize("time", [CallTime(5.0, None), CallTime(5.0, (4.5, 5.5), "between 1024 and 4096 bytes")])
def test_noise_is_not_what_joining_saves(time: CallTime) -> None:
    """Without an interval, or between two sizes: nothing is said but the sweep that measures it."""
    times = Known(COSTS)
    times.measured = {2: time, 4: time}
    advice = advise(replace(DECODE, batches=(1,)), times)
    assert [(one.k, one.bytes) for one in advice.coalescing if one.saved_us is None] == [(2, 10240), (4, 10240)]
    *table, last = tables.joined(advice, 5, None)
    assert [line.split()[:4] for line in table[2:]] == [["1", "push", "-", "-"]]
    assert (
        last
        == "-: not measured with an interval: collbench sweep --algorithms push --sizes 10240,20480,40960 --launches 5"
    )
    times.measured = dict.fromkeys((2, 4, 8), time)
    alone = tables.joined(advise(replace(DECODE, batches=(1,)), times), 5, None)
    assert len(alone) == 1
    assert alone[0].startswith("What joining calls saves is not measured with an interval: collbench sweep")


def test_a_gain_that_may_be_a_loss_has_no_number_of_its_own() -> None:
    times = Known(COSTS)
    times.measured = {2: CallTime(8.9, (7.0, 11.0))}
    line = tables.joined(advise(replace(DECODE, batches=(1,)), times), 5, None)[-1]
    assert line.split("push")[1].strip().startswith("[-0.29, 0.29]")
    narrow = tables.joined(advise(replace(DECODE, batches=(1,)), times), 5, 60)
    assert max(map(len, "\n".join(narrow).splitlines())) <= 60


def test_sizes_far_apart_say_nothing_of_those_between(tmp_path: Path) -> None:
    """Protocols change there; a factor of 8 is the most."""
    made = synthetic_run(tmp_path / "run", costs={"push": (4.0, 0.5)}, sizes=(1024, 8192, 131072))
    times = RunTimes(made.run, RunFolder.open(made.path).samples())
    assert times.at("push", ALL_REDUCE, 4096) is not None
    assert times.at("push", ALL_REDUCE, 16384) is None


def test_cells_that_were_left_aside_are_named() -> None:
    """In place was measured at more sizes: it is taken, and the other is named."""
    cells = [
        Cell("nccl", Call(size, 2, dtype="float32"), Mode.EAGER, 20, place=place)
        for place, sizes in (("out", (1024,)), ("in", (1024, 4096))) for size in sizes
    ]  # fmt: skip
    samples = [Samples(cell.cell_id, 0, Status.OK, calls=20, latency_us=((5.0,) * 9,) * 2) for cell in cells]
    times = RunTimes(Run("r", "", (), "", Fabric.PCIE, 2, 1, tuple(cells)), samples)
    assert times.notes == ("Of the run's all_reduce cells those of place in (2) are taken; left aside: place out (1)",)
    assert RunTimes(Run("r", "", (), "", Fabric.PCIE, 2, 1, tuple(cells[:1])), samples).notes == ()


def test_launches_that_a_budget_cut_off_take_nothing_from_those_before() -> None:
    """A wrong sum in any launch does."""
    push, ring = (Cell(name, Call(4096, 2, dtype="float32"), Mode.EAGER, 20) for name in ("push", "ring"))
    timed = [
        Samples(cell.cell_id, launch, Status.OK, calls=20, latency_us=((5.0,) * 9,) * 2)
        for cell in (push, ring) for launch in range(2)
    ]  # fmt: skip
    later = [Samples(push.cell_id, 2, Status.NOT_RUN, "budget"), Samples(ring.cell_id, 2, Status.WRONG, "sum")]
    times = RunTimes(Run("r", "", (), "", Fabric.PCIE, 2, 3, (push, ring)), [*timed, *later])
    assert times.algorithms(ALL_REDUCE) == ["push"]
    assert times.launches == 2
    with pytest.raises(InvalidError, match="no cell that ended ok"):
        RunTimes(Run("r", "", (), "", Fabric.PCIE, 2, 3, (push, ring)), later)


def test_single_calls_do_not_continue_a_curve_of_chains() -> None:
    """A chain was timed at 4 KiB only: 16 KiB, timed alone, holds a launch for each call; nothing lies between."""
    chain, alone = (Cell("push", Call(size, 8), Mode.GRAPH, calls) for size, calls in ((4096, 122), (16384, 1)))
    samples = [
        Samples(cell.cell_id, 0, Status.OK, "", (), cell.calls, ((us, us),) * 8)
        for cell, us in ((chain, 34.0), (alone, 130.0))
    ]
    both = RunTimes(Run("r", "", (), "", Fabric.SHARED_GPU, 8, 1, (chain, alone)), samples)
    assert list(both.curve("push", Collective.ALL_REDUCE)) == [4096]
    assert both.at("push", Collective.ALL_REDUCE, 14336) is None
    single = RunTimes(Run("r", "", (), "", Fabric.SHARED_GPU, 8, 1, (alone,)), samples[1:])
    assert list(single.curve("push", Collective.ALL_REDUCE)) == [16384]


def test_algorithms_of_the_same_figures_are_one_row() -> None:
    advice = advise(DECODE, Known({"push": (4.0, 0.5), "twin": (4.0, 0.5), "nccl_ring_ll": (20.0, 0.1)}))
    lines = tables.steps(advice, 1, 120)
    assert [line.split("  ")[0].strip() for line in lines] == ["algorithm", "push +1", "nccl_ring_ll"]
    assert len(tables.steps(advice, 1, None)) == 4, "scripts get every name on a line of its own"
    assert max(map(len, tables.steps(advice, 1, 60))) <= 60


def test_rows_of_joined_calls_are_no_choice_of_a_server(tmp_path: Path) -> None:
    """They are per message and need another model: advise names what they save, and recommends another algorithm."""
    plain, joined = (
        Cell(name, Call(14336, 2, dtype="float32"), Mode.EAGER, calls)
        for name, calls in (("host_two_stage", 122), ("host_two_stage_joined_2", 122))
    )
    run = Run("r", "", (), "", Fabric.HOST, 2, 1, (plain, joined))
    samples = [
        Samples(cell.cell_id, 0, Status.OK, calls=122, latency_us=((us,) * 9,) * 2)
        for cell, us in ((plain, 10.0), (joined, 6.0))
    ]
    times = RunTimes(run, samples)
    assert times.algorithms(ALL_REDUCE) == ["host_two_stage"]
    found = times.joined("host_two_stage", ALL_REDUCE, 14336, 2)
    assert found is not None
    assert found.us == pytest.approx(6.0)
    assert times.joined("host_two_stage", ALL_REDUCE, 14336, 8) is None


def test_break_even_is_where_both_give_the_same() -> None:
    """At the break-even time, tokens per second with and without speculation agree."""
    advice = advise(VERIFY, Known(COSTS), DECODE)
    point = next(one for one in advice.break_even if one.algorithm == "push")
    plain = advise(DECODE, Known(COSTS)).best(1)
    step = 100 * point.us + VERIFY.other_at(1)
    assert 2.0 / step * 1e6 == pytest.approx(plain.tokens_per_s)
    assert point.now_us == pytest.approx(4 + 15)
    assert point.pays is (advice.best(1).tokens_per_s > plain.tokens_per_s)


def test_speculation_that_never_pays_has_a_negative_break_even() -> None:
    slow = replace(VERIFY, other_us=50_000.0)
    assert advise(slow, Known(COSTS), DECODE).break_even[0].us < 0
    assert not advise(slow, Known(COSTS), DECODE).break_even[0].pays


def test_joining_and_fusing() -> None:
    """Joining k calls saves the fixed part of all but one of each k."""
    advice = advise(replace(DECODE, batches=(1,)), Known(COSTS))
    saved = {one.k: one.saved_us for one in advice.coalescing}
    assert saved == pytest.approx({2: 100 * 4 / 2, 4: 100 * 4 * 3 / 4, 8: 100 * 4 * 7 / 8})
    assert advice.fusion_us == {1: 100.0}


def test_several_collectives_meet_the_best_of_the_others() -> None:
    both = replace(DECODE, calls=(*DECODE.calls, Calls(ALL_TO_ALL, 10, 1024)), batches=(1,))
    with pytest.raises(InvalidError, match="no all_to_all in the run"):
        advise(both, Known(COSTS))
    twice = replace(DECODE, calls=(*DECODE.calls, Calls(ALL_REDUCE, 10, 1024)), batches=(1,))
    assert advise(twice, Known(COSTS)).best(1).comm_us == pytest.approx(900 + 10 * 4.5)


def test_what_has_no_time_is_named() -> None:
    """A size beyond those measured is no reason to guess."""
    advice = advise(replace(DECODE, batches=(1, 200)), Known(COSTS))
    assert advice.batches == (1,)
    assert advice.missing == ("no time at 2048000 bytes: nccl_ring_ll, push",)
    two = advise(replace(DECODE, batches=(1, 200, 400)), Known(COSTS))
    assert two.missing == ("no time at 2048000, 4096000 bytes: nccl_ring_ll, push",), "names stand once"
    with pytest.raises(InvalidError, match="nothing to advise"):
        advise(replace(DECODE, batches=(200,)), Known(COSTS))


def test_cautions() -> None:
    """The warning about micro-benchmarks is always there; a fabric without links is named."""
    assert advise(DECODE, Known(COSTS)).cautions == (CAUTION,)
    told = advise(DECODE, Known(COSTS, fabric=Fabric.SHARED_GPU)).cautions
    assert "shared one GPU" in told[1]


def of(fabric: Fabric, ranks: int, arch: int = 120, epilogue: str = "") -> dict[str, Server]:
    names = ("push", "nccl_auto", "nccl_ring_ll", "vllm_one_stage", "flashinfer_pcie_push")
    return {one.where: one for one in servers(fabric, ranks, names, arch=arch, epilogue=epilogue)}


def test_settings_name_their_releases_and_the_row_that_times_them() -> None:
    """No setting is judged by a kernel that somebody forced with its best grid."""
    for known in (of(Fabric.PCIE, 8), of(Fabric.NVLINK, 2, 90), of(Fabric.NVLINK, 8, 90)):
        told = [one for server in known.values() for one in server.settings]
        assert all(one.release and one.algorithm for one in told)
        assert {"push", "vllm_one_stage", "flashinfer_pcie_push"}.isdisjoint(one.algorithm for one in told)
        assert {one.algorithm for one in told if "PCIE_IPC" in one.text} == {WORKSPACE}
        assert all("size its workspace for decode" in one.note for one in told if "PCIE_IPC" in one.text)
    forced = [one.text for one in of(Fabric.PCIE, 8)["NCCL"].settings if one.algorithm == "nccl_ring_ll"]
    assert forced == ['NCCL_ALGO="allreduce:ring" NCCL_PROTO="allreduce:LL"']


def test_what_a_server_runs_by_itself_depends_on_fabric_ranks_and_cards() -> None:
    """FlashInfer is asked first by vLLM where its table knows the card; on PCIe beyond two ranks both take NCCL."""
    assert [one.default for one in of(Fabric.PCIE, 8).values()] == ["nccl_auto"] * 3
    pair = of(Fabric.NVLINK, 2, 90)
    assert (pair["vLLM"].default, pair["vLLM"].without) == ("flashinfer_trtllm_fusion_pdl", "vllm_custom_all_reduce")
    assert pair["SGLang"].default == "sglang_custom_all_reduce"
    assert of(Fabric.PCIE, 2)["vLLM"].default == "vllm_custom_all_reduce"
    assert not any("PCIE_IPC" in one.text for one in of(Fabric.PCIE, 6)["vLLM"].settings)
    assert set(of(Fabric.SHARED_GPU, 8)) == {"NCCL"}
    assert of(Fabric.HOST, 8) == {}


def test_sglangs_own_all_reduce_stands_before_flashinfers_workspace() -> None:
    """So that where it is on, the variable alone changes nothing."""

    def told(known: dict[str, Server]) -> str:
        return next(one.text for one in known["SGLang"].settings if one.algorithm == WORKSPACE)

    assert told(of(Fabric.NVLINK, 2)).endswith("=1 --disable-custom-all-reduce")
    assert told(of(Fabric.PCIE, 8)).endswith("ALLREDUCE=1")


def test_of_fused_calls_servers_run_flashinfers_fusion() -> None:
    fused = of(Fabric.NVLINK, 2, 90, "residual_rmsnorm")
    assert {one.default for one in fused.values()} == {"flashinfer_trtllm_fusion_pdl"}
    assert of(Fabric.PCIE, 8, 120, "residual_rmsnorm") == {}
    advice = advise(DECODE, Known(COSTS))
    assert (advice.servable, bool(advice.settings)) == ("nccl_ring_ll", True)


def test_a_sweep_of_fused_calls_is_told_with_their_epilogue() -> None:
    """Without it the sweep times plain calls, which answer nothing here."""
    times = Known({"push": (4.0, 0.5)}, fabric=Fabric.NVLINK)
    times.arch, times.epilogue = 90, "residual_rmsnorm"
    told = {choice.where: choice.text for choice in advise(DECODE, times).choices}
    command = "sweep --algorithms flashinfer_trtllm_fusion_pdl --epilogue residual_rmsnorm --sizes 10240 measures it"
    assert set(told) == {"vLLM", "SGLang"}
    assert all(command in text for text in told.values())
    large = replace(DECODE, calls=(Calls(ALL_REDUCE, 100, 2 << 20),))
    with pytest.raises(InvalidError, match=r"collbench sweep --epilogue residual_rmsnorm --sizes 2097152,8388608$"):
        advise(large, times)


def test_times_of_a_run_come_from_its_cells(tmp_path: Path) -> None:
    """Graph before eager, the longest chain, the truth behind the samples, intervals from 5 launches."""
    made = synthetic_run(
        tmp_path / "run", costs={"push": (4.0, 0.5)}, modes=(Mode.EAGER, Mode.GRAPH), launches=5, sizes=(1024, 4096)
    )
    folder = RunFolder.open(made.path)
    times = RunTimes(folder.run, folder.samples())
    truth = next(
        made.truth_us[c.cell_id] for c in made.run.cells if (c.mode, c.calls, c.call.bytes) == ("graph", 122, 1024)
    )
    found = times.at("push", ALL_REDUCE, 1024)
    assert found is not None
    assert found.us == pytest.approx(truth, rel=0.03)
    assert found.interval_us is not None
    assert found.interval_us[0] < found.us < found.interval_us[1]
    between = times.at("push", ALL_REDUCE, 2560)
    ends = [times.at("push", ALL_REDUCE, size) for size in (1024, 4096)]
    assert between is not None
    assert between.us == pytest.approx(sum(end.us for end in ends if end) / 2)
    assert between.how == "between 1024 and 4096 bytes"
    assert times.at("push", ALL_REDUCE, 512) is None
    assert times.at("push", ALL_REDUCE, 8192) is None
    assert times.at("strange", ALL_REDUCE, 1024) is None


def test_one_launch_has_no_interval(tmp_path: Path) -> None:
    folder = RunFolder.open(synthetic_run(tmp_path / "run", sizes=(4096, 14336)).path)
    times = RunTimes(folder.run, folder.samples())
    advice = advise(replace(DECODE, batches=(1,)), times)
    assert (advice.launches, {step.interval_us for step in advice.steps}) == (1, {None})


def test_a_run_without_an_ok_cell_is_refused(tmp_path: Path) -> None:
    from collbench.results.records import Status

    made = synthetic_run(tmp_path / "run", costs={"a": (1.0, 1.0)}, failing={"a": (Status.CRASHED, "it died")})
    folder = RunFolder.open(made.path)
    with pytest.raises(InvalidError, match="no cell that ended ok"):
        RunTimes(folder.run, folder.samples())


@pytest.mark.parametrize("name", ["moe-61-decode", "expert-parallel-decode"])
def test_the_model_advises_on_a_topology_alone(name: str) -> None:
    """Every batch has steps with intervals, and the answer says that nothing was measured."""
    times = ModelTimes(catalog.load(catalog.find("two-flat-gen5-switches")))
    workload = load(find(name))
    advice = advise(workload, times)
    assert (advice.source, advice.batches, advice.ranks) == ("model", workload.batches, 8)
    assert all(step.interval_us and step.interval_us[0] < step.step_us < step.interval_us[1] for step in advice.steps)
    assert any("Nothing was measured" in text for text in advice.cautions)


def test_what_the_doctor_does_not_vouch_for_is_no_advice() -> None:
    """It is named beside the advice, and neither the best nor in a table."""
    topology = catalog.load(catalog.find("two-flat-gen5-switches"))
    every = advise(load(find("moe-61-decode")), ModelTimes(topology))
    best = every.steps[0].algorithm
    times = ModelTimes(topology, None, lambda _: {best: "unknown", "nccl_ring_ll": "runs"})
    told = advise(load(find("moe-61-decode")), times)

    assert best not in {step.algorithm for step in told.steps}
    assert {"nccl_ring_ll", "push"} <= {step.algorithm for step in told.steps}
    assert any(note == f"Not advised, since nobody knows whether they run there: {best}" for note in times.notes)
    assert not [note for note in ModelTimes(topology).notes if "Not advised" in note]


def test_a_time_is_the_same_p50_as_in_every_table() -> None:
    """Median over all iterations, where launches differ in length: not the middle of the launches' medians."""
    cell = Cell("push", Call(4096, 2), Mode.GRAPH, 122)
    samples = [
        Samples(cell.cell_id, launch, Status.OK, calls=122, latency_us=((us,) * count,) * 2)
        for launch, (us, count) in enumerate([(5.0, 20), (6.0, 3), (8.0, 3)])
    ]
    run = Run("r", "", (), "", Fabric.PCIE, 2, 3, (cell,))
    time = RunTimes(run, samples).at("push", ALL_REDUCE, 4096)
    (row,) = rows(run, samples)
    assert time is not None
    assert time.us == row["p50_us"] == 5.0
