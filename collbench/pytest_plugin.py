"""Cells as benchmarks in a user's tests: the fixture `collective_benchmark`, found through pytest's entry points.

    def test_decode_allreduce(collective_benchmark):
        row = collective_benchmark("host_ring", bytes=14336, ranks=2)
        assert row["p50_us"] < 40

Each call measures in processes of its own, as `collbench sweep` does. With `--collbench-json FILE` all of them are
written in pytest-benchmark's format, which `collbench gate` reads.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CollectiveBenchmark", "collective_benchmark"]

_KEY = pytest.StashKey[list[dict[str, Any]]]()
_MACHINE = pytest.StashKey[dict[str, Any]]()


class CollectiveBenchmark:
    """What the fixture gives: call it to measure one cell."""

    def __init__(
        self, name: str, found: list[dict[str, Any]], keep: Callable[[Mapping[str, Any]], None], *, parallel: bool
    ) -> None:
        self._name = name
        self._parallel = parallel
        self._found = found
        self._keep = keep

    def __call__(
        self, algorithm: str, bytes: int, ranks: int, calls: int = 1, mode: str = "eager", iterations: int = 100,  # noqa: A002 - the vocabulary's word
        timeout_s: float = 120.0, options: Sequence[str] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Measure a cell; gives its row (docs/design.md section 4). `options` are further ones of `collbench sweep`.

        A cell that is not supported here skips the test with its reason; one that is wrong, hung or crashed fails it.
        """
        if self._parallel:
            pytest.fail("a cell is measured alone: run these tests without pytest-xdist (-n 0)", pytrace=False)
        words = [
            "--nproc", str(ranks), "--algorithms", algorithm, "--sizes", str(bytes), "--calls", str(calls), "--modes",
            mode, "-n", str(iterations), "--no-probe", *options,
        ]  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="collbench-") as folder:
            run = Path(folder) / "run"
            row = self._sweep([*words, "--json", "--out", str(run)], timeout_s)
            if row["status"] == "unsupported":
                pytest.skip(f"{row['cell_id']}: {row['reason']}")
            if row["status"] != "ok":
                pytest.fail(f"{row['cell_id']} is {row['status']}: {row['reason']}", pytrace=False)
            self._record(run)
        return row

    def _sweep(self, words: list[str], timeout_s: float) -> dict[str, Any]:
        command = [sys.executable, "-m", "collbench.sweep", *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            pytest.fail(f"the sweep did not end within {timeout_s:.0f} s", pytrace=False)
        rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"] if done.stdout.startswith("{") else []
        if len(rows) != 1:
            told = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            pytest.fail(f"the sweep gave {len(rows)} cells, expected 1: {told}", pytrace=False)
        return rows[0]

    def _record(self, run: Path) -> None:
        from collbench.interop.exports import export
        from collbench.results.store import RunFolder

        with RunFolder.open(run) as folder:
            data = json.loads(export(folder.run, folder.samples(), "pytest-benchmark"))
        taken = sum(one["extra_info"]["test"] == self._name for one in self._found)
        name = self._name if not taken else f"{self._name}#{taken + 1}"
        for one in data["benchmarks"]:
            extra = {
                "test": self._name,
                "cell": one["extra_info"]["cell_id"],
                "median_us": one["extra_info"]["median_us"],
            }
            self._found.append(one | {"name": name.rpartition("::")[2], "fullname": name, "extra_info": extra})
        self._keep(data["machine_info"])


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--collbench-json`."""
    group = parser.getgroup("collbench")
    group.addoption("--collbench-json", metavar="FILE", help="write measured cells in pytest-benchmark's format")


def pytest_configure(config: pytest.Config) -> None:
    """Room for what is measured; a file that cannot be written is said before anything is."""
    path = config.getoption("--collbench-json")
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise pytest.UsageError(f"--collbench-json {path}: there is no such folder")
    config.stash[_KEY] = []
    config.stash[_MACHINE] = {}


@pytest.fixture
def collective_benchmark(request: pytest.FixtureRequest) -> CollectiveBenchmark:
    """Measures one cell of collbench: `collective_benchmark("host_ring", bytes=14336, ranks=2)`."""
    stash = request.config.stash
    parallel = hasattr(request.config, "workerinput")  # pytest-xdist's processes have it
    return CollectiveBenchmark(request.node.nodeid, stash[_KEY], stash[_MACHINE].update, parallel=parallel)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file where one was asked for."""
    path = session.config.getoption("--collbench-json")
    if path is None or hasattr(session.config, "workerinput"):
        return
    import datetime as dt

    from collbench import __version__
    from collbench.results.files import replace_whole

    data = {
        "machine_info": session.config.stash[_MACHINE], "commit_info": {}, "benchmarks": session.config.stash[_KEY],
        "datetime": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), "version": __version__,
    }  # fmt: skip
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    replace_whole(Path(path), lambda file: file.write(text.encode()), private=False)
