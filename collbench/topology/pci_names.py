"""What a PCI device is, by the names that lspci prints."""

import re

from collbench.topology.graph import NodeKind

__all__ = ["kind_of_class", "kind_of_name", "model_of", "vendor_of"]

_NO_GPU = re.compile(
    r"Audio|USB|UCSI|NVSwitch|SMBus|Bridge|Serial bus|Root Port|PCIe Switch|Ethernet|Memory|IDE|SATA|I2C|Co-?processor"
    r"|DMA|BlueField|ConnectX|Tegra|nForce|MCP\d|PSP|IOMMU|Host|Switch|Upstream|Downstream",
    re.IGNORECASE,
)
_CHIP = re.compile(r"\b(?:G[AFHKMPTVB]\d{2,3}[A-Z]{0,3}|NV\d{2}|TU\d{3}[A-Z]*|AD\d{3}[A-Z]*|GM\w{3,5}|GK\w{3,5})\b")
_BOARD = re.compile(
    r"\[(?:GeForce|Quadro|RTX|GTX|Tesla|A\d+|H\d+|B\d+|L\d+|V100|P\d+|T\d+|NVIDIA|GH\d+|GB\d+|TITAN)", re.IGNORECASE
)
_NVIDIA_UNNAMED = re.compile(r"(?:NVIDIA Corporation Device (?:\[10de:)?|10de:)([0-9a-f]{4})\b", re.IGNORECASE)
_NVIDIA_NO_GPU = {"1ac0", "1ac1", "1ac2", "1af1", "22a3", "22a4", "22b1", "22b2", "22b8"}
"""NVSwitches (V100, A100, H100) and root ports of Grace, by the PCI ID list."""

_AMD_GPU = re.compile(
    r"\[AMD(?:/ATI)?\].{0,80}?(?:Instinct|Radeon|FirePro|\bMI\d{2,3}|Aldebaran|Aqua Vanjaram|Arcturus|Vega|Navi)"
)
_INTEL_GPU = re.compile(r"Intel Corporation.{0,80}?(?:Data Center GPU|Ponte Vecchio|\bDG[12]\b|\[Arc|Battlemage)")
_NIC = re.compile(
    r"^15b3:|Ethernet|ConnectX|Infini-?[Bb]and|\bMT\d{4,5}\b|Elastic (?:Network|Fabric)|\bEFA\b|Omni-Path|NetXtreme"
    r"|NetLink|\bBCM57|\bHFI\b|Gigabit|BlueField-\d|Slingshot|\bE810\b|\bX[57]10\b|\b82599|Virtio network|\bIPU\b",
)
_NO_NIC = re.compile(r"Virtual Function|SoC Management|Crypto|\bDMA\b|NVMe|SNAP|Bridge|Management|Auxiliary|Wireless")
_CLASS_WORDS = {
    "VGA compatible controller": "0300", "3D controller": "0302", "Display controller": "0380",
    "Processing accelerators": "1200", "Ethernet controller": "0200", "Infiniband controller": "0207",
    "InfiniBand controller": "0207", "Network controller": "0280", "PCI bridge": "0604", "Fabric controller": "0208",
}  # fmt: skip
_VENDORS = {"10de": "NVIDIA Corporation", "1002": "Advanced Micro Devices", "8086": "Intel Corporation"}


def vendor_of(name: str) -> str:
    """`0x10de`, `0x1002` or `0x8086` of the makers of GPUs; empty for others."""
    small = name.lower()  # older lists of names write nVidia
    found = next(
        (c for c, text in _VENDORS.items() if small.startswith((text.lower(), f"{c}:")) or f"[{c}:" in small), ""
    )
    return f"0x{found}" if found else ""


def kind_of_name(name: str, function: int) -> NodeKind | None:
    """GPU or NIC by the name alone, as in a tree; None for anything else, and for what has no name."""
    unnamed = _NVIDIA_UNNAMED.match(name)
    if unnamed:
        return NodeKind.GPU if function == 0 and unnamed[1].lower() not in _NVIDIA_NO_GPU else None
    if name.lower().startswith("nvidia corporation") and not _NO_GPU.search(name):
        return NodeKind.GPU if _CHIP.search(name) or _BOARD.search(name) else None
    if (_AMD_GPU.search(name) or _INTEL_GPU.search(name)) and not _NO_GPU.search(name):
        return NodeKind.GPU
    return NodeKind.NIC if _NIC.search(name) and not _NO_NIC.search(name) else None


def kind_of_class(pci_class: str, name: str) -> tuple[NodeKind | None, bool]:
    """GPU or NIC by the class as lspci prints it (words, or four digits), and whether it is a bridge to another bus."""
    digits = re.search(r"\[([0-9a-f]{4})\]$", pci_class.strip())
    code = digits[1] if digits else _CLASS_WORDS.get(pci_class.strip(), pci_class.strip().lower())
    if code == "0604":
        return None, True
    if code[:2] in {"03", "12"} and vendor_of(name) and not re.search("NVSwitch", name):
        return NodeKind.GPU, False
    if code[:2] == "02" and not re.search("Virtual Function|Wireless", name):
        return NodeKind.NIC, False
    return None, False


def model_of(name: str) -> str:
    """Name without revision and programming interface."""
    return re.sub(r"\s*\((?:rev|prog-if) [^()]*\)?", "", name).strip()
