"""Seconds that starts and cells are expected to take, before any was measured."""

from collections.abc import Iterable

from collbench.algorithms.base import Algorithm

__all__ = ["LEAST", "MOST", "cell_s", "servers_s", "start_s"]

LEAST, MOST = 3, 2000
"""Iterations of a cell whose number is not given: as many as fit into its seconds, within these."""

_CELL_OVERHEAD_S = 0.05
_ALIGNED_S = 3e-5
"""Least seconds of an iteration, with its aligned start."""

_START_S = {"cpu": (0.02, 0.01), "cuda": (0.7, 0.2)}
"""Of a group, and more for each rank. In the evidence of 17 sweeps of H200 (docs/measurements/systems, 2026-11-30) the
first cell of a launch takes 1.0 to 1.8 s with 2 ranks and 1.8 to 3.4 s with 8, others 0.2 to 0.9 s. Groups on two cores
of a host start in 0.04 s with 2 ranks and in 0.1 s with 8."""

_SERVER_S = {"cpu": 0.3, "cuda": 3.0}
"""Of a fork server, which imports numpy or torch."""

_LIBRARY_START_S = 8.0
"""More for a library that every rank imports: 5 to 20 s were seen with 8 ranks (docs/measurements/systems.md). Where a
fork server imports it, it is paid once; what is left is a group's start."""


def start_s(algorithm: Algorithm, ranks: int) -> float:
    """Seconds in which a group starts, with its library where all ranks import it."""
    alone, each = _START_S[algorithm.device]
    library = algorithm.opening_s and not _is_preloaded(algorithm)
    return alone + each * ranks + (_LIBRARY_START_S if library else 0.0)


def servers_s(algorithms: Iterable[Algorithm]) -> float:
    """Seconds for the fork servers of these algorithms, each started once, and for the libraries that they import."""
    able = list(algorithms)
    libraries = {a.foreign for a in able if _is_preloaded(a)}
    return sum(_SERVER_S[device] for device, _ in {(a.device, a.preload) for a in able}) + (
        _LIBRARY_START_S * len(libraries)
    )


def cell_s(once_s: float, timed_s: float, iterations: int, warmup: int) -> float:
    """Seconds of a cell of which one sample takes `once_s`, measured `iterations` times or, of 0, for `timed_s`."""
    each = max(once_s, _ALIGNED_S)
    timed = iterations * each if iterations else min(max(timed_s, LEAST * each), MOST * each)
    return _CELL_OVERHEAD_S + timed + (warmup + 1) * each


def _is_preloaded(algorithm: Algorithm) -> bool:
    return bool(algorithm.opening_s and algorithm.foreign.modules)
