"""Looking at this machine: facts, warnings, faults of every source, and how long it takes."""

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.doctor import container, driver, findings, loaded
from collbench.doctor import here as here_module
from collbench.doctor.driver import Card, query
from collbench.doctor.facts import facts_of, pairs_of
from collbench.doctor.findings import machine_warnings, warnings_of
from collbench.doctor.here import look
from collbench.results.records import Fabric
from collbench.topology import child
from collbench.topology.discover import Discovery
from collbench.topology.graph import Link, LinkKind, Node, NodeKind, Topology
from collbench.topology.machine import Machine
from collbench.topology.nvml import NvmlCapture, NvmlGpu, Pair


class Library:
    """Looks like pynvml: two cards; names in `broken` fail."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": None, "nvmlDeviceGetCount": 2, "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:4F:00.0"),
            "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=256 << 20), "nvmlDeviceGetName": b"Card\x1b[2J",
            "nvmlDeviceGetPersistenceMode": 0, "nvmlDeviceGetComputeMode": 3, "nvmlDeviceGetMigMode": (1, 1),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=96 << 30),
        }  # fmt: skip
        if name == "nvmlShutdown":
            self.closed = True
            return lambda: None
        if name in self.broken or name not in answers:
            raise AttributeError(name)
        return lambda *_: answers[name]


def two_gpus(**facts: str) -> Machine:
    """Two GPUs at Gen1 x16 below one socket, which could do Gen5."""
    nodes = (Node("socket0", NodeKind.SOCKET), Node("gpu0", NodeKind.GPU), Node("gpu1", NodeKind.GPU))
    links = tuple(
        Link(a, b, LinkKind.PCIE, 5, 16, 1, 16)
        for gpu in ("gpu0", "gpu1")
        for a, b in (("socket0", gpu), (gpu, "socket0"))
    )
    return Machine(Topology(nodes, links), Fabric.PCIE, 2, facts=facts)


def test_this_machine_is_looked_at_within_two_seconds(budget: Callable[..., Callable[..., object]]) -> None:
    """Whatever it is: a machine, facts without an empty one, no exception."""
    here: Any = budget(2.0)(look)
    assert here.machine.ranks >= 1
    assert {"GPUs", "fabric"} <= set(here.facts)
    assert all(here.facts.values())


def test_cards_are_read_and_cleaned() -> None:
    library = Library()
    card, _ = query(library)
    assert card == Card("00000000:4f:00.0", "Card[2J", 256, "off", "exclusive process", "on", 96 << 10)
    assert library.closed


@pytest.mark.parametrize(
    "broken",
    ["nvmlDeviceGetPciInfo", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo",
     "nvmlDeviceGetName", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode"],
)  # fmt: skip
def test_what_a_card_does_not_answer_stays_empty(broken: str) -> None:
    """The other facts of the card are kept."""
    card, _ = query(Library(broken))
    values = [card.busid, card.model, card.bar1_mib, card.persistence, card.compute_mode, card.mig, card.memory_mib]
    assert sum(not value for value in values) == 1


def test_a_driver_that_hangs_costs_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is a reason, not an exception, and it comes in time."""
    real = child.output
    monkeypatch.setattr(child, "output", lambda _command, deadline, name: real(("sleep", "60"), deadline, name=name))
    start = time.monotonic()
    assert "no answer within" in str(driver.ask(0.3))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '[{"strange": 1}]', "{}x"])
def test_an_answer_that_is_none_is_a_reason(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "output", lambda *_args, **_kw: text)
    assert isinstance(driver.ask(1.0), str)


def test_a_broken_library_costs_only_its_facts(tmp_path: Path) -> None:
    """NVML that cannot be started: the rest of the machine is there, and the failure is named."""
    here = look(root=tmp_path, environ={}, library=Library("nvmlInit"))
    assert here.machine.topology.gpus == ()
    assert any("nvml" in text.lower() for text in here.missing)


def test_warnings_of_a_machine() -> None:
    """ACS, IOMMU, P2P, links below their best, busy GPUs: each with a remedy."""
    found = machine_warnings(two_gpus(acs="on", iommu="on", p2p="ns", busy_gpus="0000:01:00.0"))
    told = " | ".join(one.line for one in found)
    for words in ("P2P is off", "ACS", "IOMMU", "Gen1 x16 instead of Gen5 x16", "in use"):
        assert words in told
    assert all(one.remedy and one.source for one in found)
    quiet = machine_warnings(two_gpus(acs="off", iommu="off", p2p="ok"))
    assert [one.text for one in quiet] == ["gpu0, gpu1 at Gen1 x16 instead of Gen5 x16"]


