"""What a call enqueued, in a few words, from the evidence of a run: kernel, blocks x threads, registers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collbench.results.markdown import code_or_text, plain

__all__ = ["Kernel", "kernels", "short_name", "told"]

_NODE = re.compile(
    r"(?P<name>[^\s<;]+)<<<(?P<blocks>\d+), (?P<threads>\d+)>>>(?:, (?P<registers>\d+) registers)?(?P<more>[^;]*)"
)
_OWN = re.compile(r"(?P<name>\w+) (?P<blocks>\d+)x(?P<threads>\d+)(?P<early>\+pdl)?")
_EARLY = "launch_with_pdl"
"""Evidence of FlashInfer's fusion; of ours the text of the kernel says it, and of others where the driver told."""
_TOLD = ", programmatic launch"

_LENGTH = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a call and how often it is launched there; `grid` is `blocks x threads`, 0 registers: not known.

    `early`: its evidence says that it starts before the one before it has ended (programmatic dependent launch).
    """

    name: str
    grid: str
    registers: int = 0
    times: int = 1
    early: bool = False

    @property
    def text(self) -> str:
        """Markdown: `push` 1x64, 48 registers, 15 times."""
        return f"{code_or_text(self.name)} {self.grid}{self.more}"

    @property
    def more(self) -> str:
        """What stands behind the grid."""
        registers = f", {self.registers} registers" if self.registers else ""
        early = ", programmatic launch" if self.early else ""
        return registers + early + (f", {self.times} times" if self.times > 1 else "")


def short_name(symbol: str) -> str:
    """The function's own name in a symbol as C++ compilers write it (Itanium ABI), else the symbol as it is."""
    rest = symbol.removeprefix("_Z").removeprefix("L") if symbol.startswith("_Z") else ""
    nested = rest.startswith("N")
    rest = rest.removeprefix("N").removeprefix("L")
    name = ""
    while match := _LENGTH.match(rest):
        end = match.end() + int(match[0][:6])
        if len(match[0]) > 6 or end > len(rest):  # noqa: PLR2004 - no symbol is that long
            return symbol
        name, rest = rest[match.end() : end], rest[end:]
        if not nested:
            break
    return name or symbol


def kernels(evidence: Mapping[str, str]) -> tuple[tuple[Kernel, ...], ...]:
    """Kernels of one call in their first order, equal ones counted; several where ranks differed; empty if unknown."""
    texts = [text for key, text in evidence.items() if key.partition("@")[0] == "kernel"]
    found = dict.fromkeys(_of_text(text, evidence) for text in texts)
    return tuple(one for one in found if one)


def _of_text(text: str, evidence: Mapping[str, str]) -> tuple[Kernel, ...]:
    counted: dict[Kernel, int] = {}
    for match in _NODE.finditer(text):
        grid = f"{match['blocks']}x{match['threads']}"
        early = evidence.get(_EARLY) == str(True) or _TOLD in match["more"]
        one = Kernel(short_name(match["name"]), grid, _number(match["registers"]), early=early)
        counted[one] = counted.get(one, 0) + 1
    if counted:
        return tuple(replace(one, times=times) for one, times in counted.items())
    if own := _OWN.fullmatch(text.strip()):
        registers = _number(evidence.get(f"registers {own['name']}"))
        return (Kernel(own["name"], f"{own['blocks']}x{own['threads']}", registers, early=bool(own["early"])),)
    return ()


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 6 else 0  # noqa: PLR2004 - a multiprocessor has 65536


def told(by_size: Mapping[str, Sequence[tuple[Kernel, ...]]]) -> str:
    """One cell of a table: the kernels of each size, once where they are the same; `or` where launches or ranks differ.

    `by_size` has under a size's text what its calls enqueued, distinct.
    """
    known = {size: list(dict.fromkeys(found)) for size, found in by_size.items() if found}
    if not known:
        return ""
    if all(len(one) == 1 for found in known.values() for one in found):
        return "; ".join(_by_name(known))
    whole = {size: " or ".join(map(_call, found)) for size, found in known.items()}
    return "; ".join(_by_text(whole))


def _by_name(known: Mapping[str, Sequence[tuple[Kernel, ...]]]) -> list[str]:
    """Of calls with one kernel each: what is the same in its grids stands once."""
    grids: dict[tuple[str, str], dict[str, list[str]]] = {}
    for size, found in known.items():
        for (kernel,) in found:
            grids.setdefault((kernel.name, kernel.more), {}).setdefault(size, []).append(kernel.grid)
    texts = []
    for (name, more), of_name in grids.items():
        parts = _by_text({size: " or ".join(found) for size, found in of_name.items()}, whole=len(grids) == 1)
        texts.append(f"{code_or_text(name)} {', '.join(parts)}{more}")
    return texts


def _call(found: tuple[Kernel, ...]) -> str:
    """Kernels of one call; in their order where none comes twice."""
    repeated = any(kernel.times > 1 for kernel in found)
    return (" and " if repeated else ", then ").join(kernel.text for kernel in found)


def _by_text(by_size: Mapping[str, str], *, whole: bool = True) -> list[str]:
    """Each text with the sizes that it holds for, which are left out where it is the only one of the `whole`."""
    sizes: dict[str, list[str]] = {}
    for size, text in by_size.items():
        sizes.setdefault(text, []).append(size)
    if whole and len(sizes) == 1:
        return list(sizes)
    return [f"{text} ({', '.join(map(plain, found))})" for text, found in sizes.items()]
