"""Collects what one run of nccl-tests says around its rows."""

import re
from collections.abc import Callable
from dataclasses import replace

from collbench.interop.nccl_tests.figures import program_of, ranks_of, ranks_said
from collbench.interop.nccl_tests.table import PROGRAMS, Device, Invocation, Row, Settings, nccl_version
from collbench.interop.nccl_tests.words import given, program_in, settings_from

__all__ = ["FAILURE", "Builder", "completed"]

FAILURE = re.compile(
    r"Test (?:NCCL |CUDA |MPI )?failure|Invalid number of GPUs|(?:error )?while loading shared libraries"
    r"|cannot open shared object|Segmentation fault|core dumped|Bus error|CUDA failure|out of memory"
    r"|(?:mpirun|mpiexec|prterun|srun)\b.{0,20}(?:noticed|detected|error)"
    r"|command not found|No such file or directory|Permission denied|unhandled (?:cuda|system) error|# ?error:"
    r"|no CUDA-capable device|driver version is insufficient|std::bad_alloc|Killed\b|exit code [1-9]"
)
"""Lines in which the program, its launcher or a shell says that it failed."""

_CONFIG = re.compile(
    r"nThreads?\s+(\d{1,6})\s+nGpus\s+(\d{1,6}).*?step:.*?warmup iters:\s*(\d{1,9})\s+iters:\s*(\d{1,9})"
    r"(?:\s+agg iters:\s*(\d{1,9}))?(?:\s+validation:\s*(\d{1,9}))?(?:\s+graph:\s*(\d{1,9}))?"
    r"(?:\s+unalign:\s*(\d{1,9}))?"
)
_DEVICE = re.compile(
    r"Rank\s+(\d{1,6})\s+(?:Group\s+(\d{1,6})\s+)?(?:Pid\s+(\d{1,10})\s+)?on\s+(\S{1,256})\s+device\s+(\d{1,4})\s+"
    r"\[([^\]]{1,40})\]\s*(.{0,200})"
)
_VERSION = re.compile(r"(?:nccl-tests version\s+|rccl-tests: Version\s+)(\S{1,40})(?:.*nccl-library=(\d{1,7}))?")
_LIBRARY = re.compile(r"\b(?:NCCL|RCCL) version\s*:?\s*(\d{1,3}\.\d{1,3}\.\d{1,3})")
_STARTING = re.compile(r"Collective test starting:\s*(\S{1,80})")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")
_BLOCKING = re.compile(
    r"Blocking Enabled: wait (?:for completion )?(?P<barrier>and barrier )?after each (?P<what>inner|outer|collective)"
)
"""Releases up to 2.19.1 say `for completion` and `collective`, later ones `inner` (-m) or `outer` iteration."""
_MARKER = re.compile(r"nThread|nccl-tests version|Collective test starting")
_OWN = re.compile(f"{_MARKER.pattern}|Rank|Using devices|Out of bounds|Avg bus|concluded|Enabled|Report|error:")
"""Words without which a comment is not nccl-tests' own: most lines of a log are told by them at once."""

_MOST_FAILURES, _MOST_DEVICES, _MOST_ROWS = 20, 1 << 16, 1 << 20
_PREAMBLE = 3


