"""Model steps -> collectives -> tokens per second."""

from collbench.workload.advice import Advice, advise
from collbench.workload.catalog import Workload, find, load, names
from collbench.workload.times import ModelTimes, RunTimes

__all__ = ["Advice", "ModelTimes", "RunTimes", "Workload", "advise", "find", "load", "names"]
