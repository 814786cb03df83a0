"""Where a run comes from, in Markdown: machine, fabric, versions, date, command; no host, user or path."""

from collections.abc import Mapping, Sequence

from collbench.errors import CollbenchError, InvalidError
from collbench.results.crowding import turns
from collbench.results.markdown import fenced, plain
from collbench.results.private import public, public_command
from collbench.results.records import Fabric, Run
from collbench.topology.machine import Machine

__all__ = ["LETTERS", "head", "refuse_other_machines"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of sweeps whose rows stand in one table."""

_SOFTWARE = ("cuda", "nccl", "torch")
"""Hard keys of a fingerprint that may differ between rows of one table, where each row says whose it is."""

_VERSIONS = {
    "driver": "driver", "cuda": "CUDA", "nccl": "NCCL", "nvshmem": "NVSHMEM", "torch": "torch", "triton": "Triton",
    "flashinfer": "FlashInfer", "vllm": "vLLM", "sglang": "SGLang", "sgl-kernel": "sgl-kernel", "mscclpp": "MSCCL++",
    "tensorrt-llm": "TensorRT-LLM", "b12x": "b12x", "deep-ep": "DeepEP", "nccl4py": "nccl4py", "nvcc": "nvcc",
    "python": "Python",
}  # fmt: skip
"""What a time can depend on, by the names of `Machine.software`."""

_MOST_COMMAND = 4000


def refuse_other_machines(runs: Sequence[Run]) -> None:
    """Return where all runs are of one machine, seen alike, with as many ranks.

    Raises:
        InvalidError: two differ, one does not say where it was made or is given twice, or there are too many.
    """
    if len(runs) > len(LETTERS):
        raise InvalidError(f"{len(runs)} runs in one table: at most {len(LETTERS)}")
    if len({run.run_id for run in runs}) < len(runs):
        raise InvalidError("several runs in one table: one of them is given twice")
    keys = [_hard(run) for run in runs]
    if len(runs) > 1 and not all(keys):
        raise InvalidError("several runs in one table: one of them does not say on which machine it was made")
    for number, other in enumerate(keys[1:], 2):
        for key in sorted({*keys[0], *other} - {*_SOFTWARE}):
            if other.get(key, "") != keys[0].get(key, ""):
                first, now = (clip(public(one.get(key, "")) or "none") for one in (keys[0], other))
                raise InvalidError(
                    f"run {number} is not of the first one's machine ({key}: {first} and {now}): export each by itself"
                )


def clip(text: str) -> str:
    """At most 60 characters of it."""
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a piece of a line


def _hard(run: Run) -> dict[str, str]:
    prints = run.machine.get("fingerprint")
    hard = prints.get("hard") if isinstance(prints, Mapping) else None
    return {str(k): str(v) for k, v in hard.items()} if isinstance(hard, Mapping) else {}


def head(runs: Sequence[Run]) -> list[str]:
    """Paragraphs on the machine and on each sweep; `runs` are of one machine.

    Versions that all have stand once, what differs with each sweep.
    """
    versions = [_versions(run) for run in runs]
    common = {key: text for key, text in versions[0].items() if all(one.get(key) == text for one in versions)}
    lines = [f"{_sentence(_where(runs[0]))} {_sentence(_listed(common))}"]
    if len(runs) > 1:
        lines += [
            "",
            f"Rows are of {len(runs)} sweeps, made at different times: what differs between rows of two sweeps",
        ]
        lines[-1] += " can come from that too. An interval is of the launches of one sweep."
    for letter, run, own in zip(LETTERS, runs, versions, strict=False):
        rest = _listed({key: text for key, text in own.items() if key not in common})
        name = f"Sweep {letter}: " if len(runs) > 1 else ""
        lines += ["", name + _sentence("; ".join(filter(None, (_when(run), rest, turns(run), _end(run)))))]
        if run.commands:
            lines += ["", *fenced(_command(run), "sh")]
    return lines


def _command(run: Run) -> str:
    text = "\n".join(map(public_command, run.commands))
    return text if len(text) <= _MOST_COMMAND else text[:_MOST_COMMAND] + " ..."


def _when(run: Run) -> str:
    days = dict.fromkeys([run.created[:10], *(one.at[:10] for one in run.resumed)])
    told = ", ".join(days) if len(days) < 4 else f"{len(days)} days from {min(days)} to {max(days)}"  # noqa: PLR2004
    return plain(f"{told}, collbench {public(run.version)}")


def _end(run: Run) -> str:
    return "" if run.finished else "stopped before its end"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _listed(versions: Mapping[str, str]) -> str:
    return plain(", ".join(f"{name} {text}" for name, text in versions.items()), 1000)


def _versions(run: Run) -> dict[str, str]:
    software = run.machine.get("software")
    found = software if isinstance(software, Mapping) else {}
    return {word: clip(public(str(found[name]))) for name, word in _VERSIONS.items() if found.get(name)}


def _where(run: Run) -> str:
    """Ranks, devices and fabric; of a shared GPU, what times of it do not say."""
    machine = _machine(run)
    hosts = f" on {machine.hosts} hosts" if machine and machine.hosts > 1 else ""
    devices = _devices(machine, joined=run.fabric is not Fabric.SHARED_GPU)
    if run.fabric is Fabric.SHARED_GPU:
        what = "times are of launches, synchronisation and protocol in one memory; nothing is said about links"
        return f"{run.world_size} ranks share {devices or 'a GPU'}{hosts}, fabric `{run.fabric}`: {what}"
    if run.fabric is Fabric.HOST:
        cpu = _fact(machine, "cpu")
        return f"{run.world_size} ranks on processors{hosts}{f', {cpu}' if cpu else ''}, fabric `{run.fabric}`"
    return f"{run.world_size} ranks{hosts}, fabric `{run.fabric}`{f': {devices}' if devices else ''}"


def _machine(run: Run) -> Machine | None:
    try:
        return Machine.from_dict(run.machine) if run.machine else None
    except (CollbenchError, AttributeError, KeyError, TypeError, ValueError):
        return None  # a table of times needs none; who explains them says what is wrong with it


def _fact(machine: Machine | None, name: str) -> str:
    return plain(clip(public(str(machine.facts.get(name, ""))))) if machine else ""


def _devices(machine: Machine | None, *, joined: bool) -> str:
    """`2 x NVIDIA H200 (sm_90), NVSwitch`: GPUs by model, and what joins them."""
    nodes = machine.topology.nodes if machine else ()
    counts: dict[str, int] = {}
    for node in nodes:
        if str(node.kind) == "gpu":
            model, arch = (clip(public(str(node.attributes.get(key, "")))) for key in ("model", "arch"))
            name = f"{model or 'GPU'} ({arch})" if arch else model or "GPU"
            counts[name] = counts.get(name, 0) + 1
    texts = [f"{count} x {plain(name)}" if count > 1 else f"one {plain(name)}" for name, count in counts.items()]
    for kind, word in (("nvswitch", "NVSwitch"), ("switch", "PCIe switch")):
        some = sum(str(node.kind) == kind for node in nodes)
        texts += [f"{some} {word}{'es' if some > 1 else ''}"] if some and counts and joined else []
    return ", ".join(texts)
