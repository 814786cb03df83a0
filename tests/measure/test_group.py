"""Fork servers and worker groups: quick to start, and no failure of theirs is silent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collbench.measure.channel import BadMessage, pair
from collbench.measure.environment import worker_environment
from collbench.measure.group import GroupFailure, WorkerGroup
from collbench.measure.server import ForkServer
from collbench.measure.team import Place, PreloadSet, ServerPool, Team
from collbench.results.records import Call, Cell, Mode

SPEC: dict[str, Any] = {
    "algorithm": "host_ring", "seed": 1, "devices": ["cpu"] * 8, "deadline_s": 10.0, "share_gpu": False,
    "rank_offset": 0, "local_world_size": 8, "world_size": 8, "meeting": None,
}  # fmt: skip


def command(ranks: int) -> dict[str, Any]:
    cell = Cell("host_ring", Call(256, ranks, dtype="float32"), Mode.EAGER, 1)
    return {
        "op": "cell", "cell": cell.row(), "slots": 1, "seconds": 0.1, "iterations": 3, "warmup": 1, "least": 3,
        "most": 10,
    }  # fmt: skip


def start(server: ForkServer, folder: Path, ranks: int = 2, **changes: object) -> WorkerGroup:
    return WorkerGroup(server, ranks, {**SPEC, "local_world_size": ranks, "world_size": ranks, **changes}, {}, folder)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer((), worker_environment()) as started:
        yield started


def test_a_group_measures_a_cell(server: ForkServer, tmp_path: Path) -> None:
    group = start(server, tmp_path)
    answers = group.run(command(2), 20)
    group.close()
    assert [answer["status"] for answer in answers] == ["ok", "ok"]
    assert [len(answer["latency_us"]) for answer in answers] == [3, 3]
    assert list(tmp_path.iterdir()) == []


def test_a_server_with_torch_starts_within_three_seconds(budget: Callable[[float], Callable[..., Any]]) -> None:
    def once() -> None:
        with ForkServer(("torch", "torch.distributed"), worker_environment()) as started:
            started.wait_ready()

    budget(3.0)(once)


def test_a_group_of_eight_starts_within_half_a_second(
    server: ForkServer, tmp_path: Path, budget: Callable[[float], Callable[..., Any]]
) -> None:
    server.wait_ready()

    def once() -> None:
        group = start(server, tmp_path, ranks=8)
        group.run({"op": "health"}, 20)
        group.kill()

    budget(0.5)(once)


def test_a_killed_worker_is_named_with_its_signal(server: ForkServer, tmp_path: Path) -> None:
    group = start(server, tmp_path)
    os.kill(group.pids[1], signal.SIGKILL)
    with pytest.raises(GroupFailure, match="rank 1 was ended by SIGKILL") as failure:
        group.run(command(2), 20)
    group.kill()
    assert failure.value.kind == "crashed"


def test_a_stopped_worker_is_hung_at_the_deadline_and_says_where(server: ForkServer, tmp_path: Path) -> None:
    group = start(server, tmp_path)
    os.kill(group.pids[0], signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(GroupFailure, match=r"no answer from rank 0 in start.* within 1 s") as failure:
        group.run(command(2), 1)
    assert time.monotonic() - begin < 3
    group.kill()
    assert failure.value.kind == "hung"


def test_a_group_can_be_killed_twice(server: ForkServer, tmp_path: Path) -> None:
    group = start(server, tmp_path)
    group.kill()
    group.kill()


def test_a_dead_server_is_a_failure_and_no_wait(tmp_path: Path) -> None:
    with ForkServer((), worker_environment()) as mortal:
        mortal.wait_ready()
        os.kill(mortal._process.pid, signal.SIGKILL)
        with pytest.raises(GroupFailure) as failure:
            start(mortal, tmp_path)
    assert failure.value.kind == "crashed"


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with ForkServer(("no_such_module",), worker_environment()) as broken, pytest.raises(GroupFailure) as failure:
        start(broken, tmp_path)
    assert "No module named 'no_such_module'" in str(failure.value)


def test_a_server_that_is_stopped_is_waited_for_no_longer_than_there_is_time(tmp_path: Path) -> None:
    """Neither while it starts nor when it is asked for workers; the reason is whole without a log."""
    with ForkServer((), worker_environment()) as fresh:
        os.kill(fresh._process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(GroupFailure, match=r"^workers cannot start: no answer within 1 s$") as failure:
            WorkerGroup(fresh, 2, SPEC, {}, tmp_path, 1.0)
        assert time.monotonic() - begin < 3
    assert failure.value.kind == "hung"
    with ForkServer((), worker_environment()) as ready:
        ready.wait_ready()
        os.kill(ready._process.pid, signal.SIGSTOP)
        with pytest.raises(GroupFailure, match=r"^fork server gave no workers: no answer within 1 s$"):
            WorkerGroup(ready, 2, SPEC, {}, tmp_path, 1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_was_harmed_meanwhile_is_replaced(tmp_path: Path, number: signal.Signals) -> None:
    """What one algorithm's workers do to it is not charged to the next."""
    pool = ServerPool()
    team = Team(Place(2, 2), pool, tmp_path)
    spec = {**SPEC, "local_world_size": 2, "world_size": 2}
    order = {"imports": [], "preload": "", "environment": {}, "spec": spec, "limit_s": 8.0}
    team.start(order)
    team.stop(kill=True)
    os.kill(pool.get(PreloadSet())._process.pid, number)
    try:
        team.start(order)
        assert [answer["status"] for answer in team.run(command(2), 20)] == ["ok", "ok"]
    finally:
        team.stop(kill=True)
        pool.close()


