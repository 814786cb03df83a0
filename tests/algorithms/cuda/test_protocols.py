"""The device code itself, run on the CPU: ranks as fibers, seeded schedules, torn vectors, ranks that run ahead."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.algorithms.cuda.arguments import Islands
from collbench.algorithms.cuda.compile import KERNELS
from collbench.algorithms.cuda.designs import FLAGGED, FUSED
from collbench.algorithms.cuda.harness import APPLIES, NEAR_WRAP, steps_of
from collbench.algorithms.cuda.references import problem_of, random_input
from collbench.algorithms.cuda.virtual import Setting

Emulate = Callable[[Setting], Any]
"""The fixture `emulate`: the emulated ranks of a setting."""


def dtype_of(kernel: str) -> str:
    return "int32" if kernel in FLAGGED else "bfloat16"


def small(kernel: str, world_size: int, dtype: str = "", **more: object) -> Setting:
    return Setting(kernel, world_size, dtype or dtype_of(kernel), 700, blocks=2, threads=8, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_element_of_every_call_is_exact(kernel: str, world_size: int, emulate: Emulate) -> None:
    """Sizes and grids alternate, inputs are overwritten at once, the epoch crosses 2^32."""
    setting = small(kernel, world_size, epoch=NEAR_WRAP)
    emulation = emulate(setting)
    outcome = emulation.play(steps_of(setting, 300, world_size, 0), seed=world_size)
    assert (outcome.wrong, outcome.first, outcome.errors) == (0, "", ())
    assert {emulation.epoch(rank) for rank in range(world_size)} == {NEAR_WRAP + 300}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "push_flags"])
def test_other_element_types(kernel: str, dtype: str, emulate: Emulate) -> None:
    """The same holds for fp16 and fp32."""
    setting = small(kernel, 4, dtype)
    outcome = emulate(setting).play(steps_of(setting, 150, 5, 0), seed=5)
    assert (outcome.wrong, outcome.errors) == (0, ())


@pytest.mark.parametrize(
    "groups", [((0, 1, 2), (3,)), ((0,), (1,), (2, 3)), ((3, 1), (0, 2)), ((0, 1, 2, 3),), ((0,), (1,), (2,), (3,))]
)
def test_islands_of_any_shape(groups: tuple[tuple[int, ...], ...], emulate: Emulate) -> None:
    """Groups may differ in size and in number, and need not be neighbours."""
    setting = small("islands", 4, islands=Islands(groups))
    outcome = emulate(setting).play(steps_of(setting, 150, 9, 0), seed=9)
    assert (outcome.wrong, outcome.first, outcome.errors) == (0, "", ())


@pytest.mark.parametrize(("rule", "kernel"), [(r, k) for r, names in APPLIES.items() for k in names])
def test_a_broken_rule_is_seen(rule: int, kernel: str, emulate: Emulate) -> None:
    """A build without one rule gives wrong data or a wait that expires; a missing fence alone does not show."""
    setting = small(kernel, 4, broken=rule, deadline_s=0.2)
    outcome = emulate(setting).play(steps_of(setting, 300, 3, 0), seed=3)
    seen = bool(outcome.wrong or outcome.errors)
    assert seen == (rule != 7), "emulated memory is sequentially consistent, so a fence cannot be missed here"


def test_a_wait_names_its_peer_and_stops_all_ranks(emulate: Emulate) -> None:
    """With barriers that can never match, the record says who waited for whom, and every rank comes home."""
    setting = small("push", 2, broken=2, deadline_s=0.1)
    outcome = emulate(setting).play(steps_of(setting, 100, 3, 0), seed=4)
    record = outcome.errors[0]
    assert record.missing == (1 - record.rank,)
    assert f"from rank {1 - record.rank}" in str(record)
    assert record.waited_s >= 0.1


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.sampled_from([k for k in KERNELS if k != "staged_ring"]), world_size=st.sampled_from([2, 4]),
    count=st.integers(8, 350), seed=st.integers(0, 1 << 30), blocks=st.integers(1, 2),
)  # fmt: skip
def test_sums_agree_with_float64(
    emulate: Emulate, kernel: str, world_size: int, count: int, seed: int, blocks: int
) -> None:
    """Any size, signed zeros, mixed magnitudes: close to float64, same bits everywhere, nothing written behind."""
    setting = small(kernel, world_size)
    count = min(count, 175) if kernel == "push_flags" else count
    rng = np.random.default_rng(seed)
    inputs = [random_input(rng, count, setting.dtype) for _ in range(world_size)]
    outputs = emulate(setting).reduce(inputs, blocks, seed)
    size = len(inputs[0])
    assert reference_error(inputs, [data[:size] for data in outputs], setting.dtype) == ""
    assert all(set(data[size:]) <= {0xFF} for data in outputs)
