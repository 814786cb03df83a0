"""b12x: small all-reduces for sm_120 on PCIe, by pull and by push. Read in its repository of August 2026 and in 1.5.1.

Why it has no runner: its calls take a plan that a session of its own has prepared, for a GPU of sm_12x, and what it
wants (torch 2.12, nvidia-cutlass-dsl 4.8.0) could be tried on none.
"""

from functools import partial

from collbench.algorithms.known_system import (
    Check,
    needs_arch,
    needs_bytes,
    needs_p2p,
    needs_package,
    needs_ranks,
    one_host,
    sharing_unsaid,
    system,
)
from collbench.contention.own_traffic import islands, islands_of
from collbench.contention.traffic import Move, Schedule, one_stage
from collbench.results.records import Call, Support
from collbench.topology.graph import Topology

__all__ = ["SYSTEMS"]

_SOURCE = "b12x repository, August 2026, and b12x 1.5.1 comm/pcie; b12x issue 281"
_REFERENCE = "https://github.com/local-inference-lab/b12x"
_MOST_BYTES = 1 << 20
_RANKS = (2, 4, 8, 12, 16)


def _checks(ranks: tuple[int, ...]) -> tuple[Check, ...]:
    return (
        sharing_unsaid("b12x", _SOURCE), needs_arch("b12x", (12,), "use an algorithm for other GPUs", _SOURCE),
        needs_ranks("b12x", ranks, _SOURCE), needs_bytes("b12x", _MOST_BYTES, 16, _SOURCE), one_host, needs_p2p,
        needs_package("b12x", "pip install b12x, with torch 2.12 or later"),
    )  # fmt: skip


def _pull(call: Call, topology: Topology) -> Schedule:
    del topology
    return one_stage(call, Move.PULL, protocol="barriers")


def _push(call: Call, topology: Topology) -> Schedule:
    if call.world_size <= 4:  # noqa: PLR2004 - above, owners of two islands reduce
        return one_stage(call, Move.PUSH, protocol="data announces itself")
    return islands(call, islands_of(topology, call.world_size), protocol="data announces itself")


_system = partial(system, family="b12x")

SYSTEMS = (
    _system(
        "b12x_oneshot_pull", "stage the input, flag on a line of its own, pull; no end barrier", _REFERENCE,
        _checks((2, 4, 8)), Support.yes("made for sm_120 on PCIe", _SOURCE), _pull,
    ),
    _system(
        "b12x_oneshot_push", "push to all (4 ranks), to the owners of islands (8 to 16)", _REFERENCE, _checks(_RANKS),
        Support.yes("with B12X_PCIE_ONESHOT_PUSH=1", _SOURCE), _push,
    ),
)  # fmt: skip
"""Its small-message all-reduces."""
