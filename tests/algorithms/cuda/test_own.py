"""Our own algorithms' records: where they run, what they send, what a runner is told."""

from dataclasses import replace

import pytest

from collbench.algorithms.auto import EVERYWHERE, ON_PCIE, candidates_on
from collbench.algorithms.base import registry, select
from collbench.algorithms.cuda.compile import KERNELS
from collbench.contention.own_traffic import islands, islands_of, staged_ring
from collbench.results.records import Call, Collective, Fabric, Support
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.machine import Machine

OWN = (
    "one_stage_pull", "one_stage_pull_buffered", "two_stage_pull", "two_stage_push", "push", "push_flags", "islands",
    "staged_ring",
)  # fmt: skip
SOFTWARE = {"torch": "2.11.0+cu130", "cuda-core": "1.2.2", "cuda-bindings": "13.5.0"}


def two_switches(gpus: int = 8) -> Topology:
    """GPUs, half of them below each of two switches that share a root."""
    names = [f"gpu{i}" for i in range(gpus)]
    nodes = [Node(name, NodeKind.GPU) for name in names] + [Node("cpu", NodeKind.SOCKET)]
    nodes += [Node(f"switch{s}", NodeKind.SWITCH) for s in range(2)]
    pairs = [(name, f"switch{i * 2 // gpus}") for i, name in enumerate(names)]
    pairs += [(f"switch{s}", "cpu") for s in range(2)]
    links = [Link(*ends, LinkKind.PCIE) for pair in pairs for ends in (pair, pair[::-1])]
    return Topology(tuple(nodes), tuple(links))


def machine(**changes: object) -> Machine:
    """Eight GPUs on which everything runs."""
    plain = Machine(two_switches(), Fabric.PCIE, 8, software=SOFTWARE, facts={"arch": "sm_120", "p2p": "ok"})
    return replace(plain, **changes)  # type: ignore[arg-type]


def support(name: str, where: Machine, call: Call) -> Support:
    return registry()[name].support(where, call)


PARTS = {
    "push_all_gather": Collective.ALL_GATHER, "push_reduce_scatter": Collective.REDUCE_SCATTER,
    "push_all_to_all": Collective.ALL_TO_ALL, "push_barrier": Collective.BARRIER,
}  # fmt: skip
GATHER = Call(1024, 8, Collective.ALL_GATHER, op="")


def test_the_family_is_known_by_name() -> None:
    """`--algorithms own` means these all-reduces, and one algorithm each for four other collectives."""
    family = select("own", registry())
    assert {a.name for a in family if a.collective is Collective.ALL_REDUCE} == {*OWN, "auto"}
    assert {a.name: a.collective for a in family if a.collective is not Collective.ALL_REDUCE} == PARTS


@pytest.mark.parametrize("name", PARTS)
def test_collectives_of_parts_take_any_element_type(name: str) -> None:
    """Integers too; the parts must be equal, and a barrier is one element per rank."""
    kind = PARTS[name]
    op = "sum" if kind is Collective.REDUCE_SCATTER else ""
    for dtype in ("bfloat16", "float16", "float32", "int32"):
        call = Call(1024, 8, kind, op, dtype)
        size = call.itemsize * 8 if kind is Collective.BARRIER else 1024
        assert support(name, machine(), replace(call, bytes=size)) == Support.yes()
    assert not support(name, machine(), Call(1026, 8, kind, op))
    assert "it is an algorithm for" in support(name, machine(), Call(1024, 8)).reason


@pytest.mark.parametrize(
    ("name", "call", "reason"),
    [
        ("push_all_gather", replace(GATHER, op="sum"), "all_gather with sum"),
        ("push_all_gather", replace(GATHER, bytes=1026), "use a multiple of 16"),
        ("push_all_to_all", Call(1024, 8, Collective.ALL_TO_ALL, "", splits=(1,) * 8), "expected 64"),
        ("push_barrier", Call(1024, 8, Collective.BARRIER, ""), "one element per rank"),
        ("push", Call(1024, 8, epilogue="bias"), "no epilogue bias"),
        ("two_stage_push", Call(1024, 8, epilogue="residual_rmsnorm"), "no epilogue residual_rmsnorm"),
        ("push", Call(16384, 8, epilogue="residual_rmsnorm"), "no whole rows of 7168"),
        ("push", Call(1022, 8, epilogue="residual_rmsnorm"), "no whole rows of 7168"),
    ],
)
def test_refused_collectives_say_why(name: str, call: Call, reason: str) -> None:
    """The remedy stands in the answer too."""
    answer = support(name, machine(), call)
    assert not answer
    assert reason in f"{answer.reason} {answer.remedy}"


@pytest.mark.parametrize("name", ["push", "islands", "auto"])
def test_rows_are_normalised_behind_some(name: str) -> None:
    """One short row, one row of 7168, three of them."""
    for size in (1024, 14336, 43008):
        assert support(name, machine(), Call(size, 8, epilogue="residual_rmsnorm")) == Support.yes()


