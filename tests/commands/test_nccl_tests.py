"""`collbench nccl-tests`: measuring with a stand-in for the program, reading pasted outputs, and every way to fail."""

import html
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.gate.sides import side_of_run
from collbench.report import build
from collbench.results.records import Status
from collbench.results.store import RunFolder
from tests.interop.nccl_tests.double import MIDDLE, OLD, calls, install
from tests.interop.nccl_tests.layouts import CONFIG, FOOTER, PLAIN, RANKS, VERSIONED, json_cut, json_text, table

Out = pytest.CaptureFixture[str]
HALF = PLAIN[: PLAIN.index("     1048576")]
VERSIONED_HALF = VERSIONED[: VERSIONED.index("     1048576")]
SIZES = ["-b", "1K", "-e", "1M", "-f", "32", "--nproc", "8", "--fabric", "pcie"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("OMPI_", "PMI", "SLURM_", "TORCHELASTIC", "COLLBENCH_NCCL"))]:
        monkeypatch.delenv(name)


def measure(*words: str, sizes: list[str] = SIZES) -> int:
    return main(["nccl-tests", "--binary", "bin", *sizes, "--out", "run", *words])


def statuses(path: str = "run") -> list[tuple[int, int, Status]]:
    """Launch, bytes and status of the out-of-place cells."""
    folder = RunFolder.open(path)
    cells = {cell.cell_id: cell for cell in folder.run.cells}
    return [
        (one.launch, cells[one.cell_id].call.bytes, one.status)
        for one in folder.samples() if cells[one.cell_id].place == "out"
    ]  # fmt: skip


def test_a_run_folder_like_any_other(capsys: Out) -> None:
    """Launches, samples, proof, a page, the gate's side; no secret of the environment in any file."""
    install(Path("bin"), [{"json": json_text(), "out": PLAIN}])
    assert measure("--launches", "5", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["bytes"], row["launches"], row["iterations"], row["status"]) for row in rows][:2] == [
        (1024, 5, 25, "ok"), (1024, 5, 25, "ok"),
    ]  # fmt: skip
    folder = RunFolder.open("run")
    assert folder.problems() == []
    assert folder.run.finished
    assert folder.run.machine["software"]["nccl"] == "2.30.7"
    assert {text["proto"] for text in folder.evidence().values()} == {"LL"}
    page = build(Path("run"))
    assert "nccl_tests 2.30.7 events z3" in page
    assert "times per call as nccl-tests gives them" in page
    assert "slowest rank's time" not in html.unescape(page)
    assert all(cell.medians_us for cell in side_of_run("run").cells.values())
    kept = b"".join(path.read_bytes() for path in Path("run").iterdir())
    assert b"hunter2" not in kept
    assert b"secret" not in kept


def test_the_gate_reads_it(capsys: Out) -> None:
    install(Path("bin"), [{"json": json_text(), "out": PLAIN}])
    assert measure("--launches", "8") == 0
    capsys.readouterr()
    assert main(["gate", "run", "run"]) in {0, 4}
    assert "nccl_tests 1024 out" in capsys.readouterr().out


@pytest.mark.parametrize(("usage", "words"), [(MIDDLE, ["-N", "5"]), (OLD, [])])
def test_older_builds_give_their_means(usage: str, words: list[str], capsys: Out) -> None:
    install(Path("bin"), [{"out": PLAIN}], usage=usage)
    assert measure() == 0
    argv = calls(Path("bin"))[0]["argv"]
    assert "-I" not in argv
    assert argv[-2:] == (words or argv[-2:])
    assert {cell.variant for cell in RunFolder.open("run").run.cells} == {"avg"}
    assert "noisy" in capsys.readouterr().out


def test_a_hang_costs_its_size_and_those_behind(capsys: Out) -> None:
    install(Path("bin"), [{"out": PLAIN}, {"out": HALF, "sleep": 600}, {"out": PLAIN}], usage=OLD)
    assert measure("--launches", "3", "--timeout", "1s") == 0
    assert [one for one in statuses() if one[0] == 1] == [
        (1, 1024, Status.OK), (1, 32768, Status.OK), (1, 1048576, Status.HUNG),
    ]  # fmt: skip
    assert [status for launch, _, status in statuses() if launch == 2] == [Status.OK] * 3
    assert "did not end within 1 s" in capsys.readouterr().out


