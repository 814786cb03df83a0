"""`collbench validate` on the tables of this repository."""

import subprocess
from collections.abc import Callable
from pathlib import Path


def test_scripts_get_all_columns_and_people_what_fits(
    collbench: Callable[..., subprocess.CompletedProcess[str]], on_terminal: Callable[..., str], root: Path
) -> None:
    """No percentage beyond 100, and the same numbers both times."""
    folder = str(root / "docs" / "model" / "data")
    plain, shown = collbench("validate", folder).stdout.splitlines(), on_terminal(80, "validate", folder).splitlines()
    head = ["table", "known", "sizes", "model", "median", "p90", "bias", "n", "systems"]
    head += ["in", "90", "%", "half", "width"]

    assert plain[0].split() == head
    assert shown[0].split() == head[3:]
    assert max(map(len, shown)) <= 80
    rows = plain[1 : plain.index("")]
    assert sum(any(row.endswith(line) for line in shown if line) for row in rows) == len(rows)
    assert "latency, NCCL; held-out systems:" in shown
    percents = [float(word.rstrip("%")) for row in rows for word in row.split() if word.endswith("%")]
    assert max(map(abs, percents)) <= 100
    assert any("factor of 1.105" in line for line in plain)
