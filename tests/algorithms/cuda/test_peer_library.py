"""Wrappers around peers' kernels: what is compiled, what is refused, and that nothing waits without end."""

import ctypes
import os
import stat
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from collbench.algorithms.cuda import peer_library
from collbench.algorithms.cuda.peer_library import MAX_RANKS, Built, Setup, Wrapper, build, load
from collbench.topology.toolkit import HEADERS_VARIABLE, find_header, find_nvcc

VLLM = ("peer_vllm.cu", "vllm_custom_all_reduce.cuh")
FLASHINFER = ("peer_flashinfer.cu", "pcie_ipc_all_reduce.cuh")
WRAPPER = Wrapper(*VLLM, 8, "bfloat16", "sm_90")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A header of no content and a compiler whose text each test writes; gives the compiler."""
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / VLLM[1]).write_text("")
    monkeypatch.setenv(HEADERS_VARIABLE, str(headers))
    program = tmp_path / "toolkit/bin/nvcc"
    program.parent.mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    return program


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


COPY = 'echo x >> "$(dirname "$0")/calls"; while [ "$1" != -o ]; do shift; done; sleep 0.3; echo library > "$2"'


@pytest.mark.parametrize("source", [VLLM, FLASHINFER])
@pytest.mark.parametrize(("ranks", "dtype"), [(8, "bfloat16"), (2, "float16")])
def test_the_real_headers_compile_for_sm_90(source: tuple[str, str], ranks: int, dtype: str, tmp_path: Path) -> None:
    """The compiler takes our wrapper with their header; the library knows our record, and sizes its work space."""
    if find_nvcc() is None:
        pytest.skip("nvcc was not found")
    if find_header(source[1]) is None:
        pytest.skip(f"{source[1]} was not found: install flashinfer-python or set {HEADERS_VARIABLE}")
    wrapper = Wrapper(*source, ranks, dtype, "sm_90")
    built = build(wrapper, tmp_path / "cache")
    library = load(built)
    assert built.seconds > 0
    assert build(wrapper, tmp_path / "cache").seconds == 0
    assert library.peer_workspace_bytes(4096, 36) > 4096 * 2
    assert library.peer_table_bytes() == (8 * MAX_RANKS if source == VLLM else 0)
    # the only call that needs no GPU: a launch without one is refused, and by name
    assert library.peer_error(library.peer_launch(ctypes.byref(Setup(blocks=1, threads=32)), 0, None)) != b"cudaSuccess"


def test_ranks_compile_once(fake: Path, tmp_path: Path) -> None:
    """Of several processes that need the same library one compiles, and the others wait for it."""
    write(fake, COPY)
    with get_context("fork").Pool(4) as pool:
        built = pool.starmap(build, [(WRAPPER, tmp_path / "cache")] * 4)
    assert (fake.parent / "calls").read_text().count("x") == 1
    assert len({b.library for b in built}) == 1
    assert sorted(b.seconds > 0 for b in built) == [False, False, False, True]
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert [p.suffix for p in sorted((tmp_path / "cache").iterdir())] == [".lock", ".so"]


def test_another_header_is_another_library(fake: Path, tmp_path: Path) -> None:
    """The cache knows what was compiled, not only what it was called."""
    write(fake, COPY)
    one = build(WRAPPER, tmp_path / "cache")
    (tmp_path / "headers" / VLLM[1]).write_text("// a newer release")
    other = build(WRAPPER, tmp_path / "cache")
    assert one.library != other.library
    assert one.header_sha256 != other.header_sha256


def test_a_refusal_of_the_compiler_is_one_line(fake: Path, tmp_path: Path) -> None:
    """The first error is told; nothing stays in the cache that looks like a library."""
    write(fake, "echo 'a.cu(3): warning: b'; echo 'a.cu(7): error: no such kernel'; exit 2")
    with pytest.raises(NotImplementedError, match=r"for sm_90: a\.cu\(7\): error: no such kernel$"):
        build(WRAPPER, tmp_path / "cache")
    assert [p.suffix for p in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_compiler_that_hangs_is_ended_with_its_children(fake: Path, tmp_path: Path) -> None:
    """The deadline holds, and what the compiler had started is gone."""
    write(fake, 'sleep 60 & echo $! > "$(dirname "$0")/child"; wait')
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="did not compile"):
        build(WRAPPER, tmp_path / "cache", deadline_s=0.5)
    assert time.monotonic() - begin < 10
    child, limit = int((fake.parent / "child").read_text()), time.monotonic() + 10
    while _runs(child) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not _runs(child)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_what_is_missing_is_named(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without header or compiler says which, with the remedy."""
    write(fake, COPY)
    monkeypatch.setenv(HEADERS_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(NotImplementedError, match="pip install flashinfer-python, or set COLLBENCH_FLASHINFER_INCLUDE"):
        build(WRAPPER, tmp_path / "cache")
    monkeypatch.setattr(peer_library, "find_nvcc", lambda: None)
    with pytest.raises(NotImplementedError, match="set CUDA_HOME"):
        build(WRAPPER, tmp_path / "cache")


def test_a_folder_that_others_can_write_is_not_used(fake: Path, tmp_path: Path) -> None:
    """A library is code: it is loaded only from where nobody else could have put it."""
    write(fake, COPY)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotImplementedError, match="others can write"):
        build(WRAPPER, tmp_path / "open")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    """A damaged library is an error of the system's loader, which the runner tells all ranks."""
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(OSError, match=r"x\.so"):
        load(Built(tmp_path / "x.so", 0.0, "13.0", ""))