def test_a_hang_is_blamed_on_the_size_that_hung() -> None:
    """Of what the file has not yet, the printed mean is kept as a cell of its own; the hang is behind it."""
    install(Path("bin"), [{"json": json_cut(1), "out": HALF, "sleep": 600}])
    assert measure("--timeout", "1s") == 0
    assert statuses() == [(0, 1024, Status.OK), (0, 32768, Status.OK), (0, 1048576, Status.HUNG)]
    cells = [cell for cell in RunFolder.open("run").run.cells if cell.place == "out"]
    assert [(cell.calls, cell.variant.split()[1]) for cell in cells] == [(1, "events"), (1, "avg"), (1, "events")]


def test_later_launches_have_their_iterations_kept() -> None:
    """Though the first one lost those of its second size, or all of them."""
    whole = {"json": json_text(), "out": VERSIONED}
    for number, text in enumerate((json_cut(1), "")):
        install(Path(f"bin{number}"), [{"json": text, "out": VERSIONED_HALF, "code": 134}, whole])
        assert main(["nccl-tests", "--binary", f"bin{number}", *SIZES, "--out", f"run{number}", "--launches", "2"]) == 0
        folder = RunFolder.open(f"run{number}")
        assert folder.problems() == []
        kept = {cell.cell_id for cell in folder.run.cells if "events" in cell.variant}
        second = [one for one in folder.samples() if one.launch == 1 and one.cell_id in kept]
        assert [one.status for one in second] == [Status.OK] * 6
        lost = [one.reason for one in folder.samples() if one.launch == 0 and "it ran, 20.2 us" in one.reason]
        assert len(lost) == 1


def test_later_launches_say_what_they_lost() -> None:
    """A mean has no cell there: it stands in the reason; wrong elements stay wrong."""
    row = next(line for line in VERSIONED.splitlines() if line.startswith("       32768"))
    wrong = VERSIONED_HALF.replace(row, row[:-1] + "7")
    install(Path("bin"), [{"json": json_text(), "out": VERSIONED}, {"json": json_cut(1), "out": wrong, "code": 134}])
    assert measure("--launches", "2") == 0
    found = {one.cell_id: one for one in RunFolder.open("run").samples() if one.launch == 1}
    assert [(one.status, one.reason[:12]) for one in found.values()] == [
        (Status.OK, ""), (Status.OK, ""), (Status.NOT_RUN, "it ran, 20.2"), (Status.WRONG, "7 wrong elem"),
        (Status.CRASHED, "all_reduce_p"), (Status.CRASHED, "all_reduce_p"),
    ]  # fmt: skip


def test_a_place_that_failed_is_the_one_that_is_blamed() -> None:
    """The file has the out-of-place half of that row."""
    text = json_text()
    data = json.loads(text)
    data["results"] = data["results"][:2]
    del data["results"][1]["in_place"], data["results"][1]["in_place_per_iter"]
    install(Path("bin"), [{"json": json.dumps(data), "err": "Test NCCL failure x.cu:1 'y'\n", "code": 3}])
    assert measure() == 0
    folder = RunFolder.open("run")
    cells = {cell.cell_id: cell for cell in folder.run.cells}
    assert [(cells[one.cell_id].call.bytes, cells[one.cell_id].place, one.status) for one in folder.samples()][2:] == [
        (32768, "out", Status.OK), (32768, "in", Status.CRASHED), (1048576, "out", Status.NOT_RUN),
        (1048576, "in", Status.NOT_RUN),
    ]  # fmt: skip


def test_a_row_that_cannot_be_read_is_not_the_one_that_hung() -> None:
    broken = re.sub(r"\n +32768 .*", "\n       32768          8192     float     sum      -1    X", HALF)
    second = "\n".join(line for line in PLAIN.splitlines() if line.startswith("     1048576"))
    install(Path("bin"), [{"out": PLAIN}, {"out": broken + second + "\n", "sleep": 600}], usage=OLD)
    assert measure("--launches", "2", "--timeout", "1s") == 0
    assert [one for one in statuses() if one[0] == 1] == [
        (1, 1024, Status.OK), (1, 1048576, Status.OK), (1, 32768, Status.NOT_RUN),
    ]  # fmt: skip


