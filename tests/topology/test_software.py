"""Versions and host facts."""

from pathlib import Path

import pytest

from collbench.topology import software


def test_versions_name_what_is_installed() -> None:
    """Installed packages have versions; nothing is listed empty."""
    found = software.versions()
    assert {"python", "numpy", "nvidia-ml-py"} <= set(found)
    assert all(found.values())


def test_cuda_of_torch_is_read_from_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA version that torch was built for is read without importing torch; a CPU build has none."""
    package = tmp_path / "torch-9.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.1\n")
    (tmp_path / "torch").mkdir()
    version = tmp_path / "torch/version.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    version.write_text("__version__ = '9.1'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    assert (software.versions()["torch"], software.versions()["cuda"]) == ("9.1", "13.0")
    version.write_text("cuda: Optional[str] = None\n")
    assert "cuda" not in software.versions()


def test_host_facts_of_a_recorded_tree(tmp_path: Path) -> None:
    """Memory, kernel and IOMMU come from the tree; what is not there is absent."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       67108864 kB\nMemFree: 1 kB\n")
    assert software.host_facts(tmp_path)["memory_gib"] == "64.0"
    assert "iommu" not in software.host_facts(tmp_path)
    (tmp_path / "sys/class/iommu/dmar0").mkdir(parents=True)
    assert software.host_facts(tmp_path)["iommu"] == "on"
