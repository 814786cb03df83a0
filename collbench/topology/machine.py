"""The machine as algorithms and gates see it: topology, software and a fingerprint."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collbench.errors import InvalidError
from collbench.results.kinds import flag, table, text, texts, whole
from collbench.results.records import MAX_RANKS, Fabric
from collbench.topology.graph import NodeKind, Topology, TopologyError

__all__ = ["Machine"]


@dataclass(frozen=True)
class Machine:
    """What `Algorithm.support` may ask.

    `software` maps names to versions as text, absent where not installed: `python`, `numpy`, `torch`, `cuda` (runtime
    that torch was built for), `driver`, `nccl`, `cuda-core`, ... `facts` holds what else was found out, as text: `p2p`
    (`ok`, `ns`, ...), `p2p_atomics`, `multicast`, `arch` (`sm_90`), `host_arch` (`x86_64`), `memory_gib`, `numa_nodes`.
    `hosts` counts nodes; `ranks` is the world size; `share_gpu` says that several ranks use one GPU on purpose.
    """

    topology: Topology
    fabric: Fabric
    ranks: int
    hosts: int = 1
    share_gpu: bool = False
    software: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def arch(self) -> str:
        """Compute capability of the GPUs as `sm_90`; empty without a GPU."""
        return self.facts.get("arch", "")

    def version(self, name: str) -> tuple[int, ...] | None:
        """Numeric version of a piece of software, None where it is not installed: `(2, 28, 9)`."""
        text = self.software.get(name)
        if text is None:
            return None
        parts = (part for part in text.split("+")[0].split("."))
        return tuple(int(digits) for part in parts if (digits := "".join(c for c in part if c.isdigit())))

    @property
    def fingerprint(self) -> dict[str, dict[str, str]]:
        """`hard` keys must agree before two runs are compared, `soft` ones are shown when they differ."""
        models = sorted({n.attributes.get("model", "") for n in self.topology.nodes if n.kind is NodeKind.GPU})
        hard = {
            "topology": self.topology.digest, "gpu": ", ".join(models), "fabric": str(self.fabric),
            "ranks": str(self.ranks), "hosts": str(self.hosts), "rank_map": _rank_map(self.topology),
        }  # fmt: skip
        hard |= {name: self.software.get(name, "") for name in ("driver", "cuda", "nccl", "torch")}
        hard |= {name: self.facts.get(name, "") for name in ("p2p", "acs", "link_generation")}
        soft = {k: v for k, v in {**self.software, **self.facts}.items() if k not in hard}
        return {"hard": hard, "soft": soft}

    def as_dict(self) -> dict[str, Any]:
        """JSON form, kept in `run.json`."""
        return {
            "topology": self.topology.as_dict(), "fabric": str(self.fabric), "ranks": self.ranks, "hosts": self.hosts,
            "share_gpu": self.share_gpu, "software": dict(self.software), "facts": dict(self.facts),
            "fingerprint": self.fingerprint,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Machine":
        """Inverse of `as_dict`.

        Raises:
            TopologyError: a field is missing or is of the wrong kind.
        """
        try:
            return cls(
                Topology.from_dict(table(data, "topology")), Fabric(text(data, "fabric")),
                whole(data, "ranks", 1, MAX_RANKS), whole(data, "hosts", 1, MAX_RANKS), flag(data, "share_gpu"),
                texts(data, "software"), texts(data, "facts"),
            )  # fmt: skip
        except TopologyError:
            raise
        except (InvalidError, ValueError) as error:
            raise TopologyError(f"machine: {error}") from None


def _rank_map(topology: Topology) -> str:
    """Which rank sits below which switch, as a short hash: the order of GPUs relative to their groups."""
    where = {gpu: index for index, group in enumerate(topology.groups) for gpu in group}
    return hashlib.sha256(json.dumps([where.get(gpu, -1) for gpu in topology.gpus]).encode()).hexdigest()[:16]
