"""A file imports only from its own room or from floors below (docs/design.md section 3)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "collbench"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("",),  # collbench/__init__.py: the version
    ("errors",),
    ("units", "wording"),
    ("results",),
    ("topology",),
    ("contention",),
    ("algorithms",),
    ("measure",),
    ("interop",),
    ("doctor", "workload", "tune", "testing"),
    ("gate",),
    ("report",),
    ("parser", "streams", "sweep_options", "sweep_output"),
    ("sweep", "pytest_plugin"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module: str) -> str:
    """Room of a dotted name: its part behind `collbench`; empty for the package itself."""
    room = module.split(".")[1] if "." in module else ""
    return "" if room.startswith("__") and room != "__main__" else room


def imported(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import of collbench, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "collbench")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, base]).rstrip(".")
            if base == "collbench":
                yield from ((node.lineno, f"collbench.{alias.name}") for alias in node.names)
            elif base.startswith("collbench."):
                yield node.lineno, base


def faults(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What the floors forbid in this source, one line each."""
    own = room_of(module)
    if own not in LEVEL:
        return [f"{module}: room {own!r} has no floor: add it to FLOORS and to docs/decisions"]
    found = []
    for line, name in imported(ast.parse(source), module, is_package=is_package):
        target = room_of(name)
        if target != own and LEVEL.get(target, len(FLOORS)) >= LEVEL[own]:
            found.append(f"{module}:{line}: imports {name}, which is not below")
    return found


def modules() -> list[tuple[Path, str]]:
    """Every module of the package with its dotted name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    named = [(path, path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    return [(path, ".".join(parts).removesuffix(".__init__")) for path, parts in named]


def test_imports_go_downwards() -> None:
    found = [
        fault
        for path, module in modules()
        for fault in faults(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    ]
    assert found == []


def test_every_room_of_the_tree_has_a_floor() -> None:
    assert {room_of(module) for _, module in modules()} <= set(LEVEL)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from collbench.report import page", "collbench.measure.plan"),
        ("def f():\n    import collbench.cli", "collbench.report.page"),
        ("from collbench import gate", "collbench.doctor"),
        ("from ..measure import plan", "collbench.topology.graph"),
        ("from collbench.tune import search", "collbench.doctor"),
        ("import collbench.attic", "collbench.cli"),
        ("", "collbench.attic"),
    ],
)
def test_a_wrong_import_is_found(source: str, module: str) -> None:
    """Upwards, sideways, lazily, relatively, into a room without a floor: each is one fault."""
    assert len(faults(source, module)) == 1


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from collbench import __version__", "collbench.errors"),
        ("from collbench.errors import InvalidError", "collbench.units"),
        ("from . import graph", "collbench.topology.machine"),
        ("from .graph import Node", "collbench.topology.machine"),
        ("from ..errors import InvalidError", "collbench.topology.machine"),
        ("import torch, collbench.results.records", "collbench.measure.clock"),
    ],
)
def test_a_right_import_is_not(source: str, module: str) -> None:
    assert faults(source, module) == []
