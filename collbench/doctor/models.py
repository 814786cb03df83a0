"""Compute capability of a GPU from its model's name; the table is `collbench.topology.models`."""

from collbench.topology.models import arch_of

__all__ = ["arch_of"]
