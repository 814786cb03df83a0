"""What we call of other people's Python packages, by name: lists that workers and tests compare with reality.

A package that renamed or dropped something then costs its cells a reason that names it, instead of a traceback.
"""

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Parameter", "Use", "broken", "mismatch"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function as its author wrote it; `kind` is `inspect.Parameter`'s, as a number."""

    name: str
    kind: int
    required: bool


@dataclass(frozen=True, slots=True)
class Use:
    """One name that we use: `path` is dotted inside the module; a function that is called says how.

    `keywords` are the parameters that we name, `positional` how many come before them without a name (`self` counts
    for a method that is looked up on its class). Where `called` is false the name only has to be there.
    """

    module: str
    path: str
    keywords: tuple[str, ...] = ()
    positional: int = 0
    called: bool = True

    @property
    def text(self) -> str:
        """`module.path`."""
        return f"{self.module}.{self.path}"


_KEYWORD_ONLY, _ARGS, _KWARGS = (
    int(inspect.Parameter.KEYWORD_ONLY), int(inspect.Parameter.VAR_POSITIONAL), int(inspect.Parameter.VAR_KEYWORD),
)  # fmt: skip


def mismatch(use: Use, parameters: Sequence[Parameter]) -> str:
    """Why our call does not fit these parameters; empty if it does."""
    kinds = {parameter.kind for parameter in parameters}
    plain = [parameter for parameter in parameters if parameter.kind not in {_ARGS, _KWARGS}]
    missing = [name for name in use.keywords if name not in {parameter.name for parameter in plain}]
    if missing and _KWARGS not in kinds:
        return f"{use.text}() takes no {', '.join(missing)}"
    by_place = [parameter for parameter in plain if parameter.kind != _KEYWORD_ONLY]
    if use.positional > len(by_place) and _ARGS not in kinds:
        return f"{use.text}() takes {len(by_place)} positional arguments, we give {use.positional}"
    given = {parameter.name for parameter in by_place[: use.positional]} | set(use.keywords)
    wanted = [parameter.name for parameter in plain if parameter.required and parameter.name not in given]
    return f"{use.text}() also wants {', '.join(wanted)}" if wanted else ""


def broken(use: Use) -> str:
    """Why the imported package is not as we know it; empty if it is, or if it does not tell its parameters."""
    found: object = importlib.import_module(use.module)
    for part in use.path.split("."):
        if not hasattr(found, part):
            return f"{use.text} is not there"
        found = getattr(found, part)
    if not use.called or not callable(found):
        return ""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    told = [Parameter(p.name, int(p.kind), p.default is inspect.Parameter.empty) for p in signature.parameters.values()]
    return mismatch(use, told)
