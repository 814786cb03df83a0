"""Predictions of all algorithms on a topology, crossovers, and predictions for the cells of a run."""

import itertools
from dataclasses import replace

import pytest

from collbench.algorithms.base import known_systems, registry
from collbench.algorithms.cell_predictions import predictions_of, predictor
from collbench.algorithms.floors import floors_of
from collbench.algorithms.predictions import Forecast
from collbench.contention.parameters import priors
from collbench.contention.traffic import Move, one_stage
from collbench.errors import UsageError
from collbench.results.records import Call, Cell, Fabric, Mode, Run
from collbench.topology import catalog
from collbench.topology.graph import Node, NodeKind, Topology, TopologyError
from collbench.topology.machine import Machine

MACHINE = "two-flat-gen5-switches"


def topology(name: str = MACHINE) -> Topology:
    return catalog.load(catalog.find(name))


def run_of(*cells: Cell, fabric: Fabric = Fabric.PCIE, machine: Topology | None = None) -> Run:
    whole = Machine(topology() if machine is None else machine, fabric, 8)
    return Run(
        run_id="r", created="2026-01-01T00:00:00Z", command=(), version="0", fabric=fabric, world_size=8, launches=1,
        cells=cells, machine=whole.as_dict(),
    )  # fmt: skip


def cell(algorithm: str, mode: Mode = Mode.GRAPH, size: int = 43_008) -> Cell:
    return Cell(algorithm, Call(size, 8), mode, 122)


def test_every_gpu_algorithm_is_predicted_or_left_out_with_a_reason() -> None:
    forecast = Forecast(topology())
    names = {a.name for a in forecast.algorithms}
    assert names | forecast.left_out.keys() == registry().keys()
    assert not names & forecast.left_out.keys()
    assert {"one_stage_pull", "push", "islands", "nccl_ring_ll"} <= names
    assert "processors" in forecast.left_out["host_ring"]
    assert "multicast" in forecast.left_out["symm_multimem"]
    assert "not modelled" in forecast.left_out["nccl_auto"]


def test_rows_come_by_size_and_fastest_first() -> None:
    rows = Forecast(topology()).rows([1024, 43_008])
    assert [row["bytes"] for row in rows] == sorted(row["bytes"] for row in rows)
    small = [row["total_us"] for row in rows if row["bytes"] == 1024]
    assert small == sorted(small)


def test_a_crossover_is_where_the_faster_one_changes() -> None:
    """At the size named the new one is faster; one element below the old one is."""
    forecast = Forecast(topology())
    by_name = {a.name: a for a in forecast.algorithms}
    crossings = forecast.crossovers(1024, 4 << 20)
    assert len(crossings) >= 2
    for cross in crossings:
        before, after = by_name[cross.before], by_name[cross.after]
        assert forecast.predict(after, cross.bytes).total_us <= forecast.predict(before, cross.bytes).total_us
        below = cross.bytes - 2
        assert forecast.predict(before, below).total_us <= forecast.predict(after, below).total_us
    assert [c.after for c in crossings[:-1]] == [c.before for c in crossings[1:]]


def test_a_schedule_says_whose_host_code_launches_it() -> None:
    """Ours, torch's for NCCL and symmetric memory, and libraries their own."""
    forecast = Forecast(topology())
    of = {
        a.name: forecast.schedule(a, 1024).launcher for a in registry().values() if a.device == "cuda" and a.batch == 1
    }
    names = ("push", "nccl_ring_ll", "symm_one_shot", "nccl_all_to_all", "vllm_one_stage", "flashinfer_pcie_push")
    assert [of[name] for name in names] == ["own", "torch", "torch", "torch", "library", "library"]
    eager = Forecast(topology(), mode=Mode.EAGER)
    known = registry()
    us = [eager.predict(known[name], 1024).total_us for name in ("push", "nccl_ring_ll", "flashinfer_pcie_push")]
    assert us == pytest.approx(
        [
            priors()["launch.eager.own"].value + priors()["launch.eager.call"].value,
            priors()["launch.eager.torch"].value,
            priors()["launch.eager"].value,
        ],
        rel=0.3,
    )


def test_a_single_call_of_a_run_has_its_start() -> None:
    one = cell("push")
    alone = replace(one, calls=1)
    run = run_of(one, alone)
    chain, start = predictor(run)(one), priors()["launch.start.graph"].value
    single = predictor(run)(alone)
    assert chain is not None
    assert single is not None
    assert single.total_us - chain.total_us == pytest.approx(start)


def test_what_is_not_known_is_said() -> None:
    """Links without a capacity of their own or of their class: the row says that bytes cost nothing."""
    bare = replace(topology(), links=tuple(replace(x, capacity_gbps=None, generation=0) for x in topology().links))
    rows = Forecast(bare).rows([1024])
    assert all("unknown capacity only" in row["notes"][0] for row in rows)
    assert all(row["bottleneck"] is None for row in rows)
    assert all(row["notes"] == [] for row in Forecast(topology()).rows([1024]))


def test_eager_crossovers_are_those_beyond_the_time_of_the_host() -> None:
    """Where launching takes longer than any of them, nothing is faster than anything else."""
    machine = topology("dual-socket-direct")
    graph, eager = (Forecast(machine, mode=mode).crossovers(1024, 4 << 20) for mode in (Mode.GRAPH, Mode.EAGER))
    assert set(eager) < set(graph)
    assert [cross for cross in graph if cross.bytes > 1 << 14] == [c for c in eager if c.bytes > 1 << 14]
    for cross in eager:
        forecast = Forecast(machine, mode=Mode.EAGER)
        after = next(a for a in forecast.algorithms if a.name == cross.after)
        assert forecast.predict(after, cross.bytes).total_us > priors()["launch.eager"].value


def test_crossovers_are_those_that_a_fine_search_finds() -> None:
    forecast = Forecast(topology())
    fastest = [forecast.rows([size])[0]["algorithm"] for size in range(1024, 1 << 19, 8192)]
    changes = [b for a, b in itertools.pairwise(fastest) if a != b]
    assert [c.after for c in forecast.crossovers(1024, 1024 + 8192 * (len(fastest) - 1))] == changes


def test_an_algorithm_has_rows_of_the_sizes_that_it_takes() -> None:
    """Our kernels end at 8 MiB, NCCL does not."""
    names = {row["algorithm"] for row in Forecast(topology()).rows([16 << 20])}
    assert "nccl_ring_ll" in names
    assert "push" not in names


def test_no_crossover_at_one_size() -> None:
    assert Forecast(topology()).crossovers(1024, 1024) == []


@pytest.mark.parametrize(("name", "fabric"), [(MACHINE, Fabric.PCIE), ("nvswitch-8gpu", Fabric.NVLINK)])
def test_the_fabric_is_what_ranks_use(name: str, fabric: Fabric) -> None:
    assert Forecast(topology(name)).fabric is fabric


@pytest.mark.parametrize("ranks", [0, 1, 9])
def test_ranks_that_do_not_fit(ranks: int) -> None:
    with pytest.raises(UsageError, match=rf"{ranks} ranks on topology {MACHINE} with 8 GPUs"):
        Forecast(topology(), ranks=ranks)


def test_fewer_ranks_stay_below_one_switch() -> None:
    """Four ranks do not use the processor."""
    rows = Forecast(topology(), ranks=4).rows([43_008])
    assert all("root" not in row["bottleneck"]["link"] for row in rows)


def test_cells_of_a_run_are_predicted() -> None:
    run = run_of(cell("push"), cell("push", Mode.EAGER), cell("host_ring", Mode.EAGER), cell("nccl_auto"), cell("gone"))
    found = predictions_of(run, evidence=ran(run.cells[0], "push 2x512+pdl"))
    assert found.keys() == {run.cells[0].cell_id, run.cells[1].cell_id}
    row = next(r for r in Forecast(topology()).rows([43_008]) if r["algorithm"] == "push")
    assert found[run.cells[0].cell_id] == row["total_us"]


