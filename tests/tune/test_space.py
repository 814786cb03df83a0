"""The space: what may be searched, which candidates it gives, and what is refused before anything is started."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import InvalidError, UsageError
from collbench.tune.space import Candidate, Space, default_space_text, parse_set, read_space

PROTO = ("", "LL", "LL128", "Simple")


def test_the_default_space_is_readable_and_names_what_nccl_has() -> None:
    space = Space.from_dict(tomllib.loads(default_space_text()), "default")
    assert {"NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_MAX_CTAS", "NCCL_NTHREADS"} <= set(
        space.variables
    )
    found = space.candidates(60, 0)
    assert len({one.name for one in found}) == 60
    assert not any(
        one.settings.get("NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in one.settings for one in found
    )  # fmt: skip


def test_the_default_comes_first_then_single_changes_then_combinations() -> None:
    space = Space({"NCCL_PROTO": PROTO, "NCCL_MAX_CTAS": ("", "2")})
    names = [one.name for one in space.candidates(100, 0)]
    assert names[:5] == ["default", "PROTO=LL", "PROTO=LL128", "PROTO=Simple", "MAX_CTAS=2"]
    assert sorted(names[5:]) == ["PROTO=LL+MAX_CTAS=2", "PROTO=LL128+MAX_CTAS=2", "PROTO=Simple+MAX_CTAS=2"]
    assert space.size == 8


def test_each_library_has_every_setting() -> None:
    found = Space({"NCCL_PROTO": ("LL",)}).candidates(10, 0, ("2.28.9", "2.30.7"))
    assert [one.name for one in found] == ["2.28.9", "2.30.7", "2.28.9+PROTO=LL", "2.30.7+PROTO=LL"]
    assert [one.is_default for one in found] == [True, False, False, False]


@given(st.integers(1, 40), st.integers(0, 1000))
def test_the_same_seed_gives_the_same_candidates(most: int, seed: int) -> None:
    """A search that goes on must have the cells that it began with."""
    space = Space({"NCCL_PROTO": PROTO, "NCCL_MAX_CTAS": ("", "1", "2"), "NCCL_NTHREADS": ("", "256")})
    found = space.candidates(most, seed)
    assert found == space.candidates(most, seed)
    assert found[0] == Candidate()
    assert len(found) <= most


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "0 variables"),
        ({"PATH": ("a",)}, "workers do not get it"),
        ({"NCCL_DEBUG": ("WARN",)}, "collbench sets it itself"),
        ({"NCCL_NVLS_ENABLE": ("1",)}, "every worker has it set"),
        ({"NCCL_PROTO": ()}, "0 values"),
        ({"NCCL_PROTO": ("$(reboot)",)}, "not for pasting"),
        ({"NCCL_PROTO": ("a\nb",)}, "not for pasting"),
        ({"nccl_proto": ("LL",)}, "workers do not get it"),
    ],
)
def test_what_cannot_be_searched_is_refused(variables: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Space(variables)


def test_never_names_variables_of_the_space() -> None:
    with pytest.raises(UsageError, match="NCCL_ALGO is no variable"):
        Space({"NCCL_PROTO": ("LL",)}, ({"NCCL_ALGO": "Tree"},))


def test_numbers_and_booleans_in_toml_are_text(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text('[variables]\nNCCL_MAX_CTAS = [1, 2]\nNCCL_P2P_DISABLE = [true, ""]\n')
    assert read_space(path).variables == {"NCCL_MAX_CTAS": ("1", "2"), "NCCL_P2P_DISABLE": ("1", "")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[variables", "cannot be read as TOML"),
        ("[variables]\nNCCL_BUFFSIZE = [" + "9" * 5000 + "]\n", "more than TOML's 64 bits"),
        ("", r"expected \[variables\]"),
        ('[variables]\nNCCL_PROTO = "LL"\n', "a variable needs a list"),
        ("[variables]\nNCCL_PROTO = [1.5]\n", "neither text nor a whole number"),
        ('schema = "collbench/9"\n[variables]\nNCCL_PROTO = ["LL"]\n', "expected collbench/1"),
        ('never = 3\n[variables]\nNCCL_PROTO = ["LL"]\n', "not iterable"),
    ],
)
def test_files_that_are_no_space(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(InvalidError, match=words):
        read_space(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_space(tmp_path / "none.toml")


def test_set_options() -> None:
    assert parse_set(["NCCL_PROTO=LL,Simple,LL", "NCCL_MAX_CTAS=2"]).variables == {
        "NCCL_PROTO": ("LL", "Simple"), "NCCL_MAX_CTAS": ("2",),
    }  # fmt: skip


@pytest.mark.parametrize("words", [["NCCL_PROTO"], ["NCCL_PROTO="], ["NCCL_PROTO=LL", "NCCL_PROTO=Simple"]])
def test_set_options_that_are_off(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--set"):
        parse_set(words)
