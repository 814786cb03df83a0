"""Microbenchmarks between ranks on processors: flags and copies through shared memory, alone and together."""

import time
from typing import Any

import numpy as np

from collbench.algorithms.host_memory import HostMemory
from collbench.measure.probe_plan import Task
from collbench.measure.ranks import WorkerRanks, pin
from collbench.measure.worker import failure_of

__all__ = ["FLOW_BYTES", "HostProbes"]

FLOW_BYTES = 1 << 20
"""Bytes that each flow moves: more than a core's own cache holds, on most processors."""

_REPEATS = 7
_ROUND_TRIPS, _BARRIERS = 64, 32
_LITMUS_ROUNDS = 4000
_MESSAGE_WORDS = 8
_PACE = 500  # messages between two flags of a litmus: the reader must see most of them


class HostProbes:
    """The bench of one rank; `answer` takes `{"op": "probe", "task": ..., "turn": ...}`."""

    def __init__(self, ranks: WorkerRanks, spec: dict[str, Any]) -> None:
        del spec
        self._ranks = ranks
        self._cores = pin(ranks.local_rank, ranks.local_world_size)
        self._memory: HostMemory | None = None
        self._own = np.ones(FLOW_BYTES, np.uint8)
        self._turn = 0

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """See `measure.worker.Bench`."""
        try:
            task = Task.from_dict(command["task"])
            self._ranks.phase(f"probe {task.name}")
            if self._memory is None:
                self._memory = self._open()
            # flags only rise: every task gets numbers of its own
            self._turn = (int(command["turn"]) + 1) << 24
            self._ranks.barrier()
            return {"answer": self._run(task, self._memory)}
        except Exception as error:  # noqa: BLE001 - whatever it was becomes the probe's status and reason
            return failure_of(error)

    def _open(self) -> HostMemory:
        n = self._ranks.world_size
        return HostMemory.open(self._ranks, 2 * n, (n + 1) * n * FLOW_BYTES)

    def _run(self, task: Task, memory: HostMemory) -> dict[str, Any]:
        members = task.members or set(range(self._ranks.world_size))
        if self._ranks.rank not in members:
            return {}
        if task.kind == "barrier":
            return {"us": self._barriers(memory, members)}
        if task.kind == "bandwidth":
            return self._bandwidth(task, memory)
        src, dst = task.flows[0]
        if task.kind == "flag":
            return {"us": self._flags(memory, src, dst)}
        if task.kind == "litmus_message":
            return self._message(memory, src, dst)
        return self._torn(memory, src, dst)

    def _buffer(self, memory: HostMemory, owner: int, slot: int) -> Any:  # noqa: ANN401 - an array of bytes
        """Slot 0 of a rank is what it sends, slot 1 + k what rank k has written to it."""
        n = self._ranks.world_size
        return memory.array((owner * (n + 1) + slot) * FLOW_BYTES, (FLOW_BYTES,), np.uint8)

    def _meet(self, memory: HostMemory, members: set[int]) -> None:
        """A barrier of some ranks."""
        me = self._ranks.rank
        self._turn += 1
        memory.publish(me, self._turn)
        for peer in members - {me}:
            memory.wait(peer, self._turn, f"rank {me} waited for rank {peer} (probe)")

    def _barriers(self, memory: HostMemory, members: set[int]) -> list[float]:
        found = []
        for _ in range(_REPEATS):
            self._meet(memory, members)
            begin = time.perf_counter()
            for _ in range(_BARRIERS):
                self._meet(memory, members)
            found.append((time.perf_counter() - begin) / _BARRIERS * 1e6)
        return found

    def _flags(self, memory: HostMemory, src: int, dst: int) -> list[float]:
        """One way of a flag: half of a round trip, seen from the first rank."""
        me = self._ranks.rank
        peer = dst if me == src else src
        found = []
        for _ in range(_REPEATS):
            self._meet(memory, {src, dst})
            base = self._turn << 8
            begin = time.perf_counter()
            for turn in range(1, _ROUND_TRIPS + 1):
                self._bounce(memory, base + turn, peer, first=me == src)
            found.append((time.perf_counter() - begin) / _ROUND_TRIPS / 2 * 1e6)
        return found if me == src else []

    def _bounce(self, memory: HostMemory, value: int, peer: int, *, first: bool) -> None:
        n, me = self._ranks.world_size, self._ranks.rank
        who = f"rank {me} waited for a flag of rank {peer} (probe)"
        if first:
            memory.publish(n + me, value)
        memory.wait(n + peer, value, who)
        if not first:
            memory.publish(n + me, value)

    def _bandwidth(self, task: Task, memory: HostMemory) -> dict[str, Any]:
        me, members = self._ranks.rank, task.members
        load = task.mechanism == "load"
        mine = [flow for flow in task.flows if flow[1 if load else 0] == me]
        pairs = [
            (self._own, self._buffer(memory, src, 0)) if load else (self._buffer(memory, dst, 1 + src), self._own)
            for src, dst in mine
        ]
        begins, ends = [], []
        for _ in range(_REPEATS + 1):
            self._meet(memory, members)
            begins.append(time.perf_counter())
            for target, source in pairs:
                np.copyto(target, source)
            ends.append(time.perf_counter())
        # the first round maps pages; ranks that only own memory have no time of their own
        return {"begin": begins[1:], "end": ends[1:], "bytes": FLOW_BYTES} if mine else {}

    def _message(self, memory: HostMemory, src: int, dst: int) -> dict[str, Any]:
        """The writer stores data, then its flag; the reader loads the flag, then the data, which must not be older."""
        n, me = self._ranks.world_size, self._ranks.rank
        data = self._buffer(memory, dst, 1 + src).view(np.int64)[: _LITMUS_ROUNDS * _MESSAGE_WORDS]
        words = data.reshape(_LITMUS_ROUNDS, _MESSAGE_WORDS)
        base = self._turn << 8
        if me == src:
            for i in range(_LITMUS_ROUNDS):
                words[i] = base + i
                memory.publish(n + me, base + i + 1)
                if i % _PACE == 0:
                    memory.wait(n + dst, base + i + 1, f"rank {me} waited for rank {dst} (litmus)")
            return {}
        violations = looks = 0
        seen = base
        while seen < base + _LITMUS_ROUNDS:
            memory.wait(n + src, seen + 1, f"rank {me} waited for rank {src} (litmus)")
            seen = memory.flags[memory.index(n + src)]
            violations += int((words[seen - base - 1] < seen - 1).any())
            looks += 1
            memory.publish(n + me, seen)
        return {"violations": violations, "looks": looks}

    def _torn(self, memory: HostMemory, src: int, dst: int) -> dict[str, Any]:
        """The writer stores pairs of equal 8-byte words by numpy's 16-byte moves until the reader has looked enough."""
        n, me = self._ranks.world_size, self._ranks.rank
        pair = self._buffer(memory, dst, 1 + src)[-64:-48].view(np.complex128)
        base, flags = self._turn << 8, memory.flags
        limit, value = time.monotonic() + self._ranks.deadline_s, 0
        if me == src:
            pair[0] = 0
            memory.publish(n + me, base + 1)
            while flags[memory.index(n + dst)] < base + 2:
                for _ in range(_PACE):
                    value += 1
                    pair[0] = complex(value, value)
                if time.monotonic() > limit:
                    raise TimeoutError(f"rank {me} waited for rank {dst} (litmus)")
            return {}
        memory.wait(n + src, base + 1, f"rank {me} waited for rank {src} (litmus)")
        found = [complex(pair[0]) for _ in range(_LITMUS_ROUNDS)]
        memory.publish(n + me, base + 2)
        violations = sum(one.real != one.imag for one in found)
        return {"violations": violations, "looks": len(found), "detail": f"{len(set(found))} values seen"}

    def close(self) -> None:
        """See `measure.worker.Bench`."""
        if self._memory is not None:
            self._memory.close()