def test_the_release_of_nccl_tests_is_kept() -> None:
    install(Path("bin"), [{"json": json_text(), "out": VERSIONED}])
    assert measure() == 0
    folder = RunFolder.open("run")
    assert folder.run.machine["software"]["nccl-tests"] == "2.19.6"
    assert {text["nccl-tests"] for text in folder.evidence().values()} == {"2.19.6"}


def test_a_file_of_one_process_is_the_machine_that_the_text_lists(capsys: Out) -> None:
    """-J lists the first GPU of each process: that is not a machine with one."""
    hard = []
    for name, text in {"x.json": json_text(), "x.txt": VERSIONED}.items():
        Path(name).write_text(text)
        assert main(["nccl-tests", "--parse", name, "--out", f"run-{name}", "--fabric", "pcie"]) == 0
        assert ("lists 1 of 8 GPUs" in capsys.readouterr().err) is (name == "x.json")
        machine = RunFolder.open(f"run-{name}").run.machine
        assert [node["model"] for node in machine["topology"]["nodes"]] == ["NVIDIA Invented GPU"] * RANKS
        assert sum("busid" in node for node in machine["topology"]["nodes"]) == (1 if name == "x.json" else RANKS)
        hard.append(machine["fingerprint"]["hard"])
    assert hard[0] == hard[1]


def test_sizes_behind_the_dashes_count() -> None:
    """They win in the program, so they are the ones that a hang is laid to."""
    install(Path("bin"), [{"out": HALF, "sleep": 600}], usage=OLD)
    words = [
        "-b",
        "8",
        "--nproc",
        "8",
        "--fabric",
        "pcie",
        "--timeout",
        "1s",
        "--",
        "-b",
        "1K",
        "--maxbytes=1M",
        "-f32",
    ]
    assert main(["nccl-tests", "--binary", "bin", "--out", "run", *words]) == 0
    assert statuses() == [(0, 1024, Status.OK), (0, 32768, Status.OK), (0, 1048576, Status.HUNG)]


def test_a_crash_before_the_first_row_of_the_first_launch(capsys: Out) -> None:
    """Which cells it would have had is known once a launch has rows; it is not lost."""
    install(Path("bin"), [{"code": 1, "err": "Test NCCL failure common.cu:1 'unhandled cuda error'\n"}, {"out": PLAIN}])
    assert measure("--launches", "2") == 0
    assert [one for one in statuses() if one[0] == 0] == [
        (0, 1024, Status.CRASHED), (0, 32768, Status.NOT_RUN), (0, 1048576, Status.NOT_RUN),
    ]  # fmt: skip
    assert "unhandled cuda error" in capsys.readouterr().out


def test_nothing_at_all_is_exit_3_and_a_folder_with_the_reason(capsys: Out) -> None:
    install(Path("bin"), [{"code": 1, "err": "Invalid number of GPUs: 8 requested but only 1 were found.\n"}])
    assert measure() == 3
    assert "no cell is ok: crashed: Invalid number of GPUs" in capsys.readouterr().err
    assert len(RunFolder.open("run").run.cells) == 6


def test_wrong_results(capsys: Out) -> None:
    row = next(line for line in PLAIN.splitlines() if line.startswith("        1024"))
    install(Path("bin"), [{"out": PLAIN.replace(row, row[:-1] + "7"), "code": 1}], usage=OLD)
    assert measure() == 0
    assert "7 wrong elements" in capsys.readouterr().out


def test_rows_that_end_early_without_an_error() -> None:
    install(Path("bin"), [{"out": HALF + FOOTER}], usage=OLD)
    assert measure() == 0
    assert statuses()[-1] == (0, 1048576, Status.NOT_RUN)


