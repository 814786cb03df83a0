"""A stand-in for a program of nccl-tests: it replays, delays, hangs or crashes as a file beside it says."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

NEW = """USAGE: all_reduce_perf
\t[-t,--nthreads <num threads>]
\t[-g,--ngpus <gpus per thread>]
\t[-b,--minbytes <min size in bytes>]
\t[-N,--run_cycles <cycle count> run & print each cycle (default: 1; 0=infinite)]
\t[-z,--blocking <0/1/2/3>]
\t[-J,--output_file <file> write output to filepath, if accessible.]
\t[-I,--per_iter_timing <0/1>]
\t[-h,--help]
"""
MIDDLE = NEW.replace("\t[-I,--per_iter_timing <0/1>]\n", "").replace("0/1/2/3", "0/1")
OLD = "".join(line for line in MIDDLE.splitlines(keepends=True) if "-J" not in line and "-N" not in line)

_PROGRAM = '''#!{python}
"""MPI_Init stands here where the double shall look linked with MPI: {mpi}"""
import json, os, signal, subprocess, sys, time
here = os.path.dirname(os.path.realpath(__file__))
say = json.load(open(os.path.join(here, "say.json")))
if "--help" in sys.argv:
    if say.get("help_hangs"):
        time.sleep(600)
    sys.stdout.write(say["usage"])
    sys.exit(0)
log = os.path.join(here, "calls.jsonl")
number = len(open(log).readlines()) if os.path.exists(log) else 0
with open(log, "a") as file:
    file.write(json.dumps({{"argv": sys.argv, "env": dict(os.environ), "pid": os.getpid()}}) + "\\n")
act = say["launches"][min(number, len(say["launches"]) - 1)]
if act.get("child"):
    # as mpirun does: the child is the leader of a process group of its own
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
    with open(os.path.join(here, "child"), "w") as file:
        file.write(str(child.pid))
if act.get("json") is not None and "-J" in sys.argv:
    with open(sys.argv[sys.argv.index("-J") + 1], "x") as file:
        file.write(act["json"])
sys.stdout.write(act.get("out", ""))
sys.stdout.flush()
sys.stderr.write(act.get("err", ""))
sys.stderr.flush()
if act.get("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(act.get("sleep", 0))
if act.get("signal"):
    os.kill(os.getpid(), act["signal"])
sys.exit(act.get("code", 0))
'''


def install(
    folder: Path, launches: list[dict[str, Any]], *, usage: str = NEW, name: str = "all_reduce_perf", mpi: bool = False,
    **more: Any,
) -> Path:  # fmt: skip
    """Write the double; each launch takes the next of `launches`, the last one again and again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(_PROGRAM.format(python=sys.executable, mpi="libmpi" if mpi else "no"))
    if not mpi:
        path.write_text(path.read_text().replace("MPI_Init", "M P I"))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "say.json").write_text(json.dumps({"usage": usage, "launches": launches, **more}))
    return path


def calls(folder: Path) -> list[dict[str, Any]]:
    """What the double was started with, in order."""
    path = folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
