"""`parameters.json` of a run folder: parameters that were fitted to its probes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collbench.contention.parameters import Parameter, Parameters, priors
from collbench.errors import InvalidError, UsageError
from collbench.results.files import readable_errors, replace_whole

__all__ = ["MOVED", "PARAMETERS", "read_parameters", "write_data"]

PARAMETERS = "parameters.json"
"""Name of the file in a run folder."""

MOVED = "moved by probes, not identified"
"""End of the provenance of a prior that probes moved."""


def write_data(folder: Path, data: Mapping[str, Any]) -> None:
    """Write it, whole or not at all.

    Raises:
        InvalidError: no permission, a full disk.
    """
    text = json.dumps(data, indent=1, allow_nan=False).encode() + b"\n"
    with readable_errors(folder / PARAMETERS):
        replace_whole(folder / PARAMETERS, lambda file: file.write(text))


def read_parameters(folder: Path, *, needed: bool = False) -> Parameters | None:
    """Calibrated parameters of a run folder; None where it has none.

    What the file does not name keeps its prior; what no probe had moved when it was written has today's.

    Raises:
        UsageError: it has none, and they are `needed`.
        InvalidError: the file is damaged, or names no parameter.
    """
    path = folder / PARAMETERS
    if not path.is_file():
        if needed:
            raise UsageError(f"{folder}: holds no {PARAMETERS}: run collbench calibrate {folder} first")
        return None
    try:
        found = Parameters.from_dict(json.loads(path.read_bytes())["parameters"])
    except (InvalidError, OSError, KeyError, TypeError, ValueError) as error:
        again = "run collbench calibrate again"
        raise InvalidError(f"{path}: not what collbench calibrate writes: {error}: {again}") from error
    if not found.known:
        raise InvalidError(f"{path}: names no parameter: run collbench calibrate again")
    today = priors()
    told = {name: one for name, one in found.known.items() if not (name in today.known and _is_untouched(one))}
    return today.replaced(told)


def _is_untouched(parameter: Parameter) -> bool:
    """Whether it is a prior of the version that wrote the file, which no probe moved."""
    return parameter.is_prior and not parameter.provenance.endswith(MOVED)
