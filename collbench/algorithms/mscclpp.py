"""MSCCL++: packet algorithms that store data with flags, and channel algorithms that advance semaphores on the peer.

Its own package is read in 0.9.0; it is installed from its repository, and collbench does not start it. What runs is its
one-shot operator inside sgl-kernel, later sglang-kernel, up to 0.4.3.
"""

from collbench.algorithms.base import Foreign
from collbench.algorithms.known_system import (
    NOTHING_AGAINST,
    Check,
    needs_bytes,
    needs_p2p,
    needs_package,
    needs_ranks,
    no_remote_atomics,
    one_host,
    sharing_unsaid,
    system,
)
from collbench.algorithms.library_modules import SGL_KERNEL
from collbench.algorithms.library_system import Way, library
from collbench.contention.traffic import Move, Schedule, one_stage, two_stage
from collbench.results.records import Call, Fabric, Support
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine

__all__ = ["ALGORITHMS", "SYSTEMS"]

_REFERENCE = "https://github.com/microsoft/mscclpp"
_SOURCE = "MSCCL++ 0.9.0; mscclpp issue 397"
_INSIDE = "sglang-kernel 0.4.3 allreduce.py, SGLang 0.5.9 pymscclpp.py"
_LAST = (0, 4, 3)
_OLD_KERNEL = "pip install sglang-kernel==0.4.3, built for torch 2.11"
_MOST_BYTES = 1 << 20
_INSTALL = needs_package("mscclpp", "pip install from its repository; it needs cupy and cuda-bindings")


def _collapse(machine: Machine, call: Call) -> Support | None:
    """Store-only, so right on PCIe; pushing to all at once is the worst case of write collapse."""
    if machine.fabric not in {Fabric.PCIE, Fabric.MIXED} or call.world_size == 2:  # noqa: PLR2004 - no fan-out
        return None
    reason = (
        "it needs peer access and Transport.CudaIpc, no NVLink, and stores only, so it should be right on PCIe; every "
        "rank writes to every other one at once, slow on fabrics with write collapse; nobody has published a run"
    )
    return Support.unknown(reason, "measure it, or prefer an island scheme", _SOURCE)


_COMMON: tuple[Check, ...] = (sharing_unsaid("MSCCL++", _SOURCE), one_host, needs_p2p, _INSTALL)
_PACKET = (*_COMMON, needs_bytes("the packet algorithm", _MOST_BYTES, 8, _SOURCE), _collapse)


def _allpair(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PUSH, wire_factor=2.0, protocol="flag in every 8 bytes")


def _two_phase(call: Call, topology: Topology) -> Schedule:
    del topology
    return two_stage(call, Move.PUSH, wire_factor=2.0, protocol="flag in every 8 bytes")


def _fullmesh(call: Call, topology: Topology) -> Schedule:
    del topology
    return two_stage(call, Move.PULL, protocol="barriers")


def _operators(machine: Machine, call: Call) -> Support | None:
    """They were there up to sglang-kernel 0.4.3; the wheels of 0.4.4 to 0.4.10 hold no file of them."""
    del call
    version, told = machine.version("sgl-kernel"), machine.software.get("sgl-kernel", "")
    if not version:
        return Support.unknown("the version of sgl-kernel was not said", "--with sgl-kernel=VERSION", _INSIDE)
    if version > _LAST:
        return Support.no(f"sglang-kernel {told} has no operators of MSCCL++ any more", _OLD_KERNEL, _INSIDE)
    return None


ALGORITHMS = (
    library(
        "mscclpp_one_shot_packet", "one-shot push in packets, by the operators inside sgl-kernel", _REFERENCE,
        (needs_ranks("its one-shot kernel", (8,), _INSIDE),
         needs_bytes("its one-shot kernel", _MOST_BYTES, 16, _INSIDE), one_host, needs_p2p,
         needs_package("sgl-kernel", _OLD_KERNEL), _operators, _collapse),
        Support.yes(NOTHING_AGAINST, _INSIDE), _allpair, family="mscclpp",
        # it would take NVLink multicast for its buffers where it can
        way=Way("collbench.algorithms.mscclpp_runner:OneShotPacket", environment={"MSCCLPP_FORCE_DISABLE_NVLS": "1"},
                foreign=Foreign(SGL_KERNEL)),
    ),
)  # fmt: skip
"""What collbench runs of it."""

SYSTEMS = (
    system(
        "mscclpp_allpair_packet", "one-shot push, 4 bytes of data and 4 of flag", _REFERENCE, _PACKET,
        Support.yes(NOTHING_AGAINST, _SOURCE), _allpair, family="mscclpp",
    ),
    system(
        "mscclpp_packet", "reduce-scatter and all-gather by packets", _REFERENCE, _PACKET,
        Support.yes(NOTHING_AGAINST, _SOURCE), _two_phase, family="mscclpp",
    ),
    system(
        "mscclpp_fullmesh", "reduce-scatter and all-gather behind semaphores", _REFERENCE,
        (*_COMMON, no_remote_atomics("MSCCL++'s fullmesh", _SOURCE)), Support.yes(NOTHING_AGAINST, _SOURCE), _fullmesh,
        family="mscclpp",
    ),
)  # fmt: skip
"""Two packet algorithms, and the one for large messages."""
