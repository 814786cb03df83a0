"""The kernel of microbenchmarks compiles for every arch, and two ranks of it played on the CPU do what they promise."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.cuda.compile import ARCHS, PROBE, source
from collbench.algorithms.cuda.probes import (
    AT_CHAIN,
    AT_RESULT,
    CHAIN_LINES,
    RESULT_BYTES,
    Op,
    ProbeArgs,
    Result,
    chain,
    compile_probe,
    read_result,
)

HERE = Path(__file__).parent
REGION = 3 << 20
MAIN = """
struct Job { const ProbeArgs* args; };
static Job job;
static void body() {
  Fiber* self = current;
  run_probe(job.args[self->rank], self->block);
  self->done = true;
  leave();
}
extern "C" unsigned args_size() { return sizeof(ProbeArgs); }
extern "C" void emulate(const ProbeArgs* args, u32 ranks, u32 threads_per_block, u64 seed) {
  job = Job{args};
  per_block = threads_per_block, blocks_of_rank = 1, random_state = seed * 2654435761u + 88172645463325252ull;
  barriers.assign(ranks, Barrier{}), warps.assign(ranks * 16, Barrier{});
  fibers = std::vector<Fiber>(ranks * threads_per_block);
  for (unsigned i = 0; i < fibers.size(); ++i) {
    Fiber& f = fibers[i];
    f.rank = i / per_block, f.block = 0, f.thread = i % per_block;
    f.stack.resize(1 << 16);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, body, 0);
  }
  for (unsigned left = (unsigned)fibers.size(); left != 0;) {
    Fiber& f = fibers[draw() % (unsigned)fibers.size()];
    if (f.done) continue;
    current = &f;
    swapcontext(&scheduler, &f.context);
    if (f.done) --left;
  }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The device code as a shared library."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to build the device code for the CPU")
    text = source(probes=True)
    unit = tmp_path_factory.mktemp("probe") / "probe.cc"
    device = text[text.index('#line 1 "probes.cuh"') :]
    unit.write_text(f'#include "emulator.h"\n{device}\n{MAIN}')
    words = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-I{HERE}"]
    made = unit.with_suffix(".so")
    subprocess.run([compiler, *words, str(unit), "-o", str(made)], check=True, timeout=100)
    loaded = ctypes.CDLL(str(made))
    loaded.emulate.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]
    assert loaded.args_size() == ctypes.sizeof(ProbeArgs)
    return loaded


