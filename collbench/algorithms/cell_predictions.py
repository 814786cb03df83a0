"""Predictions for the cells of a run."""

from collections.abc import Mapping
from dataclasses import replace

from collbench.algorithms import assumed
from collbench.algorithms.base import Algorithm, registry
from collbench.algorithms.predictions import CHOOSING
from collbench.contention.parameters import Parameters
from collbench.contention.predict import Model, Prediction, shared_gpu
from collbench.errors import CollbenchError
from collbench.results.records import Cell, Fabric, Mode, Run
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["predictions_of", "predictor"]

_EARLY, _FUSION, _NODE, _TOLD = "+pdl", "launch_with_pdl", "<<<", ", programmatic launch"
"""How evidence says that kernels start early: at the end of `kernel` of ours, in a text of its own of FlashInfer's
fusion, and behind each node of others' captured launches."""

_Texts = Mapping[tuple[str, int], Mapping[str, str]]

_FAR = (Fabric.PCIE, Fabric.NVLINK, Fabric.MIXED, Fabric.NETWORK)


class _Predictor:
    """Predicts cells of one run; None where the model has no parameters that mean something."""

    def __init__(self, run: Run, parameters: Parameters | None, evidence: _Texts) -> None:
        self.run, self.parameters, self.known = run, parameters, registry()
        self.told: dict[str, list[Mapping[str, str]]] = {}
        for (cell_id, _), texts in evidence.items():
            self.told.setdefault(cell_id, []).append(texts)
        self.machine = _machine_of(run)
        self._models: dict[int, Model | None] = {}

    def __call__(self, cell: Cell) -> Prediction | None:
        algorithm = self.known.get(cell.algorithm)
        if algorithm is None or self.machine is None or algorithm.device != "cuda":
            return None
        if algorithm.name in CHOOSING or algorithm.batch > 1:
            return None
        topology = self.machine.topology
        try:
            schedule = assumed.traffic_of(algorithm, cell.call, self.machine)
            early, launches = self._started_early(algorithm, cell, likely=schedule.early), self._launches(cell)
            schedule = replace(schedule, early=early, launches=max(launches, schedule.launches))
            if self.run.fabric is Fabric.SHARED_GPU:
                chained = cell.mode is Mode.GRAPH and cell.calls > 1
                return shared_gpu(schedule, cell.call.world_size, self.parameters) if chained else None
            model = self._model(topology, cell.call.world_size) if self.run.fabric in _FAR else None
            return model.predict(schedule, cell.mode, chained=cell.calls > 1) if model else None
        except CollbenchError:
            return None

    def _started_early(self, algorithm: Algorithm, cell: Cell, *, likely: bool) -> bool:
        """Whether its launches overlapped the calls before, as most of the run's launches say.

        Ours say so of every kernel that does; without evidence they did not, as those of older releases. Of what says
        nothing the `likely` holds.
        """
        told = self.told.get(cell.cell_id, [])
        own = algorithm.family == assumed.OWN
        early = [texts.get("kernel", "").endswith(_EARLY) if own else _told_early(texts) for texts in told]
        known = [one for one in early if one is not None]
        return 2 * sum(known) > len(known) if known else likely and not own

    def _launches(self, cell: Cell) -> int:
        """Kernels of one captured call, as evidence of other people's counts them; 0 where it does not."""
        return max((texts.get("kernel", "").count(_NODE) for texts in self.told.get(cell.cell_id, [])), default=0)

    def _model(self, topology: Topology, ranks: int) -> Model | None:
        if ranks not in self._models:
            few = ranks > len(topology.gpus)
            self._models[ranks] = None if few else Model(topology, self.parameters, ranks)
        return self._models[ranks]


def _told_early(texts: Mapping[str, str]) -> bool | None:
    """What evidence of other people's kernels says; None where it says nothing, as that of older releases."""
    if _FUSION in texts:
        return texts[_FUSION] == str(True)
    kernels = texts.get("kernel", "")
    return True if 0 < kernels.count(_NODE) == kernels.count(_TOLD) else None


def _machine_of(run: Run) -> Machine | None:
    """None where the run's record of its machine is missing or damaged."""
    try:
        return Machine.from_dict(run.machine)
    except (CollbenchError, KeyError, TypeError, ValueError):
        return None


def predictor(run: Run, parameters: Parameters | None = None, evidence: _Texts | None = None) -> _Predictor:
    """What predicts the cells of a run: `predictor(run)(cell)` gives a `Prediction`, or None.

    `evidence` is the run folder's: which kernels of ours started early.

    None for ranks on processors, algorithms that are not installed here, what NCCL chooses by itself, runs without a
    record of their machine, and topologies on which ranks have no route. On a shared GPU all but captured chains:
    eight processes that launch at once wait for each other.
    """
    return _Predictor(run, parameters, evidence or {})


def predictions_of(
    run: Run, parameters: Parameters | None = None, evidence: _Texts | None = None
) -> Mapping[str, float]:
    """Predicted microseconds per call by `cell_id`; cells that the model cannot predict are left out."""
    predict = predictor(run, parameters, evidence)
    found = {cell.cell_id: predict(cell) for cell in run.cells}
    return {cell_id: prediction.total_us for cell_id, prediction in found.items() if prediction is not None}
