"""What the fork server imported of other people's modules before it forked this process: a record that forks inherit.

Workers read it for their evidence, and `library_build` to know that it needs no fresh process for an import.
"""

from collections.abc import Iterable

__all__ = ["LEFT_OUT", "SECONDS", "evidence", "holds"]

SECONDS: dict[str, float] = {}
"""Seconds that each import took, in the order of importing; empty where there was no such fork server."""

LEFT_OUT: dict[str, str] = {}
"""Modules that every worker imports itself, and why."""


def holds(modules: Iterable[str]) -> bool:
    """Whether all of these were imported before the fork."""
    return all(module in SECONDS for module in modules)


def evidence() -> dict[str, str]:
    """`preloaded` and `not preloaded`, where there is something to say."""
    told = {}
    if SECONDS:
        told["preloaded"] = f"{', '.join(SECONDS)}: {sum(SECONDS.values()):.1f} s, once for all groups"
    if LEFT_OUT:
        told["not preloaded"] = "; ".join(f"{module}: {why}" for module, why in LEFT_OUT.items())
    return told
