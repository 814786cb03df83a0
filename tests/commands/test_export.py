"""`collbench export` as it is typed."""

import csv
import io
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.testing import synthetic_run


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(synthetic_run(tmp_path / "run", iterations=5).path)


def test_tables_are_printed_and_written_alike(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", run, "--format", "markdown", "--only", "calls=1", "--no-head", "--kernels"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("**all_reduce, sum of bfloat16, eager, single calls**\n\n| algorithm |")
    assert printed.count("\n|---|") == 1

    assert main([*words, "--out", str(tmp_path / "table.md")]) == 0
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == printed


def test_every_format_takes_a_part_of_the_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", run, "--format", "csv", "--only", "algorithm=gloo", "--only", "bytes=1K"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {(row["algorithm"], row["bytes"]) for row in rows} == {("gloo", "1024")}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--format", "csv", "--kernels"], 2, "--kernels: with --format markdown only"),
        (["--format", "gab", "--no-head"], 2, "--no-head: with --format markdown only"),
        (["--format", "markdown", "--only", "mode=graph"], 2, "--only mode=graph: the run has no such cell"),
        (["--format", "markdown", "--only", "x"], 2, "--only x: expected FIELD=VALUE"),
        (["nowhere", "--format", "markdown"], 2, "nowhere: no such run folder"),
        (["nowhere", "--format", "csv"], 2, "several runs: with --format markdown only"),
    ],
)
def test_what_cannot_be_is_one_line(
    run: str, words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", run, *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1


def test_one_run_twice_is_refused(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", run, run, "--format", "markdown"]) == 3
    assert "given twice" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["export", "RUN", "--format", "csv"], ["report", "RUN"]])
def test_no_output_replaces_the_run(run: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    target = Path(run) / "run.json"
    before = target.read_bytes()
    assert main([run if word == "RUN" else word for word in words] + ["--out", str(target)]) == 2
    assert "is a file of a run, which would be lost" in capsys.readouterr().err
    assert target.read_bytes() == before
