"""The part of a run that was asked for."""

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.interop.chosen import chosen, parse_only
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run


def test_fields_are_read_with_their_values() -> None:
    assert parse_only(["mode=graph,eager", "bytes=1K,14336", "skew="]) == {
        "mode": {"graph", "eager"}, "bytes": {"1024", "14336"}, "skew": {""},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["mode", "colour=red", "", "=x", "bytes=many", "p50_us=1"])
def test_what_is_no_field_or_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_only([text])


def test_a_size_that_is_none_says_of_which_option() -> None:
    with pytest.raises(UsageError, match=r"^--only bytes: size '1Q': expected a number of bytes"):
        parse_only(["bytes=1K,1Q"])


def test_a_field_stands_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_only(["mode=graph", "mode=eager"])


@pytest.mark.parametrize(("text", "inner"), [("mode=eager,mode=graph", "mode=graph"), ("bytes=1K,calls=1", "calls=1")])
def test_a_second_field_behind_a_comma_is_refused(text: str, inner: str) -> None:
    """As a value of the first it would match nothing, in silence; a variant may hold `=` behind other names."""
    with pytest.raises(UsageError, match=f"{inner} is a field.* --only of its own") as caught:
        parse_only([text])
    assert "\n" not in str(caught.value)
    assert parse_only(["variant=grid=8,grid=16"]) == {"variant": {"grid=8", "grid=16"}}


def test_cells_and_samples_are_taken_together(tmp_path: Path) -> None:
    with RunFolder.open(synthetic_run(tmp_path / "run", launches=2, iterations=5).path) as folder:
        run, samples = folder.run, folder.samples()
    part, some = chosen(run, samples, parse_only(["algorithm=gloo", "calls=1", "bytes=1K"]))

    (cell,) = part.cells
    assert (cell.algorithm, cell.calls, cell.call.bytes) == ("gloo", 1, 1024)
    assert [(one.cell_id, one.launch) for one in some] == [(cell.cell_id, 0), (cell.cell_id, 1)]
    assert chosen(run, samples, {}) == (run, samples)
    with pytest.raises(UsageError, match="--only mode=graph: the run has no such cell"):
        chosen(run, samples, parse_only(["mode=graph"]))
