"""Runners of libraries, above stand-ins with the real packages' signatures (test_library_contracts compares those).

The stand-ins sum over gloo, on processors; what a GPU would do is not shown. Everything else is the runners' own.
"""

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from collbench.algorithms import flashinfer_library_runner as flashinfer
from collbench.algorithms import library_build, mscclpp_runner, preloaded
from collbench.algorithms import sglang_library_runner as sglang
from collbench.algorithms import vllm_library_runner as vllm
from collbench.algorithms.base import Runner
from collbench.algorithms.fusion_rows import rows_of_fusion
from collbench.algorithms.library_runner import asked
from collbench.results.records import Call
from tests.algorithms.conftest import Forked, PipeRanks

pytest.importorskip("torch")  # here, so that no rank has to import it

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "packages" / "libraries"
RUNNERS: list[type[Runner]] = [
    flashinfer.Fusion, flashinfer.FusionEarly, flashinfer.FusionOneShot, flashinfer.FusionTwoShot, flashinfer.Workspace,
    flashinfer.CopyEngineRing, flashinfer.CopyEngineIsland, vllm.Gated, vllm.Forced, sglang.Gated, sglang.OneShotPush,
    sglang.TwoShotPush, sglang.OneShotPull, sglang.TwoShotPull, sglang.Classic,
    mscclpp_runner.OneShotPacket,
]  # fmt: skip


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins are importable here and in processes that are started."""
    monkeypatch.setenv("PYTHONPATH", f"{FAKES}:{ROOT}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(FAKES))


class _Meeting(PipeRanks):
    """Ranks that make their group once, as workers do."""

    made: Any = None

    def process_group(self, backend: str) -> Any:
        if self.made is None:
            self.made = super().process_group(backend)
        return self.made


def judged(ranks: Any, runner: type[Runner], call: Call) -> tuple[str, dict[str, str], str]:
    """Open, launch, judge and close on one rank: the first problem, the evidence, the error."""
    from collbench.measure.verify import Check

    try:
        with runner(ranks, call, 2) as made:
            check, found = Check(made, call, ranks.rank), []
            for turn, exact in enumerate((False, True)):
                check.prepare(2, turn, exact=exact)
                made.captured()
                for slot in range(2):
                    made.launch(slot)
                found.append(check.judge().reason)
            return next((reason for reason in found if reason), ""), dict(made.proof().evidence), ""
    except NotImplementedError as error:
        return "", {}, str(error)


def run(
    forked: Forked, runners: Sequence[type[Runner]], call: Call, tmp_path: Path
) -> dict[str, list[tuple[str, dict[str, str], str]]]:
    """What came of each runner on each rank, one after the other in the same processes."""

    def body(ranks: PipeRanks) -> Any:
        meeting = _Meeting(ranks.rank, ranks.world_size, ranks.pipe, ranks.deadline_s, store=ranks.store)
        return [judged(meeting, runner, call) for runner in runners]

    told = forked(call.world_size, body, deadline_s=60.0, store=str(tmp_path / "store"))
    assert [outcome.error for outcome in told] == [""] * call.world_size
    names = [f"{runner.__module__.split('.')[-1]}.{runner.__name__}" for runner in runners]
    return {name: [outcome.value[i] for outcome in told] for i, name in enumerate(names)}


def test_each_runner_calls_its_library_rightly(forked: Forked, tmp_path: Path) -> None:
    """The sums are right on every rank, and the evidence says how long import and compilation took."""
    for name, told in run(forked, RUNNERS, Call(14_336, 3), tmp_path).items():
        assert [(problem, error) for problem, _, error in told] == [("", "")] * 3, name
        assert "imported" in told[0][1], name
        compiles = not name.startswith("mscclpp")
        assert any(key.startswith("built ") for key in told[0][1]) == compiles, name


def test_only_the_fusion_of_servers_may_start_early(forked: Forked, tmp_path: Path) -> None:
    for name, told in run(forked, [flashinfer.FusionEarly, flashinfer.Fusion], Call(1024, 2), tmp_path).items():
        early = str(name.endswith("FusionEarly"))
        assert [(problem, texts["launch_with_pdl"], error) for problem, texts, error in told] == [("", early, "")] * 2


def test_the_fusion_with_its_epilogue(forked: Forked, tmp_path: Path) -> None:
    call = Call(28_672, 2, epilogue="residual_rmsnorm")
    for name, told in run(forked, [flashinfer.Fusion, flashinfer.FusionOneShot], call, tmp_path).items():
        assert [(problem, error) for problem, _, error in told] == [("", "")] * 2, name


def test_two_shot_wants_more_tokens_than_ranks() -> None:
    """A message is cut into enough rows where nothing is fused behind it; with RMSNorm its rows are what they are."""
    assert rows_of_fusion(Call(14_336, 8), two_shot=False) == 1
    assert rows_of_fusion(Call(43_008, 8), two_shot=False) == 3
    assert rows_of_fusion(Call(14_336, 8), two_shot=True) == 14
    assert rows_of_fusion(Call(14_336, 8, epilogue="residual_rmsnorm"), two_shot=True) == 0
    assert rows_of_fusion(Call(14_336 * 9, 8, epilogue="residual_rmsnorm"), two_shot=True) == 9
    assert rows_of_fusion(Call(16, 8), two_shot=True) == 0


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_size_is_cut_into_rows_that_the_fusion_launches(world_size: int) -> None:
    """Rows of whole vectors, each for one cluster; the two-shot kernels want as many threads in a block as ranks."""
    for size in (1 << power for power in range(6, 29)):
        call = Call(size, world_size)
        for two_shot in (False, True):
            rows = rows_of_fusion(call, two_shot=two_shot)
            if two_shot and size < 16 * world_size * 2 * world_size:
                continue  # fewer tokens than ranks fit
            assert rows > (world_size if two_shot else 0), size
            hidden, rest = divmod(call.count, rows)
            assert rest == 0
            assert hidden % 8 == 0
            assert hidden <= 8192
            assert hidden // 8 >= (world_size if two_shot else 1)
    assert rows_of_fusion(Call(7168 * 2000 * 2, 8), two_shot=False) == 1750


def test_the_fusion_leaves_no_memory_behind(forked: Forked, tmp_path: Path) -> None:
    """Its package keeps a workspace that was destroyed until it is told of the handles too."""

    def body(ranks: PipeRanks) -> int:
        meeting = _Meeting(ranks.rank, ranks.world_size, ranks.pipe, ranks.deadline_s, store=ranks.store)
        judged(meeting, flashinfer.Fusion, Call(1024, 2))
        from flashinfer.comm import trtllm_ar

        return len(trtllm_ar.REFERENCES)

    told = forked(2, body, deadline_s=60.0, store=str(tmp_path / "store"))
    assert [(outcome.error, outcome.value) for outcome in told] == [("", 0)] * 2


def test_kernels_that_launch_nothing_are_wrong(forked: Forked, tmp_path: Path) -> None:
    """FlashInfer's vLLM operators on three ranks that nobody told of NVLink: no time without a written output."""
    (told,) = run(forked, [flashinfer.VllmKernels], Call(1024, 3), tmp_path).values()
    assert all("512 of 512 elements wrong or unwritten" in problem for problem, _, _ in told)


