"""NVML: a driver that answers, answers half, hangs, dies or lies."""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.topology import nvml
from collbench.topology.graph import LinkKind, NodeKind, TopologyError


class NotSupportedError(Exception):
    """What pynvml raises for what a card cannot say."""


class FakeNvml:
    """Looks like pynvml: `gpus` by index with their facts, `levels` and `p2p` by pairs of indices."""

    NVML_P2P_CAPS_INDEX_READ = (0,)  # the real module's mistake: nobody may pass it on
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, *busids: str, levels: dict[tuple[int, int], int] | None = None, **facts: Any) -> None:
        self.busids, self.levels, self.facts = busids, levels or {}, facts
        self.calls: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's name
        self.calls.append("init")

    def nvmlShutdown(self) -> None:  # noqa: N802 - pynvml's name
        self.calls.append("shutdown")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            return self.answer(name, *arguments)

        return call

    def answer(self, name: str, *arguments: Any) -> Any:
        if name in self.facts:
            fact = self.facts[name]
            return fact(*arguments) if callable(fact) else fact
        if name == "nvmlDeviceGetCount":
            return len(self.busids)
        if name == "nvmlDeviceGetHandleByIndex":
            return arguments[0]
        if name == "nvmlDeviceGetPciInfo":
            return SimpleNamespace(busId=self.busids[arguments[0]])
        if name == "nvmlDeviceGetTopologyCommonAncestor":
            return self.levels[tuple(sorted(arguments))]
        if name == "nvmlDeviceGetP2PStatus":
            assert isinstance(arguments[2], int), "an index, not the tuple"
            return 0
        raise NotSupportedError("Not Supported")


FULL: dict[str, Any] = {
    "nvmlDeviceGetName": b"NVIDIA RTX PRO 6000",
    "nvmlDeviceGetCudaComputeCapability": (12, 0),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=96 << 30),
    "nvmlDeviceGetNumaNodeId": 0,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5, "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkWidth": 16, "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlSystemGetDriverVersion": "580.82.07", "nvmlSystemGetCudaDriverVersion": 13000,
    "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}abc",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def four(**facts: Any) -> FakeNvml:
    """Four GPUs, two and two below a switch, listed against their bus order."""
    levels = {(0, 1): 10, (2, 3): 20, (0, 2): 50, (0, 3): 50, (1, 2): 50, (1, 3): 50}
    busids = ("00000000:81:00.0", "00000000:82:00.0", "00000000:01:00.0", "00000000:02:00.0")
    return FakeNvml(*busids, levels=levels, **{**FULL, **facts})


def test_gpus_by_bus_id() -> None:
    """GPUs come in bus order with their numbers, present and possible link; no UUID is kept."""
    capture = nvml.read(four())
    assert [gpu.busid for gpu in capture.gpus] == ["0000:01:00.0", "0000:02:00.0", "0000:81:00.0", "0000:82:00.0"]
    assert [gpu.index for gpu in capture.gpus] == [2, 3, 0, 1]
    gpu = capture.gpus[0]
    assert (gpu.generation_max, gpu.generation, gpu.width_max, gpu.width) == (5, 1, 16, 8)
    assert (gpu.model, gpu.compute_capability, gpu.memory_mib) == ("NVIDIA RTX PRO 6000", "12.0", 96 << 10)
    assert (capture.driver, capture.cuda_driver) == ("580.82.07", "13.0")
    assert "GPU-" not in str(capture.as_dict())
    assert nvml.NvmlCapture.from_dict(capture.as_dict()) == capture


def test_pairs_and_topology() -> None:
    """Levels become switches and sockets, P2P states come by name, what the link does now stands beside what it can."""
    capture = nvml.read(four(nvmlDeviceGetNumaNodeId=lambda handle: 1 if handle < 2 else 0))
    assert {pair.level for pair in capture.pairs} == {"PIX", "PXB", "SYS"}
    assert capture.pairs[0].p2p == {"read": "ok", "write": "ok", "atomics": "ok"}
    topology = nvml.to_topology(capture)
    assert topology.groups == (("gpu0", "gpu1"), ("gpu2", "gpu3"))
    assert topology.sockets == ("socket0", "socket1")
    up = topology.route("gpu0", "gpu1")[0]
    assert (up.link_class, up.current_generation, up.current_width) == ("pcie5x16", 1, 8)
    assert topology.node("gpu0").attributes["arch"] == "sm_120"


def test_nested_switches() -> None:
    """PIX pairs below a PXB: leaf switches below one that joins them, a lone GPU beside them."""
    levels = {(a, b): 20 for a in range(5) for b in range(a + 1, 5)} | {(0, 1): 10, (2, 3): 10}
    capture = nvml.read(FakeNvml(*(f"0000:0{i + 1}:00.0" for i in range(5)), levels=levels))
    topology = nvml.to_topology(capture)
    assert topology.groups == (tuple(f"gpu{i}" for i in range(5)),)
    assert sum(node.kind is NodeKind.SWITCH for node in topology.nodes) == 3
    assert [len(topology.route("gpu0", f"gpu{i}")) for i in (1, 2, 4)] == [2, 4, 3]


def linked(remote: Callable[[int, int], str], kind: int, links: int) -> FakeNvml:
    return four(
        nvmlDeviceGetNvLinkState=lambda _, link: 1 if link < links else 0,
        nvmlDeviceGetNvLinkVersion=6,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, link: SimpleNamespace(busId=remote(handle, link)),
        nvmlDeviceGetNvLinkRemoteDeviceType=kind,
        nvmlDeviceGetCudaComputeCapability=(9, 0),
    )


