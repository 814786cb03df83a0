"""NVML is asked in a process of its own: a driver that hangs, dies or lies costs one line and a deadline."""

import sys
from pathlib import Path

import pytest

from collbench.errors import InvalidError
from collbench.measure import gpu_processes
from collbench.measure.gpu_processes import GpuProcesses

FAKE = """\
import os, time
class NVMLError(Exception): pass
def nvmlInit():
    if FAKE == 'hang': time.sleep(60)
    if FAKE == 'exit': os._exit(7)
    if FAKE == 'no driver': raise NVMLError
def nvmlShutdown(): pass
def nvmlDeviceGetCount():
    return {'negative': -3, 'big': 10**9, 'text': 'x', 'none': None, 'nan': float('nan')}.get(FAKE, 2)
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return b'GPU-%d' % handle
def nvmlDeviceGetComputeRunningProcesses(handle):
    return {'processes': None, 'pid': [type('Process', (), {'pid': -1})]}.get(FAKE, [])
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in pynvml's place; write its text."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(gpu_processes.__file__).parents[2]}")
    return tmp_path / "pynvml.py"


@pytest.mark.parametrize(
    ("fake", "says"),
    [
        ("hang", "no answer within"), ("exit", "ended with 7"), ("negative", "'-3'"), ("big", "'1000000000'"),
        ("text", "'x'"), ("none", "'None'"), ("nan", "'nan'"), ("processes", "TypeError"), ("pid", "'-1'"),
    ],
)  # fmt: skip
def test_a_driver_that_hangs_dies_or_lies(driver: Path, fake: str, says: str) -> None:
    """Each is one error that names NVML and says how to measure without GPUs."""
    driver.write_text(f"FAKE = {fake!r}\n{FAKE}")
    with pytest.raises(InvalidError, match=r"^NVML: .*; CUDA_VISIBLE_DEVICES= before the command") as caught:
        gpu_processes.ask(deadline_s=1.0 if fake == "hang" else 10.0)
    assert says in str(caught.value)


def test_a_driver_that_answers_and_none(driver: Path) -> None:
    """Two cards by number and UUID; nothing where NVML does not start."""
    driver.write_text(f"FAKE = ''\n{FAKE}")
    assert gpu_processes.ask() == (GpuProcesses(0, "GPU-0"), GpuProcesses(1, "GPU-1"))
    driver.write_text(f"FAKE = 'no driver'\n{FAKE}")
    assert gpu_processes.ask() == ()


@pytest.mark.parametrize("said", ["", "{}}", "[1]", '[{"index": 1, "uuid": "", "pids": []}]', "[" * 9999])
def test_an_answer_that_is_none(said: str) -> None:
    """What the process prints is checked as well."""
    with pytest.raises(InvalidError, match="its answer cannot be"):
        gpu_processes.ask(command=(sys.executable, "-c", f"print({said!r})"))