@pytest.mark.parametrize(
    ("arch", "cpu", "sockets", "nccl", "warned"),
    [
        ("sm_120", "AMD EPYC 9575F", "2", "2.30.7", True),
        ("sm_120", "AMD EPYC 9575F", "2", "2.31.2", False),
        ("sm_120", "AMD EPYC 9575F", "1", "2.30.7", False),
        ("sm_120", "Intel Xeon", "2", "2.30.7", False),
        ("sm_90", "AMD EPYC 9575F", "2", "2.30.7", False),
        ("sm_120", "AMD EPYC 9575F", "2", "", False),
    ],
)
def test_the_fallback_of_nccl_is_foreseen(arch: str, cpu: str, sockets: str, nccl: str, warned: bool) -> None:  # noqa: FBT001 - a table
    """Two AMD sockets, a GPU from sm_100 on and NCCL up to 2.30: all three are needed."""
    machine = two_gpus(arch=arch, cpu=cpu, sockets=sockets)
    machine = dataclasses.replace(machine, software={"nccl": nccl} if nccl else {})
    assert any("0.1 GB/s" in one.text for one in machine_warnings(machine)) is warned


def test_pairs_beyond_a_switch_go_through_host_memory() -> None:
    """Told once, and not where the variable is set, nor for pairs with NVLink."""
    gpus = tuple(NvmlGpu(i, f"0000:0{i}:00.0") for i in range(2))
    capture = NvmlCapture(gpus, (Pair(gpus[0].busid, gpus[1].busid, "SYS"),))
    machine = two_gpus()
    found = Discovery(machine.topology, (), capture)
    assert any("SHM" in one.text for one in warnings_of(machine, found, (), {}))
    assert not any("SHM" in one.text for one in warnings_of(machine, found, (), {"NCCL_P2P_LEVEL": "SYS"}))
    near = Discovery(machine.topology, (), NvmlCapture(gpus, (Pair(gpus[0].busid, gpus[1].busid, "PIX"),)))
    assert not any("SHM" in one.text for one in warnings_of(machine, near, (), {}))


def test_warnings_of_cards_and_container() -> None:
    card = Card("0", "", 256, "off", "exclusive process", "on", 96 << 10)
    machine = two_gpus(shm_mib="64", pidfd="pidfd_getfd: Operation not permitted", numa_balancing="1")
    told = " | ".join(one.line for one in warnings_of(machine, Discovery(machine.topology, ()), (card, card), {}))
    for words in ("MIG", "exclusive", "persistence", "BAR1", "64 MiB", "SYS_PTRACE", "NUMA balancing"):
        assert words in told


def test_a_host_without_gpus_has_no_warnings_about_gpus() -> None:
    machine = Machine(Topology((), ()), Fabric.HOST, 8, facts={"pidfd": "pidfd_getfd: denied", "iommu": "on"})
    assert warnings_of(machine, Discovery(machine.topology, ()), (), {}) == ()


