"""Imports other people's modules in the fork server, and says what makes one unfit to be forked with."""

import importlib
import os
import signal
import time
from pathlib import Path

from collbench.algorithms import fork_safety, preloaded
from collbench.measure.nvml_answers import answers, the_gpu

__all__ = ["Importer"]

_KEPT = 300
_SETTLE_S = 1.0
"""Longest that threads of an import may go on behind it."""


class Importer:
    """Takes one module after the other. After one that is unfit, this process must fork no workers."""

    def __init__(self) -> None:
        self._gpu = the_gpu()
        self._threads = fork_safety.threads()
        self._folder = Path.cwd()

    def take(self, module: str) -> str:
        """Import it; gives why nobody may be forked with it, or nothing. What is not there is passed over."""
        begin = time.monotonic()
        try:
            # torch's compiler keeps lists of torch's own functions
            with answers(None if module.partition(".")[0] == "torch" else self._gpu):
                importlib.import_module(module)
        except ModuleNotFoundError as error:
            if f"{module}.".startswith(f"{error.name}."):
                return self._unfit()  # a release that has no such part
            return _told(error)
        except BaseException as error:  # noqa: BLE001 - whatever a library does, even leave the process
            return _told(error)
        why = self._unfit()
        if not why:
            preloaded.SECONDS[module] = time.monotonic() - begin
        return why

    def _unfit(self) -> str:
        # what a library may have made of it at import is no fork server's
        os.chdir(self._folder)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        return fork_safety.why_not(self._threads, settle_s=_SETTLE_S)[:_KEPT]


def _told(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:_KEPT].rstrip(": ")
