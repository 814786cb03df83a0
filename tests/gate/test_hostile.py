"""Run folders that are damaged, made up or meant to do harm: exit code 3, the place is named, every output is sound."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from collbench.cli import main
from collbench.testing import host_machine, synthetic_run

HTML = "<img src=x onerror=alert(1)>"
Change = Callable[[bytes], bytes]


def a_run(path: Path, **settings: Any) -> Path:
    known: dict[str, Any] = {
        "costs": {"host_ring": (46.0, 0.12), "host_tree": (24.0, 0.30)}, "sizes": (1024, 65536), "calls": (1,),
        "launches": 6, "iterations": 20,
    }  # fmt: skip
    return synthetic_run(path, **(known | settings)).path


def as_json(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    return lambda text: json.dumps(change(json.loads(text))).encode()


def first_line(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def changed(text: bytes) -> bytes:
        line, _, rest = text.partition(b"\n")
        return json.dumps(change(json.loads(line))).encode() + b"\n" + rest

    return changed


DAMAGE: dict[str, tuple[str, Change, str]] = {
    "0 bytes of run.json": ("run.json", lambda _: b"", "run.json: not JSON"),
    "truncated run.json": ("run.json", lambda text: text[:-50], "run.json: not JSON"),
    "50 MB of nesting in run.json": ("run.json", lambda _: b"[" * (50 << 20), "run.json: nested too deep"),
    "newer schema": ("run.json", as_json(lambda d: d | {"schema": "collbench/9"}), "schema collbench/9 is newer"),
    "no cells": ("run.json", as_json(lambda d: d | {"cells": []}), "plans no cell"),
    "cells of the wrong kind": ("run.json", as_json(lambda d: d | {"cells": None}), "run.json"),
    "one cell twice": ("run.json", as_json(lambda d: d | {"cells": [*d["cells"], d["cells"][0]]}), "there twice"),
    "another fabric": ("run.json", as_json(lambda d: d | {"fabric": "shared-gpu"}), "fabric differs"),
    "0 bytes of samples": ("samples.jsonl", lambda _: b"", "no launch has a record of it"),
    "truncated samples": ("samples.jsonl", lambda text: text[:-50], "samples.jsonl line 24: cut off"),
    "50 MB of nesting in samples": ("samples.jsonl", lambda _: b"[" * (50 << 20), "samples.jsonl line 1"),
    "deep line among samples": ("samples.jsonl", lambda text: b"[" * 100_000 + b"\n" + text, "samples.jsonl line 1"),
    "bytes that are no text": ("samples.jsonl", lambda _: bytes(range(256)) * 100, "samples.jsonl line 1"),
    "NaN": ("samples.jsonl", lambda text: text.replace(b"[[", b"[[NaN,", 1), "NaN is not a number of JSON"),
    "infinite": ("samples.jsonl", lambda text: text.replace(b"[[", b"[[1e999,", 1), "samples.jsonl line 1"),
    "one launch twice": ("samples.jsonl", lambda text: text + text.splitlines(keepends=True)[0], "stands there twice"),
    "ranks that were timed less often": (
        "samples.jsonl", first_line(lambda d: d | {"latency_us": [d["latency_us"][0][:-3], *d["latency_us"][1:]]}),
        "iterations per rank, expected the same",
    ),
    "HTML for a name": ("run.json", lambda text: text.replace(b"host_ring", HTML.encode()), "only the "),
    "HTML for a reason": (
        "samples.jsonl", first_line(lambda d: d | {"status": "wrong", "latency_us": [], "reason": HTML}), "is wrong",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_never_a_pass(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, change, told = DAMAGE[name]
    base, run = a_run(tmp_path / "base"), a_run(tmp_path / "now", seed=1)
    (run / file).write_bytes(change((run / file).read_bytes()))
    (run / "samples.parquet").unlink()  # else it mends what is damaged

    code, texts = gate(base, run, capsys)

    assert code == (1 if name == "HTML for a reason" else 3)
    assert told in texts["shown"]
    assert "Traceback" not in texts["shown"]
    check_outputs(texts, tmp_path / "out.xml")


def test_another_machine_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "now", machine=host_machine(8, p2p="ok"))

    code, texts = gate(a_run(tmp_path / "base"), run, capsys)

    assert code == 3
    assert "p2p differs" in texts["shown"]
    check_outputs(texts, tmp_path / "out.xml")


def test_a_folder_in_place_of_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, run = a_run(tmp_path / "base"), a_run(tmp_path / "now")
    (run / "samples.parquet").unlink()
    (run / "samples.jsonl").unlink()
    (run / "samples.jsonl").mkdir()

    code, texts = gate(base, run, capsys)

    assert code == 3
    assert "samples.jsonl: is no regular file: not read" in texts["shown"]
    shutil.rmtree(run)
    assert gate(base, run, capsys)[0] == 2


def gate(base: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    """Exit code and every text that the gate makes of two runs."""
    folder = base.parent
    paths = {name: folder / f"out.{name}" for name in ("xml", "md", "html", "json")}
    (folder / "out.md").unlink(missing_ok=True)
    words = ["--junit", "xml", "--markdown", "md", "--html", "html", "--json-file", "json"]
    code = main(["gate", str(base), str(run), "--annotations", *(str(paths.get(word, word)) for word in words)])
    out, err = capsys.readouterr()
    return code, {name: path.read_text(encoding="utf-8") for name, path in paths.items()} | {"shown": out + err}


def check_outputs(texts: dict[str, str], junit: Path) -> None:
    """Well-formed, no verdict that is none, and no name has become an element."""
    (suite,) = JUnitXml.fromfile(str(junit))
    assert suite.errors + suite.failures > 0
    assert json.loads(texts["json"])["verdict"] in {"INVALID", "REGRESSED"}
    assert "<img" not in texts["html"] + texts["md"] + texts["xml"]
    lines = [line for line in texts["shown"].splitlines() if line.startswith("::")]
    assert 1 <= len(lines) <= 10
    assert all(line.startswith("::error title=") for line in lines)
