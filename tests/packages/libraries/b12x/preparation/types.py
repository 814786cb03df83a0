"""Declarations. `OPEN` counts what was not closed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OPEN = {"sessions": 0, "runtimes": 0}


@dataclass
class State:
    """A plan's private state."""

    plan: "Plan"
    runtime: Any
    bound: tuple[int, ...] = ()


@dataclass(kw_only=True)
class PreparedCall:
    run: Callable[[], object]
    output: object = None
    owners: tuple[object, ...] = ()


@dataclass(kw_only=True, eq=False)
class Plan:
    query: Any
    runtime: Any
    prepared: Any = None

    def request(
        self, *, name: str, prepare_call: Any, benchmark_call: Any = None, dependencies: Any = (),
        collective: Any = None, retain_benchmark_call: bool = False,
    ) -> Any:  # fmt: skip
        return name, self, prepare_call


def require_prepared(plan: Plan, runtime: Any) -> State:
    assert plan.prepared is not None, "plan is not prepared"
    assert plan.runtime is runtime, "PCIe plan belongs to a different native runtime owner"
    state: State = plan.prepared
    return state