def test_one_process_of_torchrun_measures(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """It drives all the GPUs; the other processes have nothing to do."""
    install(Path("bin"), [{"out": PLAIN}], usage=OLD)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert measure(sizes=["-b", "1K", "--fabric", "pcie"]) == 0
    assert calls(Path("bin")) == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert measure(sizes=["-b", "1K", "--fabric", "pcie"]) == 0
    argv = calls(Path("bin"))[0]["argv"]
    assert argv[argv.index("-g") + 1] == "8"
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert measure() == 2
    assert "several hosts" in capsys.readouterr().err


def test_each_process_of_mpirun_takes_part_and_one_writes(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    install(Path("bin"), [{"out": PLAIN}], usage=OLD, mpi=True)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    words = ["-b", "1K", "-e", "1M", "-f", "32", "--fabric", "pcie"]
    assert measure(sizes=words) == 0
    assert not Path("run").exists()
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert measure(sizes=words) == 0
    assert RunFolder.open("run").run.world_size == RANKS
    assert [call["env"]["OMPI_COMM_WORLD_RANK"] for call in calls(Path("bin"))] == ["3", "0"]
    assert all(call["argv"][call["argv"].index("-g") + 1] == "1" for call in calls(Path("bin")))


def test_a_launcher_starts_it() -> None:
    install(Path("bin"), [{"out": PLAIN}], usage=OLD, mpi=True)
    assert measure("--launcher", "env STARTED=1") == 0
    assert calls(Path("bin"))[0]["env"]["STARTED"] == "1"


def test_the_dry_run_is_the_command_line(capsys: Out) -> None:
    install(Path("bin"), [{}])
    assert measure("--dry-run", "--", "-R", "2") == 0
    line = capsys.readouterr().out
    assert line.endswith("-b 1024 -e 1048576 -f 32 -g 8 -d bfloat16 -J RESULT.json -I 1 -z 3 -R 2\n")
    assert calls(Path("bin")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--collective", "allreduce"], "expected one of all_reduce"),
        (["-b", "2M", "-e", "1M"], "-e not below -b"),
        (["-f", "1"], "a factor of 2"),
        (["-n", "0"], "-n 0"),
        (["--timeout", "soon"], "duration"),
        (["--launcher", "mpirun 'x"], "--launcher"),
        (["--launcher", "mpirun -np 8"], "names no MPI"),
        (["--fabric", "wool"], "--fabric wool"),
        (["--topology", "x"], "--topology"),
        (["--", "-J", "x"], "-J behind --"),
        (["-b", "0"], "at least 1"),
        (["--", "-b0"], "at least 1"),
        (["all_reduce"], "follow behind --"),
        (["--binary", "nowhere"], "no such file"),
    ],
)
def test_calls_that_are_wrong(words: list[str], message: str, capsys: Out) -> None:
    install(Path("bin"), [{"out": PLAIN}])
    assert measure(*words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("collbench:")]) == 1
    assert not Path("run").exists()


