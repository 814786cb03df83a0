"""`collbench doctor`: what runs on this machine, or on one that one describes, what does not, and why."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.doctor import Change
    from collbench.doctor.here import Here
    from collbench.topology.graph import Topology
    from collbench.topology.machine import Machine

__all__ = ["add_parser", "run"]

_HEADS = {"runs": "runs", "does_not_run": "does not run", "unknown": "unknown"}
_WIDTH = 28


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="what runs here and what does not, why, and what would change it",
        description="Say for every algorithm whether it runs on this machine, why not, and what would change it.",
        epilog="Without --for, this machine is looked at; memory of a GPU is not touched. --compare takes words that\n"
        "change: for, gpus, fabric, p2p, cuda, torch, or any package, such as torch=2.14,flashinfer=0.7.4.\n"
        "--p2p, --cuda, --torch and --with also say what the record of a RUN leaves out, as of another tool's output.",
    )
    add = parser.add_argument
    add("run_folder", nargs="?", metavar="RUN", help="a run folder: its machine, and degraded states by its own probes")
    add("--deep", action="store_true", help="also load torch and NCCL, and give slow drivers more time (up to 10 s)")
    add("--for", dest="arch", metavar="ARCH", help="a machine that is not this one: sm_120, a model, or a machine file")
    add("--gpus", type=int, metavar="N", help="GPUs of that machine (default: 8)")
    add("--fabric", choices=("pcie", "nvlink"), help="what joins its GPUs (default: pcie)")
    add("--p2p", choices=("ok", "off"), help="whether its GPUs reach each other's memory (default: not said)")
    add("--cuda", metavar="VERSION", help="CUDA that its torch was built for")
    add("--torch", metavar="VERSION", help="its torch; NCCL is the one that comes with it unless --with says another")
    add("--with", dest="packages", default="", metavar="NAME=VERSION,...", help="what else it has: sglang=0.5.9,...")
    add("--compare", metavar="NAME=VALUE,...", help="show only what these changes change")
    add("--nproc", type=int, metavar="N", help="ranks on this machine (default: one per GPU, or 8)")
    add("--share-gpu", action="store_true", help="ask for several ranks on one GPU")
    add("-b", dest="size", default="14336", metavar="BYTES", help="message size asked about (default: 14336)")
    add("--json", action="store_true", help="print the rows as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: options that contradict each other or name nothing.
    """
    from collbench.doctor import changes, rows, unchanged
    from collbench.units import parse_bytes

    size = parse_bytes(args.size)
    machine, here = _machine(args)
    found = rows(machine, size)
    if args.compare is not None:
        after = rows(_changed(args, machine), size)
        _print_changes(changes(found, after), unchanged(found, after), as_json=args.json)
        return 0
    if args.json:
        _print_json(machine, here, found)
    else:
        _print_text(machine, here, found)
    return 0


def _machine(args: argparse.Namespace) -> "tuple[Machine, Here | None]":
    from collbench.errors import UsageError

    if args.arch is not None:
        if args.nproc is not None or args.share_gpu or args.deep or args.run_folder:
            raise UsageError("RUN, --nproc, --share-gpu and --deep name another machine: leave them out beside --for")
        return _described(args).machine(), None
    told = {"--gpus": args.gpus, "--fabric": args.fabric, "--p2p": args.p2p, "--cuda": args.cuda}
    told |= {"--torch": args.torch, "--with": args.packages}
    of_run = {"--p2p", "--cuda", "--torch", "--with"} if args.run_folder else set()
    lonely = [name for name, value in told.items() if value and name not in of_run]
    if lonely:
        raise UsageError(f"{', '.join(lonely)}: describes a machine that is not this one: say --for ARCH too")
    if args.run_folder:
        return _of_run(args)
    from collbench.doctor.here import look
    from collbench.sweep import MAX_RANKS_PER_HOST

    if args.nproc is not None and not 1 <= args.nproc <= MAX_RANKS_PER_HOST:
        raise UsageError(f"--nproc {args.nproc}: expected 1 to {MAX_RANKS_PER_HOST}")
    here = look(args.nproc, share_gpu=args.share_gpu, deep=args.deep)
    return here.machine, here


