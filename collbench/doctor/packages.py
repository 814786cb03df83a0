"""Names of packages that some verdict depends on: found by watching what is asked, so that a typo is not an answer."""

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from collbench.algorithms.base import known_systems, registry
from collbench.doctor.described import FABRICS, Described
from collbench.doctor.verdicts import BYTES, call_for, judged
from collbench.errors import UsageError

__all__ = ["asked", "check"]

_NEW, _SOME = "999.0", {"torch": "2.14.1", "cuda": "12.8"}
_ARCHS, _RANKS = ("sm_90", "sm_120"), (2, 8)


class _Watched(Mapping[str, str]):
    """Software of a machine that keeps the names that were asked for; `rest` is the version of what is not given."""

    def __init__(self, given: Mapping[str, str], rest: str, names: set[str]) -> None:
        self._given, self._rest, self._names = given, rest, names

    def __getitem__(self, name: str) -> str:
        self._names.add(name)
        if name in self._given or self._rest:
            return self._given.get(name, self._rest)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        self._names.add(str(name))
        return bool(self._rest) or name in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def asked() -> frozenset[str]:
    """Packages, driver and CUDA, by the names of `Machine.software`, that the rules of any algorithm ask for.

    Rules ask for more or less by what a machine has, so that several machines are tried: with nothing, a torch alone,
    and everything in its newest release.
    """
    names: set[str] = set()
    algorithms = (*registry().values(), *known_systems().values())
    for arch, fabric, ranks in itertools.product(_ARCHS, FABRICS, _RANKS):
        machine = Described(arch, ranks, fabric, "ok").machine()
        for given, rest in (({}, ""), ({**machine.software, **_SOME}, ""), ({}, _NEW)):
            watched = replace(machine, software=_Watched(given, rest, names))
            for algorithm in algorithms:
                judged(algorithm, watched, call_for(algorithm, watched, BYTES))
    return frozenset(names)


def check(words: Iterable[str], option: str, others: Iterable[str] = ()) -> None:
    """Refuse a name that no rule knows; `others` are words that `option` takes beside packages.

    Raises:
        UsageError: there is one; the message names the nearest that there is, or all.
    """
    known = sorted({*asked(), *others})
    for word in words:
        if word not in known:
            inside = [name for name in known if name in word.lower()]
            near = difflib.get_close_matches(word.lower(), known, 1) or inside
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise UsageError(f"{option} {word}: no rule knows {word!r}; {hint}")
