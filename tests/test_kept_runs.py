"""Runs that documents keep: what `tests.kept_runs` makes, and that those in the documents name no machine."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collbench.results.records import Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_run
from tests import kept_runs
from tests.kept_runs import MOST_BYTES, keep, kept, main

ROOT = Path(__file__).resolve().parents[1]
RUNS = sorted(path.parent for path in (ROOT / "docs").rglob("run.json"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.relative_to(ROOT / "docs")))
def test_a_run_in_the_documents_is_whole_and_names_no_machine(run: Path) -> None:
    """Neither paths nor kernel releases, UUIDs or hosts; nor does it hold the text form of its samples."""
    with RunFolder.open(run) as folder:
        assert not folder.problems()
        assert not any("hostname" in str(key) for key in folder.run.machine.get("facts", {}))
    text = "".join(path.read_text(encoding="utf-8") for path in run.glob("*.json*"))
    assert not re.search(r'"(?:/tmp|/home|/root|/opt|/usr|/work)/|GPU-[0-9a-f]{8}|\d+\.\d+\.\d+-[a-z]', text)
    assert {path.name for path in run.iterdir()}.isdisjoint({"samples.jsonl", "lock"})
    assert max(path.stat().st_size for path in run.iterdir()) <= MOST_BYTES


@pytest.mark.parametrize(("decimals", "off"), [(3, 0.00051), (2, 0.0051)])
def test_a_kept_run_says_what_the_run_says(tmp_path: Path, decimals: int, off: float) -> None:
    """All but the machine's names: times to a nanosecond or ten, statuses and reasons as they were."""
    failing = {"gloo": (Status.HUNG, "no answer of /srv/joe/x")}
    made = synthetic_run(tmp_path / "run", launches=2, iterations=5, failing=failing).path
    copy = keep(made, tmp_path / "docs", decimals)

    assert sorted(path.name for path in copy.iterdir()) == ["evidence.jsonl", "run.json", "samples.parquet"]
    with RunFolder.open(made) as old, RunFolder.open(copy) as new:
        assert not new.problems()
        assert new.run == old.run
        assert new.evidence() == old.evidence()
        before, after = old.samples(), new.samples()
    assert [one.reason for one in after] == [one.reason.replace("/srv/joe/x", "PATH") for one in before]
    for one, other in zip(before, after, strict=True):
        assert replace(one, latency_us=(), reason="") == replace(other, latency_us=(), reason="")
        np.testing.assert_allclose(np.array(other.latency_us), np.array(one.latency_us), rtol=0, atol=off)
        assert np.array(other.latency_us).tolist() == np.round(np.array(other.latency_us), decimals).tolist()


def test_a_run_that_is_not_whole_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finished"):
        keep(synthetic_run(tmp_path / "a", iterations=5, finish=False).path, tmp_path / "docs")
    damaged = synthetic_run(tmp_path / "b", iterations=5).path
    (damaged / "samples.parquet").unlink()
    with (damaged / "samples.jsonl").open("a", encoding="utf-8") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"samples\.jsonl"):
        keep(damaged, tmp_path / "docs")


def test_a_copy_that_is_too_large_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that it can be made again with fewer decimals; a copy that is there does stay."""
    made = synthetic_run(tmp_path / "run", iterations=5).path
    words = [str(made), str(tmp_path / "docs")]
    with monkeypatch.context() as patch:
        patch.setattr(kept_runs, "MOST_BYTES", 10)
        assert main(words) == 3
    assert "larger than 10 bytes" in capsys.readouterr().err
    assert not (tmp_path / "docs" / "run").exists()

    assert main([*words, "--decimals", "2"]) == 0
    held = sorted(path.name for path in (tmp_path / "docs" / "run").iterdir())
    assert main(words) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert sorted(path.name for path in (tmp_path / "docs" / "run").iterdir()) == held


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
