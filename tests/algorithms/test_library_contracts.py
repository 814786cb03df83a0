"""What we call of other people's packages is there: read from their sources, never imported, since that needs CUDA.

Packages are looked for where they are installed, and in the folders of `COLLBENCH_PACKAGES` (joined by colons), into
which wheels were unpacked: `pip download --no-deps flashinfer-python==0.7.4`, then `unzip`.
"""

import ast
import importlib.util
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from collbench.algorithms import (
    b12x_runner,
    deepep_runner,
    flashinfer_library_runner,
    flashinfer_moe_runner,
    mscclpp_runner,
    sglang_library_runner,
    vllm_library_runner,
)
from collbench.algorithms.library_uses import Parameter, Use, broken, mismatch

USES = (
    *flashinfer_library_runner.USES, *flashinfer_moe_runner.USES, *vllm_library_runner.USES,
    *sglang_library_runner.USES, *deepep_runner.USES, *b12x_runner.USES,
)  # fmt: skip


def source_of(module: str) -> Path | None:
    """The file of a module, found without importing its package."""
    top, *rest = module.split(".")
    roots = [Path(root) / top for root in os.environ.get("COLLBENCH_PACKAGES", "").split(":") if root]
    found = importlib.util.find_spec(top)
    roots += [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    for root in roots:
        for path in (root.joinpath(*rest).with_suffix(".py"), root.joinpath(*rest, "__init__.py")):
            if path.is_file():
                return path
    return None


def definitions(body: list[ast.stmt], name: str) -> Iterator[ast.AST]:
    """Whatever gives `name` a meaning in these statements, also below `if` and `try`."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.name == name:
            yield statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias for alias in statement.names if (alias.asname or alias.name) == name)
        elif isinstance(statement, ast.Assign):
            yield from (t for t in statement.targets if isinstance(t, ast.Name) and t.id == name)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield from (t for t in (statement.target,) if t.id == name)
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from definitions([*statement.body, *statement.orelse, *getattr(statement, "finalbody", [])], name)


def parameters(node: ast.AST) -> list[Parameter] | None:
    """Of a function, or of a class's construction; None where there are none to compare."""
    if isinstance(node, ast.ClassDef):
        for made in definitions(node.body, "__init__"):
            return (parameters(made) or [])[1:]  # without self
        fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
        return [Parameter(ast.unparse(s.target), 1, s.value is None) for s in fields]
    if not isinstance(node, ast.FunctionDef):
        return None
    a = node.args
    bound = any(isinstance(each, ast.Name) and each.id == "classmethod" for each in node.decorator_list)
    plain = [*a.posonlyargs, *a.args][bound:]
    found = [Parameter(arg.arg, 1, i < len(plain) - len(a.defaults)) for i, arg in enumerate(plain)]
    found += [Parameter(arg.arg, 3, default is None) for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    found += [Parameter(a.vararg.arg, 2, False)] if a.vararg else []
    return found + ([Parameter(a.kwarg.arg, 4, False)] if a.kwarg else [])


def broken_in(path: Path, use: Use) -> str:
    """`library_uses.broken` for a source that is not imported."""
    places: list[ast.AST] = [ast.parse(path.read_text())]
    for part in use.path.split("."):
        bodies = [place.body for place in places if isinstance(place, (ast.Module, ast.ClassDef))]
        places = [found for body in bodies for found in definitions(body, part)]
    if not places:
        return f"{use.text} is not there"
    told = [mismatch(use, given) for place in places if use.called and (given := parameters(place)) is not None]
    return "" if not told or "" in told else told[0]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.text)
def test_the_package_has_what_we_call(use: Use) -> None:
    """Its parameters too: ours are among them, and none that it requires is missing."""
    path = source_of(use.module)
    if path is None:
        pytest.skip(f"no source of {use.module}: installed nowhere, and not in COLLBENCH_PACKAGES")
    assert broken_in(path, use) == ""


@pytest.mark.parametrize("use", mscclpp_runner.USES, ids=lambda use: use.text)
def test_an_old_sgl_kernel_has_the_operators_of_mscclpp(use: Use) -> None:
    """Later ones dropped them all, and `support` says so."""
    path = source_of(use.module)
    if path is None or "mscclpp" not in path.read_text():
        pytest.skip("no source of an sgl-kernel with MSCCL++")
    assert broken_in(path, use) == ""


SOURCE = """
class Workspace:
    PLAIN = 1
    def __init__(self, group, *, size, dtype=None): ...
    def run(self, x, *, out=None, config=None): ...
    @classmethod
    def made(cls, *, group, size=3): ...
class Config:
    blocks: int
    threads: int = 3
if True:
    def free(pointers, group=None): ...
"""


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (Use("m", "Workspace.__init__", ("group", "size"), 1), ""),
        (Use("m", "Workspace", ("group", "size")), ""),
        (Use("m", "Workspace.run", ("out",), 2), ""),
        (Use("m", "Workspace.PLAIN", called=False), ""),
        (Use("m", "Workspace.made", ("group",)), ""),
        (Use("m", "Workspace.made", ("size",)), "m.Workspace.made() also wants group"),
        (Use("m", "Config", ("blocks",)), ""),
        (Use("m", "free", (), 2), ""),
        (Use("m", "Workspace.stop", (), 1), "m.Workspace.stop is not there"),
        (Use("m", "Workspace.__init__", ("group", "bytes"), 1), "m.Workspace.__init__() takes no bytes"),
        (Use("m", "Workspace.__init__", ("group",), 1), "m.Workspace.__init__() also wants size"),
        (Use("m", "free", (), 3), "m.free() takes 2 positional arguments, we give 3"),
        (Use("m", "Config", ()), "m.Config() also wants blocks"),
    ],
)
def test_a_change_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Use, reason: str) -> None:
    """By the sources and by the imported module alike."""
    path = tmp_path / "contract_under_test.py"
    path.write_text("from dataclasses import dataclass\n" + SOURCE.replace("class Config", "@dataclass\nclass Config"))
    assert broken_in(path, use) == reason
    monkeypatch.syspath_prepend(str(tmp_path))
    imported = Use("contract_under_test", use.path, use.keywords, use.positional, use.called)
    assert broken(imported) == reason.replace("m.", "contract_under_test.", 1)


def test_the_numbers_of_kinds_are_python_s() -> None:
    kinds = inspect.Parameter
    assert [int(kind) for kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.VAR_POSITIONAL, kinds.KEYWORD_ONLY)] == [1, 2, 3]
