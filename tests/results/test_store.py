"""The run folder: nothing that was written is lost, and what cannot be used is said."""

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import InvalidError, UsageError
from collbench.results import reading, schema
from collbench.results.records import Call, Cell, Fabric, Mode, Resumed, Run, Samples, Status
from collbench.results.schema import Migration
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run, synthetic_samples

CELLS = tuple(Cell(name, Call(1024, 2), Mode.EAGER, 1) for name in ("a", "b", "c"))
RUN = Run("id", "2026-01-01T00:00:00+00:00", ("collbench", "sweep"), "0", Fabric.HOST, 2, 1, CELLS)


def _fill(path: Path, cells: tuple[Cell, ...] = CELLS) -> list[Samples]:
    with RunFolder.create(path, RUN) as folder:
        for index, cell in enumerate(cells):
            folder.append(synthetic_samples(cell, 10.0, seed=index))
        return folder.samples()


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = [synthetic_samples(CELLS[0], 5.0), Samples(CELLS[1].cell_id, 0, Status.HUNG, "no answer for 10 s")]
    with RunFolder.create(tmp_path / "run", RUN) as folder:
        for samples in written:
            folder.append(samples)
        folder.append_evidence(CELLS[0].cell_id, 0, {"kernel": "one\ntwo"})
    again = RunFolder.open(tmp_path / "run")

    assert again.run == RUN
    assert again.samples() == written
    assert again.problems() == []
    assert again.evidence() == {(CELLS[0].cell_id, 0): {"kernel": "one\ntwo"}}


def test_folder_and_files_are_the_users_alone(tmp_path: Path) -> None:
    _fill(tmp_path / "run")

    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "run").iterdir())


@pytest.mark.parametrize("lost", ["samples.parquet", "samples.jsonl"])
def test_either_file_alone_gives_the_run_back(tmp_path: Path, lost: str) -> None:
    """After compaction lines and columns each hold everything, cells without samples too."""
    made = synthetic_run(tmp_path / "run", failing={"gloo": (Status.UNSUPPORTED, "needs torch")}, launches=2)
    before = RunFolder.open(made.path).samples()
    (made.path / lost).unlink()
    after = RunFolder.open(made.path)

    assert after.samples() == before
    assert after.problems() == []
    assert after.run.finished


def test_a_run_without_lines_can_be_resumed_from_its_columns(tmp_path: Path) -> None:
    first = _fill(tmp_path / "run", CELLS[:2])
    with RunFolder.open(tmp_path / "run", write=True) as folder:
        folder.finish()
    (tmp_path / "run" / "samples.jsonl").unlink()
    with RunFolder.open(tmp_path / "run", write=True) as folder:
        folder.append(synthetic_samples(CELLS[2], 10.0))

    assert [s.cell_id for s in RunFolder.open(tmp_path / "run").samples()] == [c.cell_id for c in CELLS]
    assert RunFolder.open(tmp_path / "run").samples()[:2] == first


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    _fill(tmp_path / "run")
    with pytest.raises(UsageError, match="holds a run: give --resume"):
        RunFolder.create(tmp_path / "run", RUN)
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.create(tmp_path / "run" / "run.json", RUN)


