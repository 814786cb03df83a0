"""Shared regions: who maps, unmaps and frees what, and in which order, with a driver of host memory."""

import ctypes
import threading
from typing import Any

import pytest

from collbench.algorithms.cuda import memory
from collbench.algorithms.cuda.driver import DriverError
from collbench.algorithms.cuda.memory import AT_CLOSED, GRANULE, SharedRegion


class Driver:
    """The driver calls that regions make, on host memory that all threads share; keeps a log."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int]] = []
        self.blocks: dict[int, Any] = {}
        self.mapped: dict[int, set[int]] = {}
        self.fail: dict[tuple[str, int], Exception] = {}
        self.rank = threading.local()

    def call(self, name: str, *values: Any) -> Any:
        rank = self.rank.value
        if error := self.fail.get((name, rank)):
            raise error
        return getattr(self, name)(rank, *values)

    def cuMemAlloc(self, rank: int, size: int) -> int:  # noqa: N802 - the driver's name
        block = ctypes.create_string_buffer(size)
        address = ctypes.addressof(block)
        self.blocks[address] = block
        self.mapped[address] = set()
        self.log.append(("alloc", rank, address))
        return address

    def cuMemsetD32(self, _rank: int, pointer: int, word: int, count: int) -> None:  # noqa: N802 - same
        ctypes.memmove(pointer, word.to_bytes(4, "little") * count, 4 * count)

    def cuMemcpyDtoH(self, _rank: int, data: bytearray, pointer: int, size: int) -> None:  # noqa: N802 - same
        data[:] = ctypes.string_at(pointer, size)

    def cuCtxSynchronize(self, _rank: int) -> None:  # noqa: N802 - same
        return None

    def cuIpcOpenMemHandle(self, rank: int, handle: int, _flags: int) -> int:  # noqa: N802 - same
        self.mapped[handle].add(rank)
        return handle

    def cuIpcCloseMemHandle(self, rank: int, pointer: int) -> None:  # noqa: N802 - same
        self.mapped[pointer].discard(rank)
        self.log.append(("unmap", rank, pointer))

    def cuMemFree(self, rank: int, pointer: int) -> None:  # noqa: N802 - same
        assert not self.mapped[pointer], "freed while a peer maps it"
        self.log.append(("free", rank, pointer))


class Group:
    """Ranks as threads, with exchange by barrier."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def ranks(self, rank: int) -> Any:
        return GroupRanks(self, rank)


class GroupRanks:
    """One of them."""

    deadline_s = 1.0
    device = "cuda:0"

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank = group, rank
        self.world_size = self.local_world_size = group.size
        self.local_rank = rank

    def exchange(self, value: Any) -> list[Any]:
        self.group.values[self.rank] = value
        try:
            self.group.barrier.wait(self.deadline_s)
            told = list(self.group.values)
            self.group.barrier.wait(self.deadline_s)
        except threading.BrokenBarrierError as error:
            raise TimeoutError("a rank did not come") from error
        return told

    def barrier(self) -> None:
        self.exchange(None)

    def process_group(self, backend: str) -> Any:
        raise NotImplementedError(backend)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(memory, "call", fake.call)
    monkeypatch.setattr(memory, "handle_bytes", lambda pointer: pointer.to_bytes(64, "little"))
    monkeypatch.setattr(memory, "handle_from", lambda data: int.from_bytes(data, "little"))
    return fake


def run(driver: Driver, size: int, work: Any) -> list[BaseException | None]:
    """Enter a region on every rank, do `work(rank, region)` in it; gives every rank's error."""
    group = Group(size)
    errors: list[BaseException | None] = [None] * size

    def rank_main(rank: int) -> None:
        driver.rank.value = rank
        try:
            with SharedRegion(group.ranks(rank), 1000) as region:
                work(rank, region)
        except (DriverError, MemoryError, ValueError) as error:
            errors[rank] = error

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return errors


def test_every_rank_sees_every_region(driver: Driver) -> None:
    """Bases stand in rank order, sizes are whole granules, and all is freed in the end, once nobody maps it."""
    seen: dict[int, tuple[int, ...]] = {}

    def work(rank: int, region: SharedRegion) -> None:
        seen[rank] = region.bases
        assert region.size == GRANULE

    assert run(driver, 3, work) == [None] * 3
    assert seen[0] == seen[1] == seen[2]
    assert sorted(address for what, _, address in driver.log if what == "free") == sorted(seen[0])


def test_an_error_inside_frees_everything_in_order(driver: Driver) -> None:
    """A rank that fails unmaps and says so in its peers' control blocks: they free without asking it anything."""

    def work(rank: int, region: SharedRegion) -> None:
        del region
        if rank == 1:
            raise ValueError("broken")

    errors = run(driver, 2, work)
    assert [type(error) for error in errors] == [type(None), ValueError]
    assert [what for what, _, _ in driver.log].count("free") == 2


@pytest.mark.parametrize(
    ("name", "error", "kind", "verb"),
    [
        ("cuMemAlloc", MemoryError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"), MemoryError, "allocate"),
        ("cuIpcOpenMemHandle", DriverError("cuIpcOpenMemHandle: INVALID_CONTEXT"), DriverError, "map"),
    ],
)
def test_all_ranks_hear_of_one_ranks_failure(
    driver: Driver, name: str, error: Exception, kind: type[Exception], verb: str
) -> None:
    """No rank is left waiting for one that could not get its memory, and every rank names it."""
    driver.fail[name, 1] = error
    errors = run(driver, 3, lambda _rank, _region: None)
    assert [type(e) for e in errors] == [kind] * 3
    assert all(str(e).startswith(f"rank 1 cannot {verb}") for e in errors)
    assert all(not mapped for mapped in driver.mapped.values())


def test_memory_that_a_peer_still_maps_is_not_freed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that never leaves costs its exporter a short wait, not undefined behaviour."""
    monkeypatch.setattr(memory, "_LEAVE_S", 0.05)

    def work(rank: int, region: SharedRegion) -> None:
        if rank == 1:
            region._opened.clear()  # as if it had died: its word is never written

        raise ValueError("both leave without a meeting")

    run(driver, 2, work)
    assert [rank for what, rank, _ in driver.log if what == "free"] == [1]


def test_the_word_of_a_peer_stands_in_the_control_block(driver: Driver) -> None:
    """Offset and width are part of the layout."""
    words: list[int] = []

    def work(rank: int, region: SharedRegion) -> None:
        words.append(region.bases[rank] + AT_CLOSED)

    run(driver, 2, work)
    for base in words:
        assert sorted(ctypes.string_at(base + 8 * k, 1)[0] for k in range(2)) == [0, 1]
