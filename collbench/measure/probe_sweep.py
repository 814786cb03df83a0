"""The probes of a sweep: a short set behind its cells, kept in its folder, and the parameters that they give.

They come last, so that a fabric on which a probe hangs has cost no cell; the sweep keeps a part of its budget for them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from collbench.errors import CollbenchError
from collbench.measure.plan import Options
from collbench.measure.probe_plan import Task, plan_probes
from collbench.measure.probes import Prober
from collbench.results.probes import PROBES, Probe, append_probe, read_probes
from collbench.results.records import Fabric, Status
from collbench.topology.machine import Machine

__all__ = ["probe_seconds", "take_probes"]

_MOST_S, _MOST_HOST_S = 20.0, 3.0
"""On GPUs probes take about 10 s behind the start of their ranks, which takes up to 10 s; on processors about one."""

_SHARE, _LEAST_S = 0.2, 1.0
"""Part of a sweep's budget that is kept for them, and what is too little to begin."""

_TIMEOUT_S = 30.0
"""Longest time for one probe; the first makes contexts. Its kernels give up waiting after 2 s."""

_GONE = frozenset({Status.HUNG, Status.CRASHED, Status.OUT_OF_MEMORY})
Say = Callable[[str], None]


def probe_seconds(options: Options, machine: Machine) -> float:
    """Seconds that a sweep keeps for its probes; 0 where it takes none."""
    if not options.probe or machine.hosts > 1 or machine.ranks < 2:  # noqa: PLR2004 - one rank has no peer
        return 0.0
    most = _MOST_HOST_S if machine.fabric is Fabric.HOST else _MOST_S
    kept = most if options.budget_s is None else min(most, _SHARE * options.budget_s)
    return kept if kept >= _LEAST_S else 0.0


def take_probes(folder: Path, machine: Machine, seconds: float, say: Say) -> None:
    """Take what the folder does not hold yet, append it, and calibrate; whatever goes wrong is one line to `say`.

    After the first probe that hangs or crashes the rest is left out: behind a sweep nothing is worth a second try.
    """
    device = "cpu" if machine.fabric is Fabric.HOST else "cuda"
    tasks = _open(folder, plan_probes(machine.ranks, machine.topology, device, short=True))
    if not tasks or seconds <= 0:
        return
    begin, taken = monotonic(), 0
    try:
        with Prober(machine, device, folder, timeout_s=_TIMEOUT_S) as prober:
            for probe in prober.run(tasks, seconds, lambda _: None):
                append_probe(folder, probe)
                taken += probe.status is Status.OK
                if probe.status in _GONE:
                    say(f"probes: {taken} of {len(tasks)}, then {probe.name} {probe.status}: {probe.reason}")
                    break
            else:
                say(f"probes: {taken} of {len(tasks)} in {monotonic() - begin:.1f} s")
        _learn(folder, machine, say)
    except CollbenchError as error:
        say(f"probes: {taken} of {len(tasks)}: {error}")


def _open(folder: Path, tasks: Sequence[Task]) -> list[Task]:
    """Tasks that the folder holds no record of. A damaged file is begun anew: a cut line would spoil the next one."""
    if not (folder / PROBES).exists():
        return list(tasks)
    try:
        held, problems = read_probes(folder)
    except CollbenchError:
        held, problems = [], ["damaged"]
    if problems:
        (folder / PROBES).unlink()
        return list(tasks)
    done = {_key(probe) for probe in held if probe.status is not Status.NOT_RUN}
    return [task for task in tasks if _key(task) not in done]


def _key(one: Task | Probe) -> tuple[str, str, tuple[tuple[int, int], ...]]:
    return one.name, one.pattern, tuple(one.flows)


def _learn(folder: Path, machine: Machine, say: Say) -> None:
    """Say which degraded states the probes show, then write the folder's parameters; on processors there are neither.

    Raises:
        CollbenchError: nothing can be learnt from the probes, or the folder cannot be written.
    """
    if machine.fabric is Fabric.HOST:
        return
    from collbench.contention.calibrate import calibrate, write_parameters
    from collbench.contention.regimes import Evidence, State, detect

    probes, _ = read_probes(folder)
    for one in detect(Evidence(probes, machine.topology, machine.fabric)):
        if one.state is State.PRESENT:
            say(f"degraded: {one.regime}: {one.line}")
    if any(probe.status is Status.OK for probe in probes):
        write_parameters(folder, calibrate(probes, machine.topology, machine.ranks, machine.fabric))