def test_host_state_of_a_recorded_tree(tmp_path: Path) -> None:
    """Files that are there are read; files that are not cost nothing."""
    (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text("1\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text("Name:\tx\nSeccomp:\t2\n")
    (tmp_path / ".dockerenv").touch()
    facts = container.host_state(tmp_path, {"PATH": ""})
    assert (facts["ptrace_scope"], facts["seccomp"], facts["container"]) == ("1", "filter", "docker")
    assert "shm_mib" not in facts
    assert facts["mps"].startswith("off")


def test_pairs_of_gpus_are_told_one_by_one() -> None:
    """Each pair with its level; in words, those that differ from the rest by name."""
    gpus = tuple(NvmlGpu(i, f"0000:0{i}:00.0") for i in range(3))
    good = {"read": "ok", "write": "ok", "atomics": "not supported"}
    pairs = (
        Pair(gpus[0].busid, gpus[1].busid, "PIX", good),
        Pair(gpus[0].busid, gpus[2].busid, "SYS", {**good, "read": "chipset not supported"}),
        Pair(gpus[1].busid, gpus[2].busid, "SYS", good),
    )
    rows = pairs_of(NvmlCapture(gpus, pairs))
    assert rows[1] == {"a": 0, "b": 2, "level": "SYS", **good, "read": "chipset not supported"}
    told = facts_of(two_gpus(), (), rows)["P2P"]
    assert told == (
        "read 2 of 3 pairs (chipset not supported: 0-2); write 3 of 3 pairs; atomics 0 of 3 pairs (not supported)"
    )
    assert pairs_of(None) == []
    assert facts_of(two_gpus(p2p="ok", p2p_atomics="ns"))["P2P"] == "memory ok, atomics ns"


def test_gpus_at_numa_nodes_that_are_not_ours(tmp_path: Path) -> None:
    """Where each GPU is, where this process may run, and a warning where they do not meet."""
    nodes = tuple(Node(f"gpu{i}", NodeKind.GPU, {"numa": str(i)}) for i in range(2))
    machine = Machine(Topology(nodes, ()), Fabric.PCIE, 2, facts={"numa_allowed": "0"})
    assert facts_of(machine)["NUMA binding"] == "gpu0 at node 0; gpu1 at node 1; processors of node 0 allowed"
    told = [one.text for one in warnings_of(machine, Discovery(machine.topology, ()), (), {})]
    assert [text for text in told if text.startswith("gpu1 at node 1: ")]
    both = dataclasses.replace(machine, facts={"numa_allowed": "0,1"})
    assert not [one for one in warnings_of(both, Discovery(machine.topology, ()), (), {}) if "at node" in one.text]


@pytest.mark.parametrize(("lists", "allowed"), [
    ({"node0": "0-4095", "node1": "5000-5001"}, "0"), ({"node0": "x-y,", "node1": "0-99999999"}, "1"), ({}, None),
])  # fmt: skip
def test_nodes_of_allowed_processors(tmp_path: Path, lists: dict[str, str], allowed: str | None) -> None:
    for name, text in lists.items():
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
        (tmp_path / "sys/devices/system/node" / name / "cpulist").write_text(text)
    assert container.host_state(tmp_path, {"PATH": ""}).get("numa_allowed") == allowed


def test_the_nccl_that_is_loaded_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the package's library is loaded, in a process of its own; verdicts are about that version."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build a library that answers as NCCL does")
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    source = tmp_path / "nccl.c"
    source.write_text("int ncclGetVersion(int* version) { *version = 23007; return 0; }")
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(folder / "libnccl.so.2")], check=True)
    code = loaded._CODE.replace('find_spec("torch")', "find_spec('no_torch')")
    monkeypatch.setattr(loaded, "_CODE", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}")
    assert loaded.ask(10.0) == {"nccl-loaded": "2.30.7"}
    monkeypatch.setattr(here_module, "_loaded", lambda _: {"nccl-loaded": "2.30.7", "nccl": "2.28.9"})
    seen = look(root=tmp_path, environ={}, library=Library("nvmlInit"), deep=True)
    assert seen.facts["NCCL"] == "2.28.9 (package), 2.30.7 (loaded)"
    assert seen.machine.version("nccl") == (2, 30, 7)


@pytest.mark.parametrize(("text", "options"), [
    ('ResmanDebugLevel: 4294967295\nRegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"\n',
     "ForceP2P=0x11;RMForceP2PType=1"),
    ('RegistryDwords: ""\n', None), ("", None), ('RegistryDwords: "\x1b[2J' + "x" * 900, "[2J" + "x" * 197),
])  # fmt: skip
def test_options_of_the_kernel_module(tmp_path: Path, text: str, options: str | None) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/params").write_text(text)
    assert container.host_state(tmp_path, {"PATH": ""}).get("driver_options") == options


@pytest.mark.parametrize(
    ("level", "arch", "options", "warned"),
    [
        ("NODE", "sm_120", "", True),
        ("NODE", "sm_120", "ForceP2P=0x11", False),
        ("PIX", "sm_120", "", False),
        ("NODE", "sm_90", "", False),
    ],
)
def test_loads_that_may_be_staged_are_foreseen(level: str, arch: str, options: str, warned: bool) -> None:  # noqa: FBT001 - a table
    """Cards of the report, no common switch, no option: all three are needed."""
    gpus = tuple(NvmlGpu(i, f"0000:0{i}:00.0") for i in range(2))
    capture = NvmlCapture(gpus, (Pair(gpus[0].busid, gpus[1].busid, level, {"read": "ok"}),))
    machine = two_gpus(arch=arch, driver_options=options)
    told = [
        one for one in warnings_of(machine, Discovery(machine.topology, (), capture), (), {}) if "staged" in one.text
    ]
    assert bool(told) is warned
    assert all("collbench probe" in one.remedy and one.source for one in told)


def test_a_running_daemon_is_seen(tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    facts = container.host_state(tmp_path, {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert facts["mps"] == "a daemon is running"


def test_descriptors_of_a_child_are_taken_and_given_back() -> None:
    """No descriptor and no child stays behind."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts, no paths
    assert container.pidfd_state()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - same


@pytest.mark.parametrize("text", ["", "traceback", "[]x"])
def test_a_torch_that_does_not_load_gives_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "output", lambda *_args, **_kw: text)
    assert loaded.ask(1.0) == {}


def test_findings_read_as_one_line() -> None:
    assert findings.Finding("a").line == "a"
    assert findings.Finding("a", "b").line == "a: b"
    assert json.dumps(findings.Finding("a", "b").line)