def test_a_folder_with_other_files_is_refused_and_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    tmp_path.chmod(0o755)
    with pytest.raises(UsageError, match="holds other files"):
        RunFolder.create(tmp_path, RUN)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_two_writers_in_one_folder_are_refused_by_pid(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", RUN):
        with pytest.raises(InvalidError, match=f"process {os.getpid()} writes to this run"):
            RunFolder.create(tmp_path / "run", RUN)
        with pytest.raises(InvalidError, match=f"process {os.getpid()} writes to this run"):
            RunFolder.open(tmp_path / "run", write=True)
        assert RunFolder.open(tmp_path / "run").samples() == []
    RunFolder.open(tmp_path / "run", write=True).close()


_HOLD = """
import sys, time
from collbench.results.store import RunFolder
folder = RunFolder.open(sys.argv[1], write=True)
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    _fill(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InvalidError, match=f"process {other.pid} writes"):
            RunFolder.open(tmp_path / "run", write=True)
        other.send_signal(signal.SIGKILL)
        other.wait()
    RunFolder.open(tmp_path / "run", write=True).close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    _fill(tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    with pytest.raises(InvalidError, match="opened for reading"):
        folder.append(synthetic_samples(CELLS[0], 1.0))
    with pytest.raises(InvalidError, match="opened for reading"):
        folder.finish()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (Samples("x", 0, Status.OK, latency_us=((1.0,), (1.0,))), "not in the plan"),
        (Samples(CELLS[0].cell_id, 0, Status.OK, latency_us=((1.0,),)), "samples of 1 ranks, expected 2"),
        (Samples(CELLS[0].cell_id, 0, Status.OK, latency_us=((float("nan"),), (1.0,))), "not finite"),
    ],
)
def test_what_would_spoil_the_run_is_not_written(tmp_path: Path, samples: Samples, message: str) -> None:
    with RunFolder.create(tmp_path / "run", RUN) as folder:
        with pytest.raises(InvalidError, match=message):
            folder.append(samples)
        assert not (tmp_path / "run" / "samples.jsonl").exists()


def test_one_row_stands_for_the_group_only_where_the_run_says_so(tmp_path: Path) -> None:
    """Another tool's run may hold the group's time alone, and still no other number of rows."""
    group = replace(RUN, settings={"group_times": True})
    with RunFolder.create(tmp_path / "run", group) as folder:
        folder.append(Samples(CELLS[0].cell_id, 0, Status.OK, latency_us=((1.0, 2.0),)))
        with pytest.raises(InvalidError, match="samples of 3 ranks, expected 2"):
            folder.append(Samples(CELLS[1].cell_id, 0, Status.OK, latency_us=((1.0,),) * 3))
        folder.finish()
    assert [len(one.latency_us) for one in RunFolder.open(tmp_path / "run").samples()] == [1]


def test_a_full_disk_loses_nothing_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of which only half fits is taken back, whether the system writes half of it or refuses."""
    before = _fill(tmp_path / "run", CELLS[:1])
    size = (tmp_path / "run" / "samples.jsonl").stat().st_size
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[: len(data) // 2])

    def refuse(descriptor: int, data: bytes) -> int:
        real(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    for fault in (half, refuse):
        with RunFolder.open(tmp_path / "run", write=True) as folder:
            monkeypatch.setattr(os, "write", fault)
            with pytest.raises(InvalidError, match="disk is full"):
                folder.append(synthetic_samples(CELLS[1], 10.0))
            monkeypatch.setattr(os, "write", real)
        assert (tmp_path / "run" / "samples.jsonl").stat().st_size == size
    assert RunFolder.open(tmp_path / "run").samples() == before


_LIMITED = """
import resource, sys
from collbench.errors import InvalidError
from collbench.results.store import RunFolder
from collbench.testing import synthetic_samples
folder = RunFolder.open(sys.argv[1], write=True)
size = (folder.path / "samples.jsonl").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
for work in (lambda: folder.append(synthetic_samples(folder.run.cells[1], 10.0)), folder.finish):
    try:
        work()
    except InvalidError as error:
        print(error)
print(*folder.problems())
"""


def test_a_file_at_its_limit_is_one_line_and_costs_nothing(tmp_path: Path) -> None:
    """The kernel's own limit: appending fails, compacting is noted as a problem, the samples stay as they were."""
    before = _fill(tmp_path / "run", CELLS[:1])
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "run")], capture_output=True, text=True, check=True, timeout=60
    )

    first, second = done.stdout.splitlines()
    assert "the disk is full" in first
    assert "samples.jsonl holds all samples" in second
    assert RunFolder.open(tmp_path / "run").samples() == before
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["lock", "run.json", "samples.jsonl"]


