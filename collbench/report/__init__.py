"""A run as one HTML page that opens offline."""

from collbench.report.page import build

__all__ = ["build"]
