"""Parameters of the model: a value, how far it may be off, and who says so. Priors stand in `priors.toml`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError
from collbench.topology.graph import Link, LinkKind
from collbench.topology.toml_table import parse_toml

__all__ = ["Parameter", "Parameters", "priors"]

_PRIOR = "prior: "
_SD = {"measured": 0.03, "reported": 0.15, "nominal": 0.10, "estimated": 0.20}
"""Standard deviation of the logarithm of a number in a topology, by the first word of its source: assumptions."""
_UNKNOWN_SD = 0.20


@dataclass(frozen=True, slots=True)
class Parameter:
    """`value` in the unit of the parameter's name, standard deviation `sd` of its logarithm, and its `provenance`.

    A provenance that begins with `prior: ` rests on no measurement of this machine.

    Raises:
        InvalidError: a value that is not finite and above zero, or a negative spread.
    """

    value: float
    sd: float
    provenance: str

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise InvalidError(f"parameter of {self.provenance!r}: {self.value} is no finite number above zero")
        if not 0 <= self.sd < math.inf:
            raise InvalidError(f"parameter of {self.provenance!r}: spread {self.sd} is no finite number from zero on")

    @property
    def is_prior(self) -> bool:
        """Whether nobody has measured it here."""
        return self.provenance.startswith(_PRIOR)


@dataclass(frozen=True)
class Parameters:
    """All parameters by name. Names are those of `priors.toml`; calibration puts other values under the same names.

    Also `capacity.SRC->DST` and `latency.SRC->DST` for one direction of one link, which overrule the topology.
    """

    known: Mapping[str, Parameter] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Parameter:
        """The parameter of that name.

        Raises:
            InvalidError: there is none.
        """
        if name not in self.known:
            raise InvalidError(f"no parameter {name!r} in the model: see collbench/contention/priors.toml")
        return self.known[name]

    def get(self, name: str) -> Parameter | None:
        """The parameter of that name, or None."""
        return self.known.get(name)

    def replaced(self, changes: Mapping[str, Parameter]) -> "Parameters":
        """These parameters with some of them changed or added."""
        return Parameters({**self.known, **changes})

    def capacity(self, link: Link) -> Parameter | None:
        """Payload of one direction in GB/s; None where nobody knows, so that it binds nobody."""
        return self._of_link("capacity", link, link.capacity_gbps, (link.link_class,))

    def latency(self, link: Link) -> Parameter:
        """One way through one link in us."""
        found = self._of_link("latency", link, link.latency_us, (link.link_class, str(link.kind)))
        return found or self["latency.pcie"]

    def _of_link(self, what: str, link: Link, value: float | None, classes: tuple[str, ...]) -> Parameter | None:
        own = self.get(f"{what}.{link.src}->{link.dst}")
        if own is not None:
            return own
        if value is not None:
            return _from_topology(what, value, link.provenance)
        return next((self.known[name] for word in classes if (name := f"{what}.{word}") in self.known), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON form: name -> {value, sd, provenance}."""
        return {name: asdict(parameter) for name, parameter in self.known.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Parameters":
        """Inverse of `as_dict`.

        Raises:
            InvalidError: a field is missing, or a number is not finite.
        """
        try:
            return cls({
                str(name): Parameter(float(row["value"]), float(row["sd"]), str(row["provenance"]))
                for name, row in data.items()
            })  # fmt: skip
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidError(f"parameters: {type(error).__name__}: {error}") from error


def _from_topology(what: str, value: float, source: str) -> Parameter:
    """A number of the topology; one that was measured counts as known, any other as a prior."""
    parts = [part.strip() for part in source.split(";")]
    mine = next((part.removeprefix(f"{what} ") for part in parts if part.startswith(f"{what} ")), source)
    basis = mine.partition(":")[0].strip()
    if basis == "measured":
        return Parameter(value, _SD[basis], f"topology: {mine}")
    return Parameter(value, _SD.get(basis, _UNKNOWN_SD), f"{_PRIOR}topology: {mine or 'no source'}")


@cache
def priors() -> Parameters:
    """The priors that come with collbench.

    Raises:
        InvalidError: the installed file is damaged.
    """
    path = Path(__file__).with_name("priors.toml")
    try:
        rows = parse_toml(path.read_text(encoding="utf-8"))
        return Parameters({
            name: Parameter(float(row["value"]), float(row["sd"]), _PRIOR + row["source"]) for name, row in rows.items()
        })  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidError(f"{path}: {type(error).__name__}: {error}: install collbench again") from error


def link_kind_of(links: "tuple[Link, ...]") -> str:
    """`nvlink` if no other kind of link is used, else `pcie`: which of NCCL's constants count."""
    return "nvlink" if links and all(link.kind is LinkKind.NVLINK for link in links) else "pcie"
