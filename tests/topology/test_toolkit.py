"""Finding a compiler and headers: the places in their order, and nothing found is no error."""

from pathlib import Path

import pytest

from collbench.topology import toolkit


def compiler(home: Path, version: str = "") -> Path:
    """A toolkit that has only what is looked for."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin/nvcc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    if version:
        (home / "version.json").write_text(f'{{"cuda_nvcc": {{"version": "{version}"}}}}')
    return program


@pytest.fixture(autouse=True)
def no_toolkit_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolkit, "_TOOLKIT", tmp_path / "none")


def test_cuda_home_goes_before_the_path(tmp_path: Path) -> None:
    """A compiler that the user names is taken; one that cannot be run is not."""
    named, other = compiler(tmp_path / "named"), compiler(tmp_path / "other")
    environ = {"CUDA_HOME": str(tmp_path / "named"), "PATH": str(other.parent)}
    assert toolkit.find_nvcc(environ) == named
    named.chmod(0o644)
    assert toolkit.find_nvcc(environ) == other
    assert toolkit.find_nvcc({"PATH": str(tmp_path)}) is None


def test_the_version_is_read_without_starting_anything(tmp_path: Path) -> None:
    """From the toolkit's list of parts, else from the runtime's header, else unknown; a damaged list is no list."""
    assert toolkit.nvcc_version(compiler(tmp_path / "a", "13.0.88")) == "13.0.88"
    program = compiler(tmp_path / "b")
    assert toolkit.nvcc_version(program) == "unknown"
    (tmp_path / "b/version.json").write_text("{")
    (tmp_path / "b/include").mkdir()
    (tmp_path / "b/include/cuda_runtime_api.h").write_text("//\n#define CUDART_VERSION  12080\n")
    assert toolkit.nvcc_version(program) == "12.8"


def test_headers_given_by_the_variable(tmp_path: Path) -> None:
    """The variable names the folder of include paths or that of the headers; one without them is said to have none."""
    inside = tmp_path / "flashinfer/comm"
    inside.mkdir(parents=True)
    header = inside / "vllm_custom_all_reduce.cuh"
    header.write_text("")
    for folder in (tmp_path, inside):
        assert toolkit.find_header(header.name, {toolkit.HEADERS_VARIABLE: str(folder)}) == header
    assert toolkit.versions({toolkit.HEADERS_VARIABLE: str(tmp_path)}) == {"flashinfer-headers": "given"}
    header.unlink()
    assert toolkit.versions({toolkit.HEADERS_VARIABLE: str(tmp_path)}) == {}


def test_headers_of_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package is found by its metadata; a header that its release lacks is not found."""
    info = tmp_path / "flashinfer_python-9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flashinfer-python\nVersion: 9.1\n")
    inside = tmp_path / "flashinfer/data/include/flashinfer/comm"
    inside.mkdir(parents=True)
    (inside / "a.cuh").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert toolkit.find_header("a.cuh", {}) == inside / "a.cuh"
    assert toolkit.find_header("b.cuh", {}) is None
