"""What the model says of a run's cells, with parameters from the run's own probes where it has been calibrated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collbench.algorithms.base import registry
from collbench.algorithms.cell_predictions import predictor
from collbench.contention.calibrate import read_parameters
from collbench.contention.explain import Explanation, explain
from collbench.contention.explain_host import HostRates, explain_host
from collbench.contention.findings import Evidence, Finding
from collbench.contention.predict import Prediction
from collbench.contention.regimes import detect, of_cell
from collbench.contention.traffic import Schedule
from collbench.errors import CollbenchError, InvalidError
from collbench.results.crowding import hardware_threads
from collbench.results.private import public
from collbench.results.records import Cell, Fabric, Mode, Run
from collbench.results.store import RunFolder

__all__ = ["NO_LINKS", "Predicted", "predict_run"]

NO_LINKS = frozenset({Fabric.HOST, Fabric.SHARED_GPU})
"""Fabrics on which ranks share no links."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions by cell_id: those from `priors` rest on published numbers, those from `calibrated` on probes.

    `calibrated` is empty where there are no parameters from probes, whose `origin` is told. `findings` are the degraded
    states that the run's own evidence was tested for.
    """

    run: Run
    evidence: Evidence
    findings: Sequence[Finding] = ()
    priors: Mapping[str, Prediction] = field(default_factory=dict)
    calibrated: Mapping[str, Prediction] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    origin: str = "probes of this machine"

    @property
    def best(self) -> Mapping[str, Prediction]:
        """From calibrated parameters where there are some."""
        return self.calibrated or self.priors

    @property
    def times_us(self) -> dict[str, float]:
        """Microseconds per call by cell_id."""
        return {cell_id: one.total_us for cell_id, one in self.best.items()}

    def explain(self, row: Mapping[str, Any]) -> Explanation:
        """Explanation of a measured row, as `collbench explain` gives it."""
        cell = Cell.from_row(row)
        algorithm, prediction = registry().get(cell.algorithm), self.best.get(cell.cell_id)
        topology, size = self.evidence.topology, cell.call.bytes
        schedule = algorithm.traffic(cell.call, topology) if algorithm else Schedule(())
        if self.run.fabric is Fabric.HOST:
            rates = HostRates.of(self.evidence.probes, self.run.world_size, hardware_threads(self.run.machine))
            return explain_host(cell.algorithm, size, schedule, rates, row["p50_us"], row["p99_us"])
        links = self.run.fabric not in NO_LINKS
        own = of_cell(self.findings, self.evidence.samples, cell.cell_id)
        return explain(
            cell.algorithm, size, schedule, prediction, row["p50_us"], links=links, alone=cell.calls == 1,
            eager=cell.mode is Mode.EAGER, pcie=self.run.fabric is not Fabric.NVLINK, findings=own,
        )  # fmt: skip

    def why_not(self) -> str:
        """Why nothing is predicted, in one sentence."""
        cells = self.run.cells
        if self.run.fabric is Fabric.HOST:
            why = "ranks on processors wait for time slices and for each other, which the model does not know"
        elif self.run.fabric is Fabric.SHARED_GPU and not any(c.mode is Mode.GRAPH and c.calls > 1 for c in cells):
            why = "on a shared GPU the model knows captured chains only, and this run has none"
        elif not self.evidence.topology.gpus:
            why = "the run does not say how its GPUs are wired"
        else:
            why = "the model has no parameters for what was measured here"
        return f"No time is split into terms: {why}."


def predict_run(folder: RunFolder, parameters: Path | None = None) -> Predicted:
    """Predict every cell that can be, with `parameters` of another run folder or the run's own where there are some.

    Files of the run that cannot be read become `problems`.

    Raises:
        UsageError: the other folder does not exist, or holds no parameters.
        InvalidError: its parameters are damaged, or come from another fabric.
    """
    run, evidence = folder.run, Evidence.of_run(folder)
    problems = [public(text) for text in evidence.problems]
    origin = "probes of this machine" if parameters is None else _other(run, parameters)
    try:
        own = read_parameters(folder.path) if parameters is None else read_parameters(parameters, needed=True)
    except CollbenchError as error:
        if parameters is not None:
            raise
        own = None
        problems.append(f"{public(str(error))}; predictions rest on priors")
    calibrated = _all(run, predictor(run, own, evidence.texts)) if own else {}
    found = detect(evidence)
    prior = _all(run, predictor(run, evidence=evidence.texts))
    return Predicted(run, evidence, found, prior, calibrated, tuple(problems), origin)


def _other(run: Run, parameters: Path) -> str:
    """Whose probes another run's parameters come from."""
    with RunFolder.open(parameters) as folder:
        other = folder.run
    if other.fabric is not run.fabric:
        raise InvalidError(f"{parameters}: its parameters are of fabric {other.fabric}, and the run's is {run.fabric}")
    return public(f"probes of another run ({other.run_id}, {other.world_size} ranks, fabric {other.fabric})")


def _all(run: Run, predict: Callable[[Cell], Prediction | None]) -> dict[str, Prediction]:
    found = {cell.cell_id: predict(cell) for cell in run.cells}
    return {cell_id: one for cell_id, one in found.items() if one is not None}
