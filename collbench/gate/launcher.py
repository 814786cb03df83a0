"""A side of a paired gate as something that can be launched: `venv:PATH`, `git:REV`, `env:K=V,...` or `cmd:...`."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench.errors import InvalidError, UsageError
from collbench.measure.environment import ALLOWED, ALLOWED_PREFIXES, worker_environment
from collbench.results.summary import clean

__all__ = ["KINDS", "Launcher", "open_side"]

KINDS = ("venv", "git", "env", "cmd")
"""What a side can be."""

_GIT_DEADLINE_S = 60.0
_GRACE_S = 20.0
"""Time that a launch has to end in order after SIGTERM; a sweep stops its workers within a few seconds."""

_GROUP = "collbench.algorithms"
"""Of the entry points by which packages of algorithms are found."""

_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NEXT = re.compile(r",(?=[A-Za-z_][A-Za-z0-9_]*=)")
_REVISION = re.compile(r"[\w./@{}^~:-]{1,200}")


@dataclass(frozen=True, slots=True)
class Launcher:
    """How one side is launched. `label` names it without paths of this machine."""

    label: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path

    def launch(self, words: Sequence[str], log: Path, timeout_s: float) -> tuple[int, str]:
        """Run the side's sweep with these options; gives its exit code and its stdout. Its stderr goes to `log`.

        Raises:
            InvalidError: it could not be started, or did not end in time; it is ended with all that it started.
        """
        # the tether is ours, wherever it is started (-P), and runs in our environment; env(1) behind it gives the
        # command the side's own and nothing else
        tether = (sys.executable, "-P", "-m", "collbench.measure.tether", str(os.getpid()))
        # an older release does not know --no-probe, and its variable costs it nothing
        environment = {**self.environment, "COLLBENCH_NO_PROBE": "1"}
        variables = (f"{name}={value}" for name, value in environment.items())
        command = [*tether, "env", "-i", *variables, *self.command, *words]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True, env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(_root())},
            )  # fmt: skip
            try:
                out, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise InvalidError(f"{self.label}: a launch did not end within {timeout_s:.0f} s; see {log}") from None
            finally:
                _end(process)
        return process.returncode, out.decode(errors="replace")


def _root() -> Path:
    """Folder that our own package lies in."""
    return Path(__file__).resolve().parents[2]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """See that a launch has ended: in order, then by force; a session of its own, so nobody else's process is met."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def open_side(text: str, work: Path) -> Launcher:
    """Make a side ready to be launched; a revision is unpacked below `work`.

    Raises:
        UsageError: not one of the four kinds, or what it names is not there.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS or not rest:
        raise UsageError(f"side {clean(text)[:80]!r}: expected venv:PATH, git:REV, env:K=V,... or cmd:COMMAND")
    make = {"venv": _venv, "git": _git, "env": _env, "cmd": _cmd}[kind]
    return make(rest, work)


def _sweep(python: str) -> tuple[str, ...]:
    return (python, "-m", "collbench.sweep")


def _neutral(work: Path) -> Path:
    """An empty folder to start in: Python looks for modules where it is started, and a checkout there would win."""
    folder = work / "start"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _venv(path: str, work: Path) -> Launcher:
    python = Path(path).expanduser().absolute() / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise UsageError(f"side venv:{path}: {python} is not there: give the folder of a virtual environment")
    kept = {k: v for k, v in worker_environment().items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return Launcher(f"venv:{Path(path).name}", _sweep(str(python)), kept, _neutral(work))


def _env(text: str, work: Path) -> Launcher:
    pairs: dict[str, str] = {}
    for word in _NEXT.split(text):
        match = _PAIR.fullmatch(word)
        if match is None:
            raise UsageError(f"side env:{clean(text)[:80]}: expected K=V,... such as env:NCCL_PROTO=LL")
        name = match[1]
        if name not in ALLOWED and not name.startswith(ALLOWED_PREFIXES):
            raise UsageError(
                f"side env:{name}=...: workers do not get this variable, so both sides would be the same; it must "
                f"begin with one of {', '.join(ALLOWED_PREFIXES)}"
            )
        if match[2] != worker_environment({name: match[2]})[name]:
            raise UsageError(f"side env:{name}=...: every worker has {name} set by collbench: it cannot differ")
        pairs[name] = match[2]
    path = os.pathsep.join(filter(None, (str(_root()), pairs.pop("PYTHONPATH", os.environ.get("PYTHONPATH", "")))))
    environment = {**worker_environment(), **pairs, "PYTHONPATH": path}
    return Launcher(f"env:{text}", _sweep(sys.executable), environment, _neutral(work))


def _cmd(text: str, work: Path) -> Launcher:
    del work
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"side cmd:{clean(text)[:80]}: {error}") from None
    if not words:
        raise UsageError("side cmd: is empty: give a command that takes the options of collbench sweep")
    return Launcher(f"cmd:{Path(words[0]).name}", tuple(words), worker_environment(), Path.cwd())


def _git(revision: str, work: Path) -> Launcher:
    if _REVISION.fullmatch(revision) is None or revision.startswith("-"):
        raise UsageError(f"side git:{clean(revision)[:80]}: not the name of a revision")
    commit = _ask_git(revision, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
    folder = work / f"git-{commit[:12]}"
    if not folder.exists():
        packed = work / f"git-{commit[:12]}.tar"
        _ask_git(revision, "archive", "--format=tar", f"--output={packed}", commit)
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        packed.unlink()
    source = folder / "src" if (folder / "src").is_dir() else folder
    _refuse_working_tree(revision, source)
    paths = (str(source), str(_root()), os.environ.get("PYTHONPATH", ""))
    environment = {**worker_environment(), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return Launcher(f"git:{revision} ({commit[:12]})", _sweep(sys.executable), environment, source)


def _refuse_working_tree(revision: str, source: Path) -> None:
    """A package of algorithms that is installed from the working tree and not in `source` would be both sides'."""
    import importlib.metadata
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    top, prefix = Path(_ask_git(revision, "rev-parse", "--show-toplevel").strip()).resolve(), Path(sys.prefix).resolve()
    for name in {point.module.partition(".")[0] for point in importlib.metadata.entry_points(group=_GROUP)}:
        if PathFinder.find_spec(name, [str(source)]) is not None:
            continue
        spec = find_spec(name)
        file = Path(spec.origin).resolve() if spec is not None and spec.origin else prefix
        if file.is_relative_to(top) and not file.is_relative_to(prefix):
            raise UsageError(
                f"side git:{revision}: {clean(name)} is neither at the revision's top nor in its src/, and the working "
                "tree would run instead: install each revision into an environment of its own and give venv:PATH"
            )


def _ask_git(revision: str, *words: str) -> str:
    """What git prints; errors name the side's revision."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],  # noqa: S607 - the user's own git, wherever PATH has it
            capture_output=True, text=True, timeout=_GIT_DEADLINE_S, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout

    try:
        return git("-C", git("rev-parse", "--show-toplevel").strip(), *words)
    except FileNotFoundError:
        raise UsageError(f"side git:{revision}: git is not installed") from None
    except subprocess.TimeoutExpired:
        raise InvalidError(f"side git:{revision}: git {words[0]} did not end within {_GIT_DEADLINE_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        told = clean(error.stderr or "").removeprefix("fatal: ") or "no such revision in this repository"
        raise UsageError(f"side git:{revision}: git {words[0]}: {told[:160]}") from None
