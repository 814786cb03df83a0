"""A control program of MPS for machines that have none."""

import os
import stat
import sys
from pathlib import Path

import pytest

FAKE = """\
#!{python}
# Stands in for nvidia-cuda-mps-control: -d puts a daemon with a "server" in the background, else a command on stdin.
import os, signal, sys, time
from pathlib import Path
fault = os.environ.get("LANG", "")
pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
pidfile = pipe / "pid"
if "-d" in sys.argv:
    if fault == "dies":
        print("no GPU found"); sys.exit(1)
    if fault == "hangs":
        time.sleep(60)
    if os.fork():
        while not pidfile.exists():
            time.sleep(0.005)
        sys.exit(0)
    os.setsid()
    if fault == "refuses":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = os.fork()
    if server == 0:
        os.setsid()
        time.sleep(120)
        os._exit(0)
    (pipe / "new").write_text(f"{{os.getpid()}} {{server}}")
    (pipe / "new").rename(pidfile)
    def leave(*_):
        os.kill(server, signal.SIGKILL); os._exit(0)
    signal.signal(signal.SIGUSR1, leave)
    time.sleep(120)
else:
    command = sys.stdin.read().strip()
    if fault == "mute" or not pidfile.exists():
        print("Cannot find MPS control daemon process"); sys.exit(1)
    if command == "quit" and fault != "refuses":
        os.kill(int(pidfile.read_text().split()[0]), signal.SIGUSR1)
"""


@pytest.fixture
def fake_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A fake control program on PATH; LANG, which is passed on, names its fault."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LANG", "")
    return monkeypatch