def ran(cell: Cell, *kernels: str, name: str = "kernel") -> dict[tuple[str, int], dict[str, str]]:
    """What a run's evidence says of a cell's launches."""
    return {(cell.cell_id, launch): {name: kernel} for launch, kernel in enumerate(kernels)}


@pytest.mark.parametrize(("kernels", "early"), [
    ((), False), (("push 2x512",), False), (("push 2x512+pdl",), True), (("a 1x32+pdl", "a 1x32"), False),
    (("a 1x32+pdl", "a 1x64+pdl", "a 1x32"), True),
])  # fmt: skip
@pytest.mark.parametrize("fabric", [Fabric.PCIE, Fabric.SHARED_GPU])
def test_a_kernel_of_ours_started_early_where_most_launches_say_so(
    kernels: tuple[str, ...],
    early: bool,  # noqa: FBT001 - a case
    fabric: Fabric,
) -> None:
    """Runs of older releases have no such evidence, and their kernels did not, on whatever GPU."""
    one = cell("push")
    run = run_on("sm_90", one, fabric=fabric)
    found = predictor(run, evidence=ran(one, *kernels))(one)
    assert found is not None
    assert any("early" in name for name in found.parts) == early


def run_on(arch: str, *cells: Cell, fabric: Fabric = Fabric.PCIE) -> Run:
    whole = Machine(topology(), fabric, 8, facts={"arch": arch})
    return replace(run_of(*cells, fabric=fabric), machine=whole.as_dict())


@pytest.mark.parametrize(("name", "arch", "evidence", "early"), [
    ("sglang_forced_one_shot_push", "sm_90", {}, True), ("sglang_custom_all_reduce", "sm_100", {}, True),
    ("sglang_forced_one_shot_push", "sm_89", {}, False), ("sglang_classic_one_stage", "sm_90", {}, False),
    ("sglang_forced_one_shot_pull", "sm_90", {"kernel": "copy<<<1, 128>>>; a<<<9, 128>>>, programmatic launch"}, False),
    ("nccl_ring_ll", "sm_90", {"kernel": "x+pdl"}, False), ("vllm_one_stage", "sm_90", {}, False),
    ("flashinfer_trtllm_one_shot", "sm_90", {"launch_with_pdl": "True"}, True),
    ("flashinfer_trtllm_one_shot", "sm_90", {"launch_with_pdl": "False"}, False),
    ("flashinfer_trtllm_one_shot", "sm_90", {}, False),
    ("vllm_one_stage", "sm_90", {"kernel": "a<<<1, 64>>>, 40 registers, programmatic launch"}, True),
    ("vllm_one_stage", "sm_90", {"kernel": "a<<<1, 64>>>, programmatic launch; b<<<1, 64>>>"}, False),
    ("sglang_forced_one_shot_push", "sm_90", {"kernel": "a<<<1, 64>>>, 40 registers"}, True),
])  # fmt: skip
def test_other_systems_start_early_as_read_or_as_their_runner_says(
    name: str,
    arch: str,
    evidence: dict[str, str],
    early: bool,  # noqa: FBT001 - a case
) -> None:
    one = cell(name, size=1024)
    texts = {(one.cell_id, 0): evidence} if evidence else {}
    found = predictor(run_on(arch, one), evidence=texts)(one)
    assert found is not None
    assert any("early" in part for part in found.parts) == early


def test_a_forecast_knows_which_gpus_start_ours_early() -> None:
    """V100 do not; NCCL does nowhere. Floors allow for what a kernel may do, whatever a run chose."""
    known = registry()
    for machine, early in ((topology("nvswitch-8gpu"), True), (topology("one-plx-4xv100"), False)):
        forecast = Forecast(machine)
        assert forecast.schedule(known["push"], 1024).early == early
        assert not forecast.schedule(known["nccl_ring_ll"], 1024).early
    old, new = (floors_of(run_on(arch, cell("push"), cell("nccl_ring_ll"))) for arch in ("sm_89", "sm_90"))
    ours, theirs = ([one[c.cell_id] for one in (old, new)] for c in (cell("push"), cell("nccl_ring_ll")))
    assert ours[0] > ours[1]
    assert theirs[0] == theirs[1]