def _of_run(args: argparse.Namespace) -> "tuple[Machine, Here]":
    from pathlib import Path

    from collbench.doctor.past import look_back, with_said
    from collbench.errors import UsageError

    if args.nproc is not None or args.share_gpu or args.deep:
        raise UsageError("--nproc, --share-gpu and --deep are about this machine: leave them out beside a run")
    here = look_back(Path(args.run_folder))
    software = _software(args)
    if software or args.p2p:
        here = with_said(here, software, args.p2p or "")
    return here.machine, here


def _described(args: argparse.Namespace) -> Any:  # noqa: ANN401 - a Described, imported late
    from collbench.doctor.described import Described

    if (drawn := _drawn(args)) is not None:
        return Described.of(drawn, args.p2p or "", _software(args))
    gpus = 8 if args.gpus is None else args.gpus
    return Described(args.arch, gpus, args.fabric or "pcie", args.p2p or "", _software(args))


def _drawn(args: argparse.Namespace) -> "Topology | None":
    """The machine that `--for` names as `predict` does, by file or by name; None where it is a GPU."""
    from pathlib import Path

    from collbench.errors import UsageError
    from collbench.topology import catalog

    path = Path(args.arch)
    if args.arch.removesuffix(".toml") not in catalog.names():
        if path.suffix not in {".toml", ".json"} and not path.exists():
            return None
        if not path.is_file():
            raise UsageError(f"--for {path}: {'a folder' if path.is_dir() else 'no such file'}")
    if args.gpus is not None or args.fabric:
        raise UsageError(f"--gpus and --fabric: {args.arch} says them")
    return catalog.read(args.arch)


def _software(args: argparse.Namespace) -> dict[str, str]:
    """Versions by package that the options say."""
    from collbench.doctor.described import is_version, parse_pairs
    from collbench.doctor.packages import check
    from collbench.errors import UsageError

    software = {name: value for name, value in (("cuda", args.cuda), ("torch", args.torch)) if value}
    for name, value in software.items():
        if not is_version(value):
            raise UsageError(f"--{name} {value!r}: expected a version, such as 2.14")
    packages = parse_pairs(args.packages, "--with")
    if packages:
        check(packages, "--with")
    return software | packages


def _changed(args: argparse.Namespace, machine: "Machine") -> "Machine":
    import dataclasses

    from collbench.doctor.described import WORDS, parse_pairs
    from collbench.doctor.packages import check
    from collbench.errors import UsageError

    words = parse_pairs(args.compare, "--compare")
    if not words:
        raise UsageError("--compare: say what changes, such as torch=2.14,flashinfer=0.7.4")
    check(words, "--compare", WORDS)
    if args.arch is not None:
        changed: Machine = _described(args).changed(words).machine()
        return changed
    physical = sorted(set(words) & set(WORDS))
    if physical:
        raise UsageError(f"--compare {physical[0]}: this machine has what it has; describe another one with --for")
    return dataclasses.replace(machine, software={**machine.software, **words})


def _print_json(machine: "Machine", here: "Here | None", found: Sequence[Mapping[str, Any]]) -> None:
    import json
    from dataclasses import asdict

    from collbench.results.records import SCHEMA

    data: dict[str, Any] = {"schema": SCHEMA, "kind": "doctor", "rows": list(found), "ranks": machine.ranks}
    data |= {"fabric": str(machine.fabric), "described": here is None}
    data |= {"facts": dict(here.facts) if here else dict(machine.facts), "software": dict(machine.software)}
    data |= {"warnings": [asdict(one) for one in here.findings] if here else []}
    data |= {"missing": list(here.missing) if here else []}
    data |= {"pairs": list(here.pairs) if here else [], "regimes": [one.row() for one in here.regimes] if here else []}
    print(json.dumps(data, indent=1, ensure_ascii=False))