def test_workers_that_die_with_their_server_say_so(tmp_path: Path) -> None:
    with ForkServer((), worker_environment()) as mortal:
        group = start(mortal, tmp_path)
        os.kill(mortal._process.pid, signal.SIGKILL)
        with pytest.raises(GroupFailure, match=r"ended with the fork server, which was ended by SIGKILL$"):
            group.run(command(2), 20)
        group.kill()


def test_half_a_message_holds_nobody_up() -> None:
    """Neither who looks what has come, nor who waits with a deadline; the rest may follow."""
    channel, fd = pair()
    os.write(fd, b'\x00\x00\x00\x0b{"ph')
    assert channel.arrived() == []
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no message within 0\.2 s"):
        channel.receive(0.2)
    assert time.monotonic() - begin < 2
    os.write(fd, b'ase":1}\x00\x00\x00\x02{}')
    assert channel.receive(1) == {"phase": 1}
    assert channel.receive(1) == {}
    os.close(fd)
    with pytest.raises(EOFError):
        channel.receive(1)
    channel.close()


@pytest.mark.parametrize("said", [b"hello", b"\xff\xfe", b"[]", b"1", b"[" * 100_000, b"1" * 5000])
def test_what_is_no_message_is_called_so(said: bytes) -> None:
    channel, fd = pair()
    os.write(fd, len(said).to_bytes(4, "big") + said)
    with pytest.raises(BadMessage):
        channel.arrived()
    os.close(fd)
    channel.close()


def test_a_peer_that_reads_nothing_is_not_written_to_for_ever() -> None:
    channel, fd = pair()
    with pytest.raises(TimeoutError):
        channel.send({"exchange": "x" * (1 << 22)}, 0.2)
    os.close(fd)
    channel.close()


def test_time_in_which_the_supervisor_was_stopped_is_not_counted(tmp_path: Path) -> None:
    """Its workers meet for a second through it; it is away for longer than they may take, and they come through."""
    code = (
        "import sys, test_group; from pathlib import Path; server, group = test_group.meeting(Path(sys.argv[1]), 2)\n"
        "with server:\n print('go', flush=True); print(group.run({'op': 'talk'}, 2)); group.close()\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"},
    )  # fmt: skip
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == "go\n"
    time.sleep(0.5)
    os.kill(supervisor.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(supervisor.pid, signal.SIGCONT)
    told, _ = supervisor.communicate(timeout=30)
    assert told == "[{'talked': True}, {'talked': True}]\n"


def test_workers_die_with_their_server(tmp_path: Path) -> None:
    with ForkServer((), worker_environment()) as mortal:
        group = start(mortal, tmp_path)
        pids = group.pids
    end = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    group.kill()


def test_only_allowed_variables_pass() -> None:
    given = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "secret", "NCCL_P2P_LEVEL": "SYS", "LD_PRELOAD": "/a.so"}
    passed = worker_environment(given, preload="/nccl.so")
    assert "AWS_SECRET_ACCESS_KEY" not in passed
    assert passed["NCCL_P2P_LEVEL"] == "SYS"
    assert passed["LD_PRELOAD"] == "/nccl.so:/a.so"


def test_multicast_stays_off_whatever_the_user_set() -> None:
    passed = worker_environment({"NCCL_NVLS_ENABLE": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "0"})
    assert passed["NCCL_NVLS_ENABLE"] == "0"
    assert passed["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert passed["NVSHMEM_DISABLE_NVLS"] == "1"


class Meeting:
    """A bench whose ranks meet once more when they leave, as those do that share memory of a GPU."""

    def __init__(self, ranks: Any, spec: dict[str, Any]) -> None:
        self.ranks, self.mark = ranks, Path(spec["mark"])

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["op"] == "leave" and self.ranks.rank == 1:
            os._exit(3)
        if command["op"] == "talk":
            for _ in range(50):
                self.ranks.barrier()
                time.sleep(0.02)
            return {"talked": True}
        return {}

    def close(self) -> None:
        self.ranks.barrier()
        (self.mark / str(self.ranks.rank)).touch()


def meeting(folder: Path, ranks: int) -> tuple[ForkServer, WorkerGroup]:
    """A group of them; the server finds this module by its folder."""
    server = ForkServer(
        (), {**worker_environment(), "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"}
    )
    (folder / "group").mkdir()
    return server, start(server, folder / "group", ranks, bench="test_group:Meeting", mark=str(folder), deadline_s=2.0)


def test_ranks_that_leave_may_meet_once_more(tmp_path: Path) -> None:
    """Both come through, and nobody is ended by force after a grace period."""
    server, group = meeting(tmp_path, 2)
    with server:
        group.run({"op": "stay"}, 20)
        pids, begin = group.pids, time.monotonic()
        group.close()
        assert time.monotonic() - begin < 1.5
        assert [server.exit_code(pid, 0.0) for pid in pids] == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["0", "1"]


def test_a_rank_that_waits_for_one_that_is_gone_is_ended(tmp_path: Path) -> None:
    server, group = meeting(tmp_path, 2)
    with server:
        with pytest.raises(GroupFailure):
            group.run({"op": "leave"}, 20)
        begin = time.monotonic()
        group.close(0.5)
        assert time.monotonic() - begin < 5
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []
