"""Two launches of torchrun on loopback stand for two hosts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torchrun comes with torch")

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun(*words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_gloo_spans_two_hosts_and_shared_memory_says_that_it_cannot(tmp_path: Path) -> None:
    run = tmp_path / "run"
    common = (
        "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
    )  # fmt: skip
    sweep = (
        "-m", "collbench.sweep", "--algorithms", "gloo,host_ring", "-b", "1K", "--calls", "1", "-n", "5", "--json",
        "--out", str(run),
    )  # fmt: skip
    second = torchrun("--node-rank", "1", *common, *sweep)
    first = torchrun("--node-rank", "0", *common, *sweep)
    out, err = first.communicate(timeout=150)
    _, second_err = second.communicate(timeout=60)
    assert first.returncode == 0, err
    assert second.returncode == 0, second_err
    rows = {row["algorithm"]: row for row in json.loads(out)["rows"]}
    assert rows["gloo"]["status"] == "ok"
    assert rows["gloo"]["world_size"] == 4
    assert rows["host_ring"]["status"] == "unsupported"
    assert rows["host_ring"]["reason"] == "ranks on 2 hosts"


@pytest.mark.timeout(120)
def test_under_torchrun_one_rank_supervises_and_prints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = torchrun(
        "--nproc-per-node", "3", "-m", "collbench.sweep", "-b", "1K", "-e", "4K", "--algorithms", "host_tree",
        "--calls", "1", "-n", "5", "--json", "--out", str(run),
    )  # fmt: skip
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert [row["status"] for row in json.loads(out)["rows"]] == ["ok", "ok"]
    assert {row["world_size"] for row in json.loads(out)["rows"]} == {3}
