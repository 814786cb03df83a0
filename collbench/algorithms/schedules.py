"""What libraries send, by the shape that they share; each is a `traffic` of records."""

from collbench.contention import own_traffic
from collbench.contention.patterns import two_stage_in_turn
from collbench.contention.traffic import Move, Schedule, one_stage, two_stage
from collbench.results.records import Call
from collbench.topology.graph import Topology

__all__ = ["pulled", "pulled_twice", "pulled_twice_in_turn", "pushed", "pushed_twice", "ring"]

_SENTINEL, _BARRIERS = "data announces itself", "barriers"


def pushed(call: Call, topology: Topology) -> Schedule:
    """Every rank writes its message to all others; the data itself says that it is there."""
    del topology
    return one_stage(call, Move.PUSH, protocol=_SENTINEL)


def pushed_twice(call: Call, topology: Topology) -> Schedule:
    """Shares to their owners, sums to all."""
    del topology
    return two_stage(call, Move.PUSH, protocol=_SENTINEL)


def pulled(call: Call, topology: Topology) -> Schedule:
    """Every rank reads all messages, between two barriers that wait for no writes (vLLM's flags there are volatile)."""
    del topology
    return one_stage(call, Move.PULL, syncs=2, fences=0, protocol=_BARRIERS)


def pulled_twice(call: Call, topology: Topology) -> Schedule:
    """Every rank reads its share, then the sums of the others at once, for which alone a barrier waits."""
    del topology
    return two_stage(call, Move.PULL, fences=(0, 1), protocol=_BARRIERS)


def pulled_twice_in_turn(call: Call, topology: Topology) -> Schedule:
    """The same by vLLM's kernel, which reads the sums of the others one after the other."""
    del topology
    return two_stage_in_turn(call, protocol=_BARRIERS)


def ring(call: Call, topology: Topology) -> Schedule:
    """One stream out of and one into each rank at a time."""
    del topology
    return own_traffic.staged_ring(call, protocol=_SENTINEL)
