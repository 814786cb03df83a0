"""`collbench calibrate --from`: another tool's output in place of probes."""

import json
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.results.probes import read_probes
from collbench.results.store import RunFolder
from collbench.topology import catalog

MACHINE = "one-plx-4xv100"


def output(gbps: float) -> str:
    rows = [" ".join([str(a), *("N/A" if a == b else f"{gbps + 0.01 * b:.2f}" for b in range(4))]) for a in range(4)]
    head = "Running device_to_device_memcpy_write_ce.\nmemcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n  0 1 2 3\n"
    return head + "\n".join(rows) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nvb.txt"
    path.write_text(output(11.7))
    return path


def test_a_run_is_made_from_a_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What predictions take afterwards was measured, not assumed."""
    run = tmp_path / "run"
    assert main(["calibrate", str(run), "--from", str(file), "--topology", MACHINE, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert any(row["identified"] and row["name"].startswith("capacity") for row in rows)
    assert json.loads((run / "parameters.json").read_text())["observations"] == 1
    assert len(read_probes(run)[0]) == 12
    assert RunFolder.open(run).run.world_size == len(catalog.load(catalog.find(MACHINE)).gpus)


def test_it_stands_in_for_the_probes_of_a_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, found = tmp_path / "run", []
    for gbps, words in ((12.9, ["--topology", MACHINE]), (11.5, [])):
        file.write_text(output(gbps))
        assert main(["calibrate", str(run), "--from", str(file), *words, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        found.append(next(row["value"] for row in rows if row["name"].startswith("capacity")))
    assert found[1] < 0.95 * found[0]
    assert len(read_probes(run)[0]) == 12, "the run's own probes stay"


def test_degraded_states_are_tested_first(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(output(6.0))
    assert main(["calibrate", str(tmp_path / "run"), "--from", str(file), "--topology", MACHINE]) == 3
    assert "downtrained link" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--topology", MACHINE], 2, "--from FILE"),
        (["--from", "FILE", "--topology", "nowhere"], 2, "no machine file"),
        (["--from", "FILE"], 2, "no such run folder"),
        (["--from", "none.txt", "--topology", MACHINE], 3, "cannot be read"),
    ],
)
def test_calls_that_are_wrong(
    words: list[str], code: int, message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["calibrate", str(run), *(str(file) if word == "FILE" else word for word in words)]) == code
    assert message in capsys.readouterr().err
    assert not run.exists()


def test_nothing_of_use_leaves_no_folder(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n D\\D 0 1\n 0 900.0 9.0\n 1 9.0 900.0\n")
    assert main(["calibrate", str(tmp_path / "run"), "--from", str(file), "--topology", MACHINE]) == 3
    assert "through host memory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