_NOBODY = """
import sys
from collbench.errors import InvalidError
from collbench.results.records import Fabric, Run
from collbench.results.store import RunFolder
try:
    RunFolder.create(sys.argv[1], Run("id", "", (), "0", Fabric.HOST, 2, 1, ()))
except InvalidError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to become nobody")
def test_no_permission_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as locked:
        Path(locked).chmod(0o555)
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", _NOBODY, f"{locked}/run"],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    if done.returncode:
        pytest.skip(f"nobody cannot run this Python: {done.stderr[-200:]}")
    assert "cannot be written (Permission denied): choose another place with --out" in done.stdout


def _one_more_launch(path: Path) -> None:
    with RunFolder.open(path, write=True) as folder:
        folder.go_on(Resumed("2026-01-02", ("collbench", "sweep")), 2)
        folder.append(synthetic_samples(CELLS[0], 10.0, launch=1))


@pytest.mark.parametrize("denied", ["lock", "run.json", "samples.jsonl"])
def test_who_may_not_go_on_with_a_run_is_not_told_of_another_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    """`--resume` takes no `--out`."""
    _fill(tmp_path / "run")
    truly = os.open

    def deny(path: Any, *args: Any, **kw: Any) -> int:
        if denied in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return truly(path, *args, **kw)

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(InvalidError) as told:
        _one_more_launch(tmp_path / "run")
    assert "cannot be written (Read-only file system): to go on with the run, make it writable, or " in str(told.value)
    assert "--out" not in str(told.value)


def test_a_denied_write_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_args: object, **_kw: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(InvalidError, match=r"cannot be written \(Permission denied\): choose another place"):
        RunFolder.create(tmp_path / "run", RUN)


def test_a_cut_last_line_is_noted_and_cut_off_for_writing(tmp_path: Path) -> None:
    """Reading leaves the file alone; writing starts behind the last whole line."""
    whole = _fill(tmp_path / "run")
    path = tmp_path / "run" / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    reader = RunFolder.open(tmp_path / "run")

    assert reader.samples() == whole[:2]
    assert reader.problems() == ["samples.jsonl line 3: cut off while it was written; left out"]

    with RunFolder.open(tmp_path / "run", write=True) as writer:
        writer.append(whole[2])
        assert writer.problems() == ["samples.jsonl line 3: cut off while it was written; left out"]
        assert writer.samples() == whole
    assert RunFolder.open(tmp_path / "run").problems() == []


def test_any_cut_keeps_all_whole_lines(tmp_path: Path) -> None:
    """Wherever a kill cuts the file, what stood before comes back and the run resumes to the whole."""
    whole = _fill(tmp_path / "run")
    path = tmp_path / "run" / "samples.jsonl"
    text = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(text) if byte == 10]
    for cut in (0, 1, ends[0] - 1, ends[0], ends[0] + 1, ends[1] - 1, ends[2] - 1):
        path.write_bytes(text[:cut])
        with RunFolder.open(tmp_path / "run", write=True) as folder:
            there = folder.samples()
            assert there == whole[: len(there)]
            assert len(there) >= sum(end <= cut for end in ends)
            for samples in whole[len(there) :]:
                folder.append(samples)
        assert path.read_bytes() == text


def test_damaged_and_doubled_lines_are_named(tmp_path: Path) -> None:
    whole = _fill(tmp_path / "run")
    path = tmp_path / "run" / "samples.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:-30] + b"\n" + third + first + third.replace(b'"launch":0', b'"launch":-1'))
    folder = RunFolder.open(tmp_path / "run")

    assert folder.samples() == [whole[0], whole[2]]
    assert [p.split(":")[0] for p in folder.problems()] == [f"samples.jsonl line {n}" for n in (2, 5, 4)]
    assert "launch 0 stands there twice; the first one counts" in folder.problems()[2]


def test_columns_repair_what_is_damaged_in_the_lines(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", sizes=(1024, 2048))
    before = RunFolder.open(made.path).samples()
    path = made.path / "samples.jsonl"
    for damaged in (path.read_bytes()[:20] + b"\0" * 50 + path.read_bytes()[70:], b"noise\n"):
        path.write_bytes(damaged)
        folder = RunFolder.open(made.path)

        assert sorted(folder.samples(), key=str) == sorted(before, key=str)
        assert folder.problems()[-1].startswith("samples.parquet had ")


def _damage_run(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((path / "run.json").read_text())
    change(data)
    (path / "run.json").write_text(json.dumps(data))


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    _fill(tmp_path / "run")
    _damage_run(tmp_path / "run", lambda data: data.update(schema="collbench/2"))
    for write in (False, True):
        with pytest.raises(InvalidError, match=r"schema collbench/2 is newer than collbench/1.*update collbench"):
            RunFolder.open(tmp_path / "run", write=write)


def test_unknown_keys_of_this_schema_are_ignored(tmp_path: Path) -> None:
    whole = _fill(tmp_path / "run")
    _damage_run(tmp_path / "run", lambda data: (data.update(weather="wet"), data["cells"][0].update(colour="red")))
    path = tmp_path / "run" / "samples.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"cell_id"', b'{"mood":"good","cell_id"'))

    assert RunFolder.open(tmp_path / "run").run == RUN
    assert RunFolder.open(tmp_path / "run").samples() == whole


def test_an_older_schema_is_migrated_and_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invented collbench/0 called the fabric `wires` and kept times in milliseconds."""
    whole = _fill(tmp_path / "run")
    _damage_run(tmp_path / "run", lambda data: data.update(schema="collbench/0", wires=data.pop("fabric")))
    path = tmp_path / "run" / "samples.jsonl"
    old = [json.loads(line) for line in path.read_text().splitlines()]
    for line in old:
        line["latency_ms"] = [[us / 1000 for us in rank] for rank in line.pop("latency_us")]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    with pytest.raises(InvalidError, match="collbench/0 is too old"):
        RunFolder.open(tmp_path / "run")

    def run_step(data: dict[str, Any]) -> dict[str, Any]:
        return data | {"fabric": data["wires"]}

    def line_step(data: dict[str, Any]) -> dict[str, Any]:
        return data | {"latency_us": [[ms * 1000 for ms in rank] for rank in data["latency_ms"]]}

    monkeypatch.setitem(schema.MIGRATIONS, 0, Migration(run_step, line_step))
    folder = RunFolder.open(tmp_path / "run")

    assert folder.run == RUN
    assert folder.samples()[2].latency_us[0] == pytest.approx(whole[2].latency_us[0])
    with pytest.raises(InvalidError, match="it can be read, not resumed"):
        RunFolder.open(tmp_path / "run", write=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"a":' * 100_000, "nested too deep|not JSON"),
        (b'{"schema": "sarif/1"}', "not a file of collbench"),
        (b'{"schema": 1}', "not a file of collbench"),
        (b'{"schema": "collbench/1"}', "run_id is missing"),
        (b'{"schema": "collbench/1", "launches": NaN}', "NaN is not a number"),
    ],
)
def test_a_damaged_run_json_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    _fill(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_bytes(content)
    with pytest.raises(InvalidError, match=message) as caught:
        RunFolder.open(tmp_path / "run")
    assert "run.json" in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, "text", [1], ["x"], {"a": 1}, 1e999])
