"""Whether the parameters that were fitted to another run can serve."""

from pathlib import Path

from collbench.errors import InvalidError
from collbench.results.records import Fabric, Run
from collbench.results.store import RunFolder

__all__ = ["refuse_unfit_parameters"]


def refuse_unfit_parameters(parameters: Path, run: Run | None = None) -> None:
    """Refuse the folder of a run on processors, and one on another fabric than the `run` that is to be predicted.

    Raises:
        UsageError: there is no such folder.
        InvalidError: no run, or parameters of it cannot be used.
    """
    with RunFolder.open(parameters) as folder:
        other = folder.run.fabric
    if run is not None and other is not run.fabric:
        raise InvalidError(f"{parameters}: its parameters are of fabric {other}, and the run's is {run.fabric}")
    if other is Fabric.HOST:
        raise InvalidError(f"{parameters}: ranks on processors: the model has no parameters for them")
