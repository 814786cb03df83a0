"""The space of settings that is searched: variables with values, and what may never stand together."""

import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError, UsageError
from collbench.measure.environment import ALLOWED_PREFIXES, worker_environment
from collbench.results.records import SCHEMA
from collbench.results.summary import clean
from collbench.topology.toml_table import parse_toml

__all__ = ["DEFAULT", "Candidate", "Space", "default_space_text", "parse_set", "read_space"]

DEFAULT = "default"
"""Name of the candidate that sets nothing, with the first library."""

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_VALUE = re.compile(r"[\w.:;,^+\-=]{0,80}")
_OURS = {
    "NCCL_DEBUG": "it says what ran", "NCCL_DEBUG_SUBSYS": "it says what ran", "NCCL_DEBUG_FILE": "it says what ran",
    "NCCL_MULTI_RANK_GPU_ENABLE": "it follows from --share-gpu",
}  # fmt: skip
_MOST_VALUES, _MOST_VARIABLES = 32, 24
_DRAWS = 50
"""Random combinations drawn per wanted one, before a space counts as exhausted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of the space: the variables that it sets, and the library that it runs on (number of `--nccl`)."""

    settings: Mapping[str, str] = field(default_factory=dict)
    library: int = 0
    version: str = ""

    @property
    def name(self) -> str:
        """Short and unique within a search: `default`, `PROTO=LL+MAX_CTAS=2`, `2.30.7+PROTO=LL`."""
        words = [f"{name.removeprefix('NCCL_')}={value}" for name, value in self.settings.items()]
        words = [self.version, *words] if self.version else words
        return "+".join(words) or DEFAULT

    @property
    def is_default(self) -> bool:
        """Whether everything else is compared with it."""
        return not self.settings and self.library == 0


@dataclass(frozen=True, slots=True)
class Space:
    """`variables` maps names to values, `""` for unset; a candidate that agrees with an entry of `never` is left out.

    Raises:
        UsageError: a variable or value that workers could not be given, or that collbench sets itself.
    """

    variables: Mapping[str, tuple[str, ...]]
    never: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.variables) <= _MOST_VARIABLES:
            raise UsageError(f"{len(self.variables)} variables in the space: expected 1 to {_MOST_VARIABLES}")
        for name, values in self.variables.items():
            _check_variable(name, values)
        for entry in self.never:
            strange = sorted(set(entry) - set(self.variables))
            if strange:
                raise UsageError(f"never: {strange[0]} is no variable of the space")

    @property
    def size(self) -> int:
        """Combinations, those that may never be among them."""
        return math.prod(len({"", *values}) for values in self.variables.values())

    def candidates(self, most: int, seed: int, versions: Sequence[str] = ("",)) -> list[Candidate]:
        """The default, every single change, then combinations drawn with `seed`; at most `most`, each once.

        `versions` names the libraries, `("",)` where there is one. The same arguments give the same list.
        """
        found: dict[tuple[int, tuple[tuple[str, str], ...]], Candidate] = {}
        for settings, library in itertools.chain(self._singles(versions), self._drawn(most, seed, versions)):
            if len(found) >= most:
                break
            key = (library, tuple(settings.items()))
            if self._allowed(settings):
                found.setdefault(key, Candidate(settings, library, versions[library]))
        return list(found.values())

    def _singles(self, versions: Sequence[str]) -> Iterator[tuple[dict[str, str], int]]:
        yield from (({}, library) for library in range(len(versions)))
        for name, values in self.variables.items():
            yield from (({name: value}, library) for value in values if value for library in range(len(versions)))

    def _drawn(self, most: int, seed: int, versions: Sequence[str]) -> Iterator[tuple[dict[str, str], int]]:
        draw = random.Random(seed)  # noqa: S311 - which settings to try, no secret
        for _ in range(_DRAWS * most):
            settings = {name: draw.choice(["", *filter(None, values)]) for name, values in self.variables.items()}
            yield {name: value for name, value in settings.items() if value}, draw.randrange(len(versions))

    def _allowed(self, settings: Mapping[str, str]) -> bool:
        return not any(all(settings.get(name, "") == value for name, value in one.items()) for one in self.never)

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "variables": {name: list(values) for name, values in self.variables.items()},
            "never": [dict(entry) for entry in self.never],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> "Space":
        """From TOML or JSON; numbers and booleans are taken as their text, true as 1.

        Raises:
            InvalidError: it has another shape; `where` names the file.
            UsageError: see the class.
        """
        try:
            variables = {str(name): _texts(values) for name, values in dict(data["variables"]).items()}
            never = tuple({str(k): _text(v) for k, v in dict(entry).items()} for entry in data.get("never", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidError(
                f"{where}: expected [variables] with NAME = [values], and [[never]] tables: "
                f"{type(error).__name__}: {error}"
            ) from error
        return cls(variables, never)


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError("a variable needs a list of values")
    return tuple(map(_text, values))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (str, int)):
        return str(value)
    raise TypeError(f"value {value!r} is neither text nor a whole number")


def _check_variable(name: str, values: Sequence[str]) -> None:
    if _NAME.fullmatch(name) is None or not name.startswith(ALLOWED_PREFIXES):
        raise UsageError(
            f"variable {clean(name)[:80]!r}: workers do not get it; names begin with {', '.join(ALLOWED_PREFIXES)}"
        )
    if name in _OURS:
        raise UsageError(f"variable {name}: collbench sets it itself: {_OURS[name]}")
    if not 1 <= len(values) <= _MOST_VALUES:
        raise UsageError(f"variable {name}: {len(values)} values, expected 1 to {_MOST_VALUES}")
    for value in values:
        if _VALUE.fullmatch(value) is None:
            raise UsageError(f"variable {name}: value {clean(value)[:80]!r} has characters that are not for pasting")
        if value and worker_environment({name: value})[name] != value:
            raise UsageError(f"variable {name}: every worker has it set by collbench: it cannot differ")


def parse_set(words: Sequence[str]) -> Space:
    """The space of `--set NAME=VALUE,VALUE` options.

    Raises:
        UsageError: a word is none, or names a variable twice.
    """
    variables: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not values:
            raise UsageError(f"--set {clean(word)[:80]}: expected NAME=VALUE,VALUE such as NCCL_PROTO=LL,Simple")
        if name in variables:
            raise UsageError(f"--set {name}: given twice; join its values by commas")
        variables[name] = tuple(dict.fromkeys(values.split(",")))
    return Space(variables)


def read_space(path: Path) -> Space:
    """Read a space from TOML.

    Raises:
        UsageError: there is no such file, or it names what cannot be searched.
        InvalidError: it is no TOML, has another schema, or another shape.
    """
    try:
        data = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--space {path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path}: cannot be read as TOML: {error}") from error
    if data.get("schema", SCHEMA) != SCHEMA:
        raise InvalidError(f"{path}: schema {clean(str(data['schema']))[:40]!r}, expected {SCHEMA}")
    return Space.from_dict(data, str(path))


def default_space_text() -> str:
    """The TOML of the space that is searched where none is given."""
    return (Path(__file__).parent / "spaces" / "nccl.toml").read_text(encoding="utf-8")
