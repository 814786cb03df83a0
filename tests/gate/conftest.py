"""Sides with a known truth."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from collbench.gate.sides import CellData, Side
from collbench.results.records import Status

Array = NDArray[np.float64]
HARD = {"fabric": "pcie", "gpu": "X", "torch": "2.9.0", "nccl": "2.28.9"}


def side_of(medians_us: Array, name: str = "side", hard: dict[str, str] | None = None) -> Side:
    """A side from launch medians, shape (cells, launches)."""
    cells = {
        f"cell{i:03d}": CellData(Status.OK, "", tuple(row), (100,) * len(row))
        for i, row in enumerate(medians_us.tolist())
    }
    return Side(name, cells, medians_us.shape[1], HARD if hard is None else hard)


def noisy(seed: int, cells: int = 6, blocks: int = 16, sd: float = 0.02, effect: float = 0.0) -> tuple[Array, Array]:
    """Launch medians around 20 us whose block log ratio has this sd; the first cell of the second side is changed."""
    draw = np.random.default_rng(seed)
    base, current = (20 * np.exp(draw.normal(0, sd / np.sqrt(2), (cells, blocks))) for _ in range(2))
    current[0] *= 1 + effect
    return base, current


@pytest.fixture
def make_side() -> Callable[..., Side]:
    return side_of


@pytest.fixture
def make_noisy() -> Callable[..., tuple[Array, Array]]:
    return noisy
