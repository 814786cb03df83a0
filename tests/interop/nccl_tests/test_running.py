"""Finding, starting and surviving a program: a double that hangs, dies and lies stands in for it."""

import os
import signal
import time
from pathlib import Path

import pytest

from collbench.errors import InvalidError, UsageError
from collbench.interop.nccl_tests.binary import FOLDERS, VARIABLE, Binary, ask, find
from collbench.interop.nccl_tests.running import (
    Request,
    command_of,
    environment_of,
    launch,
    mpi_rank,
    sizes_of,
)
from collbench.interop.nccl_tests.words import Abilities, abilities_of, given, program_in
from collbench.interop.process import MOST_BYTES, run_program
from collbench.results.records import Status
from tests.interop.nccl_tests import double, layouts
from tests.interop.nccl_tests.double import MIDDLE, NEW, OLD, calls, install

REQUEST = Request("all_reduce", 1024, 1 << 20, 32, 8)


def gone(pid: int) -> bool:
    """Whether no process of that number is left; a zombie whose parent is not us counts as gone."""
    for _ in range(50):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return True
        time.sleep(0.1)
    return False


def binary(path: Path) -> Binary:
    return ask("all_reduce", str(path), environment_of())


@pytest.mark.parametrize(
    ("usage", "able"),
    [
        (NEW, Abilities(json=True, per_iteration=True, aligned=True, cycles=True)),
        (MIDDLE, Abilities(json=True, cycles=True)),
        (OLD, Abilities()),
    ],
)
def test_a_build_says_what_it_can(usage: str, able: Abilities) -> None:
    assert abilities_of(usage) == able


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag before the variable before PATH before the usual folders; a folder may be the checkout's."""
    monkeypatch.chdir(tmp_path)
    flag, variable, path, usual = (
        install(tmp_path / where, []) for where in ("flag/build", "variable", "path", FOLDERS[0])
    )
    environ = {VARIABLE: str(variable.parent), "PATH": f"/nowhere:{path.parent}"}
    assert find("all_reduce", str(flag), environ) == flag
    assert find("all_reduce", str(tmp_path / "flag"), environ) == flag
    assert find("all_reduce", "", environ) == variable
    assert find("all_reduce", "", {"PATH": environ["PATH"]}) == path
    assert find("all_reduce", "", {"PATH": ""}) == usual
    linked = install(tmp_path / "variable", [], name="all_reduce_perf_mpi")
    assert find("all_reduce", "", environ, mpi=True) == linked
    assert find("all_reduce", "", environ) == variable


@pytest.mark.parametrize(
    ("where", "message"),
    [("none", "no such file"), ("empty", "no all_reduce_perf in this folder"), ("text", "may be started"),
     ("other_perf", "expected all_reduce_perf")],
)  # fmt: skip
def test_what_is_not_there(tmp_path: Path, where: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("")
    install(tmp_path, [], name="other_perf")
    with pytest.raises(UsageError, match=message):
        find("all_reduce", str(tmp_path / where), {})
    with pytest.raises(UsageError, match=r"COLLBENCH_NCCL_TESTS.*no such file"):
        find("all_reduce", "", {VARIABLE: str(tmp_path / "none")})


def test_nothing_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"sendrecv_perf was not found on PATH.*--binary"):
        find("sendrecv", "", {"PATH": ""})


def test_a_program_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collbench.interop.nccl_tests.binary._USAGE_S", 0.5)
    with pytest.raises(InvalidError, match="no answer within"):
        binary(install(tmp_path, [], help_hangs=True))
    with pytest.raises(InvalidError, match="libnccl"):
        binary(install(tmp_path / "b", [], usage="x: error while loading shared libraries: libnccl.so.2: cannot open"))


@pytest.mark.parametrize(
    ("able", "extra", "words"),
    [
        (abilities_of(NEW), (), "-g 8 -J F -I 1 -z 3"),
        (abilities_of(NEW), ("-G", "10"), "-g 8 -J F -N 5 -G 10"),
        (abilities_of(NEW), ("-z1",), "-g 8 -J F -I 1 -z1"),
        (abilities_of(MIDDLE), (), "-g 8 -J F -N 5"),
        (abilities_of(OLD), ("-N", "2"), "-g 8 -N 2"),
    ],
)
def test_the_command_line(able: Abilities, extra: tuple[str, ...], words: str) -> None:
    """Iterations where the build gives them, else repeated means; the user's own options count."""
    request = Request("all_reduce", 1024, 4096, 4, 8, extra=extra)
    found = command_of(Binary(Path("/b/all_reduce_perf"), "PATH", able), request, "F")
    assert " ".join(found) == f"/b/all_reduce_perf -b 1024 -e 4096 -f 4 {words}"


def test_a_launcher_gives_each_process_one_gpu() -> None:
    request = Request("all_reduce", 8, 8, launcher=("mpirun", "-np", "8"), ranks=8)
    found = command_of(Binary(Path("/b/p"), "PATH", Abilities()), request, "F")
    assert found == ["mpirun", "-np", "8", "/b/p", "-b", "8", "-e", "8", "-g", "1"]


