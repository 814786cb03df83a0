"""Microbenchmarks of launches: of a captured chain, by the host, of a captured call alone, and of early starts."""

from typing import TYPE_CHECKING, Any

from collbench.algorithms.cuda.probes import Op
from collbench.algorithms.cuda.tensors import stream_getter
from collbench.measure.ranks import WorkerRanks

if TYPE_CHECKING:
    from collbench.measure.probe_cuda import CudaProbes

__all__ = ["Launches"]

_REPEATS, _WARP = 7, 32
_SHORT, _LONG = 20, 220  # kernels of the two captured chains
_EAGER = 122  # launches of an eager chain: as many as a sweep's has
_LEAST_US = 0.01  # differences of slopes tell no less: events count in half a microsecond


class Launches:
    """Launches of one rank's bench, on its stream."""

    def __init__(self, bench: "CudaProbes", torch: Any, ranks: WorkerRanks) -> None:  # noqa: ANN401 - the module
        self._bench, self._torch, self._ranks = bench, torch, ranks

    def us(self, kind: str) -> list[float]:
        """Microseconds in each repeat of `launch`, `launch_meet`, `launch_early`, `launch_eager` or `launch_alone`.

        Raises:
            TimeoutError: a rank gave up waiting.
            NotImplementedError: kernels cannot start early on this GPU.
        """
        probes = {
            "launch": self._chained, "launch_meet": self._meeting, "launch_early": self._early,
            "launch_eager": self._eager, "launch_alone": self._alone,
        }  # fmt: skip
        return probes[kind]()

    def _chained(self) -> list[float]:
        """Slope of the time of captured chains of empty kernels over their length."""
        graphs = [self._empty(count) for count in (_SHORT, _LONG)]
        self._ranks.barrier()
        short, long = ([self._replay_us(graph) for _ in range(_REPEATS + 2)][2:] for graph in graphs)
        for graph in graphs:
            graph.reset()
        return [(b - a) / (_LONG - _SHORT) for a, b in zip(short, long, strict=True)]

    def _early(self) -> list[float]:
        """What a kernel of a captured chain still pays of its launch where it starts early.

        Not the slope of empty kernels: one that ends at once leaves nothing to hide the next one's launch behind, and
        that slope is how fast kernels can follow each other. So kernels here meet those of the other ranks, as those of
        collectives do, and what starting early saves them is taken from the launch.
        """
        if not self._bench.starts_early:
            raise NotImplementedError("programmatic dependent launch needs compute capability 9.0")
        slopes = (self._chained(), self._meeting(), self._meeting(pdl=True))
        return [max(_LEAST_US, launch - (plain - early)) for launch, plain, early in zip(*slopes, strict=True)]

    def _meeting(self, *, pdl: bool = False) -> list[float]:
        """Slope of the time of captured chains of kernels at each of which all ranks meet: the least of collectives.

        Each has an epoch above that of the one before it.
        """
        lower, met = (self._barrier() for _ in range(2))
        spans = [self._chain_of_meetings(count, lower, met, pdl=pdl) for count in (_SHORT, _LONG)]
        return [(b - a) / (_LONG - _SHORT) for a, b in zip(*spans, strict=True)]

    def _chain_of_meetings(self, count: int, lower: Any, met: Any, *, pdl: bool) -> list[float]:  # noqa: ANN401 - records
        first = self._barrier()
        chain = [self._barrier(epoch=int(first[0].epoch) + number) for number in range(count)]
        return self._behind_a_meeting(self._capture(chain, pdl=pdl), lower, met, "a chain of barriers")

    def _barrier(self, **fields: int) -> Any:  # noqa: ANN401 - a ctypes array of one record
        """Record of a barrier of all ranks; with an `epoch` it takes none of its own."""
        everybody = (1 << self._ranks.world_size) - 1
        if "epoch" in fields:
            record = self._bench.record(Op.EMPTY, **fields, mask=everybody, rounds=1)
            record[0].op = int(Op.BARRIER)
            return record
        return self._bench.record(Op.BARRIER, mask=everybody, rounds=1)

    def _eager(self) -> list[float]:
        """Time per launch of an empty kernel in a chain of them, launched as our runners do: the host's.

        A runner asks for the current stream each time, and starts early where the GPU knows that.
        """
        launcher = self._bench.launcher(self._bench.record(Op.EMPTY), 1, _WARP, pdl=self._bench.starts_early)
        stream = stream_getter(self._torch, self._torch.cuda.current_device())

        def enqueue() -> None:
            for _ in range(_EAGER):
                launcher(0, stream())

        self._ranks.barrier()
        spans = [self._bench.span_s(self._torch, enqueue, "eager launches") for _ in range(_REPEATS + 2)]
        return [span * 1e6 / _EAGER for span in spans[2:]]

    def _alone(self) -> list[float]:
        """A captured barrier of all ranks by itself, timed as a sweep times a captured call."""
        lower, met, alone = (self._barrier() for _ in range(3))
        return self._behind_a_meeting(self._captured(alone), lower, met, "a captured barrier alone")

    def _behind_a_meeting(self, graph: Any, lower: Any, met: Any, what: str) -> list[float]:  # noqa: ANN401 - a graph, records
        """Microseconds of replays of a graph of barriers, which is let go of.

        Each stands behind a chain that keeps the device busy until the host has enqueued it, and a barrier at which the
        ranks meet. A graph's first replay takes longer, so one graph is replayed; for its flags to count again each
        time, a barrier with a lower epoch writes over them, while no rank waits for them.
        """
        bench, busy, spans = self._bench, self._empty(_LONG), list[float]()
        for _ in range(_REPEATS + 2):
            self._ranks.barrier()
            bench.clear()
            bench.span_s(self._torch, lambda: bench.launch(lower, 1, _WARP), "a barrier")
            self._ranks.barrier()
            busy.replay()
            bench.launch(met, 1, _WARP)
            spans.append(bench.span_s(self._torch, graph.replay, what) * 1e6)
            bench.result(what)
        busy.reset()
        graph.reset()
        return spans[2:]

    def _empty(self, count: int) -> Any:  # noqa: ANN401 - a torch.cuda.CUDAGraph
        return self._captured(self._bench.record(Op.EMPTY), count)

    def _captured(self, records: Any, count: int = 1) -> Any:  # noqa: ANN401 - a torch.cuda.CUDAGraph
        return self._capture([records] * count)

    def _capture(self, chain: list[Any], *, pdl: bool = False) -> Any:  # noqa: ANN401 - a torch.cuda.CUDAGraph
        graph = self._torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        for records in chain:
            self._bench.launch(records, 1, _WARP, pdl=pdl)
        graph.capture_end()
        return graph

    def _replay_us(self, graph: Any) -> float:  # noqa: ANN401 - a torch.cuda.CUDAGraph
        return self._bench.span_s(self._torch, graph.replay, "a chain of kernels") * 1e6
