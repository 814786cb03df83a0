"""The machine of a run, looked at afterwards: its warnings, and degraded states by the run's own probes and logs."""

from pathlib import Path

from collbench.contention.findings import Evidence
from collbench.contention.regimes import detect
from collbench.doctor.facts import facts_of
from collbench.doctor.findings import machine_warnings
from collbench.doctor.here import Here
from collbench.errors import CollbenchError, InvalidError
from collbench.results.store import RunFolder
from collbench.topology.machine import Machine

__all__ = ["look_back"]


def look_back(path: Path) -> Here:
    """Read a run folder, also one of another machine; what of it is damaged stands in `missing`.

    Raises:
        UsageError: no such folder.
        InvalidError: no run, one of a newer schema, or one whose record of its machine is of no use.
    """
    with RunFolder.open(path) as folder:
        try:
            machine = Machine.from_dict(folder.run.machine)
        except (CollbenchError, KeyError, TypeError, ValueError) as error:
            raise InvalidError(f"{path}: its record of the machine cannot be read: {error}") from error
        evidence = Evidence.of_run(folder)
    return Here(
        machine, facts_of(machine), tuple(machine_warnings(machine)), tuple(evidence.problems),
        regimes=tuple(detect(evidence)),
    )  # fmt: skip
