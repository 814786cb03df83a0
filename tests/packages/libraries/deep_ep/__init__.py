"""A stand-in for DeepEP 2.1.0: the dispatch inside a host."""

from deep_ep.buffers.legacy import Buffer

__all__ = ["Buffer"]
