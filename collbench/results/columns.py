"""Samples as a parquet file: one row per sample and rank, and in its metadata what has no row.

Columns: `cell_id`, `launch`, `rank`, `iteration`, `latency_us`. Metadata: `collbench.schema`, and `collbench.launches`,
a JSON list with one object per cell and launch: the keys of `samples.jsonl`, with `ranks` and `iterations` for the
latencies. Cells without samples (unsupported, hung, ...) stand there too: the file alone gives the whole run back.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from collbench.errors import InvalidError
from collbench.results.files import refuse_special
from collbench.results.hostile import tamed
from collbench.results.lines import KEYS, decode, parse_json
from collbench.results.records import SCHEMA, Samples
from collbench.results.schema import CURRENT, version_of

__all__ = ["read_parquet", "write_parquet"]

_SCHEMA_KEY = b"collbench.schema"
_LAUNCHES_KEY = b"collbench.launches"
_MAX_ROWS = 1 << 30


def write_parquet(file: BinaryIO, samples: Sequence[Samples]) -> None:
    """Write the samples to an open file.

    Raises:
        OSError: it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [np.asarray(s.latency_us or [[]], dtype=np.float64) for s in samples]
    sizes = [a.size for a in arrays]
    cells = pa.array([s.cell_id for s in samples], pa.string())
    columns = {
        "cell_id": cells.take(np.repeat(np.arange(len(samples)), sizes)).dictionary_encode(),
        "launch": np.repeat(np.array([s.launch for s in samples], np.int32), sizes),
        "rank": _joined([np.repeat(np.arange(a.shape[0]), a.shape[1]) for a in arrays], np.int32),
        "iteration": _joined([np.tile(np.arange(a.shape[1]), a.shape[0]) for a in arrays], np.int32),
        "latency_us": _joined([a.ravel() for a in arrays], np.float64),
    }
    metadata = {_SCHEMA_KEY: SCHEMA.encode(), _LAUNCHES_KEY: json.dumps([_launch(s) for s in samples]).encode()}
    pq.write_table(pa.table(columns, metadata=metadata), file, compression="zstd")


def _joined(parts: list[np.ndarray[Any, Any]], dtype: type) -> np.ndarray[Any, Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _launch(samples: Samples) -> dict[str, Any]:
    ranks = samples.latency_us
    return {
        "cell_id": samples.cell_id, "launch": samples.launch, "status": str(samples.status), "reason": samples.reason,
        "flags": [str(f) for f in samples.flags], "calls": samples.calls, "ranks": len(ranks),
        "iterations": len(ranks[0]) if ranks else 0,
    }  # fmt: skip


def read_parquet(path: Path) -> list[Samples]:
    """Inverse of `write_parquet`, sample for sample.

    Raises:
        InvalidError: not such a file, a damaged one, or one of a newer schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        refuse_special(path)
        table = pq.read_table(path)
        metadata = table.schema.metadata or {}
        version = version_of({"schema": metadata.get(_SCHEMA_KEY, b"").decode(errors="replace")}, str(path))
        launches = parse_json(b'{"launches":' + metadata.get(_LAUNCHES_KEY, b"") + b"}", lambda raw: raw)["launches"]
        latency = table.column("latency_us").to_numpy()
        keys = [table.column(name).to_numpy() for name in ("cell_id", "launch", "rank", "iteration")]
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise InvalidError(f"{path}: not a parquet file of samples, or a damaged one: {str(error)[:120]}") from error
    if version != CURRENT:
        raise InvalidError(f"{path}: an older schema is migrated from samples.jsonl, which is missing")
    return _restore(path, launches, latency, keys)


def _restore(path: Path, launches: Any, latency: np.ndarray[Any, Any], keys: list[Any]) -> list[Samples]:  # noqa: ANN401 - JSON
    found, start = [], 0
    try:
        for launch in launches:
            ranks, iterations = int(launch["ranks"]), int(launch["iterations"])
            if not 0 <= ranks * iterations <= _MAX_ROWS or min(ranks, iterations) < 0:
                raise InvalidError(f"{path}: {ranks} ranks x {iterations} iterations cannot be")
            part = slice(start, start + ranks * iterations)
            start = part.stop
            _check_rows(path, launch, [key[part] for key in keys], (ranks, iterations))
            values = latency[part].reshape(ranks, iterations).tolist() if ranks else []
            found.append(decode(tamed({key: launch.get(key) for key in KEYS} | {"latency_us": values})))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidError(f"{path}: its list of launches is damaged: {type(error).__name__}: {error}") from error
    if start != len(latency):
        raise InvalidError(f"{path}: {len(latency)} rows, but its list of launches tells of {start}")
    return found


def _check_rows(path: Path, launch: dict[str, Any], keys: list[Any], shape: tuple[int, int]) -> None:
    """Rows must stand as they were written: a file that another program has sorted is refused, not misread."""
    cell, number, rank, iteration = keys
    ranks, iterations = shape
    same = (
        len(cell) == ranks * iterations
        and (cell == launch["cell_id"]).all()
        and (number == launch["launch"]).all()
        and (rank == np.repeat(np.arange(ranks), iterations)).all()
        and (iteration == np.tile(np.arange(iterations), ranks)).all()
    )
    if not same:
        raise InvalidError(f"{path}: rows of {launch['cell_id']} are missing or out of order")
