"""What fork servers import for libraries: all that their runners ask for, in one list for each library."""

import importlib
from pathlib import Path

import pytest

from collbench.algorithms import library_modules
from collbench.algorithms.base import Algorithm, Foreign, registry
from collbench.algorithms.library_build import Request
from collbench.results.records import Call, Collective

LIBRARIES = {name: one for name, one in registry().items() if one.foreign.modules}


def asked(algorithm: Algorithm) -> Request:
    """What its runner brings up, without a rank."""
    module, _, name = algorithm.runner.partition(":")
    runner = object.__new__(getattr(importlib.import_module(module), name))
    ranks, parts = 8, algorithm.collective is Collective.ALL_TO_ALL
    runner.call = Call(16_384, ranks, algorithm.collective, "" if parts else "sum")
    found: Request = runner.request()
    return found


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_a_server_imports_what_its_runner_asks_for(name: str) -> None:
    assert set(asked(LIBRARIES[name]).modules) <= set(LIBRARIES[name].foreign.modules)


def test_records_of_a_library_share_one_server() -> None:
    """So that its import is paid once, whichever of them are measured."""
    servers: dict[str, set[Foreign]] = {}
    for algorithm in LIBRARIES.values():
        servers.setdefault(asked(algorithm).package, set()).add(algorithm.foreign)
    assert {package for package, found in servers.items() if len(found) != 1} == set()
    assert {"vLLM", "SGLang", "FlashInfer", "sgl-kernel", "b12x"} <= set(servers)


def test_every_runner_of_a_library_has_its_modules_preloaded() -> None:
    """None is left to be imported by all ranks in every launch."""
    slow = {
        name for name, one in registry().items()
        if one.opening_s and not one.foreign.modules and "LibraryRunner" in _source(one) and one.runner
    }  # fmt: skip
    assert slow == set()


def _source(algorithm: Algorithm) -> str:
    return Path(importlib.import_module(algorithm.runner.partition(":")[0]).__file__ or "").read_text()


def test_the_library_itself_comes_last() -> None:
    """What touches no GPU stands before what may."""
    for modules in (library_modules.VLLM, library_modules.SGLANG, library_modules.FLASHINFER, library_modules.B12X):
        tops = [module.partition(".")[0] for module in modules]
        own = [top in {"vllm", "sglang", "sgl_kernel", "flashinfer", "b12x"} for top in tops]
        assert own == sorted(own)
        assert own[-1]
