"""Brings a library up in a process of its own before any rank does: imports it, looks for what we call, compiles.

A library that does not import, was built for another CUDA, compiles without end or prints rubbish costs a reason then,
and no rank. What it compiles stays in its own cache, from which the ranks load it. Where the fork server has imported
it the process is forked from a rank, and imports nothing; else it is run as
`python -m collbench.algorithms.library_build watch|build REQUEST ANSWER [PARENT]`.
"""

import contextlib
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from collbench.algorithms import fork_safety, preloaded
from collbench.algorithms.base import Ranks
from collbench.algorithms.forked import Forked
from collbench.algorithms.library_uses import Use, broken

__all__ = ["BUILD_S", "Request", "Step", "import_together", "main", "prepare", "together"]

BUILD_S = 300.0
"""Longest import and compilation of a library: FlashInfer's fusion takes some minutes on two cores."""

_TICK_S = 0.5
_POLL_S = 0.02
_KEPT = 400
_TAIL = 4000
_DONE: dict[str, dict[str, Any]] = {}
"""What this process was told of requests: a library that cannot be brought up is not tried again for every cell."""


@dataclass(frozen=True, slots=True)
class Step:
    """A function to call once, `module:function`, with JSON arguments: it compiles, or loads what was compiled."""

    target: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What is brought up: `package` as people call it, modules to import, names that we use, steps in order."""

    package: str
    modules: tuple[str, ...]
    uses: tuple[Use, ...] = ()
    steps: tuple[Step, ...] = ()
    limit_s: float = BUILD_S

    @property
    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True)


def prepare(ranks: Ranks, request: Request) -> dict[str, str]:
    """Bring a library up on every host, all ranks together; gives evidence: seconds of import and of each step.

    The first rank of a host does it, the others wait; they meet twice a second, so no deadline of theirs is touched.

    Raises:
        NotImplementedError: it cannot be brought up, on all ranks alike; the text says why.
    """
    build = _Build(request) if ranks.local_rank == 0 and request.text not in _DONE else None
    with build or contextlib.nullcontext():
        while True:
            answer = _DONE.get(request.text) if build is None else build.answer(_TICK_S)
            told = ranks.exchange(answer or {"wait": True} if ranks.local_rank == 0 else {})
            if not any(entry.get("wait") for entry in told):
                break
    if ranks.local_rank == 0 and answer is not None:
        _DONE[request.text] = answer
    failed = next((entry["error"] for entry in told if entry.get("error")), "")
    if failed:
        raise NotImplementedError(f"{request.package}: {failed}")
    first: dict[str, str] = told[0].get("evidence", {})
    return first


def import_together(ranks: Ranks, modules: Sequence[str]) -> None:
    """Import modules on this rank while a helper thread meets the others: some ranks take far longer than others.

    Raises:
        NotImplementedError: some rank could not import them, on all ranks alike.
    """
    together(ranks, lambda: [importlib.import_module(module) for module in modules], "a library was imported")


def together(ranks: Ranks, work: Callable[[], object], what: str, limit_s: float = math.inf) -> None:
    """Do something slow on every rank, each at its own pace; a helper thread meets the others meanwhile.

    Behind `limit_s` of any rank those that are through go on without the others: `work` itself is not ended.

    Raises:
        NotImplementedError: it failed on some rank, on all ranks alike.
        MemoryError: the same, for want of memory.
        TimeoutError: a rank did not come, or did not end its work within `limit_s`, while `what`.
    """
    mine: dict[str, Any] = {"wait": True}
    told: list[list[dict[str, Any]]] = []
    helper = threading.Thread(target=_meet, args=(ranks, mine, told, time.monotonic() + limit_s), daemon=True)
    helper.start()
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever a library raises is its reason
        mine["error"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:_KEPT]
    finally:
        mine["wait"] = False
    helper.join()
    if not told:
        raise TimeoutError(f"a rank did not come while {what}")
    failed = next((f"rank {rank}: {e['error']}" for rank, e in enumerate(told[0]) if e.get("error")), "")
    if failed:
        raise MemoryError(failed) if "out of memory" in failed.lower() else NotImplementedError(failed)
    late = [str(rank) for rank, entry in enumerate(told[0]) if entry["wait"]]
    if late:
        raise TimeoutError(f"rank {', '.join(late)} went on for more than {limit_s:g} s while {what}")


def _meet(ranks: Ranks, mine: dict[str, Any], told: list[list[dict[str, Any]]], until: float) -> None:
    with contextlib.suppress(OSError, EOFError, TimeoutError, RuntimeError):
        while True:
            everyone = ranks.exchange({**mine, "late": time.monotonic() > until})
            if not any(entry["wait"] for entry in everyone) or any(entry["late"] for entry in everyone):
                break
            time.sleep(_POLL_S)
        told.append(everyone)


_Process = subprocess.Popen[bytes] | Forked


def _may_fork(request: Request) -> bool:
    """Whether a child of this process would have it imported and be as good as a fresh one."""
    return preloaded.holds(request.modules) and not fork_safety.why_not()


class _Build:
    """A watched process at work."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._folder = tempfile.TemporaryDirectory(prefix="collbench-")
        folder = Path(self._folder.name)
        (folder / "request").write_text(request.text)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = self._forked(folder) if _may_fork(request) else self._run(folder)

    def _run(self, folder: Path) -> _Process:
        words = ["watch", str(folder / "request"), str(folder / "answer"), str(os.getpid())]
        words = [sys.executable, "-m", __name__, *words]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def _forked(self, folder: Path) -> _Process:
        told, answer, parent = json.loads(self._request.text), folder / "answer", os.getpid()

        def start() -> _Process:
            return Forked(lambda: _build(told, answer), start_new_session=True)

        return Forked(lambda: _watch(told, start, answer, parent), log=self._log.fileno())

    def answer(self, wait_s: float) -> dict[str, Any] | None:
        """What came of it; None while it goes on."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        try:
            answer: dict[str, Any] = json.loads((Path(self._folder.name) / "answer").read_text())
        except (OSError, ValueError):
            code = self._process.returncode
            return {"error": f"importing it ended with exit code {code}: {self._last_line()}"}
        return answer

    def _last_line(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL))
        return _last_line(self._log.read().decode(errors="replace"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # the watcher takes its children along
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()


def _last_line(text: str) -> str:
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "it printed nothing")[-_KEPT:]


def main(words: Sequence[str]) -> int:
    """Watch a build, or be one."""
    role, request, answer, *parent = words
    told = json.loads(Path(request).read_text())
    if role == "watch":
        words = [sys.executable, "-m", __spec__.name, "build", request, answer]
        return _watch(told, lambda: subprocess.Popen(words, start_new_session=True), Path(answer), int(parent[0]))
    return _build(told, Path(answer))


def _watch(request: dict[str, Any], start: Callable[[], _Process], answer: Path, parent: int) -> int:
    """Start the build, in a session of its own, and end all of it when it takes too long or our parent is gone."""
    limit = time.monotonic() + float(request["limit_s"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    child = start()
    try:
        while child.poll() is None and os.getppid() == parent:
            if time.monotonic() > limit:
                _write(answer, {"error": f"importing and compiling it did not end within {request['limit_s']:g} s"})
                return 1
            time.sleep(_POLL_S)
        return child.returncode if child.returncode is not None else 1
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # also compilers that it left behind
        child.kill()  # it may not have its session yet
        child.wait()
        if os.getppid() != parent:
            # it was killed, and nobody else knows of the folder that it made for us
            shutil.rmtree(answer.parent, ignore_errors=True)


def _build(request: dict[str, Any], answer: Path) -> int:
    try:
        evidence = _bring_up(request)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is its reason
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        told = first if isinstance(error, NotImplementedError) else f"{type(error).__name__}: {first}"
        _write(answer, {"error": told[:_KEPT]})
        return 1
    _write(answer, {"evidence": evidence})
    return 0


def _bring_up(request: dict[str, Any]) -> dict[str, str]:
    begin = time.monotonic()
    for module in request["modules"]:
        importlib.import_module(module)
    evidence = {"imported": f"{request['package']}, {_spent(request, time.monotonic() - begin)}"}
    changed = [text for use in request["uses"] if (text := broken(Use(**use)))]
    if changed:
        raise NotImplementedError(f"its Python interface is another than the one that collbench knows: {changed[0]}")
    for step in request["steps"]:
        begin = time.monotonic()
        module, _, name = step["target"].partition(":")
        getattr(importlib.import_module(module), name)(*step["arguments"])
        evidence[f"built {name}"] = f"{time.monotonic() - begin:.1f} s"
    return evidence


def _spent(request: dict[str, Any], here_s: float) -> str:
    """What the import of the request's modules took, and where."""
    if preloaded.holds(request["modules"]):
        return f"{sum(preloaded.SECONDS[module] for module in request['modules']):.1f} s in the fork server"
    return f"{here_s:.1f} s"


def _write(path: Path, answer: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(answer))
    part.replace(path)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a library must not keep us
