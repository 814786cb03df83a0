"""b12x: records, and the runners above a stand-in with its signatures (test_library_contracts compares those)."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from collbench.algorithms import b12x_runner, library_build
from collbench.algorithms.b12x import shape_of
from collbench.algorithms.base import Runner, registry
from collbench.contention.traffic import Move
from collbench.results.records import Answer, Call, Fabric, Mode, Support
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine
from tests.algorithms.conftest import Forked, PipeRanks
from tests.algorithms.test_library_runners import FAKES, ROOT, _Meeting, judged, run

pytest.importorskip("torch")  # here, so that no rank has to import it

SOFTWARE = {"torch": "2.13.0+cu130", "b12x": "1.5.1", "cutlass-dsl": "4.8.0"}
GPUS = Topology(tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(16)), ())
PCIE = Machine(GPUS, Fabric.PCIE, 8, software=SOFTWARE, facts={"arch": "sm_120", "p2p": "ok"})
FUSED = "residual_rmsnorm"
OURS = ("b12x_all_reduce", "b12x_oneshot_pull", "b12x_oneshot_push", "b12x_fused_push", "b12x_twoshot_bf16")
FITTING = {
    "b12x_all_reduce": Call(14_336, 8), "b12x_oneshot_pull": Call(14_336, 8), "b12x_oneshot_push": Call(16_384, 2),
    "b12x_fused_push": Call(14_336, 8, epilogue=FUSED), "b12x_twoshot_bf16": Call(14_336, 4),
}  # fmt: skip


def support(name: str, call: Call, where: Machine = PCIE) -> Support:
    return registry()[name].support(replace(where, ranks=call.world_size), call)


@pytest.mark.parametrize("name", OURS)
def test_nobody_here_has_seen_it_run(name: str) -> None:
    """Where nothing stands against it the answer is `unknown`, which a sweep tries."""
    told = support(name, FITTING[name])
    assert (told.answer, bool(told)) == (Answer.UNKNOWN, True)
    assert "collbench has run it on no GPU" in told.reason
    assert told.source
    newer = support(name, FITTING[name], replace(PCIE, software={**SOFTWARE, "b12x": "1.6.0"}))
    assert "read in b12x 1.5.1, and 1.6.0 is installed" in newer.reason


def without(name: str) -> Machine:
    return replace(PCIE, software={k: v for k, v in SOFTWARE.items() if k != name})


@pytest.mark.parametrize("name", OURS)
def test_what_is_missing_is_named(name: str) -> None:
    """Each refusal in one line with what would change it, on a machine where all else is right."""
    call = FITTING[name]
    cases = {
        "b12x is not installed": (without("b12x"), call),
        "nvidia-cutlass-dsl, which is not installed": (without("cutlass-dsl"), call),
        "asks for torch 2.12 or later, and this is 2.11.0+cu130": (
            replace(PCIE, software={**SOFTWARE, "torch": "2.11.0+cu130"}), call,
        ),
        "is a CPU build": (replace(PCIE, software={**SOFTWARE, "torch": "2.13.0+cpu"}), call),
        "compute capabilities 12.x, not 9.0": (replace(PCIE, facts={"arch": "sm_90"}), call),
        "P2P is off": (replace(PCIE, facts={"arch": "sm_120", "p2p": "off"}), call),
        "ranks on 2 hosts": (replace(PCIE, hosts=2), call),
    }  # fmt: skip
    for reason, (machine, asked) in cases.items():
        told = support(name, asked, machine)
        assert not told, reason
        assert reason in told.reason
        assert told.remedy, reason


@pytest.mark.parametrize(
    ("name", "call", "reason"),
    [
        ("b12x_all_reduce", Call(14_336, 3), "built for 2, 4, 6, 8 ranks, not 3"),
        ("b12x_all_reduce", Call(14_336, 12), "islands of up to four GPUs at 12 ranks"),
        ("b12x_all_reduce", Call((8 << 20) + 16, 8), "takes up to 8388608 bytes"),
        ("b12x_all_reduce", Call(14_340, 8), "multiples of 16 bytes"),
        ("b12x_all_reduce", Call(14_336, 8, dtype="float32"), "in float32 ranks end with different bits"),
        ("b12x_all_reduce", Call(14_336 * 40, 8, epilogue=FUSED), "40 rows: b12x fuses RMSNorm with up to 36"),
        ("b12x_oneshot_push", Call(16_384, 8), "pushes at 2 ranks only"),
        ("b12x_oneshot_push", Call(14_336, 2), "pushes at 2 ranks only"),
        ("b12x_oneshot_push", Call(16_384, 2, epilogue=FUSED), "no epilogue"),
        ("b12x_fused_push", Call(14_336, 8), "changes b12x's fused all-reduce only"),
        ("b12x_twoshot_bf16", Call(14_336, 8), "built for 4 ranks, not 8"),
        ("b12x_twoshot_bf16", Call(14_336 + 16, 4), "multiples of 64 bytes"),
        ("b12x_twoshot_bf16", Call(14_336, 4, dtype="float16"), "is not one of its element types"),
    ],
)
def test_calls_that_it_does_not_take(name: str, call: Call, reason: str) -> None:
    told = support(name, call)
    assert not told
    assert reason in told.reason


def test_another_compiler_or_a_shared_gpu_is_left_open() -> None:
    """Its package pins a release; nobody has said what several ranks on one GPU do."""
    call = FITTING["b12x_all_reduce"]
    other = support("b12x_all_reduce", call, replace(PCIE, software={**SOFTWARE, "cutlass-dsl": "4.9.0"}))
    assert (other.answer, "pins nvidia-cutlass-dsl 4.8.0, and 4.9.0" in other.reason) == (Answer.UNKNOWN, True)
    gpu = Topology(GPUS.nodes[:1], ())
    shared = replace(PCIE, topology=gpu, fabric=Fabric.SHARED_GPU, share_gpu=True)
    assert support("b12x_all_reduce", call, shared).answer is Answer.UNKNOWN


def test_float32_of_two_ranks_has_one_order() -> None:
    assert support("b12x_all_reduce", Call(14_336, 2, dtype="float32"))


def test_what_it_sends() -> None:
    """Copied and pulled behind one barrier; at two ranks rows of 4096 are pushed, at twice their bytes."""
    pull = registry()["b12x_all_reduce"].traffic(Call(14_336, 8), GPUS)
    (phase,) = pull.phases
    assert {flow.move for flow in phase.flows} == {Move.PULL}
    assert (phase.syncs, phase.fences, pull.protocol, pull.wire_factor, pull.launches) == (1, None, "barriers", 1.0, 1)
    turns = [registry()["b12x_all_reduce"].traffic(Call(14_336, n), GPUS).phases[0].turns for n in (2, 4, 6, 8)]
    assert turns == [1, 1, 2, 2]
    push = registry()["b12x_all_reduce"].traffic(Call(16_384, 2), GPUS)
    assert (push.phases[0].flows[0].move, push.wire_factor) == (Move.PUSH, 2.0)
    assert registry()["b12x_oneshot_pull"].traffic(Call(16_384, 2), GPUS).phases[0].flows[0].move is Move.PULL
    twice = registry()["b12x_twoshot_bf16"].traffic(Call(14_336, 4), GPUS)
    assert [(phase.syncs, phase.turns, phase.flows[0].bytes, phase.flows[0].move) for phase in twice.phases] == [
        (1, 1, 14_336 / 4, Move.PULL), (1, 3, 14_336 / 4, Move.PULL),
    ]  # fmt: skip
    fused = registry()["b12x_fused_push"].traffic(Call(14_336, 8, epilogue=FUSED), GPUS)
    assert (len(fused.phases), fused.phases[0].syncs, fused.phases[0].flows[0].move) == (1, 1, Move.PUSH)


def test_rows_only_where_b12x_asks_for_them() -> None:
    assert shape_of(Call(16_384, 2)) == (2, 4096)
    assert shape_of(Call(16_384, 4)) == (8192,)
    assert shape_of(Call(16_384, 2, dtype="float32")) == (4096,)
    assert shape_of(Call(8192 * 513, 2)) == (4096 * 513,)
    assert shape_of(Call(43_008, 8, epilogue=FUSED)) == (3, 7168)


def test_the_push_of_two_ranks_is_of_graphs_only() -> None:
    assert registry()["b12x_oneshot_push"].modes == (Mode.GRAPH,)
    assert all(len(registry()[name].modes) == 2 for name in OURS if name != "b12x_oneshot_push")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is importable here and in processes that are started."""
    monkeypatch.setenv("PYTHONPATH", f"{FAKES}:{ROOT}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(FAKES))


def set_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for key, value in registry()[name].environment(PCIE).items():
        monkeypatch.setenv(key, value)


@pytest.mark.parametrize(
    ("name", "call", "shape", "way"),
    [
        ("b12x_all_reduce", Call(14_336, 4), "7168", ("transport", "pull")),
        ("b12x_all_reduce", Call(16_384, 2), "2 x 4096", ("transport", "tp2_remote_push")),
        ("b12x_all_reduce", Call(43_008, 2, epilogue=FUSED), "3 x 7168", ("mode", "stage_pull")),
        ("b12x_oneshot_pull", Call(16_384, 2), "2 x 4096", ("transport", "pull")),
        ("b12x_oneshot_push", Call(16_384, 2), "2 x 4096", ("transport", "tp2_remote_push")),
        ("b12x_fused_push", Call(14_336, 2, epilogue=FUSED), "1 x 7168", ("mode", "stage_push")),
        ("b12x_twoshot_bf16", Call(14_336, 4), "7168", ("operation", "all_reduce")),
    ],
)
def test_each_runner_calls_it_rightly(
    name: str, call: Call, shape: str, way: tuple[str, str], forked: Forked, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The sums are right on every rank; the evidence says what b12x chose, and how long it compiled."""
    set_environment(monkeypatch, name)
    (told,) = run(forked, [registry()[name].load_runner()], call, tmp_path).values()
    assert [(problem, error) for problem, _, error in told] == [("", "")] * call.world_size
    evidence = told[0][1]
    assert (evidence["shape"], evidence[way[0]]) == (shape, way[1])
    assert evidence["built by PreparationSession"].endswith(" s")
    assert "imported" in evidence


def test_what_it_chose_instead_is_told(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced row whose variables b12x no longer reads is no result of that name."""
    monkeypatch.setenv("B12X_PCIE_TP2_PLAIN_REMOTE_PUSH", "0")
    (told,) = run(forked, [b12x_runner.OneshotPush], Call(16_384, 2), tmp_path).values()
    assert [error for _, _, error in told] == ["b12x chose pull, not tp2_remote_push"] * 2


def after(forked: Forked, runners: Sequence[type[Runner]], call: Call, tmp_path: Path) -> list[Any]:
    """What came of runners on each rank, and what they left open."""

    def body(ranks: PipeRanks) -> Any:
        meeting = _Meeting(ranks.rank, ranks.world_size, ranks.pipe, ranks.deadline_s, store=ranks.store)
        try:
            told = [judged(meeting, runner, call)[2] for runner in runners]
        except (TimeoutError, MemoryError) as error:
            told = [f"{type(error).__name__}: {error}"]
        from b12x.preparation.types import OPEN

        return told, dict(OPEN)

    outcomes = forked(call.world_size, body, deadline_s=20.0, store=str(tmp_path / "store"))
    assert [outcome.error for outcome in outcomes] == [""] * call.world_size
    return [outcome.value for outcome in outcomes]


CLOSED = {"sessions": 0, "runtimes": 0}


def test_nothing_stays_open(forked: Forked, tmp_path: Path) -> None:
    """One cell behind the other: the session is closed before the memory that its plans use."""
    assert (
        after(forked, [b12x_runner.AllReduce, b12x_runner.AllReduce], Call(1024, 2), tmp_path)
        == [(["", ""], CLOSED)] * 2
    )


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("closed", "b12x: its is_supported() says no"),
        ("raises", "b12x: RuntimeError: PCIe oneshot resident-grid capability failed: group rank 1: RuntimeError"),
        ("fails", "b12x: rank 1: ValueError: collbench eager failed to prepare with configuration 'native': DSL"),
        ("broken", "b12x: ImportError: No module named 'cutlass'"),
        ("old", "PreparationSession.__init__() takes no autotune, compile_workers"),
    ],
)  # fmt: skip
def test_refusals_are_quoted_on_all_ranks(
    fault: str, reason: str, forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, whichever rank it was, also where only one of them could not prepare; nothing stays open."""
    monkeypatch.setenv("COLLBENCH_FAKE", fault)
    (told,) = run(forked, [b12x_runner.AllReduce], Call(1024, 2), tmp_path).values()
    (error,) = {error for _, _, error in told}
    assert reason in error
    assert "\n" not in error


@pytest.mark.parametrize("fault", ["raises", "fails"])
def test_a_refusal_leaves_nothing_open(
    fault: str, forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_FAKE", fault)
    assert [left for _, left in after(forked, [b12x_runner.AllReduce], Call(1024, 2), tmp_path)] == [CLOSED] * 2


def test_want_of_memory_is_told_as_that(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the rank that has enough too."""
    monkeypatch.setenv("COLLBENCH_FAKE", "memory")
    told = [said for said, _ in after(forked, [b12x_runner.AllReduce], Call(1024, 2), tmp_path)]
    assert told == [["MemoryError: RuntimeError: cudaMalloc failed: out of memory"]] * 2


def test_a_silent_call_is_wrong(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLBENCH_FAKE", "silent")
    (told,) = run(forked, [b12x_runner.AllReduce], Call(1024, 2), tmp_path).values()
    assert all("elements wrong or unwritten" in problem for problem, _, _ in told)


def test_ranks_wait_for_a_slow_compiler(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a deadline of theirs: they meet all the while."""
    monkeypatch.setenv("COLLBENCH_FAKE", "slow")

    def body(ranks: PipeRanks) -> Any:
        meeting: Any = _Meeting(ranks.rank, ranks.world_size, ranks.pipe, ranks.deadline_s, store=ranks.store)
        meeting.process_group("gloo")
        runner: Any = b12x_runner.AllReduce(meeting, Call(1024, 2), 1)
        library_build.prepare(meeting, runner.request())
        meeting.deadline_s = 1.0
        with runner:
            return float(runner.proof().evidence["built by PreparationSession"].split()[0])

    told = forked(2, body, deadline_s=60.0, store=str(tmp_path / "store"))
    assert [outcome.error for outcome in told] == [""] * 2
    assert all(outcome.value >= 3.0 for outcome in told)


class Impatient(b12x_runner.AllReduce):
    """Gives its preparation a second."""

    prepare_s: ClassVar[float] = 1.0


def test_a_preparation_that_takes_too_long_hangs(
    forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank goes on without it, and nobody frees what the late one would have to free with it."""
    monkeypatch.setenv("COLLBENCH_FAKE", "slow")
    reason = "TimeoutError: rank 1 went on for more than 1 s while b12x compiled and loaded its kernels"
    told = after(forked, [Impatient], Call(1024, 2), tmp_path)
    assert told == [([reason], {"sessions": 1, "runtimes": 2})] * 2


@pytest.mark.slow
def test_a_sweep_gives_each_fault_its_status(tmp_path: Path) -> None:
    """Without end it is `hung`, by the rank that waited; the sweep goes on, and `preloaded` says who imported it."""
    done = subprocess.run(
        [sys.executable, "-m", "collbench.sweep", "--nproc", "2", "--algorithms", "prepared", "-b", "1024", "--calls",
         "1", "-n", "3", "--timeout", "6s", "--no-probe", "--json", "--out", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": f"{FAKES}:{ROOT}"}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["algorithm"]: (row["status"], row["reason"]) for row in json.loads(done.stdout)["rows"]}
    assert rows["prepared_right"] == ("ok", "")
    assert rows["prepared_fails"][0] == "unsupported"
    assert rows["prepared_fails"][1].startswith("b12x: rank 1: ValueError: collbench eager failed to prepare")
    assert rows["prepared_stuck"][0] == "hung"
    assert "rank 1 went on for more than 1 s while b12x compiled" in rows["prepared_stuck"][1]
    evidence = (tmp_path / "run" / "evidence.jsonl").read_text()
    assert "built by PreparationSession" in evidence
    assert "b12x.comm.pcie.api" in evidence