class Builder:
    """What was heard so far; `next_command` is a command line that belongs to the run that follows."""

    def __init__(self, command: tuple[str, list[str]] | None = None) -> None:
        self.rows: list[Row] = []
        self.problems: list[str] = []
        self.footer = False
        self.heard = False
        self.next_command: tuple[str, list[str]] | None = None
        self._command = command
        self._program = ""
        self._settings = Settings()
        self._devices: list[Device] = []
        self._version = self._nccl = ""
        self._wrong: int | None = None
        self._finished = False
        self._failures: list[str] = []
        self._markers: set[str] = set()
        self._table = False

    def begins_anew(self, comment: str) -> bool:
        """Whether this comment can only be of another run."""
        marker = _MARKER.search(comment)
        return marker is not None and (self._table or marker[0] in self._markers)

    def table_begins(self, *, cputime: bool) -> None:
        """A header was seen."""
        self._table = self.heard = True
        if cputime:
            self._settings = replace(self._settings, cputime=True)

    def command(self, line: str) -> None:
        """Keep a command line that stands in the text."""
        found = program_in(line) if "_perf" in line else None
        if found is None:
            return
        if self.footer or self._table:
            self.next_command = found
        else:
            self._command = found

    def hear(self, line: str, quote: str) -> None:
        """What may stand anywhere in a line, NCCL's log included."""
        if "ersion" in line:
            if (match := _LIBRARY.search(line)) and not self._nccl:
                self._nccl = match[1]
            if match := _VERSION.search(line):
                self._version = match[1]
                self._nccl = nccl_version(int(match[2] or 0)) or self._nccl
        if "NCCL WARN" in line and quote:
            self._fail(quote)

    def failed(self, line: str, quote: Callable[[], str]) -> bool:
        """Whether the line says that something failed; it is kept."""
        if FAILURE.search(line) is None:
            return False
        self._fail(quote())
        return True

    def _fail(self, quote: str) -> None:
        self.heard = True
        if len(self._failures) < _MOST_FAILURES:
            self._failures.append(quote)

    def comment(self, body: str, quote: Callable[[], str]) -> bool:
        """A line that begins with `#`; gives whether it was nccl-tests' own."""
        if _OWN.search(body) is None:
            self.command(body)
            return False
        self._markers |= set(_MARKER.findall(body))
        known = self._config(body) or self._device(body) or self._end(body)
        if not known and "error:" in body:
            known = self.failed(body, quote)
        if not known:
            self.command(body)
        self.heard |= known
        return known

    def _config(self, body: str) -> bool:
        if match := _STARTING.search(body):
            self._program = (program_in(match[1]) or ("", []))[0]
        elif match := _CONFIG.search(body):
            names = ("threads", "gpus", "warmup", "iterations", "aggregated", "validation", "graph")
            values = {name: int(text) for name, text in zip(names, match.groups(), strict=False) if text is not None}
            self._settings = replace(self._settings, **values)  # type: ignore[arg-type]  # integers all
            if match[8] and match[8] != "0":
                self._settings = replace(self._settings, others=(*self._settings.others, f"u{match[8]}"))
        elif match := _BLOCKING.search(body):
            self._settings = replace(
                self._settings, blocking=3 if match["what"] == "outer" else 1 if match["barrier"] else 2
            )
        elif "Per-Iteration Report" in body:
            self._settings = replace(self._settings, per_iteration=True)
        else:
            return "nccl-tests version" in body or "Using devices" in body
        return True

    def _device(self, body: str) -> bool:
        match = _DEVICE.search(body)
        if match is None:
            return False
        if len(self._devices) < _MOST_DEVICES:
            rank, group, pid, host, _, bus, model = match.groups()
            self._devices.append(Device(int(rank), int(group or 0), int(pid or 0), host, bus, model.strip()))
        return True

    def _end(self, body: str) -> bool:
        if match := _BOUNDS.search(body):
            self._wrong, self.footer = int(match[1]), True
        elif "Avg bus bandwidth" in body or "Collective test concluded" in body:
            self.footer = self._finished = True
        else:
            return False
        return True

    def build(self) -> Invocation:
        """The record."""
        program, settings = self._program, self._settings
        if self._command is not None:
            program = program or self._command[0]
            options = {k: v for k, v in given(self._command[1]).items() if not self._markers or k in "aRDyuxVzIC"}
            settings = settings_from(options, settings)
        assumed = "" if self._markers or self._command else "nccl-tests' defaults of -n and -m"
        return completed(Invocation(
            program if program in PROGRAMS else "", 0, settings, tuple(self.rows), tuple(self._devices), self._version,
            self._nccl, self._wrong, self._finished, assumed, tuple(self._failures), tuple(self.problems),
        ))  # fmt: skip


def completed(one: Invocation) -> Invocation:
    """With program and world size worked out where they were not said, and old errors judged by the footer."""
    inferred = [one.inferred] if one.inferred else []
    program = one.program
    if not program and (program := program_of(one.rows)):
        inferred.append(f"program {program}")
    ranks = ranks_said(one.devices, one.settings.threads * one.settings.gpus)
    if not ranks and (ranks := ranks_of(program, one.rows)):
        inferred.append(f"{ranks} ranks")
    problems = list(one.problems)
    rows = tuple(_judged(row, one.wrong) for row in one.rows)
    if rows != tuple(one.rows) and one.wrong:
        problems.append(
            f"{one.wrong} values out of bounds, in a layout that does not say where: no row counts as checked"
        )
    return replace(
        one, program=program, world_size=ranks, rows=rows, inferred=", ".join(inferred), problems=tuple(problems)
    )


def _judged(row: Row, total: int | None) -> Row:
    """`wrong` of -1 stands for a checked size of errors: right if the footer counts none, unknown otherwise."""
    if all(figures.wrong != -1 for figures in row.places.values()):
        return row
    verdict = 0 if total == 0 else None
    return replace(
        row,
        places={name: replace(f, wrong=verdict) if f.wrong == -1 else f for name, f in row.places.items()},
    )
