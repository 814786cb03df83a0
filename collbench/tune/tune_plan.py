"""The plan of a search, as `tune.json` keeps it beside the outcome."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.errors import InvalidError, UsageError
from collbench.measure.plan import Options
from collbench.results.files import readable_errors, replace_whole
from collbench.results.records import SCHEMA, Collective, Mode
from collbench.results.summary import clean
from collbench.tune.outcome import Outcome
from collbench.tune.space import Candidate, Space

__all__ = ["STATE", "TunePlan", "options_of", "read_plan", "write_plan"]

STATE = "tune.json"


@dataclass(frozen=True, slots=True)
class TunePlan:
    """What is searched, and how. `libraries` are paths; `options` are a sweep's (`Options.as_dict`)."""

    algorithm: str
    space: Space
    most: int
    seed: int
    pairs: int
    ranks: int
    options: Mapping[str, Any]
    libraries: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "algorithm": self.algorithm, "space": self.space.as_dict(), "most": self.most, "seed": self.seed,
            "pairs": self.pairs, "ranks": self.ranks, "options": dict(self.options), "libraries": list(self.libraries),
        }  # fmt: skip

    def candidates(self, versions: Sequence[str]) -> list[Candidate]:
        """The candidates, the default first."""
        return self.space.candidates(self.most, self.seed, versions or ("",))


def write_plan(folder: Path, plan: TunePlan, outcome: Outcome | None = None) -> None:
    """Write `tune.json` anew.

    Raises:
        InvalidError: it cannot be written.
    """
    data = {"schema": SCHEMA, "kind": "tune-plan", "plan": plan.as_dict(), "outcome": outcome and outcome.as_dict()}
    with readable_errors(folder / STATE, option="--out", resume=True):
        replace_whole(folder / STATE, lambda file: file.write(json.dumps(data, indent=1).encode() + b"\n"))


def read_plan(folder: Path) -> TunePlan:
    """Read the plan of a search to go on with.

    Raises:
        UsageError: the folder holds none.
        InvalidError: it is damaged, or of another schema.
    """
    path = folder / STATE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise InvalidError(f"{path}: schema {clean(str(data['schema']))[:40]!r}, expected {SCHEMA}")
        plan = data["plan"]
        return TunePlan(
            str(plan["algorithm"]), Space.from_dict(plan["space"], str(path)), int(plan["most"]), int(plan["seed"]),
            int(plan["pairs"]), int(plan["ranks"]), dict(plan["options"]), tuple(map(str, plan["libraries"])),
        )  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"--resume {folder}: no {STATE} there: it is the folder of no search") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


def options_of(plan: TunePlan) -> Options:
    """A sweep's options from their JSON form.

    Raises:
        InvalidError: a field is missing, strange, or of the wrong kind.
    """
    given = dict(plan.options)
    try:
        return Options(**{
            **given, "modes": tuple(map(Mode, given["modes"])), "calls": tuple(map(int, given["calls"])),
            "sizes": tuple(map(int, given["sizes"])), "skews": tuple(map(str, given["skews"])),
            "collective": Collective(given["collective"]),
        })  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidError(f"{STATE}: its options cannot be read: {type(error).__name__}: {error}") from error
