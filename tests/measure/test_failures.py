"""What a worker says of an exception."""

import json
import sys
from collections.abc import Callable
from types import CodeType, FunctionType

import numpy as np
import pytest

from collbench.measure.worker import failure_of


class Mute(Exception):  # noqa: N818 - whoever raises it names it
    def __str__(self) -> str:
        raise RuntimeError("no words")


def compiled(text: str, name: str) -> Callable[[], None]:
    """The function of a text, as if it stood in a file of that name."""
    (code,) = (one for one in compile(text, name, "exec").co_consts if isinstance(one, CodeType))
    return FunctionType(code, {"json": json, "np": np, "__builtins__": __builtins__})


def raised(call: Callable[[], None]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        call()
    # without the frame of this function: in a worker all frames above the algorithm are collbench's
    below = caught.tb.tb_next
    return str(failure_of(caught.value.with_traceback(below))["reason"])


def test_the_place_is_the_algorithms_also_where_a_library_raised() -> None:
    """`json` is Python's own, numpy stands in site-packages: neither is where the author looks."""
    for text in ("json.loads('{')", "np.zeros(3).reshape(2, 2)"):
        assert raised(compiled(f"def f():\n    {text}\n", "mine.py")).endswith("(mine.py:2)")
    installed = f"{sys.prefix}/lib/site-packages/mine.py"
    assert raised(compiled("def f():\n    raise ValueError('x')\n", installed)) == "ValueError: x (mine.py:2)"


def test_collbenchs_own_algorithms_are_named_wherever_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from collbench.measure import worker

    root = f"{sys.prefix}/lib/site-packages/collbench"
    monkeypatch.setattr(worker, "__file__", f"{root}/measure/worker.py")
    call = compiled("def f():\n    json.loads('{')\n", f"{root}/algorithms/theirs.py")
    assert raised(call).endswith("(theirs.py:2)")


def test_strange_exceptions_are_one_line() -> None:
    """Without words, without a traceback, from a name that is no file and has no end."""
    assert failure_of(Mute())["reason"] == "Mute: "
    assert failure_of(json.JSONDecodeError("x", "y", 0))["reason"].startswith("JSONDecodeError: x")
    long = raised(compiled("def f():\n    raise ValueError('x' * 10_000)\n", f"/dev/{'z' * 5000}"))
    assert len(long) < 450
    assert raised(compiled("def f():\n    raise ValueError('x')\n", "/dev/zero")) == "ValueError: x (zero:2)"
