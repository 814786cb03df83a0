"""What stands behind the labels of a `topo -m` row: processors, NUMA node of the host, NUMA node of the GPU."""

import re
from dataclasses import dataclass

__all__ = ["Affinity", "affinity_of", "columns_of"]

_CPUS = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*,?|0x[0-9a-fA-F,x]{1,300}")
_NODE = re.compile(r"\d{1,4}(?:[-,]\d{1,4})*")
_ABSENT = {"N/A", "NA", "n/a", "-", "--", ""}


@dataclass(frozen=True, slots=True)
class Affinity:
    """Cells as text, empty where blank, absent or N/A."""

    cpus: str = ""
    numa: str = ""
    gpu_numa: str = ""


def columns_of(header: str) -> tuple[str, ...]:
    """Affinity columns that a header names, in order: `cpus`, `numa`, `gpu_numa`; empty where it names none."""
    flat = re.sub(r"\s+", " ", header.replace("\n", ""))
    marks = (("cpus", r"CPU ?Affinity|CPU Aff"), ("numa", r"NUMA ?Aff"), ("gpu_numa", r"GPU ?NUMA"))
    return tuple(name for name, pattern in marks if re.search(pattern, flat))


def affinity_of(tail: str, columns: tuple[str, ...]) -> tuple[Affinity, str]:
    """Affinity from the text behind a row's labels, and the part of it that is none.

    Tabs place the cells, also blank ones; where they are lost, the form of the values does: a list of processors has
    hyphens or commas, a node is a number or N/A.
    """
    tail = tail[:20000]  # a list of 4096 single processors fits
    if tail.count("\t") >= len(columns) > 0 and tail.lstrip(" ").startswith("\t"):
        cells = _by_tabs(tail)
        if cells is not None:
            return cells, ""
    tokens = re.sub(r",\s+(?=\d)", ",", tail).replace('"', " ").split()
    used = 0
    while used < len(tokens) and used < (len(columns) or 3) and _is_cell(tokens[used]):
        used += 1
    return _by_form(tokens[:used], columns), " ".join(tokens[used:]) if columns else ""


def _is_cell(token: str) -> bool:
    return token in _ABSENT or _CPUS.fullmatch(token) is not None or _NODE.fullmatch(token) is not None


def _by_tabs(tail: str) -> Affinity | None:
    """Processors, NUMA node, a blank cell, the GPU's node; None where a cell holds something else."""
    cells = [cell.strip() for cell in tail.split("\t")]
    cells += [""] * (3 - len(cells))
    cpus, numa, rest = cells[1], cells[2], [cell for cell in cells[3:] if cell]
    if cells[0] or len(rest) > 1:
        return None
    if not all(cell in _ABSENT or pattern.fullmatch(cell) for cell, pattern in ((cpus, _CPUS), (numa, _NODE))):
        return None
    gpu = rest[0] if rest else ""
    if gpu not in _ABSENT and _NODE.fullmatch(gpu) is None:
        return None
    return Affinity(_known(cpus).rstrip(","), _known(numa), _known(gpu))


def _by_form(tokens: list[str], columns: tuple[str, ...]) -> Affinity:
    names = columns or ("cpus", "numa", "gpu_numa")
    if 0 < len(tokens) < len(names) and not _is_list(tokens[0]):
        names = names[len(names) - len(tokens) :]  # blank cells come first; N/A alone is the GPU's own node
    found = dict(zip(names, tokens, strict=False))
    values = {name: _known(text).rstrip(",") for name, text in found.items()}
    return Affinity(values.get("cpus", ""), values.get("numa", ""), values.get("gpu_numa", ""))


def _is_list(token: str) -> bool:
    return "," in token or ("-" in token and token not in _ABSENT) or token.startswith("0x")


def _known(text: str) -> str:
    return "" if text in _ABSENT else text
