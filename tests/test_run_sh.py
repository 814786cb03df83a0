"""run.sh and .ci/run: what can be seen without installing anything."""

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("script", ["run.sh", ".ci/run"])
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
    (fake / "pip").write_text("#!/bin/sh\necho no space left >&2\nexit 1\n", encoding="utf-8")
    (fake / "pip").chmod(0o755)
    for _ in range(2):
        done = subprocess.run(
            ["bash", tmp_path / "run.sh", "test"], text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert "no space left" in done.stderr
        assert not (tmp_path / ".venv" / "installed").exists()
