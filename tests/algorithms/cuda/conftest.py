"""Builds the device code for the CPU with g++ and plays ranks as fibers of a seeded scheduler."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.algorithms.cuda.arguments import Args, ErrorRecord, first_count, read_error
from collbench.algorithms.cuda.compile import Variant, source
from collbench.algorithms.cuda.virtual import Outcome, Setting, Step, fill_records, read_wrong

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")


FLAGS = ("-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-fPIC")


@cache
def header(folder: Path) -> Path:
    """The folder of a compiled emulator.h, which takes longer than the device code behind it."""
    assert COMPILER is not None
    copy = folder / "emulator.h"
    shutil.copy(HERE / copy.name, copy)
    command = [COMPILER, *FLAGS, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"]
    subprocess.run(command, check=True, timeout=100)
    return folder


@cache
def library(variant: Variant, folder: Path) -> Any:
    """The device code of one kernel as a shared library."""
    assert COMPILER is not None
    text = source(virtual=True)
    macros = "".join(f"#define {name} {value}\n" for name, value in variant.macros.items())
    device = text[text.index('#line 1 "common.cuh"') :]  # the emulator stands in for primitives.cuh
    name = f"{variant.kernel}_{variant.world_size}_{variant.dtype}_{variant.broken}_{variant.without}"
    unit = folder / f"{name}.cc"
    unit.write_text(f'#include "emulator.h"\n{macros}{device}\n#include "emulator_main.h"\n')
    made = unit.with_suffix(".so")
    words = [*FLAGS, "-shared", f"-I{header(folder)}", f"-I{HERE}"]
    subprocess.run([COMPILER, *words, str(unit), "-o", str(made)], check=True, timeout=100)
    loaded = ctypes.CDLL(str(made))
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    loaded.emulate.argtypes = [pointer, pointer, word, word, word, pointer, pointer, word, ctypes.c_uint64]
    assert (loaded.args_size(), loaded.step_size()) == (ctypes.sizeof(Args), ctypes.sizeof(Step))
    return loaded


class Emulation:
    """The ranks of one setting in host memory."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        self.library = library(
            setting.variant("sm_90"),
            folder,
        )
        size = setting.region_bytes + 256
        self._memory = [np.zeros(size, np.uint8) for _ in range(setting.world_size)]
        self.bases = [-(-m.ctypes.data // 256) * 256 for m in self._memory]
        count = first_count(setting.epoch)
        for base in self.bases:
            ctypes.memmove(base, struct.pack("<Q", count), 8)
            ctypes.memmove(base + 2048, struct.pack("<Q", count) * 64, 512)
            for offset, length, word in setting.plan.fills:
                ctypes.memmove(base + offset, struct.pack("<I", word) * (length // 4), length)
        self.records = fill_records(setting, self.bases)

    def play(self, steps: Sequence[Step], seed: int, *, fill: bool = True) -> Outcome:
        """Run the calls under one schedule."""
        s = self.setting
        counters, wrong = (np.zeros(s.world_size * 16, np.uint64) for _ in range(2))
        self.library.emulate(
            self.records, (Step * len(steps))(*steps), len(steps), s.blocks, s.threads, counters.ctypes.data,
            wrong.ctypes.data, int(fill), seed,
        )  # fmt: skip
        counts = read_wrong(wrong.tobytes(), s.world_size)
        assert counts[0] == (s.elements(steps) if fill else 0)
        return Outcome(*counts, tuple(self.errors()), 0.0)

    def errors(self) -> list[ErrorRecord]:
        """Expired waits of all ranks."""
        found = (read_error(ctypes.string_at(base, 128)) for base in self.bases)
        return [record for record in found if record]

    def epoch(self, rank: int) -> int:
        """The rank's next epoch, if its last call has ended properly."""
        count = ctypes.c_uint64.from_address(self.bases[rank]).value
        assert count & 0xFFFF == 0
        return count >> 16

    def run(self, inputs: Sequence[bytes], size: int, blocks: int, seed: int) -> list[bytes]:
        """One call of `size` bytes with the ranks' own; gives the outputs' slots, which start poisoned."""
        s = self.setting
        for base, data in zip(self.bases, inputs, strict=True):
            ctypes.memmove(base + s.in_offset, data, len(data))
            ctypes.memset(base + s.in_offset + s.slot_bytes, 0xFF, s.slot_bytes)
        outcome = self.play([s.step(size, blocks)], seed, fill=False)
        assert not outcome.errors
        return [ctypes.string_at(base + s.in_offset + s.slot_bytes, s.slot_bytes) for base in self.bases]


@pytest.fixture(scope="session")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Setting], Emulation]:
    """Makes the emulated ranks of a setting; skips where there is no g++."""
    if COMPILER is None:
        pytest.skip("no g++ to build the device code for the CPU")
    folder = tmp_path_factory.mktemp("emulated")
    return lambda setting: Emulation(setting, folder)
