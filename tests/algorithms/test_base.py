"""What `--algorithms` takes, and what is said of a word that it does not take."""

import pytest

from collbench.algorithms.base import known_systems, registry, select
from collbench.errors import UsageError
from collbench.results.records import Collective
from collbench.sweep_options import ALGORITHMS_HELP, FAMILIES


def test_help_texts_name_the_families_that_there_are() -> None:
    """Errors take them from the registry, help texts from a list, which loads faster."""
    assert {a.family for a in registry().values()} == set(FAMILIES)
    assert all(family in ALGORITHMS_HELP for family in FAMILIES)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("host_rign", "host_ring"), ("nccl_rign_ll", "nccl_ring_ll"), ("hots", "host"), ("flash_infer", "flashinfer"),
        ("deepep_low_latancy", "deepep_low_latency"), ("al", "all"),
    ],
)  # fmt: skip
def test_a_word_that_nobody_knows_names_the_nearest_first(word: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(word, registry())
    assert str(caught.value).startswith(f"unknown algorithm {word!r}: did you mean {meant}? Families: b12x, ")


def test_what_is_said_is_short_whatever_was_mistyped() -> None:
    for word in [*registry(), *known_systems(), "?" * 1000]:
        with pytest.raises(UsageError) as caught:
            select(f"{word}x", registry())
        assert len(str(caught.value)) < 230
    assert str(caught.value).startswith(f"unknown algorithm '{'?' * 40}'; families: b12x, coalesced, ")


def test_of_a_collective_only_its_own_are_taken() -> None:
    chosen = select("host", registry(), Collective.ALL_TO_ALL)

    assert [a.name for a in chosen] == ["host_all_to_all_push", "host_all_to_all_pull"]
    for words, told in (
        ("expert", "expert has no all_reduce: give --collective all_to_all"),
        ("host_ring,host_all_to_all_push", "host_all_to_all_push has no all_reduce: give --collective all_to_all"),
    ):
        with pytest.raises(UsageError, match=told):
            select(words, registry(), Collective.ALL_REDUCE)


def test_a_system_without_a_runner_is_taken_by_its_name_beside_others() -> None:
    chosen = select("deepep_low_latency,push", registry(), Collective.ALL_REDUCE)

    assert [a.name for a in chosen] == ["push", "deepep_low_latency"]
