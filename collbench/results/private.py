"""Takes out of texts what a page must not tell: paths, user and host names, serial numbers."""

import re
from collections.abc import Iterable, Mapping

from collbench.results.summary import clean

__all__ = ["public", "public_command", "public_facts"]

_PATH = re.compile(r"(?<![\w./:\\<-])(?:~[\w.-]*|\.{1,2})?/(?!(?:dev|proc|sys)(?:/|\b))(?=[\w.~@+-])[^\s'\":;,)\]}>]*")
_HOME = re.compile(r"(?<![\w./])~[\w.-]*(?=[\s/]|$)")
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_SECRET = re.compile(
    r"host(?!s$|_(?:arch|memory))|node_?name|user|serial|uuid|mac_?address|token|secret|password|key", re.IGNORECASE
)


def public(text: str) -> str:
    """The text on one line without controls; `PATH` stands for a path (but /dev, /proc, /sys), `UUID` for a UUID."""
    return _HOME.sub("PATH", _PATH.sub("PATH", _UUID.sub("UUID", clean(text))))


def public_command(command: Iterable[str]) -> str:
    """A command line that can be repeated elsewhere: the program by its name, paths as `PATH`, quoted for a shell."""
    import shlex

    words = list(command)
    if words:
        words[0] = words[0].rpartition("/")[2]
    return " ".join(shlex.quote(public(word)) for word in words)


def public_facts(facts: Mapping[str, object]) -> dict[str, str]:
    """Facts as text by name, without those whose name says that they point at a person or one machine."""
    kept = {k: v for k, v in sorted(facts.items()) if not _SECRET.search(k) and v not in ("", [], None)}
    return {clean(k): public(", ".join(map(str, v)) if isinstance(v, list) else str(v)) for k, v in kept.items()}
