"""The split of published rows into what is fitted and what is predicted: `split.toml`, fixed before fitting."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from collbench.contention.published import SYMMETRIC, Bandwidth, Latency
from collbench.errors import InvalidError
from collbench.topology.toml_table import parse_toml

__all__ = [
    "Split",
    "excluded",
    "is_calibration",
    "is_single",
    "on_symmetric_memory",
    "pattern",
    "size_split",
    "split_file",
]


class Split(StrEnum):
    """What was known of a row when it was predicted."""

    IN_SAMPLE = "in-sample"
    SIZES = "held-out sizes"
    EXTRAPOLATED = "extrapolated sizes"
    ALGORITHMS = "held-out algorithms"
    SYSTEMS = "held-out systems"


@cache
def split_file() -> Mapping[str, Any]:
    """The split, fixed before fitting.

    Raises:
        InvalidError: the installed file is damaged.
    """
    path = Path(__file__).with_name("split.toml")
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path}: {error}: install collbench again") from error


def excluded(row: Latency) -> str:
    """Why a row is left out; empty if it is not."""
    if row.confidence == "low":
        return "low confidence"
    return next((str(rule["reason"]) for rule in split_file()["excluded"] if _matches(rule, row)), "")


def is_single(row: Latency) -> bool:
    """Whether a row is of one call at a time, in no chain of them."""
    return any(_matches(rule, row) for rule in split_file()["single"])


def on_symmetric_memory(row: Latency) -> Latency:
    """The row, as one of NCCL's kernels on symmetric memory where its source shows that it is."""
    symmetric = any(_matches(rule, row) for rule in split_file()["symmetric"])
    return replace(row, algorithm=SYMMETRIC) if symmetric else row


def is_calibration(curve: "list[Latency]") -> bool:
    """Whether a curve is fitted to."""
    sizes = {row.bytes for row in curve}
    rules = split_file()["calibration"]
    return len(sizes) >= split_file()["least_sizes"] and any(_matches(rule, curve[0]) for rule in rules)


def size_split(index: int, count: int) -> Split:
    """Of a calibration curve's row, by its place among the sizes."""
    lower = -(-2 * count // 3)
    return Split.EXTRAPOLATED if index >= lower else Split.SIZES if index % 3 == 1 else Split.IN_SAMPLE


def pattern(row: Bandwidth) -> tuple[Mapping[str, Any] | None, str]:
    """The rule that says which flows a row's pattern is, or why the row is left out."""
    if not row.mechanism.startswith(("CE copy", "p2pmark CE")) or row.direction.startswith("reverse"):
        return None, f"bandwidth: {row.mechanism}, {row.direction}"
    for rule in split_file()["degraded"]:
        if rule["words"] in row.pattern and rule.get("system", "") in row.system:
            return None, f"bandwidth, degraded: {rule['reason']}"
    return next((rule for rule in split_file()["pattern"] if rule["words"] in row.pattern), None), ""


def _matches(rule: Mapping[str, Any], row: Latency) -> bool:
    return (
        rule.get("system", "") in row.system
        and rule.get("algorithm", row.algorithm) == row.algorithm
        and rule.get("variant", "") in row.variant
        and rule.get("gpus", row.ranks) == row.ranks
    )
