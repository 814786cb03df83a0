"""Measures small-message collectives on multi-GPU machines and explains every number."""

__version__ = "0.1.0"

__all__ = ["__version__"]
