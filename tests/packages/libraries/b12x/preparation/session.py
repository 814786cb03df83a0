"""Prepares plans. On rank 1 it fails with `fails`, takes a while with `slow`, and never ends with `stuck`."""

import threading
import time
from typing import Any

import libraries_fake

from b12x.preparation.types import OPEN, State


class PreparationSession:
    if libraries_fake.FAULT == "old":

        def __init__(self, *, device: Any = None, tune: bool = True) -> None: ...
    else:

        def __init__(  # type: ignore[misc]
            self, *, device: Any = None, autotune: bool = True, compile_workers: int | None = None
        ) -> None:
            self.state, self.plans, self.thread = "OPEN", list[Any](), threading.get_ident()
            OPEN["sessions"] += 1

    def prepare(
        self, requests: Any, *, coordinator: Any = None, progress: Any = None, autotune: bool | None = None
    ) -> None:
        assert threading.get_ident() == self.thread, "only cancel_tuning may run on another thread"
        assert self.state == "OPEN"
        assert len({name for name, _, _ in requests}) == len(requests)
        for _, plan, prepare_call in requests:
            if plan.query.rank == 1:
                self._strike()
            state = State(plan, plan.runtime)
            prepare_call(state).run()
            plan.prepared = state
            self.plans.append(plan)

    def _strike(self) -> None:
        if libraries_fake.FAULT == "fails":
            raise ValueError("collbench eager failed to prepare with configuration 'native': DSLRuntimeError\nmore")
        time.sleep({"stuck": 600.0, "slow": 1.5}.get(libraries_fake.FAULT, 0.0))

    def freeze(self) -> None:
        self.state = "FROZEN"

    def close(self) -> None:
        for plan in self.plans:
            plan.prepared = None
        OPEN["sessions"] -= 1