def _print_text(machine: "Machine", here: "Here | None", found: Sequence[Mapping[str, Any]]) -> None:
    from collbench.contention.findings import told

    if here is None:
        software = ", ".join(f"{name} {version}" for name, version in machine.software.items())
        _wrap("described", f"{machine.ranks} x {machine.arch}, fabric {machine.fabric}; {software}", 22)
    else:
        for name, value in here.facts.items():
            _wrap(name, value, 22)
        for finding in here.findings:
            _wrap("warning", finding.line, 22)
        for text in here.missing:
            _wrap("not found out", text, 22)
        for head, text in told(here.regimes):
            _wrap(f"regime {head}", text, 22)
    _print_verdicts(machine, found)


def _print_verdicts(machine: "Machine", found: Sequence[Mapping[str, Any]]) -> None:
    for verdict, head in _HEADS.items():
        some = [row for row in found if row["verdict"] == verdict]
        if machine.topology.gpus:
            some = [_briefly(row) for row in sorted(some, key=lambda row: row["device"] == "cpu")]
        if some:
            print(f"\n{head} ({len(some)}), {machine.ranks} ranks:")
        for text, names in _alike(some).items():
            if len(names) == 1:
                _wrap(f"  {names[0]}", text, _WIDTH)
            else:
                _wrap("", f"{', '.join(names)}:", 2)
                _wrap("", text, _WIDTH)


def _briefly(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Beside GPUs, algorithms on processors are one line: nobody looks for them there."""
    plain = row["device"] == "cpu" and row["verdict"] == "runs" and not row["reason"]
    return {**row, "summary": "on processors, without a GPU"} if plain else row


def _alike(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of the algorithms of which one and the same sentence holds."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(_sentence(row), []).append(row["algorithm"])
    return found


def _sentence(row: Mapping[str, Any]) -> str:
    parts = [row["reason"] or row["summary"]]
    parts += [f"Do: {row['remedy']}."] if row["remedy"] else []
    parts += [f"[{row['source']}]"] if row["source"] and row["reason"] else []
    parts += ["(not measurable by collbench yet)"] if not row["measurable"] and row["verdict"] == "runs" else []
    text = parts[0].rstrip(".")
    return " ".join([f"{text}.", *parts[1:]])


def _print_changes(found: "Sequence[Change]", same: Mapping[str, Sequence[str]], *, as_json: bool) -> None:
    import json

    from collbench.results.records import SCHEMA

    if as_json:
        lines = [{"algorithm": one.algorithm, "before": one.before, "after": one.after} for one in found]
        data = {"schema": SCHEMA, "kind": "doctor-compare", "rows": lines, "unchanged": same}
        print(json.dumps(data, indent=1, ensure_ascii=False))
        return
    if not found:
        print("nothing changes")
    texts: dict[str, list[str]] = {}
    for one in sorted(found, key=lambda one: one.before["verdict"] == one.after["verdict"]):
        texts.setdefault(_change(one), []).append(one.algorithm)
    for text, names in texts.items():
        if len(names) == 1:
            _wrap(names[0], text, _WIDTH)
        else:
            _wrap("", f"{', '.join(names)}:", 0)
            _wrap("", text, _WIDTH)
    rest = [f"{_HEADS[verdict]} {len(names)}" for verdict, names in same.items() if names]
    _wrap("unchanged", f"{', '.join(rest)}; --json names them", _WIDTH)


def _change(one: "Change") -> str:
    verdict = _HEADS[one.after["verdict"]]
    same = one.before["verdict"] == one.after["verdict"]
    head = f"still {verdict}" if same else f"{_HEADS[one.before['verdict']]} -> {verdict}"
    return f"{head}: {_sentence(one.after)}" if one.after["reason"] else f"{head}."


def _wrap(head: str, text: str, indent: int) -> None:
    import shutil
    import textwrap

    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    if head and len(head) >= indent:  # a name that is longer than its column has a line of its own
        print(head)
        head = ""
    first = head.ljust(indent - 1) + " " if indent else ""
    print(textwrap.fill(text, width, initial_indent=first, subsequent_indent=" " * indent, break_on_hyphens=False))
