"""`collbench report`: a path on stdout, or one line on stderr and an exit code."""

import json
import os
import threading
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.results.records import Fabric, Run
from collbench.results.store import RunFolder
from collbench.testing import synthetic_gpu_run, synthetic_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_run(tmp_path_factory.mktemp("report") / "run", sizes=(1024, 2048), calls=(1,)).path


def test_the_page_lands_beside_the_run_and_its_path_on_stdout(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run_folder)]) == 0
    out, err = capsys.readouterr()

    assert out == f"{run_folder / 'report.html'}\n"
    assert err == ""
    assert (run_folder / "report.html").read_text().startswith("<!doctype html>")


def test_out_names_another_file(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_folder), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"


def test_parameters_of_another_run_are_said_to_be_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probed = synthetic_gpu_run(tmp_path / "probed", sizes=(4096,), launches=1)
    plain = synthetic_gpu_run(tmp_path / "plain", sizes=(4096, 65536), launches=1, probed=False)
    words = [str(plain.path), "--parameters", str(probed.path)]
    _fails(words, 2, "run collbench calibrate", capsys)
    assert main(["calibrate", str(probed.path)]) == 0
    assert main(["report", *words]) == 0
    page = (plain.path / "report.html").read_text()
    assert f"probes of another run ({probed.run.run_id}, 8 ranks, fabric pcie)" in page
    assert "probes of this machine" not in page
    assert "collbench calibrate PROBES\ncollbench report RUN --parameters PROBES<" in page
    host = synthetic_run(tmp_path / "host", sizes=(1024, 2048), calls=(1,)).path
    capsys.readouterr()
    _fails([str(host), "--parameters", str(probed.path)], 3, "fabric pcie", capsys)


def _fails(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert text in err


def test_a_run_without_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder.create(tmp_path / "run", Run("r", "", (), "0", Fabric.HOST, 2, 1, ())).close()
    _fails([str(tmp_path / "run")], 3, "holds no samples", capsys)


def test_a_newer_schema(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads((run_folder / "run.json").read_text()) | {"schema": "collbench/2"}
    (tmp_path / "run.json").write_text(json.dumps(data))
    _fails([str(tmp_path)], 3, "schema collbench/2 is newer", capsys)


def test_no_run_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _fails([str(tmp_path / "absent")], 2, "no such run folder", capsys)
    _fails([str(tmp_path)], 3, "not a run folder", capsys)


def test_output_that_cannot_be_written(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _fails([str(run_folder), "--out", str(tmp_path)], 2, "is a folder", capsys)
    _fails([str(run_folder), "--out", str(tmp_path / "no" / "page.html")], 3, "cannot be written", capsys)


def test_a_full_disk_leaves_the_old_page(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    _fails([str(run_folder), "--out", str(page)], 3, "the disk is full", capsys)
    assert page.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_pipe_gets_the_page_and_stays(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `--out >(gzip > page.gz)` or a device would."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    thread.start()

    assert main(["report", str(run_folder), "--out", str(pipe)]) == 0

    thread.join(10)
    assert found[0].startswith(b"<!doctype html>")
    assert pipe.is_fifo()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [["report"], ["explain"], ["export", "--format", "csv"]])
def test_damaged_samples_are_named_on_stderr(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic_run(tmp_path / "run", sizes=(1024,), calls=(1,)).path
    with (run / "samples.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    assert main([words[0], str(run), *words[1:]]) == 0
    assert "left out\n" in (err := capsys.readouterr().err)
    assert err.startswith("collbench: samples.jsonl line ")


def test_a_folder_of_launches_names_those_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `gate --paired` leaves it: the launches are runs, the folder is none."""
    for name in ("00-baseline", "00-candidate", "01-baseline", "01-candidate", "02-baseline"):
        synthetic_run(tmp_path / "out" / name, sizes=(1024,), calls=(1,))
    assert main(["report", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"collbench: {tmp_path / 'out'} holds no run but 5 launches: 00-baseline, 00-candidate, 01-baseline, "
        f"01-candidate and 1 more; take one, as in collbench report {tmp_path / 'out' / '00-baseline'}\n"
    )
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 3


def test_a_page_without_paths_explains_none(run_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    folder = RunFolder.open(run_folder)
    record = json.loads((run_folder / "run.json").read_text())
    assert folder.run.command
    for command, there in ((["collbench", "sweep"], False), (["collbench", "sweep", "--out", "/data/a/b"], True)):
        (run_folder / "run.json").write_text(json.dumps(record | {"command": command}))
        assert main(["report", str(run_folder), "--out", str(page)]) == 0
        assert ("PATH stands for" in page.read_text()) == there
    (run_folder / "run.json").write_text(json.dumps(record))
