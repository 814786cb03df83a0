"""Workloads as data: those that come with collbench, and what is wrong with a file in one line."""

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import InvalidError, UsageError
from collbench.results.records import Collective
from collbench.workload.catalog import find, load, names, read

PLAIN: dict[str, Any] = {
    "schema": "collbench/1", "name": "w", "summary": "s", "source": "invented", "batches": [1, 8],
    "step": {"other_us": 1000.0, "other_us_per_sequence": 10.0, "source": "invented"},
    "calls": [{"collective": "all_reduce", "count": 100, "bytes_per_token": 1024}],
}  # fmt: skip
SPECULATION = {"baseline": "w", "draft_tokens": 2, "accepted_tokens": 2.0, "draft_us": 50.0, "source": "invented"}


def changed(path: str, value: object) -> dict[str, Any]:
    """PLAIN with one field replaced; `None` takes it out."""
    data = copy.deepcopy(PLAIN) | {"speculation": dict(SPECULATION)}
    *outer, last = path.split(".")
    place: Any = data
    for name in outer:
        place = place[int(name)] if name.isdecimal() else place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.mark.parametrize("name", names())
def test_each_that_comes_with_collbench_can_be_read(name: str) -> None:
    """Its name is its file's, every group of numbers has a source, and a baseline exists."""
    workload = load(find(name))
    assert workload.name == name
    assert workload.sources
    assert all(workload.sources.values())
    if workload.speculation:
        assert load(find(workload.speculation.baseline)).speculation is None


def test_the_steps_of_the_61_layer_model() -> None:
    """122 all-reduces, of 14,336 bytes for one token and of 43,008 for the three of a verify step."""
    decode, verify = load(find("moe-61-decode")), load(find("eagle3-verify"))
    assert (decode.calls[0].count, decode.bytes_of(decode.calls[0], 1)) == (122, 14_336)
    assert (verify.calls[0].count, verify.bytes_of(verify.calls[0], 1)) == (122, 43_008)
    assert [calls.collective for calls in load(find("expert-parallel-decode")).calls] == [Collective.ALL_TO_ALL] * 2


def test_numbers_of_a_step() -> None:
    """Sizes and times grow with the batch; drafting counts; per-rank sequences give tokens on every rank."""
    workload = read(changed("step.sequences_are_per_rank", value=True), "here")
    assert workload.bytes_of(workload.calls[0], 8) == 8192
    assert workload.other_at(8) == 1000 + 80 + 50
    assert workload.tokens_at(8, 4) == 2.0 * 8 * 4
    assert read(PLAIN, "here").tokens_at(8, 4) == 8


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("step.other_us", -1.0, "step: other_us -1.0: expected a number of zero or more"),
        ("step.other_us", "9", "other_us '9'"),
        ("step.other_us", float("nan"), "zero or more"),
        ("step.other_us", True, "zero or more"),
        ("step.other_us", None, "other_us is missing"),
        ("step.source", "", "expected a text"),
        ("step.strange", 1, "unknown field 'strange'"),
        ("step", 5, "expected a table"),
        ("schema", "collbench/2", "this release reads collbench/1"),
        ("batches", [], "expected a list"),
        ("batches", [0], "whole number of 1 or more"),
        ("batches", [1.5], "whole number"),
        ("calls", [], r"at least one \[\[calls\]\]"),
        ("calls", [3], "expected a table"),
        ("calls.0.count", 0, "whole number"),
        ("calls.0.bytes_per_token", 3, "even number"),
        ("calls.0.bytes_per_token", 1 << 50, "whole number"),
        ("calls.0.collective", "broadcast", "expected one of all_reduce"),
        ("speculation.accepted_tokens", 3.5, "expected 1 to 3"),
        ("speculation.accepted_tokens", 0.5, "expected 1 to 3"),
        ("speculation.draft_us", -5, "zero or more"),
    ],
)
def test_what_cannot_be_is_named(path: str, value: object, told: str) -> None:
    """One line that names the file, the field and what was expected."""
    with pytest.raises(InvalidError, match=told) as error:
        read(changed(path, value), "mine.toml")
    assert str(error.value).startswith("mine.toml")
    assert "\n" not in str(error.value)


def test_a_name_that_is_none() -> None:
    with pytest.raises(UsageError, match="moe-61-decode"):
        find("decode")


@pytest.mark.parametrize("text", ["a = ", "\x00", "a" * ((1 << 20) + 1), "[" * 5000, "a = " + "9" * 5000])
def test_files_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(text)
    with pytest.raises(InvalidError, match=r"w\.toml"):
        load(path)


def test_the_example_of_the_documentation_is_a_workload(root: Path) -> None:
    text = (root / "docs" / "workloads.md").read_text(encoding="utf-8")
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert example
    assert read(tomllib.loads(example[1]), "docs").name == "mine"
