"""Four ranks, bfloat16, rows of a fixed width."""

import contextlib
from collections.abc import Iterator
from typing import Any

import libraries_fake

from b12x.comm.pcie.pcie_allreduce import made
from b12x.preparation.types import OPEN, require_prepared


class PCIeTwoShotBF16:
    group: Any
    device: Any
    captures: int
    rank: int
    world_size: int
    max_rows: int
    row_elems: int

    @classmethod
    def from_exchange_group(
        cls, *, exchange_group: Any, device: Any, max_rows: int, row_elems: int
    ) -> "PCIeTwoShotBF16":
        self = object.__new__(cls)
        self.group, self.device, self.captures = exchange_group, device, 0
        self.rank, self.world_size = made(exchange_group, device)
        if self.world_size != 4:
            raise ValueError(f"PCIeTwoShotBF16 supports only world size 4, got {self.world_size}")
        if max_rows <= 0 or max_rows % 4 or row_elems % 8:
            raise ValueError("max_rows must be divisible by world size")
        self.max_rows, self.row_elems = max_rows, row_elems
        return self

    def accepts(self, inp: Any) -> bool:
        count: int = inp.numel()
        return count % (self.row_elems * 4) == 0 and count // self.row_elems <= self.max_rows

    def all_reduce(self, inp: Any, out: Any = None, *, plan: Any, threads: int = 512, block_limit: int = 64) -> Any:
        require_prepared(plan, self)
        libraries_fake.into(out, inp, self.group)
        return out

    @contextlib.contextmanager
    def capture(self, *, plan: Any) -> Iterator["PCIeTwoShotBF16"]:
        require_prepared(plan, self)
        self.captures += 1
        yield self
        self.captures -= 1

    def close(self) -> None:
        assert not self.captures
        assert OPEN["sessions"] == 0
        OPEN["runtimes"] -= 1