@pytest.mark.parametrize("extra", [("-J", "mine.json"), ("-g4",), ("--nthreads=2",)])
def test_options_that_are_ours(extra: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="behind --"):
        command_of(Binary(Path("p"), "PATH", Abilities()), Request("all_reduce", 8, 8, extra=extra), "F")


def test_words_are_read_as_getopt_reads_them() -> None:
    assert given(["-n", "50", "-w5", "--iters=9", "--blocking", "1", "-x", "-1", "file"]) == {
        "n": "9", "w": "5", "z": "1", "x": "-1",
    }  # fmt: skip
    assert program_in("mpirun /x/alltoallv_perf_mpi -b 8") == ("alltoallv", ["-b", "8"])
    assert program_in("my_reduce_perfect") is None


def test_sizes_as_the_program_steps() -> None:
    assert sizes_of(Request("all_reduce", 1024, 5000, 2)) == [1024, 2048, 4096]


def test_the_environment_is_an_allow_list() -> None:
    """-J writes the whole environment of rank 0: what is not there cannot be written."""
    user = {"AWS_SECRET_ACCESS_KEY": "x", "NCCL_ALGO": "Ring", "OMPI_COMM_WORLD_RANK": "3", "PATH": "/bin"}
    assert environment_of(user).keys() & user.keys() == {"NCCL_ALGO", "PATH"}
    assert environment_of(user, launcher=True)["OMPI_COMM_WORLD_RANK"] == "3"
    assert "AWS_SECRET_ACCESS_KEY" not in environment_of(user, launcher=True)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None), ({"OMPI_COMM_WORLD_RANK": "2"}, 2), ({"PMI_RANK": "0"}, 0), ({"SLURM_PROCID": "0"}, None),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8"}, 1),
    ],
)  # fmt: skip
def test_ranks_of_mpi(environ: dict[str, str], rank: int | None) -> None:
    assert mpi_rank(environ) == rank


def test_a_launch_reads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of -J is gone afterwards, and the program never saw a secret."""
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    path = install(tmp_path, [{"json": layouts.json_text(), "out": layouts.PLAIN}])
    done = launch(binary(path), REQUEST, environment_of(), 20)
    assert done.invocation is not None
    assert done.invocation.rows[0].places["out"].process_us
    (call,) = calls(tmp_path)
    assert "MY_TOKEN" not in call["env"]
    assert call["env"]["NCCL_NVLS_ENABLE"] == "0"
    assert not Path(call["argv"][call["argv"].index("-J") + 1]).parent.exists()


def test_what_is_printed_counts_where_the_file_is_none(tmp_path: Path) -> None:
    path = install(tmp_path, [{"json": "", "out": layouts.PLAIN}])
    done = launch(binary(path), REQUEST, environment_of(), 20)
    assert done.invocation is not None
    assert len(done.invocation.rows) == 3
    assert done.notes == ()


def test_what_is_printed_goes_on_where_the_file_was_cut(tmp_path: Path) -> None:
    """The file is written in blocks, a printed row when its size has ended: the size that hung is behind both."""
    half = layouts.VERSIONED[: layouts.VERSIONED.index("     1048576")]
    path = install(tmp_path, [{"json": layouts.json_cut(1), "out": half, "code": 134}])
    done = launch(binary(path), REQUEST, environment_of(), 20)
    assert done.invocation is not None
    assert [row.bytes for row in done.invocation.rows] == [1024, 32768]
    first, second = (row.places["out"] for row in done.invocation.rows)
    assert first.process_us
    assert (second.time_us, second.process_us) == (20.25, ())
    assert done.iterations
    assert done.invocation.problems == ()


def test_cycles_of_a_cut_file_are_counted(tmp_path: Path) -> None:
    """With -N a size stands there several times; what the file has is not taken twice."""
    cycle = "\n".join(layouts.table().splitlines()[4:]) + "\n"
    text = layouts.json_cut(2, per_iteration=False)
    path = install(tmp_path, [{"json": text, "out": layouts.CONFIG + layouts.table() + cycle, "code": 1}], usage=MIDDLE)
    done = launch(binary(path), REQUEST, environment_of(), 20)
    assert done.invocation is not None
    assert sorted(row.bytes for row in done.invocation.rows) == sorted([*layouts.TIMES_US] * 2)


def test_the_release_and_every_gpu_are_as_printed(tmp_path: Path) -> None:
    """The file names neither."""
    path = install(tmp_path, [{"json": layouts.json_text(), "out": layouts.VERSIONED}])
    done = launch(binary(path), REQUEST, environment_of(), 20)
    assert done.invocation is not None
    assert done.invocation.version == "2.19.6"
    assert len(done.invocation.devices) == layouts.RANKS
    assert len(done.invocation.rows) == 3


def test_the_cause_of_a_failure_is_all_that_is_said(tmp_path: Path) -> None:
    """No line about a file without rows, which is what every failure leaves."""
    for text in ('{"version":2,"args":[],"env":[],"nccl_version":23007,"errors":[""]}', layouts.json_text(results=[])):
        path = install(tmp_path / str(len(text)), [{"json": text, "err": "Test NCCL failure x.cu:1 'y'\n", "code": 3}])
        done = launch(binary(path), REQUEST, environment_of(), 20)
        assert (done.status, done.notes) == (Status.CRASHED, ())
        assert "Test NCCL failure" in done.reason
    path = install(
        tmp_path / "odd", [{"json": '{"results": []}', "out": layouts.table(last="?").replace("algbw", "x")}]
    )
    done = launch(binary(path), REQUEST, environment_of(), 20)
    assert done.status is Status.NOT_RUN
    assert "names no algbw" in done.notes[0]


def test_the_launchers_options_are_not_the_programs(tmp_path: Path) -> None:
    """A -n in front of the program is the launcher's."""
    install(tmp_path, [{"out": layouts.PLAIN}], usage=OLD, mpi=True)
    request = Request("all_reduce", 1024, 1 << 20, 32, 8, launcher=("env", "-u", "X", "nice", "-n", "3"))
    done = launch(binary(tmp_path), request, environment_of(), 20)
    assert done.invocation is not None
    assert done.invocation.settings.iterations == 20


