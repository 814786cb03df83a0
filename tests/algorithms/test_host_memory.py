"""Memory without a name that all ranks open or none, and flags that publish what was written before them."""

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.algorithms import host_memory
from collbench.algorithms.host_memory import LINE, HostMemory


def litmus(forked: Any, rounds: int, count: int) -> list[int]:
    """Message passing both ways: rank r writes `count` numbers, then its flag; the peer must see all of them.

    Returns how many rounds showed an old number, by rank.
    """

    def body(ranks: Any) -> int:
        bad = 0
        peer = 1 - ranks.rank
        with HostMemory.open(ranks, 2, 2 * count * 8) as memory:
            data = memory.array(0, (2, count), np.dtype(np.int64))
            mine, theirs, got = data[ranks.rank], data[peer], np.zeros(count, np.int64)
            for turn in range(1, rounds + 1):
                # the peer has read the numbers of the turn before: it raised its flag twice a turn
                mine[...] = turn
                memory.publish(ranks.rank, 2 * turn - 1)
                memory.wait(peer, 2 * turn - 1, "litmus")
                got[...] = theirs
                memory.publish(ranks.rank, 2 * turn)
                bad += bool((got != turn).any())
                memory.wait(peer, 2 * turn, "litmus")
            del data, mine, theirs
        return bad

    outcomes = forked(2, body)
    assert [o.error for o in outcomes] == ["", ""]
    return [o.value for o in outcomes]


@pytest.mark.parametrize(("rounds", "count"), [(100_000, 8), (20_000, 1_000), (60, 1 << 20)])
def test_a_raised_flag_means_that_the_data_are_there(forked: Any, rounds: int, count: int) -> None:
    """No stale number behind a flag: one line, ordinary copies, and 8 MiB, where memcpy uses non-temporal stores."""
    assert litmus(forked, rounds, count) == [0, 0]


def test_the_litmus_test_can_fail(forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With flags raised before the data are written, stale numbers are seen: the sooner, the more ranks overlap."""
    publish = HostMemory.publish

    def early(self: HostMemory, line: int, value: int) -> None:
        publish(self, line, value + value % 2)

    monkeypatch.setattr(HostMemory, "publish", early)
    assert any(sum(litmus(forked, rounds, 1_000)) > 0 for rounds in (2_000, 20_000, 100_000))


def test_memory_is_private_zeroed_and_laid_out_in_lines(forked: Any) -> None:
    """The file has mode 0600 and no name, starts as zeros, and each flag has a line of its own."""

    def body(ranks: Any) -> list[Any]:
        modes: list[str] = []
        create = os.ftruncate

        def spy(descriptor: int, size: int) -> None:
            modes.append(oct(os.fstat(descriptor).st_mode & 0o777))
            modes.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).split("-")[0])
            create(descriptor, size)

        os.ftruncate = spy
        with HostMemory.open(ranks, 3, 4096) as memory:
            empty = not memory.array(0, (4096,), np.dtype(np.uint8)).any()
            ranks.barrier()
            memory.publish(ranks.rank, 5 + ranks.rank)
            memory.wait(1 - ranks.rank, 6 - ranks.rank, "test")
            flags = [memory.flags[memory.index(line)] for line in range(3)]
            return [modes, empty, flags, len(memory.flags) * 8]

    first, second = forked(2, body)
    assert first.value == [["0o600", "/memfd:collbench"], True, [5, 6, 0], 3 * LINE]
    assert second.value == [[], True, [5, 6, 0], 3 * LINE]


def test_all_ranks_fail_together_with_the_reason(forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory, a processor that nothing is argued for, a peer that cannot open: one error on all ranks."""

    def body(ranks: Any) -> None:
        HostMemory.open(ranks, 1, 1 << 20)

    with monkeypatch.context() as patch:
        patch.setattr(host_memory, "_available_bytes", lambda: 1 << 19)
        errors = [o.error for o in forked(3, body)]
        assert errors == [errors[0]] * 3
        assert "MemoryError: shared memory, rank 0: MemoryError: 1 MiB of shared memory asked for" in errors[0]
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "aarch64")
        assert all("argued for x86-64 Linux only" in o.error for o in forked(3, body))
    with monkeypatch.context() as patch:
        reach = host_memory._reach
        patch.setattr(host_memory, "_reach", lambda told: reach([*told[:3], told[3] + 1]))
        assert all("rank 1: RuntimeError" in o.error and "containers" in o.error for o in forked(3, body))


def test_a_rank_that_never_comes_to_the_set_up_is_not_waited_for(forked: Any) -> None:
    """The set-up ends with TimeoutError when a rank died before it."""

    def body(ranks: Any) -> None:
        if ranks.rank == 1:
            os._exit(1)
        HostMemory.open(ranks, 1, 4096)

    outcomes = forked(2, body, deadline_s=0.3)
    assert outcomes[0].error.startswith("TimeoutError")


def test_closed_memory_says_so(forked: Any) -> None:
    """Closing twice is fine, and an array asked for afterwards is an error."""

    def body(ranks: Any) -> str:
        memory = HostMemory.open(ranks, 1, 64)
        memory.close()
        memory.close()
        with pytest.raises(RuntimeError, match="closed already"):
            memory.array(0, (1,), np.dtype(np.int8))
        return "closed"

    assert forked(1, body)[0].value == "closed"
