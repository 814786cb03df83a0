"""Which processor a device hangs on, by NUMA affinity where it is printed, else by the label SYS."""

import itertools
from dataclasses import dataclass, field

from collbench.topology.label_rows import is_gpu
from collbench.topology.smi_levels import LEVELS, LabelledDevices, Pairs
from collbench.wording import first_of

__all__ = ["Sockets", "sockets_of"]


@dataclass(slots=True)
class Sockets:
    """`of` maps a device to its socket, `facts` a socket to its attributes, `keys` what tells sockets apart to them."""

    of: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)


def sockets_of(devices: LabelledDevices, pairs: Pairs, units: list[list[str]]) -> Sockets:
    """Sockets of the `units`, sets of devices below one host bridge each.

    A NUMA node is taken for a socket. GPUs whose paths NVLink hides, and that nothing puts on different sockets, are
    taken to share one, and that is noted.
    """
    found = Sockets()
    numa = {i: _numa(devices, unit) for i, unit in enumerate(units)}
    regions = pairs.joined(LEVELS["NODE"])
    region = {name: index for index, members in enumerate(regions) for name in members}
    key: dict[int, str] = {}
    for i, unit in enumerate(units):
        near = [numa[j] for j, other in enumerate(units) if region[other[0]] == region[unit[0]] and numa[j]]
        key[i] = f"numa {numa[i] or near[0]}" if numa[i] or near else f"region {region[unit[0]]}"
    _merge_hidden(devices, pairs, units, key, found.notes)
    _settle_cards(units, key, found.notes, pairs)
    for i in sorted(key, key=lambda i: _order(key[i], devices.names.index(units[i][0]))):
        _place(units[i], key[i], found)
    found.notes += _quarrels(devices, pairs)
    found.notes += _guesses(devices, found)
    return found


def _guesses(devices: LabelledDevices, found: Sockets) -> list[str]:
    """Sockets that stand on the label SYS alone."""
    unnamed = [name for name, facts in found.facts.items() if not facts]
    with_gpu = {found.of[gpu] for gpu in devices.gpus}
    notes = []
    if len(with_gpu & set(unnamed)) > 1:
        notes.append(f"{len(with_gpu)} sockets by the label SYS alone: the rows name no NUMA node")
    cards = sorted(n for n, socket in found.of.items() if socket in unnamed and socket not in with_gpu)
    if cards:
        notes.append(f"{', '.join(cards[:8])}: SYS to every GPU: drawn at a socket of their own")
    return notes


def _numa(devices: LabelledDevices, unit: list[str]) -> str:
    return next((text for name in unit if is_gpu(name) and (text := devices.affinities[name].numa)), "")


def _order(key: str, place: int) -> tuple[int, int]:
    """NUMA nodes by number, then the others as they come."""
    number = key.removeprefix("numa ")
    return (int(number), 0) if number.isdecimal() else (1 << 20, place)


def _merge_hidden(
    devices: LabelledDevices, pairs: Pairs, units: list[list[str]], key: dict[int, str], notes: list[str]
) -> None:
    """Bring regions without NUMA affinity together where NVLink hides how they lie and nothing keeps them apart."""
    free = [i for i in key if key[i].startswith("region") and any(is_gpu(name) for name in units[i])]
    hidden = {frozenset(pair) for pair in pairs.hidden}
    for i, j in itertools.combinations(free, 2):
        if key[i] == key[j]:
            continue
        one = [name for k in free if key[k] == key[i] for name in units[k]]
        other = [name for k in free if key[k] == key[j] for name in units[k]]
        across = [frozenset((a, b)) for a in one for b in other]
        apart = any(pairs.level.get(pair, 0) > LEVELS["NODE"] for pair in across)
        alike = {devices.affinities[g].cpus for g in one + other if is_gpu(g)} == {_cpus(devices, one)}
        if alike and not apart and any(pair in hidden for pair in across):
            notes.append(f"NVLink hides whether {one[0].lower()} and {other[0].lower()} share a socket: drawn at one")
            key |= {k: key[i] for k in free if key[k] == key[j]}


def _cpus(devices: LabelledDevices, names: list[str]) -> str:
    return next(devices.affinities[name].cpus for name in names if is_gpu(name))


def _settle_cards(units: list[list[str]], key: dict[int, str], notes: list[str], pairs: Pairs) -> None:
    """A network card that is SYS to all GPUs lies on another socket, unless SYS is what this machine says of all."""
    with_gpu = {i for i, unit in enumerate(units) if any(is_gpu(name) for name in unit)}
    kept = {key[i] for i in with_gpu}
    within = [
        i for i, j in itertools.permutations(with_gpu, 2) if key[i] == key[j] and _is_far(pairs, units[i], units[j])
    ]
    for i, unit in enumerate(units):
        if i not in with_gpu and key[i] not in kept and within:
            first = min(kept, key=lambda k: _order(k, 0))
            notes.append(f"{unit[0]}: SYS to every GPU, as GPUs of one NUMA node are here: its socket is unknown")
            key[i] = first


def _is_far(pairs: Pairs, one: list[str], other: list[str]) -> bool:
    return any(pairs.level.get(frozenset((a, b))) == LEVELS["SYS"] for a in one for b in other)


def _place(unit: list[str], key: str, found: Sockets) -> None:
    if key not in found.keys:
        name = found.keys[key] = f"socket{len(found.keys)}"
        found.facts[name] = {"numa": key.removeprefix("numa ")} if key.startswith("numa ") else {}
    found.of |= dict.fromkeys(unit, found.keys[key])


def _quarrels(devices: LabelledDevices, pairs: Pairs) -> list[str]:
    """Where labels and NUMA affinities contradict each other: in one line each way."""
    far, near = [], []
    for a, b in itertools.combinations(devices.gpus, 2):
        one, other = devices.affinities[a].numa, devices.affinities[b].numa
        level = pairs.level.get(frozenset((a, b)), 0)
        if one and one == other and level == LEVELS["SYS"]:
            far.append(f"{a.lower()} and {b.lower()}")
        elif one and other and one != other and 0 < level < LEVELS["SYS"]:
            near.append(f"{a.lower()} and {b.lower()}")
    notes = []
    if far:
        notes.append(f"{first_of(far)}: SYS by their labels, but one NUMA node by their affinity: drawn at one socket")
    if near:
        notes.append(f"{first_of(near)}: in one NUMA node by their labels, but in two by their affinity")
    return notes
