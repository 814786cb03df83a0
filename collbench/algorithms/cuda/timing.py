"""Times our kernels between processes: `python -m collbench.algorithms.cuda.timing --world-size 8`.

One process per rank, ranks spread over the GPUs; where they share one, an MPS daemon must run (its two variables are
inherited). For each size and design it prints the best grid of the tuning and the time of a captured chain of calls:
the slowest rank's median. It is a workbench for kernels: the sweep verifies, interleaves and keeps samples.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from collbench.algorithms.base import Algorithm, registry, select
from collbench.algorithms.cuda_buffers import wait_event
from collbench.algorithms.epilogues import RESIDUAL_RMSNORM, whole_rows
from collbench.algorithms.shapes import IN_PARTS
from collbench.results.records import DTYPE_BYTES, Call, Collective

__all__ = ["main"]

_SIZES = (1024, 4096, 14336, 43008, 65536, 131072)
_CHAIN, _REPLAYS = 122, 12
_FUSED = ("push", "islands", "auto")
_NEAR = 0.02
_LEAST = 3  # replays to drop: ranks come together, clocks rise


class PipeRanks:
    """`algorithms.base.Ranks` over pipes to the parent, which gathers and sends back."""

    def __init__(self, pipe: Any, rank: int, world_size: int, device: str) -> None:  # noqa: ANN401 - a Connection
        self.rank, self.world_size = rank, world_size
        self.local_rank, self.local_world_size = rank, world_size
        self.device, self.deadline_s = device, 30.0
        self._pipe = pipe

    def exchange(self, value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
        """See `Ranks.exchange`."""
        self._pipe.send(("exchange", value))
        if not self._pipe.poll(self.deadline_s):
            raise TimeoutError("a rank did not come")
        values: list[Any] = self._pipe.recv()
        return values

    def barrier(self) -> None:
        """See `Ranks.barrier`."""
        self.exchange(None)

    def process_group(self, backend: str) -> Any:  # noqa: ANN401 - none here
        """Our kernels need none."""
        raise NotImplementedError(backend)


def _replays_us(ranks: PipeRanks, enqueue: Callable[[int], None], what: str) -> list[float]:
    """Microseconds per call of replays of a captured chain, enqueued one behind the other."""
    import torch

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        for i in range(_CHAIN):
            enqueue(i)
        graph.capture_end()
        ranks.barrier()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]  # type: ignore[no-untyped-call]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        wait_event(events[-1], ranks.deadline_s, what)
    graph.reset()
    return [a.elapsed_time(b) * 1000 / _CHAIN for a, b in pairwise(events)][_LEAST:]


def _measure(ranks: PipeRanks, algorithm: Algorithm, call: Call) -> dict[str, Any]:
    """Open, time a captured chain, check exact values in every slot."""
    import torch

    with algorithm.load_runner()(ranks, call, _CHAIN) as runner:
        for i in range(_CHAIN):
            for name, array in runner.inputs(i).items():
                array.fill_(ranks.rank + i % 7 if name == "x" else 1)
            for array in runner.outputs(i).values():
                array.fill_(-1)
        torch.cuda.synchronize()
        ranks.barrier()
        times = _replays_us(ranks, runner.launch, algorithm.name)
        right = all(_right(runner.outputs(i), call, i % 7) for i in range(_CHAIN))
        proof = runner.proof()
        return {"us": times, "right": right, "failure": proof.reason, "evidence": dict(proof.evidence)}


def _right(outputs: Mapping[str, Any], call: Call, more: int) -> bool:
    """Rank k has sent k + `more` everywhere; residual and weight are 1, so a row of equal elements becomes 1."""
    import torch

    n, y = call.world_size, outputs["y"]
    total = n * (n - 1) / 2 + n * more
    if call.epilogue:
        return bool((outputs["residual_out"] == total + 1).all()) and bool(((y - 1).abs() < _NEAR).all())
    if call.collective in {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER}:
        return bool((y == total).all())
    return bool((y.view(n, -1) == (torch.arange(n, device=y.device) + more).view(n, 1)).all())


def _smallest_us(ranks: PipeRanks) -> list[float]:
    """Time of a kernel node that adds to one word, on all ranks at once: about the least that a node costs."""
    import torch

    word = torch.zeros(1, device=ranks.device)
    word.add_(1)
    torch.cuda.synchronize()

    def step(_: int) -> None:
        word.add_(1)

    return _replays_us(ranks, step, "the smallest nodes")


def _call(options: argparse.Namespace, size: int) -> Call:
    """The size, rounded down to equal parts or whole rows."""
    n, collective, itemsize = options.world_size, Collective(options.collective), DTYPE_BYTES[options.dtype]
    sums = collective in {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER}
    if collective is Collective.BARRIER:
        size = n * itemsize
    elif options.epilogue:
        size = whole_rows(size // itemsize, itemsize) * itemsize
    elif collective in IN_PARTS:
        size = size // (n * itemsize) * n * itemsize
    return Call(size, n, collective, "sum" if sums else "", options.dtype, epilogue=options.epilogue)


def _rank_main(pipe: Any, rank: int, options: argparse.Namespace) -> None:  # noqa: ANN401 - a Connection
    import torch

    try:
        if not torch.cuda.is_available():
            raise RuntimeError("no CUDA device, or a CPU build of torch")  # noqa: TRY301 - told to the parent below
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
        ranks = PipeRanks(pipe, rank, options.world_size, device)
        pipe.send(("result", {"name": "smallest kernel node", "bytes": 4, "us": _smallest_us(ranks), "right": True}))
        for name in options.names:
            algorithm = registry()[name]
            for size in options.sizes:
                call = _call(options, size)
                result = _measure(ranks, algorithm, call)
                pipe.send(("result", {"name": name, "bytes": call.bytes, **result}))
    except Exception as error:  # noqa: BLE001 - told to the parent, which ends all ranks
        pipe.send(("error", f"{type(error).__name__}: {error}"))
    pipe.send(("end", None))


def _serve(pipes: list[Any], limit: float, rows: list[list[dict[str, Any]]]) -> str:
    """Gather and scatter until every rank has ended; gives what went wrong."""
    while True:
        told = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(max(0.0, limit - time.monotonic())):
                return f"rank {rank} says nothing any more"
            try:
                told.append(pipe.recv())
            except EOFError:
                return f"rank {rank} died"
        kinds = {kind for kind, _ in told}
        if kinds == {"exchange"}:
            for pipe in pipes:
                pipe.send([value for _, value in told])
        elif kinds == {"result"}:
            rows.append([value for _, value in told])
            _print_row(rows[-1])
        elif kinds == {"end"}:
            return ""
        else:
            return next((str(value) for kind, value in told if kind == "error"), f"ranks disagree: {sorted(kinds)}")


def _print_row(values: list[dict[str, Any]]) -> None:
    first = values[0]
    us = max(statistics.median(value["us"]) for value in values)
    bad = "" if all(value["right"] for value in values) else "WRONG "
    failure = next((value["failure"] for value in values if value.get("failure")), "")
    evidence = first.get("evidence", {})
    words = (f"{first['name']:26s}", f"{first['bytes']:8d} B", f"{us:7.2f} us", bad, failure)
    print(*words, evidence.get("kernel", ""), "|", evidence.get("tuning", ""), flush=True)  # noqa: T201 - a program's output


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser("timing", description="Time our kernels between processes.")
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--algorithms", default="own")
    parser.add_argument("--sizes", type=numbers, default=list(_SIZES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--collective", default="all_reduce", choices=[str(c) for c in Collective])
    parser.add_argument("--epilogue", default="", choices=["", RESIDUAL_RMSNORM])
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for everything")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    chosen = [a for a in select(options.algorithms, registry()) if a.collective == options.collective]
    options.names = [a.name for a in chosen if not options.epilogue or a.name in _FUSED]
    if options.collective == Collective.BARRIER:
        options.sizes = options.sizes[:1]
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Time; see the module's text. Exit status 1 if a rank failed or a sum was wrong."""
    options = _options(words)
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(options.world_size)]
    processes = [
        context.Process(target=_rank_main, args=(pair[1], rank, options), daemon=True)
        for rank, pair in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    for pair in pairs:
        pair[1].close()
    rows: list[list[dict[str, Any]]] = []
    problem = _serve([pair[0] for pair in pairs], time.monotonic() + options.limit, rows)
    for process in processes:
        process.join(0 if problem else 30)
        if process.is_alive():
            process.kill()
    if options.json:
        options.json.write_text(json.dumps(rows))
    if problem:
        print(f"timing: {problem}", file=sys.stderr)  # noqa: T201 - a program's output
    wrong = any(not value["right"] or value.get("failure") for row in rows for value in row)
    return 1 if problem or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
