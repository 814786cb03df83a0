"""What a calibration gives: fitted parameters, what could not be told, and their file in a run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.contention.parameter_file import write_data
from collbench.contention.parameters import Parameters
from collbench.contention.regimes import Finding
from collbench.results.records import SCHEMA

__all__ = ["Calibration", "Fitted", "write_parameters"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """One fitted parameter: value with its 90 % interval, beside its prior; `identified` if probes pin it to 20 %."""

    name: str
    value: float
    low: float
    high: float
    sd: float
    prior: float
    prior_sd: float
    identified: bool

    def row(self) -> dict[str, Any]:
        """JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parameters for this machine, how sure they are, and what the probes could not tell.

    `inseparable` lists pairs of parameters of which only a combination is known, with their correlation; `misfit` the
    observations that the fitted model misses by more than 20 %, as (label, measured, model); `unseen` the parameters
    that predictions take and no probe tells anything of: not identifiable from probes, they keep their priors.
    """

    parameters: Parameters
    fitted: Sequence[Fitted]
    inseparable: Sequence[tuple[str, str, float]]
    misfit: Sequence[tuple[str, float, float]]
    regimes: Sequence[Finding]
    left_out: Mapping[str, int]
    observations: int
    unseen: Sequence[Fitted] = ()


def write_parameters(folder: Path, found: Calibration) -> dict[str, Any]:
    """Write `parameters.json` into a run folder; gives what was written.

    Raises:
        InvalidError: no permission, a full disk.
    """
    data = {
        "schema": SCHEMA, "kind": "parameters", "rows": [one.row() for one in (*found.fitted, *found.unseen)],
        "inseparable": [list(one) for one in found.inseparable], "misfit": [list(one) for one in found.misfit],
        "regimes": [one.row() for one in found.regimes], "left_out": dict(found.left_out),
        "observations": found.observations, "parameters": found.parameters.as_dict(),
    }  # fmt: skip
    write_data(folder, data)
    return data