@pytest.mark.parametrize(("ranks", "full_nvlink"), [(2, "0"), (3, "1")])
def test_the_same_kernels_where_their_dispatch_lets_them(
    ranks: int, full_nvlink: str, forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_FULL_NVLINK", full_nvlink)
    (told,) = run(forked, [flashinfer.VllmKernels], Call(1024, ranks), tmp_path).values()
    assert [(problem, error) for problem, _, error in told] == [("", "")] * ranks


def test_a_silent_library_is_wrong(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever call returns without having done anything, also where it returns memory of its own."""
    monkeypatch.setenv("COLLBENCH_FAKE", "silent")
    runners = [flashinfer.Fusion, flashinfer.Workspace, vllm.Forced, sglang.OneShotPush, sglang.Classic]
    for name, told in run(forked, runners, Call(1024, 2), tmp_path).items():
        assert all(problem for problem, _, _ in told), name


def test_closed_gates_are_refusals_and_are_passed(
    forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its gate, each says what its library said; past it, the sum is right and the gate's word stands beside."""
    monkeypatch.setenv("COLLBENCH_FAKE", "closed")
    runners = [vllm.Gated, vllm.Forced, sglang.Gated, sglang.OneShotPush]
    gated_vllm, forced_vllm, gated_sglang, forced_sglang = run(forked, runners, Call(1024, 3), tmp_path).values()
    for _, _, error in (*gated_vllm, *gated_sglang):
        assert "more than two PCIe-only GPUs" in error
    for problem, evidence, error in (*forced_vllm, *forced_sglang):
        assert (problem, error) == ("", "")
        assert evidence["gate"].startswith("closed: ")
        assert "more than two PCIe-only GPUs" in evidence["gate"]


def test_gates_that_raise_are_passed_too(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared GPU they look for peers by device index: what they raise is told as what they say."""
    monkeypatch.setenv("COLLBENCH_FAKE", "raises")
    runners = [vllm.Forced, sglang.OneShotPush, sglang.Classic]
    for name, told in run(forked, runners, Call(1024, 2), tmp_path).items():
        for problem, evidence, error in told:
            assert (problem, error) == ("", ""), name
            assert evidence["gate"] == "none: raised AssertionError: Invalid peer device id", name


def test_a_gate_that_trips_over_a_gpu_is_quoted_without_its_name() -> None:
    def gate() -> bool:
        return bool(int("GPU-0f3c2b1a-0000-4444-8888-123456789abc"))

    assert asked(gate) == "none: raised ValueError: invalid literal for int() with base 10: 'GPU-...'"
    assert (asked(lambda: True), asked(lambda: False)) == ("open", "closed")


def test_forced_pushes_have_room_for_their_message(forked: Forked, tmp_path: Path) -> None:
    """The slots of SGLang's own table end where it would choose a pull."""
    runners = [sglang.OneShotPush, sglang.TwoShotPush]
    for name, told in run(forked, runners, Call(1 << 20, 3), tmp_path).items():
        assert [(problem, error) for problem, _, error in told] == [("", "")] * 3, name


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("broken", "FlashInfer: ImportError: No module named 'cutlass'"),
        ("cuda", "FlashInfer: OSError: libcudart.so.12: cannot open shared object file"),
        ("dies", "terminate called after throwing an instance of 'std::bad_alloc'"),
        ("old", "create_allreduce_fusion_workspace() takes no world_size, rank, max_token_num"),
    ],
)
def test_a_library_that_cannot_be_brought_up(
    fault: str, reason: str, forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same reason on every rank, in one line."""
    monkeypatch.setenv("COLLBENCH_FAKE", fault)
    (told,) = run(forked, [flashinfer.Fusion], Call(1024, 2), tmp_path).values()
    (error,) = {error for _, _, error in told}
    assert reason in error
    assert "\n" not in error


def test_rubbish_on_stdout_is_no_answer(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLBENCH_FAKE", "rubbish")
    (told,) = run(forked, [flashinfer.Fusion], Call(1024, 2), tmp_path).values()
    assert [(problem, error) for problem, _, error in told] == [("", "")] * 2


def ended(pid: int, within_s: float = 5.0) -> bool:
    """Whether a process is gone, or a zombie that nobody has collected yet."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_compiling_without_end_has_a_deadline(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with a shorter deadline of their own wait all the same; the compiler that was at work is gone."""
    monkeypatch.setenv("COLLBENCH_FAKE", "endless")
    monkeypatch.setenv("COLLBENCH_FAKE_PID", str(tmp_path / "pid"))

    def body(ranks: Any) -> None:
        from dataclasses import replace

        request = flashinfer.Fusion(ranks, Call(1024, 2), 1).request()
        library_build.prepare(ranks, replace(request, limit_s=4.0))

    told = forked(2, body, deadline_s=2.0)
    reason = "NotImplementedError: FlashInfer: importing and compiling it did not end within 4 s"
    assert [outcome.error for outcome in told] == [reason] * 2
    assert ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("imported", [False, True])
def test_a_killed_rank_takes_its_compiler_along(
    imported: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the folder of its request; also where the build was forked from it, as its fork server had imported all."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("COLLBENCH_FAKE", "endless")
    monkeypatch.setenv("COLLBENCH_FAKE_PID", str(tmp_path / "pid"))
    pid = os.fork()
    if pid == 0:
        ranks: Any = _Alone()
        request = flashinfer.Fusion(ranks, Call(1024, 2), 1).request()
        if imported:
            for module in request.modules:
                importlib.import_module(module)
                preloaded.SECONDS[module] = 0.1
            assert library_build._may_fork(request)
        library_build.prepare(ranks, request)
        os._exit(0)
    limit = time.monotonic() + 20
    while not (tmp_path / "pid").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    time.sleep(0.1)
    assert [path.name for path in folder.glob("*/*")] == ["request"]
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert ended(int((tmp_path / "pid").read_text()))
    limit = time.monotonic() + 5
    while list(folder.iterdir()) and time.monotonic() < limit:
        time.sleep(0.02)
    assert list(folder.iterdir()) == []


class _Alone(PipeRanks):
    """One rank without a parent to talk to."""

    def __init__(self) -> None:
        super().__init__(0, 1, None, 5.0)  # type: ignore[arg-type]

    def exchange(self, value: Any) -> list[Any]:
        return [value]


def test_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that cannot be brought up is not tried again for every cell."""
    monkeypatch.setenv("COLLBENCH_FAKE", "broken")
    ranks: Any = _Alone()
    request = flashinfer.Fusion(ranks, Call(1024, 2), 1).request()
    begin = time.monotonic()
    with pytest.raises(NotImplementedError, match="cutlass"):
        library_build.prepare(ranks, request)
    first = time.monotonic() - begin
    monkeypatch.setattr(library_build, "_Build", None)
    with pytest.raises(NotImplementedError, match="cutlass"):
        library_build.prepare(ranks, request)
    assert first > 0
    library_build._DONE.clear()
    assert "flashinfer" not in sys.modules
