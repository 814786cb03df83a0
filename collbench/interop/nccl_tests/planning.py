"""The cells of a run: the first launch's rows, and what it did not reach, as the rows before it or the options say."""

from collections.abc import Sequence

from collbench.interop.nccl_tests.cells import ALGORITHM, BUFFERS, as_iterations, by_iterations, variant
from collbench.interop.nccl_tests.running import Request, sizes_of
from collbench.interop.nccl_tests.table import DTYPES, Invocation
from collbench.interop.nccl_tests.words import given, settings_from
from collbench.results.records import Call, Cell, Collective, Mode

__all__ = ["planned"]

_PLACES = ("out", "in")


def planned(
    request: Request, collective: Collective, ranks: int, one: Invocation | None, found: Sequence[Cell], *,
    whole: bool, iterations: bool,
) -> list[Cell]:  # fmt: skip
    """In the order of the sizes. Only a row says how a size is rounded, which NCCL it is and which times there are.

    `found` are the cells of `one`. `whole`: that launch ended well, so a place without a row has none. `iterations`:
    launches with times per iteration follow, so sizes of which it has but a mean get a cell for those as well.
    """
    seen = {cell.place for cell in found}
    half = not whole and one is not None and len(one.rows) == 1
    places = [place for place in _PLACES if place in seen or not seen or half]
    reached = list(dict.fromkeys(cell.call.bytes for cell in found))
    cells: list[Cell] = []
    for size in [*reached, *sizes_of(request)[len(reached) :]]:
        here = [cell for cell in found if cell.call.bytes == size]
        cells += here
        had = {cell.place for cell in here if by_iterations(cell) or not iterations}
        for place in (place for place in places if place not in had):
            like = next((cell for cell in found if cell.place == place), next(iter(found), None))
            if like is None or one is None:
                cells.append(_asked(request, collective, ranks, size, place))
            else:
                cells.append(_as(as_iterations(like, one.settings.average) if iterations else like, size, place))
    return list({cell.cell_id: cell for cell in cells}.values())


def _as(like: Cell, size: int, place: str) -> Cell:
    call = Call(size, like.call.world_size, like.call.collective, like.call.op, like.call.dtype)
    return Cell(ALGORITHM, call, like.mode, like.calls, like.variant, place, BUFFERS)


def _asked(request: Request, collective: Collective, ranks: int, size: int, place: str) -> Cell:
    """As the options say."""
    settings = settings_from(given(request.extra))
    dtype = DTYPES.get(request.dtype or "float", (request.dtype, 0))[0]
    summing = collective in {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER}
    call = Call(size, ranks, collective, request.op or "sum" if summing else "", dtype)
    words = variant(settings, nccl="", root=-1, iterations=False, checked=True)
    calls = max(1, (request.iterations or settings.iterations) * settings.aggregated * max(1, settings.graph))
    return Cell(ALGORITHM, call, Mode.GRAPH if settings.graph else Mode.EAGER, calls, words, place, BUFFERS)
