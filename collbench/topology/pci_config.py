"""PCI configuration space: what kind of port a bridge is, and its access control (ACS) state."""

from collections.abc import Iterator

__all__ = ["DOWNSTREAM", "ROOT_PORT", "UPSTREAM", "acs_flags", "port_type"]

ROOT_PORT, UPSTREAM, DOWNSTREAM = 4, 5, 6
"""Device/port types of the PCI Express capability (PCI Express base specification, 7.5.3.2)."""

_EXPRESS, _ACS = 0x10, 0x000D
_ACS_BITS = ("SV", "TB", "RR", "CR", "UF", "EC", "DT")
_POINTER, _EXTENDED, _END = 0x34, 0x100, 0x1000


def port_type(config: bytes) -> int | None:
    """Device/port type, None where it is not PCI Express or cannot be read (64 bytes are open to everybody)."""
    place = config[_POINTER] & 0xFC if len(config) > _POINTER else 0
    for _ in range(48):  # capabilities are at least 4 bytes long and lie below 256: a longer chain is a loop
        if place < 0x40 or place + 4 > min(len(config), 256):  # noqa: PLR2004 - capabilities lie behind the header
            return None
        if config[place] == _EXPRESS:
            return config[place + 2] >> 4
        place = config[place + 1] & 0xFC
    return None


def acs_flags(config: bytes) -> str | None:
    """Enabled ACS controls as in lspci (`RR,CR,UF`), `off` where none is, None where none can be read.

    RR and CR (request and completion redirect) send traffic between GPUs below one switch through the root complex.
    """
    for identity, place in _extended(config):
        if identity == _ACS and place + 8 <= len(config):
            control = int.from_bytes(config[place + 6 : place + 8], "little")
            return ",".join(name for bit, name in enumerate(_ACS_BITS) if control >> bit & 1) or "off"
    return None


def _extended(config: bytes) -> Iterator[tuple[int, int]]:
    place = _EXTENDED
    for _ in range(_END // 8):
        if place < _EXTENDED or place + 4 > min(len(config), _END):
            return
        header = int.from_bytes(config[place : place + 4], "little")
        if header in {0, 0xFFFFFFFF}:
            return
        yield header & 0xFFFF, place
        place = header >> 20 & 0xFFC
