"""Machine files: `topologies/*.toml` <-> `Topology`, by name or path. `topologies/README.md` is the schema."""

import json
from pathlib import Path

from collbench.errors import UsageError, nearest
from collbench.topology import catalog_reader, catalog_writer
from collbench.topology.graph import Topology, TopologyError

__all__ = ["dumps", "find", "folder", "load", "load_json", "names", "read"]

_MAX_FILE_BYTES = 1 << 20


def folder() -> Path:
    """Folder of the machine files: inside the package where it is installed, else beside it, as in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "topologies"
    return inside if inside.is_dir() else package.parent / "topologies"


def names() -> tuple[str, ...]:
    """Names of the machines that come with collbench, sorted; empty where the folder is missing."""
    return tuple(sorted(path.stem for path in folder().glob("*.toml") if path.stem != "classes"))


def find(name_or_path: str) -> Path:
    """Path of a machine file: a name out of `names()` (with or without .toml), or a path.

    Raises:
        UsageError: neither.
    """
    path = Path(name_or_path)
    if name_or_path.removesuffix(".toml") in names() and not path.is_file():
        return folder() / f"{name_or_path.removesuffix('.toml')}.toml"
    if not path.is_file():
        meant = nearest(path.name.removesuffix(".toml"), names())
        known = f"did you mean {meant}?" if meant else f"give a path, or one of {', '.join(names()) or '(none here)'}"
        raise UsageError(f"no machine file {name_or_path!r}: {known}")
    return path


def read(name_or_path: str) -> Topology:
    """Topology of a machine file by name or path, or of what `collbench topo --json` wrote.

    Raises:
        UsageError: as `find`. TopologyError: as `load`.
    """
    path = find(name_or_path)
    return load_json(path) if path.suffix == ".json" else load(path)


def load(path: str | Path) -> Topology:
    """Topology of a machine file.

    Raises:
        TopologyError: cannot be read, or breaks the schema; names file and line.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise TopologyError(f"{path}: larger than 1 MiB, expected a machine file of a few KiB")
        text = raw.decode()
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{path}: byte {error.start} is no UTF-8, expected a TOML file") from error
    return catalog_reader.read(text.replace("\r\n", "\n"), str(path))


def load_json(path: str | Path) -> Topology:
    """Topology that `collbench topo --json` wrote.

    Raises:
        TopologyError: cannot be read, is no JSON or no topology; names the file.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TopologyError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{path}: no JSON: {error}") from error
    if not isinstance(data, dict):
        raise TopologyError(f"{path}: expected what collbench topo --json writes, an object with nodes and links")
    try:
        return Topology.from_dict(data)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def dumps(topology: Topology) -> str:
    """Machine file of a topology; `load` reads it back.

    Raises:
        TopologyError: a node id that the file cannot hold.
    """
    return catalog_writer.write(topology)