def test_nvlinks_to_neighbours_and_switches() -> None:
    """Links to a GPU join the two, links to NVSwitch chips end at one NVSwitch; the width counts links."""
    partner = {0: "00000000:82:00.0", 1: "00000000:81:00.0", 2: "00000000:02:00.0", 3: "00000000:01:00.0"}
    topology = nvml.to_topology(nvml.read(linked(lambda handle, _: partner[handle], 0, 4)))
    assert [link.link_class for link in topology.route("gpu0", "gpu1")] == ["nvlink4x4"]
    assert len(topology.route("gpu0", "gpu2")) > 1
    chips = nvml.to_topology(nvml.read(linked(lambda _, link: f"00000000:A{link % 4}:00.0", 2, 18)))
    assert [link.link_class for link in chips.route("gpu0", "gpu3")] == ["nvlink4x18", "nvlink4x18"]
    assert sum(node.kind is NodeKind.NVSWITCH for node in chips.nodes) == 1


def test_hidden_neighbours_join_nobody() -> None:
    """NVLinks to a GPU outside the container end at a node of their own, so nothing routes through them."""
    topology = nvml.to_topology(nvml.read(linked(lambda *_: "00000000:F0:00.0", 0, 2)))
    assert {link.kind for link in topology.route("gpu0", "gpu2")} == {LinkKind.PCIE, LinkKind.SOCKET} - (
        {LinkKind.SOCKET} if len(topology.sockets) == 1 else set()
    )


def test_a_card_that_says_nothing_still_counts() -> None:
    """Not Supported costs the fact and is noted once; the GPU and its bus id remain."""
    capture = nvml.read(FakeNvml("00000000:01:00.0", "00000000:02:00.0", levels={(0, 1): 30}))
    assert [gpu.busid for gpu in capture.gpus] == ["0000:01:00.0", "0000:02:00.0"]
    assert "nvmlDeviceGetName: Not Supported (2 times)" in capture.problems
    topology = nvml.to_topology(capture)
    assert topology.groups == ()
    assert topology.route("gpu0", "gpu1")


def test_unknown_levels_are_hidden_pairs() -> None:
    """A pair whose level the driver does not tell is listed as hidden, not guessed."""
    assert nvml.to_topology(nvml.read(FakeNvml("0:1:0.0", "0:2:0.0"))).hidden == (("gpu0", "gpu1"),)


@pytest.mark.parametrize(
    ("choice", "busids"),
    [
        ("3,0", ["0000:82:00.0", "0000:01:00.0"]),
        ("", []),
        ("1,-1,2", ["0000:02:00.0"]),
        ("GPU-2a,GPU-0", ["0000:01:00.0", "0000:81:00.0"]),
        ("9", []),
    ],
)
def test_visible_devices(choice: str, busids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES chooses and orders, by numbers in bus order or by beginnings of UUIDs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", choice)
    capture = nvml.read(four())
    assert [gpu.busid for gpu in capture.usable] == busids
    assert [n.attributes["busid"] for n in nvml.to_topology(capture).nodes if n.kind is NodeKind.GPU] == busids


def test_shut_down_also_after_a_failure() -> None:
    """NVML is closed again whatever happened."""
    library = four()
    nvml.read(library)
    assert library.calls == ["init", "shutdown"]


def raising(*_: object) -> None:
    raise NotSupportedError("Driver/library version mismatch")


def test_a_driver_that_refuses_is_named() -> None:
    """A failing start is the one named error with the driver's words."""
    library = four()
    library.nvmlInit = raising  # type: ignore[method-assign]
    with pytest.raises(TopologyError, match="NVML cannot be started: Driver/library version mismatch"):
        nvml.read(library)


def test_a_hanging_library_costs_the_deadline_only() -> None:
    """An answer that never comes is given up after the deadline."""
    library = four(nvmlDeviceGetName=lambda _: time.sleep(3))
    begin = time.monotonic()
    with pytest.raises(TopologyError, match=r"no answer within 0.1 s"):
        nvml.read(library, deadline_s=0.1)
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import time; time.sleep(60)", "no answer within 0.3 s"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("print('no json')", "no JSON"),
        ("print('{}')", "NVML capture: KeyError"),
        ("import sys; sys.exit('NVML Shared Library Not Found')", "Shared Library Not Found"),
    ],
)
def test_a_process_that_hangs_dies_or_lies(code: str, says: str) -> None:
    """Whatever becomes of the process that asks the driver, the answer is the one named error, soon."""
    begin = time.monotonic()
    with pytest.raises(TopologyError, match=says):
        nvml.read(deadline_s=0.3 if "60" in code else 10.0, command=[sys.executable, "-c", code])
    assert time.monotonic() - begin < 5


def test_a_program_that_is_not_there() -> None:
    """A missing program is the named error, too."""
    with pytest.raises(TopologyError, match="cannot be started"):
        nvml.read(command=["/nowhere/python"])


def test_the_real_process_answers_or_says_why() -> None:
    """On this machine the child gives a capture, or the reason why there is none."""
    if not nvml.is_present():
        with pytest.raises(TopologyError, match=r"^NVML"):
            nvml.read()
        return
    assert all(gpu.busid for gpu in nvml.read().gpus)