class Ranks:
    """Regions of some ranks in host memory."""

    def __init__(self, library: Any, count: int) -> None:
        self.library, self.count = library, count
        self.memory = [np.zeros(REGION + 4096, np.uint8) for _ in range(count)]
        self.bases = [-(-m.ctypes.data // 4096) * 4096 for m in self.memory]

    def run(self, fields: Sequence[dict[str, int]], threads: int = 1, seed: int = 1) -> list[Result]:
        """One launch on every rank that has fields."""
        records = (ProbeArgs * self.count)()
        for rank, (record, given) in enumerate(zip(records, fields, strict=True)):
            record.base[: self.count] = self.bases
            record.rank, record.deadline_ns, record.blocks_per_flow = rank, 50_000_000, 1
            for name, value in given.items():
                setattr(record, name, int(value))
        self.library.emulate(records, self.count, threads, seed)
        return [read_result(ctypes.string_at(base + AT_RESULT, RESULT_BYTES)) for base in self.bases]


def pair(op: Op, **fields: int) -> list[dict[str, int]]:
    return [{"op": op, "peer": 1 - rank, "first": 1 - rank, **fields} for rank in range(2)]


@pytest.mark.parametrize("arch", ARCHS)
def test_compiles_without_spills(arch: str) -> None:
    pytest.importorskip("cuda.core", reason="needs the extra cuda")
    made = compile_probe(arch)
    assert (made.variant.entry, made.spills) == (PROBE, 0)
    assert made.registers <= 128
    early = compile_probe(arch, pdl=True)
    assert (early.variant.entry, early.spills) == (PROBE, 0)
    assert (early.cubin != made.cubin) == (arch not in {"sm_80", "sm_89"}), "it waits for the kernel before it"


def test_flags_and_barriers_end_whatever_the_schedule(library: Any) -> None:
    """All ranks pass every round, and flags of earlier tasks do not count."""
    ranks = Ranks(library, 3)
    for seed in range(5):
        every = [{"op": Op.BARRIER, "mask": 0b111, "rounds": 20, "epoch": (seed + 1) << 19}] * 3
        found = ranks.run(every, threads=16, seed=seed)
        assert all(one.missing is None and one.end_ns > one.begin_ns > 0 for one in found)
    two = Ranks(library, 2)
    for seed in range(5):
        found = two.run(pair(Op.FLAG, rounds=50, epoch=(seed + 1) << 19), seed=seed)
        assert all(one.missing is None and one.end_ns > one.begin_ns > 0 for one in found)


def test_a_rank_that_does_not_come_ends_the_wait(library: Any) -> None:
    """The deadline expires in the kernel: it says who was waited for, and tells the peers."""
    ranks = Ranks(library, 2)
    absent: list[dict[str, int]] = [
        {"op": Op.FLAG, "peer": 1, "first": 1, "rounds": 5, "epoch": 1 << 19},
        {"op": Op.EMPTY},
    ]
    found = ranks.run(absent)
    assert (found[0].missing, found[0].end_ns) == (1, 0)
    assert struct.unpack("<Q", ctypes.string_at(ranks.bases[1], 8))[0] == 1


def test_the_chain_visits_every_line_once() -> None:
    start, data = chain()
    at, seen = start, set()
    for _ in range(CHAIN_LINES):
        seen.add(at)
        at = struct.unpack_from("<Q", data, at - AT_CHAIN)[0]
    assert at == start
    assert len(seen) == CHAIN_LINES


def test_dependent_reads_follow_the_chain(library: Any) -> None:
    ranks = Ranks(library, 2)
    start, data = chain()
    ctypes.memmove(ranks.bases[1] + AT_CHAIN, data, len(data))
    found = ranks.run([{"op": Op.READ_CHAIN, "peer": 1, "rounds": 100, "start": start}, {"op": Op.EMPTY}])
    assert found[0].end_ns > found[0].begin_ns > 0


def test_stores_reach_every_vector_of_their_flow(library: Any) -> None:
    """Rank 1 writes its number to rank 0: all of the slot, and nothing behind it."""
    ranks = Ranks(library, 2)
    at, vectors = 1 << 20, 37
    fields: dict[str, int] = {"op": Op.STORE, "vectors": vectors, "rounds": 1}
    records = (ProbeArgs * 2)()
    for rank, record in enumerate(records):
        record.base[:2], record.rank, record.blocks_per_flow = ranks.bases, rank, 1
        for name, value in (fields if rank else {"op": Op.EMPTY}).items():
            setattr(record, name, int(value))
    records[1].to[0] = ranks.bases[0] + at
    ranks.library.emulate(records, 2, 4, 1)
    words = np.frombuffer(ctypes.string_at(ranks.bases[0] + at, 16 * vectors + 16), np.uint32)
    assert (words[: 4 * vectors] == 1).all()
    assert (words[4 * vectors :] == 0).all()


def test_message_passing_holds_where_memory_keeps_its_order(library: Any) -> None:
    """The emulator is sequentially consistent: no violation, and every message or its follower is looked at."""
    ranks = Ranks(library, 2)
    found = ranks.run(pair(Op.MESSAGE_PASSING, rounds=500, epoch=1 << 19, fenced=1))[1]
    assert (found.violations, found.missing) == (0, None)
    assert 1 <= found.looks <= 500


def test_message_passing_sees_data_that_come_late(library: Any) -> None:
    """Flags that are there before any data: every look finds old words."""
    ranks = Ranks(library, 2)
    flag = struct.pack("<Q", (1 << 19) + 500)
    ctypes.memmove(ranks.bases[1] + 8192, flag, 8)
    found = ranks.run([{"op": Op.EMPTY}, {"op": Op.MESSAGE_PASSING, "peer": 0, "rounds": 500, "epoch": 1 << 19}])[1]
    assert (found.violations, found.looks) == (1, 1)


def test_torn_vectors_are_counted(library: Any) -> None:
    """The emulator writes vectors word by word with switches between: the reader must see halves that differ."""
    ranks = Ranks(library, 2)
    found = ranks.run(pair(Op.TORN, rounds=3000, epoch=1 << 19))[1]
    assert found.looks == 3000
    assert found.violations >= found.halves > 0
    assert found.changes > 1
