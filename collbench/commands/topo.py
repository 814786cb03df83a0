"""`collbench topo`: what the machine is, as text, JSON, TOML, a picture or NCCL's XML."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from collbench.topology.graph import Topology

__all__ = ["FORMATS", "add_parser", "run"]

FORMATS = ("text", "json", "toml", "svg", "nccl-xml")
_SUFFIXES = {".json": "json", ".toml": "toml", ".svg": "svg", ".xml": "nccl-xml"}
_PLAIN = str.maketrans({"├": "|", "└": "`", "─": "-", "│": "|"})

_Found = tuple["Topology", list[tuple[str, str]]]


def add_parser(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "topo",
        help="show GPUs, switches, root ports, sockets and the links between them",
        description="Show what the machine is: devices, links with their present and best speed, groups of GPUs.",
        epilog="A capture is the output of nvidia-smi topo -m or -p2p, nvidia-smi nvlink -s, lspci -tv or -vv,\n"
        "numactl -H, or a topology file of NCCL or hwloc.",
    )
    parser.add_argument(
        "--from", dest="origins", action="append", metavar="FILE",
        help="a capture of another machine, a machine file, or the name of one that comes with collbench "
        "(default: this machine); nvidia-smi topo -m and topo -p2p of one machine go together, each behind a --from",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=FORMATS, metavar="FORMAT",
        help=f"{', '.join(FORMATS)} (default: what the ending of --out says, else text)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write to a file instead of stdout")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry it out; gives the exit code.

    Raises:
        UsageError: options that contradict each other, or `--from` names nothing.
        TopologyError: the file cannot be read, or is no topology.
        InvalidError: `--out` cannot be written.
    """
    form = _format(args)
    topology, sources = _read_all(args.origins) if args.origins else _discover()
    text = _render(topology, sources, form, args.origins[0] if args.origins else None)
    if args.out is None:
        _print(text)
    else:
        _write(Path(args.out), text)
    return 0


def _format(args: argparse.Namespace) -> str:
    from collbench.errors import UsageError

    if args.json and args.format not in {None, "json"}:
        raise UsageError(f"--json and --format {args.format}: give one of them")
    if args.json or args.format:
        return "json" if args.json else str(args.format)
    return _SUFFIXES.get(Path(args.out or "").suffix.lower(), "text")


def _discover() -> _Found:
    from collbench.topology.discover import discover

    found = discover()
    sources = [(row.name, f"{row.status}{': ' if row.reason else ''}{row.reason}") for row in found.sources]
    for row in found.sources:
        if row.status == "failed":
            _note(f"source {row.name} failed: {row.reason}")
    return found.topology, sources


def _read_all(origins: list[str]) -> _Found:
    """One origin is whatever it is; several are captures of one machine."""
    if len(origins) == 1:
        return _read(origins[0])
    from collbench.topology.capture import read_captures

    paths = [Path(origin) for origin in origins]
    return read_captures(paths), [(path.name, "ok") for path in paths]


def _read(origin: str) -> _Found:
    """A path is read for what it holds; what is no path may be the name of a machine file."""
    from collbench.errors import UsageError
    from collbench.topology import catalog

    if not origin:
        raise UsageError("--from '': give a file, or the name of a machine")
    path = Path(origin)
    if not path.exists():
        if origin.removesuffix(".toml") not in catalog.names():
            known = ", ".join(catalog.names()) or "(none here)"
            raise UsageError(f"--from {origin}: no such file, and no machine of that name; there are {known}")
        path = catalog.find(origin)
    if path.suffix == ".toml":
        return catalog.load(path), [(path.name, "ok")]
    if path.suffix == ".json":
        return catalog.load_json(path), [(path.name, "ok")]
    from collbench.topology.capture import read_capture

    return read_capture(path), [(path.name, "ok")]


def _render(topology: "Topology", sources: list[tuple[str, str]], form: str, origin: str | None) -> str:
    if form == "json":
        import json

        return json.dumps(topology.as_dict(), indent=1, ensure_ascii=False) + "\n"
    if form == "toml":
        from collbench.topology import catalog

        return catalog.dumps(topology)
    if form == "svg":
        from collbench.topology.drawing import svg

        return svg(topology)
    if form == "nccl-xml":
        from collbench.topology import nccl_xml

        xml, lost = nccl_xml.render(topology)
        for row in lost:
            _note(f"NCCL's XML cannot hold {row}")
        return xml if xml.endswith("\n") else f"{xml}\n"
    import dataclasses

    from collbench.topology.listing import listing

    if origin is not None and not topology.name:  # a capture does not say whose it is
        topology = dataclasses.replace(topology, name=Path(origin).name)
    return listing(topology, sources)


def _note(text: str) -> None:
    sys.stderr.write("collbench: " + "".join(c if c.isprintable() else " " for c in text) + "\n")


def _print(text: str) -> None:
    """Write to stdout; a terminal that cannot show line-drawing characters gets plain ones."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text)


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all; what is no plain file (a pipe, /dev/stderr) is written to directly."""
    import os
    import tempfile

    from collbench.errors import InvalidError
    from collbench.results.files import is_special, refuse_part_of_run

    refuse_part_of_run(path)
    try:
        if is_special(path):
            path.write_text(text, encoding="utf-8", errors="replace")
            return
        target = Path(os.path.realpath(path))
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
            Path(name).chmod(mode)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidError(f"--out {path}: cannot be written: {reason}") from error


def _umask() -> int:
    import os

    mask = os.umask(0o077)
    os.umask(mask)
    return mask
