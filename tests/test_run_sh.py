"""run.sh and .ci/run: what can be seen without installing anything."""

import os
import subprocess
from pathlib import Path

import pytest

from collbench.cli import main


@pytest.mark.parametrize(
    "script", ["run.sh", ".ci/run", "docs/measurements/one-gpu.sh", "docs/measurements/whole-box.sh"]
)
def test_scripts_are_sound(script: str, root: Path) -> None:
    """Executable, and bash can read them."""
    assert os.access(root / script, os.X_OK)
    subprocess.run(["bash", "-n", root / script], check=True, timeout=10)


def test_an_unknown_word_is_refused_before_anything_is_installed(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes((root / "run.sh").read_bytes())
    done = subprocess.run(["bash", script, "tset"], text=True, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("run.sh: unknown word 'tset'")
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]


def test_a_failed_installation_is_not_taken_for_a_good_one(root: Path, tmp_path: Path) -> None:
    """When pip fails, run.sh fails, writes no stamp, and tries again the next time."""
    (tmp_path / "run.sh").write_bytes((root / "run.sh").read_bytes())
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    fake = tmp_path / ".venv" / "bin"
    fake.mkdir(parents=True)
    (fake / "pip").write_text("#!/bin/sh\necho WARNING: slow\necho no space left >&2\nexit 1\n", encoding="utf-8")
    (fake / "pip").chmod(0o755)
    for _ in range(2):
        done = subprocess.run(
            ["bash", tmp_path / "run.sh", "test"], text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert done.stderr.endswith("\nWARNING: slow\nno space left\n")
        assert not (tmp_path / ".venv" / "installed").exists()


def test_warnings_of_an_installation_that_succeeds_are_kept_and_not_printed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes((root / "run.sh").read_bytes())
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    fake = tmp_path / ".venv" / "bin"
    fake.mkdir(parents=True)
    for name, text in (("pip", "echo WARNING: location is ignored >&2"), ("pytest", "echo tested")):
        (fake / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (fake / name).chmod(0o755)
    done = subprocess.run(
        ["bash", tmp_path / "run.sh", "test"], text=True, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "tested\n", 1)
    assert done.stderr.startswith("run.sh: installing ")
    assert (tmp_path / ".venv" / "pip.log").read_text(encoding="utf-8") == "WARNING: location is ignored\n"


PARTS = (
    *(
        ("one-gpu.sh", part)
        for part in ("kernels", "model", "systems-8", "libraries-8", "systems-2", "libraries-2", "others", "gate")
    ),
    *(("whole-box.sh", part) for part in ("measure", "fewer", "libraries", "judge")),
)


def dry(root: Path, out: Path, script: str, part: str) -> list[str]:
    done = subprocess.run(
        ["bash", root / "docs/measurements" / script, part, out], env={**os.environ, "DRY": "1", "GPUS": "8"},
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(("script", "part"), PARTS)
def test_each_part_of_the_measurements_ends_in_time_and_its_options_are_known(
    script: str, part: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps keep within ten minutes together, and every sweep is one that could be planned."""
    steps = dry(root, tmp_path / "out", script, part)
    assert sum(int(line.split(" (")[1].split(" s)")[0]) for line in steps) <= 600
    sweeps = [line.partition("-m collbench.sweep ")[2].split() for line in steps if "-m collbench.sweep " in line]
    for words in sweeps:
        assert main(["sweep", *(word for word in words if word != "--share-gpu"), "--dry-run"]) == 0, words
    capsys.readouterr()


def test_what_a_box_lacks_is_no_step(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nccl-tests is run by hand only where it is said to be, without the caller's environment; one run is judged."""
    monkeypatch.setenv("NCCL_TESTS", "/there")
    with_tests = dry(root, tmp_path / "out", "whole-box.sh", "judge")
    assert sum(line.startswith("nt-") for line in with_tests) == 4
    assert sum(": env -i " in line for line in with_tests) == 3
    monkeypatch.delenv("NCCL_TESTS")
    assert sum(line.startswith("nt-") for line in dry(root, tmp_path / "out", "whole-box.sh", "judge")) == 1
    (made,) = (line for line in dry(root, tmp_path / "out", "whole-box.sh", "measure") if line.startswith("sweep-8"))
    folder = made.split("--out ")[1].split()[0]
    assert any(line.startswith("explain") and f"explain {folder} " in line for line in with_tests)


@pytest.mark.parametrize("script", ["one-gpu.sh", "whole-box.sh"])
def test_a_part_that_is_not_there_is_refused(script: str, root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", root / "docs/measurements" / script, "all", tmp_path], env={**os.environ, "GPUS": "8"},
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"{script}: no part all\n")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("--out mine", "mine"),
        ("--out=mine -b 1K", "mine"),
        ("--dry-run", ""),
        ("-b 1K --help", ""),
        ("-b 1K", "reports/run-"),
    ],
)
def test_the_page_is_of_the_run_that_was_made(root: Path, tmp_path: Path, words: str, page: str) -> None:
    """Of none where there is none."""
    (tmp_path / "run.sh").write_bytes((root / "run.sh").read_bytes())
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    fake = tmp_path / ".venv" / "bin"
    fake.mkdir(parents=True)
    for name, text in (("pip", ""), ("collbench", 'echo "$@"')):
        (fake / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (fake / name).chmod(0o755)
    done = subprocess.run(
        ["bash", tmp_path / "run.sh", *words.split()], text=True, capture_output=True, timeout=60, check=True
    )
    first, *others = done.stdout.splitlines()
    assert first.startswith("sweep ")
    assert first.endswith(words)
    assert [line.startswith(f"report {page}") for line in others] == [True] * bool(page)
