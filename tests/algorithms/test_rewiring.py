"""Two forecasts side by side."""

from typing import Any

import pytest

from collbench.algorithms.rewiring import changes, fastest, only_on


def row(algorithm: str, size: int, us: float) -> dict[str, Any]:
    return {"algorithm": algorithm, "bytes": size, "total_us": us}


BEFORE = [row("push", 1024, 5.0), row("ring", 1024, 20.0), row("push", 4096, 40.0), row("ring", 4096, 22.0)]
AFTER = [row("push", 1024, 4.0), row("ring", 1024, 20.0), row("push", 4096, 20.0), row("tree", 1024, 19.0)]


def test_changes_are_of_what_both_sides_have() -> None:
    """In the order of the second side; what one side alone has is no change."""
    found = changes(BEFORE, AFTER)
    assert [(one.after["algorithm"], one.after["bytes"]) for one in found] == [
        ("push", 1024), ("ring", 1024), ("push", 4096),
    ]  # fmt: skip
    assert [one.ratio for one in found] == pytest.approx([0.8, 1.0, 0.5])


def test_the_fastest_may_be_another_one() -> None:
    found = fastest(BEFORE, AFTER)
    assert [(one.bytes, one.change.before["algorithm"], one.change.after["algorithm"]) for one in found] == [
        (1024, "push", "push"), (4096, "ring", "push"),
    ]  # fmt: skip
    assert found[1].change.ratio == pytest.approx(20 / 22)


def test_what_only_one_side_has() -> None:
    assert only_on(AFTER, BEFORE) == ["tree"]
    assert only_on(BEFORE, AFTER) == []


def test_sides_without_a_common_size_have_no_fastest() -> None:
    assert fastest(BEFORE, [row("push", 99, 1.0)]) == []
    assert fastest([], AFTER) == []