@pytest.mark.parametrize("key", ["cells", "command", "launches", "machine", "environment", "world_size", "fabric"])
def test_fields_of_the_wrong_kind_never_crash(tmp_path: Path, key: str, value: object) -> None:
    with RunFolder.create(tmp_path / "run", RUN):
        _damage_run(tmp_path / "run", lambda data: data.update({key: value}))
        with contextlib.suppress(InvalidError):
            assert isinstance(RunFolder.open(tmp_path / "run").run, Run)


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(UsageError, match="no such run folder"):
        RunFolder.open(tmp_path / "absent")
    for write in (False, True):
        with pytest.raises(InvalidError, match="not a run folder"):
            RunFolder.open(tmp_path, write=write)
    assert list(tmp_path.iterdir()) == []


def test_run_json_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the end cannot be noted, the old run.json stands there unharmed and no temporary file stays."""
    _fill(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with RunFolder.open(tmp_path / "run", write=True) as folder:

        def fail(_descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(InvalidError, match="the disk is full"):
            folder.finish()
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))


def test_run_json_of_any_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(tmp_path / "run")
    monkeypatch.setattr(reading, "_MAX_RUN_BYTES", 100)
    with pytest.raises(InvalidError, match="larger than"):
        RunFolder.open(tmp_path / "run")


def test_a_run_ends_without_the_memory_for_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines hold everything; that the columns are missing is said."""
    before = _fill(tmp_path / "run")

    def fail(_file: object, _samples: object) -> None:
        raise MemoryError("malloc of size 64 failed")

    monkeypatch.setattr("collbench.results.store.write_parquet", fail)
    with RunFolder.open(tmp_path / "run", write=True) as folder:
        folder.finish()
        assert "samples.parquet was not written (MemoryError: malloc of size 64 failed)" in folder.problems()[0]
    again = RunFolder.open(tmp_path / "run")
    assert again.run.finished
    assert again.samples() == before
    assert not (tmp_path / "run" / "samples.parquet").exists()