def test_a_hang_ends_with_everything_that_was_started(tmp_path: Path) -> None:
    """Rows of before the hang are kept; a child that the program had started goes too, though neither minds SIGTERM."""
    half = layouts.PLAIN[: layouts.PLAIN.index("     1048576")]
    path = install(tmp_path, [{"out": half, "sleep": 600, "stubborn": True, "child": True}])
    begin = time.monotonic()
    done = launch(binary(path), REQUEST, environment_of(), 2.0)
    assert time.monotonic() - begin < 10
    assert (done.status, done.reason) == (Status.HUNG, "all_reduce_perf did not end within 2 s")
    assert done.invocation is not None
    assert len(done.invocation.rows) == 2
    assert gone(calls(tmp_path)[0]["pid"])
    assert gone(int((tmp_path / "child").read_text()))


def test_a_child_that_holds_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = install(tmp_path, [{"out": layouts.PLAIN, "child": True}])
    begin = time.monotonic()
    done = launch(binary(path), REQUEST, environment_of(), 60)
    assert time.monotonic() - begin < 10
    assert done.invocation is not None
    assert gone(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ({"signal": int(signal.SIGSEGV)}, Status.CRASHED, "all_reduce_perf ended with signal 11"),
        ({"code": 3}, Status.CRASHED, "all_reduce_perf ended with code 3"),
        ({"code": 2, "out": "host: Test CUDA failure common.cu:1: 'out of memory'\n .. host pid 1: Test failure x\n"},
         Status.OUT_OF_MEMORY, "out of memory"),
        ({"code": 1, "err": "Invalid number of GPUs: 8 requested but only 1 were found.\n"}, Status.CRASHED,
         "Invalid number of GPUs"),
        ({"code": 0}, Status.NOT_RUN, "ended without a row"),
    ],
)  # fmt: skip
def test_deaths_have_reasons(tmp_path: Path, act: dict[str, object], status: Status, reason: str) -> None:
    done = launch(binary(install(tmp_path, [act])), REQUEST, environment_of(), 20)
    assert done.invocation is None
    assert done.status is status
    assert reason in done.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("secret: Test NCCL failure common.cu:1 'unhandled'", "Test NCCL failure common.cu:1 'unhandled'"),
        ("secret:1:2 [0] NCCL WARN Cuda failure 'peer access'", "NCCL WARN Cuda failure 'peer access'"),
        ("mpirun noticed that process rank 3 with PID 0 on node secret exited on signal 9 (Killed).",
         "mpirun noticed that process rank 3 with PID 0 exited on signal 9 (Killed)."),
    ],
)  # fmt: skip
def test_reasons_name_no_host(tmp_path: Path, line: str, reason: str) -> None:
    done = launch(binary(install(tmp_path, [{"code": 1, "err": line + "\n"}])), REQUEST, environment_of(), 20)
    assert (done.status, done.reason) == (Status.CRASHED, reason)


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    ended = run_program((str(tmp_path / "nothing"),), {"PATH": "/bin"}, 10)
    assert ended.code == 127
    assert "nothing" in ended.err


def test_a_flood_is_cut_not_kept(tmp_path: Path) -> None:
    ended = run_program(("head", "-c", str(MOST_BYTES + 1000), "/dev/zero"), {"PATH": os.environ["PATH"]}, 60)
    assert (len(ended.out), ended.cut, ended.code) == (MOST_BYTES, True, 0)


def test_the_program_ends_with_us(tmp_path: Path) -> None:
    """Killed by force, we leave nothing behind."""
    path = install(tmp_path, [{"sleep": 600}])
    child = os.fork()
    if child == 0:  # pragma: no cover - killed below
        run_program((str(path),), environment_of(), 600)
        os._exit(0)
    for _ in range(100):
        if calls(tmp_path):
            break
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert gone(calls(tmp_path)[0]["pid"])


def test_the_double_prints_its_usage(tmp_path: Path) -> None:
    assert binary(install(tmp_path, [], usage=double.OLD)).abilities == Abilities()
    assert binary(install(tmp_path / "m", [], mpi=True)).abilities.mpi
