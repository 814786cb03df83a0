"""Part of a run: the cells whose fields have one of the values that were asked for; also by their `cell_id` alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from collbench.errors import UsageError
from collbench.results.records import Cell, Run, Samples
from collbench.results.summary import clean
from collbench.units import parse_bytes

__all__ = ["FIELDS", "chosen", "chosen_ids", "fields_of", "parse_only"]

FIELDS = (
    "collective", "algorithm", "variant", "op", "dtype", "bytes", "mode", "calls", "place", "buffers", "epilogue",
    "skew",
)  # fmt: skip
"""Fields of a cell that `--only` takes."""


def parse_only(texts: Sequence[str]) -> dict[str, frozenset[str]]:
    """Values by field of `FIELD=VALUE,VALUE...`, each given once; sizes as `parse_bytes` reads them.

    Raises:
        UsageError: no field, an unknown one, one given twice or among the values of another, or a size that is none.
    """
    found: dict[str, frozenset[str]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or name not in FIELDS:
            raise UsageError(f"--only {clean(text)[:80]}: expected FIELD=VALUE,... with FIELD of {', '.join(FIELDS)}")
        if name in found:
            raise UsageError(f"--only {name}=... stands there twice: give its values behind one, parted by commas")
        parts = values.split(",")
        if inner := next((part for part in parts if part.partition("=")[0] in FIELDS and "=" in part), ""):
            raise UsageError(
                f"--only {name}=...: {clean(inner)[:80]} is a field, and no value of {name}: "
                "give each field once, with an --only of its own, and its values behind it, parted by commas"
            )
        found[name] = frozenset(map(_size, parts) if name == "bytes" else parts)
    return found


def _size(text: str) -> str:
    try:
        return str(parse_bytes(text))
    except UsageError as error:
        raise UsageError(f"--only bytes: {error}") from None


def chosen(run: Run, samples: Sequence[Samples], only: Mapping[str, frozenset[str]]) -> tuple[Run, list[Samples]]:
    """The run with these cells alone, and their samples.

    Raises:
        UsageError: no cell is left.
    """
    kept = tuple(cell for cell in run.cells if _is_chosen(cell, only))
    if only and not kept:
        raise UsageError(f"--only {_asked(only)}: the run has no such cell")
    names = {cell.cell_id for cell in kept}
    return replace(run, cells=kept), [one for one in samples if one.cell_id in names]


def _is_chosen(cell: Cell, only: Mapping[str, frozenset[str]]) -> bool:
    row = cell.row()
    return all(str(row[name]) in values for name, values in only.items())


def _asked(only: Mapping[str, frozenset[str]]) -> str:
    return clean("; ".join(f"{name}={','.join(sorted(values))}" for name, values in only.items()))[:200]


_IN_ID = (
    "collective", "algorithm", "variant", "op", "dtype", "bytes", "world_size", "mode", "calls", "place", "buffers",
    "epilogue", "skew",
)  # fmt: skip


def fields_of(cell_id: str) -> dict[str, str]:
    """Fields of a cell by their names, as its `cell_id` tells them; none of an id that is not one of ours."""
    parts = cell_id.split("/")
    if len(parts) != len(_IN_ID):
        return {}
    return {name: "" if part == "-" else part for name, part in zip(_IN_ID, parts, strict=True)}


def chosen_ids(cell_ids: Iterable[str], only: Mapping[str, frozenset[str]]) -> list[str]:
    """Those of these cells that were asked for.

    Raises:
        UsageError: none is.
    """
    cell_ids = list(cell_ids)
    fields = {cell_id: fields_of(cell_id) for cell_id in cell_ids}
    kept = [one for one in cell_ids if all(fields[one].get(name) in values for name, values in only.items())]
    if only and not kept:
        raise UsageError(f"--only {_asked(only)}: none of {len(cell_ids)} cells is one")
    return kept