def test_evidence_of_no_use_does_not_stop_a_run(tmp_path: Path) -> None:
    """It is noted, and what comes after it can be read."""
    _fill(tmp_path / "run")
    (tmp_path / "run" / "evidence.jsonl").write_bytes(b"\xffgarbage\n{}\n")
    with RunFolder.open(tmp_path / "run", write=True) as folder:
        (told,) = folder.problems()
        assert told.startswith("evidence.jsonl line 1: not JSON")
        assert told.endswith("; 1 more like it; what really ran is not known of 3 of 3 ok cells")
        folder.append_evidence(CELLS[0].cell_id, 0, {"kernel": "one"})
    assert RunFolder.open(tmp_path / "run").evidence() == {(CELLS[0].cell_id, 0): {"kernel": "one"}}


def _finished(path: Path) -> list[Samples]:
    """A run whose first cell was given up at first: both files hold all of it, its evidence too."""
    with RunFolder.create(path, RUN) as folder:
        folder.append(Samples(CELLS[0].cell_id, 0, Status.NOT_RUN, "the budget was used up"))
        for index, cell in enumerate(CELLS):
            folder.append_evidence(cell.cell_id, 0, {"judged": "behind 3 iterations"})
            folder.append(synthetic_samples(cell, 10.0, seed=index))
        folder.finish()
        assert folder.lost_evidence() == ""
        return folder.samples()


def _cut_behind(lines: int) -> Callable[[bytes], bytes]:
    return lambda text: b"".join(text.splitlines(keepends=True)[:lines])


