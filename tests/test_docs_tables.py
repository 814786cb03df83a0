"""Tables of documents are what `collbench export` prints of the runs beside them; and how they get there."""

from pathlib import Path

import pytest

from collbench.testing import synthetic_run
from tests.docs_tables import ROOT, Block, blocks, documents, main, write

WORDS = "runs/a --format markdown --no-head --only calls=1"


@pytest.mark.parametrize(
    "block", [block for document in documents() for block in blocks(document)],
    ids=lambda block: f"{block.document.relative_to(ROOT)}: {block.words}",
)  # fmt: skip
def test_a_table_is_what_the_command_prints(block: Block) -> None:
    """Where it is not: `python -m tests.docs_tables --write` puts it in."""
    assert block.body == block.printed()


def test_some_document_holds_such_tables() -> None:
    assert documents()


@pytest.fixture
def document(tmp_path: Path) -> Path:
    synthetic_run(tmp_path / "runs" / "a", iterations=5)
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n\n<!-- export: {WORDS} -->\n<!-- end of export -->\n\nBehind.\n", encoding="utf-8")
    return page


def test_a_table_is_put_in_and_kept(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(document)]) == 1
    assert "STALE" in capsys.readouterr().out
    assert main([str(document), "--write"]) == 0
    text = document.read_text(encoding="utf-8")
    assert text.startswith(
        f"Before.\n\n<!-- export: {WORDS} -->\n\n**all_reduce, sum of bfloat16, eager, single calls**\n"
    )
    assert text.endswith("an interval takes 5\n\n<!-- end of export -->\n\nBehind.\n")
    assert not write(document)
    assert main([str(document)]) == 0


def test_one_figure_that_drifts_is_noticed(document: Path) -> None:
    write(document)
    (block,) = blocks(document)
    document.write_text(document.read_text(encoding="utf-8").replace("| `gloo` | 2", "| `gloo` | 4"), encoding="utf-8")
    (changed,) = blocks(document)
    assert block.body == block.printed() == changed.printed()
    assert changed.body != changed.printed()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("runs/b --format markdown", "no such run folder"), ("runs/a", "required: --format"),
        ("runs/a --format markdown --out x.md", "takes no --out"), ('runs/a "--format', "page.md: .* closing"),
    ],
)  # fmt: skip
def test_a_command_that_fails_is_told(
    document: Path, words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document.write_text(document.read_text(encoding="utf-8").replace(WORDS, words), encoding="utf-8")
    before = document.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        write(document)
    for more in ([], ["--write"]):
        assert main([str(document), *more]) == 3
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert document.read_text(encoding="utf-8") == before


@pytest.mark.parametrize("mark", ["<!-- export: x -->", "<!-- end of export -->"])
def test_a_mark_without_its_other_half_is_told(tmp_path: Path, mark: str) -> None:
    (tmp_path / "page.md").write_text(f"{mark}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="stands alone"):
        blocks(tmp_path / "page.md")


def test_a_document_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.md")]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
