"""The parquet file: the same samples, read back alone; a damaged one is refused, never misread."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import InvalidError
from collbench.results.columns import read_parquet, write_parquet
from collbench.results.hostile import tamed
from collbench.results.records import Flag, Samples, Status

_LATENCIES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 9)).map(
    lambda t: tuple(map(tuple, np.random.default_rng(t[2]).uniform(0, 1e6, t[:2]).tolist()))
)
# the names that a cell_id is made of are printable; NUL ends a string in parquet's dictionaries
_NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=5)
_SAMPLES = st.one_of(
    st.builds(Samples, _NAMES, st.integers(0, 3), st.just(Status.OK), st.just(""),
              st.just((Flag.NOISY,)), st.integers(1, 122), _LATENCIES),
    st.builds(Samples, _NAMES, st.integers(0, 3), st.just(Status.HUNG), st.text(max_size=9)),
)  # fmt: skip


def _write(path: Path, samples: list[Samples]) -> Path:
    with path.open("wb") as file:
        write_parquet(file, samples)
    return path


@settings(max_examples=40, deadline=None)
@given(st.lists(_SAMPLES, max_size=6))
def test_columns_come_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, samples: list[Samples]) -> None:
    path = _write(tmp_path_factory.mktemp("parquet") / "samples.parquet", samples)

    assert read_parquet(path) == [replace(s, cell_id=tamed(s.cell_id), reason=tamed(s.reason)) for s in samples]


def test_the_documented_columns_are_there(tmp_path: Path) -> None:
    path = _write(tmp_path / "p", [Samples("c", 1, Status.OK, latency_us=((1.0, 2.0), (3.0, 4.0)))])
    table = pq.read_table(path)

    assert table.column_names == ["cell_id", "launch", "rank", "iteration", "latency_us"]
    assert table.column("latency_us").to_pylist() == [1.0, 2.0, 3.0, 4.0]
    assert table.column("rank").to_pylist() == [0, 0, 1, 1]
    assert table.column("iteration").to_pylist() == [0, 1, 0, 1]
    assert table.schema.metadata[b"collbench.schema"] == b"collbench/1"


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Cut, noise, empty, sorted by another program, without its metadata, of a newer schema."""
    path = _write(tmp_path / "p", [Samples("c", 0, Status.OK, latency_us=((1.0, 2.0), (3.0, 4.0)))])
    whole, table = path.read_bytes(), pq.read_table(path)
    for content in (whole[:-20], whole[:100], b"", b"noise" * 100):
        path.write_bytes(content)
        with pytest.raises(InvalidError, match="not a parquet file of samples"):
            read_parquet(path)
    pq.write_table(table.sort_by("iteration"), path)
    with pytest.raises(InvalidError, match="missing or out of order"):
        read_parquet(path)
    pq.write_table(table.slice(0, 3), path)
    with pytest.raises(InvalidError, match="missing or out of order"):
        read_parquet(path)
    pq.write_table(pa.concat_tables([table, table]), path)
    with pytest.raises(InvalidError, match="8 rows, but its list of launches tells of 4"):
        read_parquet(path)
    pq.write_table(table.replace_schema_metadata(None), path)
    with pytest.raises(InvalidError, match="not a file of collbench"):
        read_parquet(path)
    newer = {**(table.schema.metadata or {}), b"collbench.schema": b"collbench/2"}
    pq.write_table(table.replace_schema_metadata(newer), path)
    with pytest.raises(InvalidError, match="newer than"):
        read_parquet(path)


@pytest.mark.parametrize("launches", [b"", b"5", b"[5]", b"[{}]", b"null", b"[" * 100_000, b'[{"ranks": -1}]'])
def test_a_damaged_list_of_launches_is_refused(tmp_path: Path, launches: bytes) -> None:
    path = _write(tmp_path / "p", [Samples("c", 0, Status.OK, latency_us=((1.0,),))])
    table = pq.read_table(path)
    metadata = {**(table.schema.metadata or {}), b"collbench.launches": launches}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(InvalidError):
        read_parquet(path)