def test_what_the_ranks_share_is_asked_before_it_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    install(Path("bin"), [{"out": PLAIN}])
    assert measure(sizes=["--nproc", "8"]) == 2
    assert "--fabric" in capsys.readouterr().err
    assert calls(Path("bin")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_and_keeps_what_was_measured(
    number: signal.Signals, root: Path, tmp_path: Path
) -> None:
    install(tmp_path / "bin", [{"out": PLAIN}, {"sleep": 600}], usage=OLD)
    command = [sys.executable, "-m", "collbench", "nccl-tests", "--binary", "bin", *SIZES, "--launches", "3",
               "--out", "run"]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        for _ in range(300):
            if len(calls(tmp_path / "bin")) == 2:
                break
            time.sleep(0.1)
        child.send_signal(number)
        assert child.wait(20) == 128 + number
    pid = calls(tmp_path / "bin")[1]["pid"]
    time.sleep(0.2)
    assert not Path(f"/proc/{pid}").exists()
    assert len(RunFolder.open(tmp_path / "run").samples()) == 6


def test_parse_prints_rows(capsys: Out) -> None:
    Path("x.txt").write_text(VERSIONED)
    assert main(["nccl-tests", "--parse", "x.txt", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["kind"]) == ("collbench/1", "nccl-tests")
    assert data["runs"][0]["nccl"] == "2.30.7"
    first = data["rows"][0]
    assert (first["collective"], first["bytes"], first["time_us"], first["wrong"]) == ("all_reduce", 1024, 12.5, 0)
    assert main(["nccl-tests", "--parse", "x.txt"]) == 0
    assert "8 ranks, NCCL 2.30.7, nccl-tests 2.19.6: mean of 20 calls" in capsys.readouterr().out


def test_wrong_rows_are_printed_without_a_time(capsys: Out) -> None:
    """As in a run folder: what was wrong took no time that anybody may compare."""
    row = next(line for line in PLAIN.splitlines() if line.startswith("        1024"))
    Path("x.txt").write_text(PLAIN.replace(row, row[:-1] + "3"))
    assert main(["nccl-tests", "--parse", "x.txt", "--json"]) == 0
    wrong = json.loads(capsys.readouterr().out)["rows"][1]
    assert (wrong["place"], wrong["wrong"]) == ("in", 3)
    assert {wrong[name] for name in ("time_us", "p50_us", "min_us", "algbw_gbps", "busbw_gbps")} == {None}
    assert main(["nccl-tests", "--parse", "x.txt"]) == 0
    assert capsys.readouterr().out.splitlines()[3].split()[5:] == ["in", "-", "-", "-", "3"]


def test_on_a_terminal_shared_words_are_said_once(on_terminal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(VERSIONED)
    lines = on_terminal(80, "nccl-tests", "--parse", "x.txt").splitlines()
    assert "nccl-tests 2.19.6, float32, sum: mean of 20 calls" in " ".join(" ".join(lines).split())
    assert [line for line in lines if len(line) > 80] == []
    assert sum("float32" in line for line in lines) == 1


def test_a_missing_file_is_a_wrong_call(capsys: Out) -> None:
    assert main(["nccl-tests", "--parse", "no.txt"]) == 2
    assert capsys.readouterr().err == "collbench: --parse no.txt: no such file\n"
    assert main(["nccl-tests", "--parse", "."]) == 3


def test_json_shapes_are_kept(snapshot: Callable[[str, str], None], capsys: Out) -> None:
    Path("x.json").write_text(json_text())
    assert main(["nccl-tests", "--parse", "x.json", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    snapshot("json-nccl-tests", json.dumps(data | {"rows": data["rows"][:1]}, indent=1))


def test_parse_reads_stdin_and_keeps_a_run(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PLAIN.encode())))
    assert main(["nccl-tests", "--parse", "-", "--out", "run", "--fabric", "pcie"]) == 0
    assert "run: run" in capsys.readouterr().err
    run = RunFolder.open("run").run
    assert run.command == ("collbench", "nccl-tests", "--parse", "-")
    assert [node["busid"] for node in run.machine["topology"]["nodes"]][:1] == ["0000:01:00.0"]
    page = build(Path("run"))
    assert "nccl_tests avg" in page
    assert "Measured by nccl-tests, not by collbench" in page
    assert "secret" not in Path("run/run.json").read_text()


def test_a_pasted_run_on_a_known_machine() -> None:
    Path("x.txt").write_text(PLAIN)
    words = ["nccl-tests", "--parse", "x.txt", "--out", "run", "--topology", "dgx-h100"]
    from collbench.topology import catalog

    words[-1] = next(name for name in catalog.names() if len(catalog.load(catalog.find(name)).gpus) == RANKS)
    assert main(words) == 0
    assert RunFolder.open("run").run.fabric in {"pcie", "nvlink", "mixed"}


def test_ranks_on_one_gpu_are_seen() -> None:
    text = PLAIN
    for rank in range(RANKS):
        text = text.replace(f"[0000:{rank + 1:02x}:00]", "[0000:02:00]")
    Path("x.txt").write_text(text)
    assert main(["nccl-tests", "--parse", "x.txt", "--out", "run"]) == 0
    assert RunFolder.open("run").run.fabric == "shared-gpu"


@pytest.mark.parametrize(
    ("text", "words", "code", "message"),
    [
        ("hello", [], 3, "not the output of nccl-tests"),
        (PLAIN, ["--out", "run"], 2, "--fabric or --topology"),
        (PLAIN, ["--out", "run", "--fabric", "pcie", "--nproc", "4"], 3, "the output says 8"),
        (PLAIN, ["--dry-run"], 2, "starts nothing"),
        (CONFIG + table(redop="none") + FOOTER, ["--out", "run", "--fabric", "pcie"], 3, "--collective"),
        (PLAIN, ["--out", "x.txt", "--fabric", "pcie"], 2, "is a file"),
    ],
)
def test_pasted_things_that_do_not_work(text: str, words: list[str], code: int, message: str, capsys: Out) -> None:
    Path("x.txt").write_text(text)
    assert main(["nccl-tests", "--parse", "x.txt", *words]) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