def test_auto_polls_no_remote_memory_over_pcie() -> None:
    """The model orders what is safe there; elsewhere staged reads are timed too."""
    safe = candidates_on(machine())
    assert len(safe) == 4
    assert set(safe) < set(ON_PCIE)
    assert not any(kernel.endswith("_pull_data") for kernel in ON_PCIE)
    assert candidates_on(machine(fabric=Fabric.SHARED_GPU)) == EVERYWHERE
    told = registry()["auto"].environment(machine())
    assert told["COLLBENCH_AUTO"] == ",".join(safe)
    nothing = machine(topology=Topology((Node("cpu", NodeKind.SOCKET),), ()))
    assert candidates_on(nothing) == ON_PCIE[:4]


def test_auto_names_kernels_that_are_there() -> None:
    """Its lists name device functions."""
    assert {*EVERYWHERE, *ON_PCIE} <= set(KERNELS)


@pytest.mark.parametrize("name", OWN)
def test_runs_on_eight_pcie_gpus(name: str) -> None:
    """Where the software is there, any size and an unaligned one."""
    for size in (16, 14336, 14338, 8 << 20):
        assert support(name, machine(), Call(size, 8)) == Support.yes()


@pytest.mark.parametrize(
    ("where", "call", "reason"),
    [
        (machine(topology=Topology((Node("cpu", NodeKind.SOCKET),), ())), Call(1024, 8), "no CUDA device"),
        (machine(software={"torch": "2.11.0"}), Call(1024, 8), "cuda-core is not installed (extra cuda)"),
        (machine(hosts=2), Call(1024, 8), "ranks on 2 hosts"),
        (machine(facts={"p2p": "ns"}), Call(1024, 8), "P2P is off"),
        (machine(facts={"arch": "sm_75"}), Call(1024, 8), "older than sm_80"),
        (machine(), Call(1024, 17), "at most 16"),
        (machine(), Call(8, 8, dtype="float32"), "16 bytes to 8 MiB"),
        (machine(), Call(16 << 20, 8), "16 bytes to 8 MiB"),
        (machine(), Call(1024, 8, dtype="int32"), "int32 is not one of its element types"),
    ],
)
def test_refusals_say_why(where: Machine, call: Call, reason: str) -> None:
    """Every refusal has the reason that a user can act on."""
    answer = support("push", where, call)
    assert not answer
    assert reason in answer.reason


def test_only_flags_carry_integers() -> None:
    """Data that announces itself needs a value that data never takes."""
    assert [name for name in OWN if support(name, machine(), Call(1024, 8, dtype="int32"))] == ["push_flags"]


def test_workers_are_told_the_islands() -> None:
    """The groups come from the topology."""
    told = registry()["islands"].environment(machine())
    assert told["COLLBENCH_ISLANDS"] == "0,1,2,3;4,5,6,7"


@pytest.mark.parametrize(
    ("gpus", "ranks", "groups"),
    [(8, 8, ((0, 1, 2, 3), (4, 5, 6, 7))), (8, 6, ((0, 1, 2, 3), (4, 5))), (2, 8, ((0, 1, 2, 3), (4, 5, 6, 7))),
     (2, 2, ((0, 1),)), (8, 4, ((0, 1, 2, 3),))],
)  # fmt: skip
def test_islands_of_a_topology(gpus: int, ranks: int, groups: tuple[tuple[int, ...], ...]) -> None:
    """Every rank in one group, also where fewer ranks run than GPUs are there, or more share a GPU."""
    assert islands_of(two_switches(gpus), ranks) == groups


def test_islands_send_one_message_between_groups() -> None:
    """4 + 4 ranks of bf16: each of four pairs exchanges a quarter of the message as fp32 both ways."""
    schedule = islands(Call(4096, 8), ((0, 1, 2, 3), (4, 5, 6, 7)))
    scatter, cross, gather = schedule.phases
    assert {(f.src, f.dst) for f in cross.flows} == {(k, (k + 4) % 8) for k in range(8)}
    assert {f.bytes for f in cross.flows} == {4096 / 4 * 2}
    assert sum(f.bytes for f in scatter.flows) == sum(f.bytes for f in gather.flows) == 2 * 4 * 3 * 1024


def test_islands_of_one_group_have_two_phases() -> None:
    """Without a second group nothing crosses."""
    assert [p.label for p in islands(Call(4096, 4), ((0, 1, 2, 3),)).phases] == [
        "to the owner in the group", "back to the group",
    ]  # fmt: skip


def test_the_ring_has_one_stream_each_way() -> None:
    """Every rank writes to one peer and is written to by one, in 2 (n-1) dependent hops."""
    schedule = staged_ring(Call(4096, 8, dtype="float32"))
    assert sum(phase.steps for phase in schedule.phases) == 14
    for phase in schedule.phases:
        assert sorted(f.src for f in phase.flows) == sorted(f.dst for f in phase.flows) == list(range(8))
        assert {f.bytes for f in phase.flows} == {4096 * 7 / 8}


@pytest.mark.parametrize("name", OWN)
def test_traffic_of_any_world_size(name: str) -> None:
    """Builders hold for 2 to 16 ranks, also on a topology that tells nothing."""
    nothing = Topology((Node("cpu", NodeKind.SOCKET),), ())
    for world_size in range(2, 17):
        schedule = registry()[name].traffic(Call(4096, world_size), nothing)
        assert all(f.src != f.dst and max(f.src, f.dst) < world_size for p in schedule.phases for f in p.flows)