def test_kernels_that_evidence_counts_are_launches_of_a_call() -> None:
    """SGLang's pulls copy first, FlashInfer's copy ring launches dozens; fewer than the model knows change nothing."""
    run = run_of(cell("sglang_forced_one_shot_pull"))
    name = run.cells[0].cell_id

    def launches(kernel: str) -> float:
        found = predictor(run, None, {(name, 0): {"kernel": kernel}})(run.cells[0])
        assert found is not None
        return found.parts["kernel.ends"].us / priors()["kernel.ends"].value

    assert launches("") == pytest.approx(1)
    assert launches("a<<<1, 64>>>, 40 registers") == pytest.approx(1)
    assert launches("copy<<<1, 128>>>; a<<<9, 128>>>; copy<<<1, 128>>>") == pytest.approx(3)


def test_a_run_without_peer_access_is_predicted_through_host_memory() -> None:
    """Neighbours below one switch load its uplink then, so that more is waited for."""
    near, large = run_of(cell("nccl_ring_ll", size=1 << 20)), Machine(topology(), Fabric.PCIE, 8, facts={"p2p": "ns"})
    far = replace(near, machine=large.as_dict())
    before, after = (predictor(run)(run.cells[0]) for run in (near, far))
    assert before is not None
    assert after is not None
    assert before.terms_us["queueing"] < 1 < after.terms_us["queueing"]


def test_nothing_is_said_of_ranks_on_processors() -> None:
    assert predictions_of(run_of(cell("push"), fabric=Fabric.HOST)) == {}


def test_a_shared_gpu_is_predicted_without_links() -> None:
    """Captured chains only: eight processes that launch at once wait for each other, and nobody knows how long."""
    one = replace(topology("nvswitch-8gpu"), links=())
    isolated = replace(cell("push"), calls=1)
    run = run_of(cell("push"), cell("push", Mode.EAGER), isolated, fabric=Fabric.SHARED_GPU, machine=one)
    assert predictions_of(run).keys() == {run.cells[0].cell_id}
    prediction = predictor(run)(run.cells[0])
    assert prediction is not None
    assert prediction.bottleneck is None


@pytest.mark.parametrize("machine", [{}, {"topology": 3}, {"topology": {"nodes": [], "links": []}, "fabric": "warp"}])
def test_a_run_without_its_machine_has_no_predictions(machine: dict[str, object]) -> None:
    assert predictions_of(replace(run_of(cell("push")), machine=machine)) == {}


def test_a_run_on_a_topology_without_routes_has_no_predictions() -> None:
    """The sweep's rows stay; the error belongs to `collbench predict`."""
    apart = replace(topology(), links=())
    assert predictions_of(run_of(cell("push"), machine=apart)) == {}
    with pytest.raises(TopologyError, match="no route"):
        Forecast(apart)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 16])
def test_no_traffic_of_any_algorithm_goes_beyond_its_ranks(ranks: int) -> None:
    """Also of those that refuse so many ranks: a sweep computes floors of all its cells, and ended in an IndexError."""
    gpus = Topology(tuple(Node(f"gpu{i}", NodeKind.GPU, {}) for i in range(ranks)), (), "some")
    for algorithm in {**registry(), **known_systems()}.values():
        schedule = algorithm.traffic(Call(65_536, ranks, collective=algorithm.collective), gpus)
        ends = {rank for phase in schedule.phases for flow in phase.flows for rank in (flow.src, flow.dst)}
        assert ends <= set(range(ranks)), algorithm.name


def test_a_plug_in_that_draws_too_many_ranks_costs_its_own_floor_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from collbench.algorithms import floors

    known = registry()
    wide = replace(
        known["push"], name="wide", traffic=lambda call, _topology: one_stage(replace(call, world_size=16), Move.PUSH)
    )
    monkeypatch.setattr(floors, "registry", lambda: {**known, "wide": wide})
    run = run_of(cell("push"), cell("wide"))
    assert list(floors.floors_of(run)) == [run.cells[0].cell_id]
