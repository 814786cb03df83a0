"""PCI facts: bus ids, speeds, classes, payload rates."""

import pytest

from collbench.topology import pcie
from collbench.topology.graph import Link, LinkKind, NodeKind


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("0001:00:1f.7", "0001:00:1f.7"),
        ("3b:0.1", "0000:3b:00.1"),
        ("fffffff:ff:ff.0", "fffffff:ff:ff.0"),
        (" no bus id ", "no bus id"),
    ],
)
def test_bus_ids_of_all_sources_meet(text: str, normal: str) -> None:
    """NVML's, lspci's, sysfs's and NCCL's spellings of one device become one."""
    assert pcie.normal_busid(text) == normal


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("32.0 GT/s PCIe", 5),
        ("16 GT/s", 4),
        ("2.5 GT/s", 1),
        ("64.0 GT/s PCIe", 6),
        ("", 0),
        ("Unknown", 0),
        ("9 GT/s", 0),
    ],
)
def test_speeds_become_generations(text: str, generation: int) -> None:
    """Kernel spellings old and new; what is no known speed is no generation."""
    assert pcie.generation_of(text) == generation
    assert pcie.generation_of(pcie.speed_text(generation)) == generation


def test_payload_follows_the_formula() -> None:
    """Writes of 256 B: Gen3 14.2, Gen4 28.4, Gen5 56.7, Gen6 109 GB/s on 16 lanes, in proportion to the lanes."""
    rates = [pcie.payload_gbps(generation, 16) for generation in (3, 4, 5, 6)]
    assert rates == [pytest.approx(value, abs=0.06) for value in (14.2, 28.4, 56.7, 109.4)]
    assert pcie.payload_gbps(5, 8) == pytest.approx(56.75 / 2, abs=0.01)
    assert pcie.payload_gbps(0, 16) is None
    assert pcie.payload_gbps(5, 0) is None


def test_measured_capacities_stay() -> None:
    """Only what nobody has measured is filled, and says that it is nominal."""
    measured = Link("a", "b", LinkKind.PCIE, 5, 16, capacity_gbps=53.4, provenance="measured")
    unknown = Link("a", "b", LinkKind.PCIE)
    plain = Link("b", "a", LinkKind.NVLINK, 4, 18, provenance="NVML")
    kept, empty, filled = pcie.with_nominal([measured, unknown, plain])
    assert (kept, empty) == (measured, unknown)
    assert filled.capacity_gbps == pytest.approx(370.8)
    assert filled.provenance.startswith("NVML; nominal: ")


@pytest.mark.parametrize(
    ("pci_class", "vendor", "kind"),
    [
        ("0x030200", "0x10de", NodeKind.GPU), ("0x120000", "0x1002", NodeKind.GPU), ("0x030000", "", NodeKind.GPU),
        ("0x030000", "0x1a03", None), ("0x020700", "0x15b3", NodeKind.NIC), ("0x060400", "0x1000", NodeKind.SWITCH),
        ("0x068000", "0x10de", NodeKind.NVSWITCH), ("0x010802", "", None), ("", "", None),
    ],
)  # fmt: skip
def test_classes(pci_class: str, vendor: str, kind: NodeKind | None) -> None:
    """PCI classes become node kinds; consoles and drives are none."""
    assert pcie.class_kind(pci_class, vendor) is kind