@pytest.mark.parametrize(
    "damage",
    [_cut_behind(0), _cut_behind(1), _cut_behind(2), lambda text: text[:3000], lambda _: b"noise\n", lambda _: b"{"],
    ids=["emptied", "not_run alone", "cut behind a line", "cut within a line", "noise", "less than a line"],
)
def test_who_goes_on_with_a_run_keeps_what_only_its_columns_hold(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """Readers see both files, and the end of a resumed run, which writes the columns anew, loses nothing of them."""
    whole = _finished(tmp_path / "run")
    path = tmp_path / "run" / "samples.jsonl"
    path.write_bytes(damage(path.read_bytes()))

    assert sorted(RunFolder.open(tmp_path / "run").samples(), key=str) == sorted(whole, key=str)
    with RunFolder.open(tmp_path / "run", write=True) as folder:
        assert sorted(folder.samples(), key=str) == sorted(whole, key=str)
        assert any("written there again" in text for text in folder.problems())
        folder.finish()
    (tmp_path / "run" / "samples.parquet").unlink()
    assert sorted(RunFolder.open(tmp_path / "run").samples(), key=str) == sorted(whole, key=str)


@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "samples.parquet", "evidence.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    """A pipe would be waited for and a device read for ever."""
    _finished(tmp_path / "run")
    path = tmp_path / "run" / name
    path.unlink()
    make(path)
    with pytest.raises(InvalidError, match=f"{name}: is no regular file"):
        RunFolder.open(tmp_path / "run", write=True)
    if name != "run.json":
        folder = RunFolder.open(tmp_path / "run")
        assert len(folder.samples()) == len(CELLS)
    if name == "evidence.jsonl":
        assert "is no regular file" in folder.lost_evidence()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (None, "evidence.jsonl is missing: what really ran is not known of 3 ok cells"),
        (lambda _: b"", "evidence.jsonl: what really ran is not known of 3 of 3 ok cells"),
        (_cut_behind(2), "evidence.jsonl: what really ran is not known of 1 of 3 ok cells"),
        (lambda text: text[:-9], "evidence.jsonl line 3: cut off while it was written; left out; what really ran "),
        (lambda text: b"null\n[]\n" + text, ("evidence.jsonl line 1: expected a JSON object, found NoneType; left out; "
         "1 more like it")),
        (lambda _: bytes(range(256)), "evidence.jsonl line 1: not JSON"),
    ],
)  # fmt: skip
def test_lost_evidence_is_one_sentence(tmp_path: Path, damage: Callable[[bytes], bytes] | None, told: str) -> None:
    _finished(tmp_path / "run")
    path = tmp_path / "run" / "evidence.jsonl"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    assert RunFolder.open(tmp_path / "run").lost_evidence().startswith(told)


def test_runs_that_keep_no_evidence_lack_none(tmp_path: Path) -> None:
    """Other tools' runs have none; releases before the spot checks kept that of some cells."""
    with RunFolder.create(tmp_path / "run", replace(RUN, command=("collbench", "nccl-tests"))) as folder:
        for cell in CELLS:
            folder.append(synthetic_samples(cell, 10.0))
        assert folder.lost_evidence() == ""
        folder.append_evidence(CELLS[0].cell_id, 0, {"kernel": "one"})
        assert folder.lost_evidence() == ""


def test_a_damaged_plan_says_nothing_of_the_samples(tmp_path: Path) -> None:
    """Nobody looked at them."""
    _finished(tmp_path / "run")
    for name in ("run.json", "samples.parquet"):
        os.truncate(tmp_path / "run" / name, 20)
    with pytest.raises(InvalidError, match=r"run\.json: not JSON .*damaged, and without the plan in it no sample can"):
        RunFolder.open(tmp_path / "run")


def test_what_is_wrong_in_the_columns_is_named_by_its_entry(tmp_path: Path) -> None:
    """An entry is a cell and a launch: it is no launch's number."""
    made = synthetic_run(tmp_path / "run", sizes=(1024, 2048), launches=2)
    before = RunFolder.open(made.path).samples()
    (made.path / "samples.jsonl").unlink()
    record = json.loads((made.path / "run.json").read_text())
    gone = record["cells"].pop()
    (made.path / "run.json").write_text(json.dumps(record))
    numbers = [n for n, one in enumerate(before, 1) if one.cell_id == gone["cell_id"]]
    told = [f"samples.parquet entry {number}: cell {gone['cell_id']!r} is not in the plan" for number in numbers]
    found = RunFolder.open(made.path).problems()
    assert [any(text.startswith(start) for text in found) for start in told] == [True, True]
