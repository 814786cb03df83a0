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


def test_a_file_that_cannot_be_of_that_machine(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Faster than its links, or of a tool that does not run on its cards; slower than NVLink is a word of warning."""
    head = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n D\\D 0 1\n"
    for gbps, machine, code, said in (
        (
            274.0,
            "two-flat-gen5-switches",
            3,
            "GPU 1, and the links of topology two-flat-gen5-switches between them carry",
        ),
        (26.3, "two-arc-b70", 3, "runs on NVIDIA's GPUs, and topology two-arc-b70 has 2 x Intel Arc Pro B70"),
        (26.3, "two-h200-nvlink", 0, "file and topology may not fit"),
    ):
        file.write_text(f"{head} 0 900.0 {gbps}\n 1 {gbps} 900.0\n")
        run = tmp_path / machine
        assert main(["calibrate", str(run), "--from", str(file), "--topology", machine]) == code
        err = capsys.readouterr().err
        assert said in err
        assert (code == 3) == ("file and topology do not fit\n" in err)
        assert run.exists() == (code == 0)


def test_fewer_gpus_than_the_topology_has_are_named(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which of them they are nobody said: the first in order, all below one switch here, may be the wrong ones."""
    file.write_text(output(50.0))
    assert main(["calibrate", str(tmp_path / "run"), "--from", str(file), "--topology", "two-flat-gen5-switches"]) == 0
    told = "4 of 8 GPUs are in the file, taken for gpu0, gpu1, gpu2, gpu3: are they these?"
    assert told in capsys.readouterr().err
