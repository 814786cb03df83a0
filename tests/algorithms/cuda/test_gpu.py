"""The kernels on a GPU, by virtual ranks in one cooperative kernel."""

import json
from pathlib import Path

import pytest

from collbench.algorithms.cuda import harness

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _device() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def test_all_checks_pass(tmp_path: Path) -> None:
    """Replays across 2^32, float64 reference, deadlines; controls are recorded either way."""
    file = tmp_path / "findings.json"
    assert harness.main(["--replays", "1000", "--references", "5", "--json", str(file)]) == 0
    assert {f["check"] for f in json.loads(file.read_text())} >= {"replays", "reference", "deadline"}
