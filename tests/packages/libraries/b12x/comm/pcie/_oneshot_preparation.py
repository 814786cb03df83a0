"""Tells a plan's state what it will be called with."""

from typing import Any

from b12x.preparation.types import PreparedCall


def _prepare_plain_call(
    state: Any, *, inp: Any, out: Any, produce: Any = None, reset: Any = None, restore: Any = None, owners: Any = ()
) -> PreparedCall:
    state.bound = tuple(inp.shape)
    return PreparedCall(run=lambda: state.runtime.all_reduce(inp, plan=state.plan, out=out), owners=tuple(owners))


def _prepare_fused_call(
    state: Any, *, inp: Any, residual: Any, weight: Any, out: Any, residual_out: Any, epsilon: float,
    produce: Any = None, reset: Any = None, restore: Any = None, owners: Any = (),
) -> PreparedCall:  # fmt: skip
    state.bound = tuple(inp.shape)
    return PreparedCall(run=lambda: None, owners=tuple(owners))
