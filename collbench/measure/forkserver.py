"""The fork server: a process that has imported what workers need, never touched CUDA, and forks groups of them.

Started by exec under the environment that its workers share (LD_PRELOAD, library paths), one per such set: a group then
costs milliseconds instead of the seconds that importing torch takes (docs/decisions/0004-fork-servers.md), and as many
more that a library takes (docs/decisions/0009-preloaded-libraries.md). Run as
`python -m collbench.measure.forkserver FD '{"imports": [], "foreign": [], "left_out": {}}'`.
"""

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from collbench.algorithms import preloaded
from collbench.algorithms.base import registry
from collbench.measure.channel import die_with_parent
from collbench.measure.tentative import Importer
from collbench.measure.worker import run_worker

__all__ = ["main"]

_MAX_REQUEST = 1 << 20


def main(argv: list[str]) -> None:
    """Import what `argv[1]` names, then serve requests on the socket of number `argv[0]` until it closes.

    Imports that are `foreign` are announced one by one (`{"importing": module}`); one that is unfit to be forked with
    ends the server: `{"unfit": module, "why": text}`. `{"ready": pid}` ends the imports. A request is one JSON object
    with as many file descriptors as workers; the answers are `{"pids": [...]}` and, for every worker that ends,
    `{"exit": pid, "code": code}` (negative code = signal). Each message ends with a newline.
    """
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, told = socket.socket(fileno=int(argv[0])), json.loads(argv[1])
    control.set_inheritable(False)  # processes that libraries start must not keep it open
    for module in told["imports"]:
        importlib.import_module(module)
    registry()  # imports every algorithm's file once, for all workers
    if told["foreign"] and not _import_foreign(control, told["foreign"]):
        return
    preloaded.LEFT_OUT.update(told["left_out"])
    _say(control, {"ready": os.getpid()})
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ, None)
        while _serve_once(control, selector):
            pass


def _import_foreign(control: socket.socket, modules: Sequence[str]) -> bool:
    """Import other people's modules; False if workers must not be forked with one of them."""
    own = os.getpid()
    # whom a library forks must not hold the socket: the supervisor sees our end by it
    os.register_at_fork(after_in_child=control.close)
    _say(control, {"importing": modules[0]})  # also what is asked before them takes of their time
    importer = Importer()
    for module in modules:
        _say(control, {"importing": module})
        why = importer.take(module)
        if os.getpid() != own:
            os._exit(0)  # a library forked, and both came back
        if why:
            _say(control, {"unfit": module, "why": why})
            return False
    return True


def _serve_once(control: socket.socket, selector: selectors.BaseSelector) -> bool:
    for key, _ in selector.select():
        if key.data is None:
            text, fds, _, _ = socket.recv_fds(control, _MAX_REQUEST, 64)
            if not text:
                return False
            _fork_group(control, selector, json.loads(text), fds)
        else:
            _reap(control, selector, int(key.data), key.fd)
    return True


def _fork_group(
    control: socket.socket, selector: selectors.BaseSelector, request: dict[str, Any], fds: list[int]
) -> None:
    pids = []
    for local_rank, fd in enumerate(fds):
        pid = os.fork()
        if pid == 0:
            _become_worker(control, selector, request, fds, local_rank)
        pids.append(pid)
        selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        os.close(fd)
    _say(control, {"pids": pids})


def _reap(control: socket.socket, selector: selectors.BaseSelector, pid: int, pidfd: int) -> None:
    selector.unregister(pidfd)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    _say(control, {"exit": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def _become_worker(
    control: socket.socket, selector: selectors.BaseSelector, request: dict[str, Any], fds: list[int], local_rank: int
) -> NoReturn:
    """Turn the forked child into a worker: it keeps its own channel only, and never returns into the server's loop."""
    code = 1
    try:
        die_with_parent(int(request["server_pid"]))
        for key in list(selector.get_map().values()):
            if key.data is not None:
                os.close(key.fd)
        selector.close()
        control.close()
        for other, fd in enumerate(fds):
            # ranks forked earlier have their descriptors closed in the parent already
            if other > local_rank:
                os.close(fd)
        os.environ.update(request["environment"])
        run_worker(fds[local_rank], request["spec"], local_rank)
        code = 0
    except BaseException:  # noqa: BLE001 - the child must end here whatever happens, with its traceback in its log
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a library must not keep us
