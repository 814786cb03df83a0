"""Tables of documents are what `collbench export` prints of the runs beside them; and how they get there."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collbench.results.records import Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run
from tests.docs_tables import ROOT, Block, blocks, documents, main, write
from tests.kept_runs import keep, kept

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
        ("runs/a --format markdown --out x.md", "takes no --out"),
    ],
)  # fmt: skip
def test_a_command_that_fails_is_told(document: Path, words: str, told: str) -> None:
    document.write_text(document.read_text(encoding="utf-8").replace(WORDS, words), encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        write(document)


@pytest.mark.parametrize("mark", ["<!-- export: x -->", "<!-- end of export -->"])
def test_a_mark_without_its_other_half_is_told(tmp_path: Path, mark: str) -> None:
    (tmp_path / "page.md").write_text(f"{mark}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="stands alone"):
        blocks(tmp_path / "page.md")


def test_a_kept_run_says_what_the_run_says(tmp_path: Path) -> None:
    """All but the machine's names: times to a nanosecond, statuses and reasons as they were."""
    failing = {"gloo": (Status.HUNG, "no answer of /srv/joe/x")}
    made = synthetic_run(tmp_path / "run", launches=2, iterations=5, failing=failing).path
    copy = keep(made, tmp_path / "docs")

    assert sorted(path.name for path in copy.iterdir()) == ["evidence.jsonl", "run.json", "samples.parquet"]
    with RunFolder.open(made) as old, RunFolder.open(copy) as new:
        assert not new.problems()
        assert new.run == old.run
        assert new.evidence() == old.evidence()
        before, after = old.samples(), new.samples()
    assert [one.reason for one in after] == [one.reason.replace("/srv/joe/x", "PATH") for one in before]
    for one, other in zip(before, after, strict=True):
        assert replace(one, latency_us=(), reason="") == replace(other, latency_us=(), reason="")
        np.testing.assert_allclose(np.array(other.latency_us), np.array(one.latency_us), rtol=0, atol=0.00051)


def test_a_run_that_is_not_whole_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finished"):
        keep(synthetic_run(tmp_path / "a", iterations=5, finish=False).path, tmp_path / "docs")
    damaged = synthetic_run(tmp_path / "b", iterations=5).path
    (damaged / "samples.parquet").unlink()
    with (damaged / "samples.jsonl").open("a", encoding="utf-8") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"samples\.jsonl"):
        keep(damaged, tmp_path / "docs")


def test_what_names_a_machine_goes() -> None:
    uuid = "GPU-8c3f1a2b-1111-2222-3333-444455556666"
    value = {
        "nccl": "/srv/joe/libnccl.so.2", "kernel": "6.18.44-fc-v657-gpu", "hostname": "box",
        "hosts": 1, "host_arch": "x86_64",
        "gate": f"invalid literal: '{uuid}'", "log": "opened /srv/x\nclosed ~/y", "sizes": [1, None, True, "a/b"],
        "driver": "580.159.04", "judged": "behind 1, 2 iterations; seed 3",
    }  # fmt: skip
    assert kept(value) == {
        "nccl": "libnccl.so.2", "kernel": "6.18", "hosts": 1, "host_arch": "x86_64", "gate": "invalid literal: 'UUID'",
        "log": "opened PATH\nclosed PATH", "sizes": [1, None, True, "a/b"], "driver": "580.159.04",
        "judged": "behind 1, 2 iterations; seed 3",
    }  # fmt: skip
    assert "joe" not in json.dumps(kept({"command": ["/srv/joe/bin/collbench", "--out=/srv/joe/run"]}))
