"""`collbench sweep`: the measurement."""

import argparse
from typing import TYPE_CHECKING

from collbench.sweep_options import add_arguments

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "sweep",
        help="measure the latency of every algorithm that runs here",
        description="Measure the latency of collectives, one algorithm after the other, each verified.",
        epilog="Under torchrun: torchrun --nproc-per-node 8 -m collbench.sweep (same options).",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code."""
    from collbench.sweep import run as run_sweep

    return run_sweep(args)
