"""Tables of documents that `collbench export` prints: `python -m tests.docs_tables` compares, `--write` puts them in.

A table stands between `<!-- export: FOLDER ... --format markdown ... -->` and `<!-- end of export -->`; folders of runs
are relative to the document.
"""

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench.cli import main as collbench

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"^<!-- export: (?P<words>[^\n]*?) -->\n(?P<body>.*?)^<!-- end of export -->$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"^<!-- (?:export: |end of export -->)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One table of a document: the words behind `collbench export`, and what stands there now."""

    document: Path
    words: str
    body: str

    def printed(self) -> str:
        """What the command prints, between empty lines.

        Raises:
            ValueError: it fails, says that something of the run is lost, or writes a file.
        """
        try:
            words = shlex.split(self.words)
        except ValueError as error:
            raise ValueError(f"{self.document}: {self.words}: {error}") from error
        if any(word.startswith("--o") and not word.startswith("--only") for word in words):
            raise ValueError(f"{self.document}: a document's table takes no --out")
        first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
        folders = [str(self.document.parent / word) for word in words[:first]]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code: object = collbench(["export", *folders, *words[first:]])
            except SystemExit as exit_:
                code = exit_.code
        if code or err.getvalue():
            raise ValueError(
                f"{self.document}: collbench export {self.words}: exit code {code}: {err.getvalue().strip()}"
            )
        return f"\n{out.getvalue()}\n"


def blocks(document: Path) -> list[Block]:
    """Tables of a document in order.

    Raises:
        ValueError: a mark without its other half.
    """
    text = document.read_text(encoding="utf-8")
    found = [Block(document, match["words"], match["body"]) for match in _BLOCK.finditer(text)]
    if len(_MARK.findall(text)) != 2 * len(found):
        raise ValueError(f"{document}: a mark of an exported table stands alone")
    return found


def documents(root: Path = ROOT) -> list[Path]:
    """Documents that hold such tables."""
    pages = (
        path for path in sorted((root / "docs").rglob("*.md")) if path.name != "export.md"
    )  # it explains the marks
    return [path for path in pages if _MARK.search(path.read_text(encoding="utf-8"))]


def write(document: Path) -> bool:
    """Put into a document what its commands print; gives whether that changed anything."""
    known = {block.words: block.printed() for block in blocks(document)}
    text = document.read_text(encoding="utf-8")
    new = _BLOCK.sub(
        lambda match: f"<!-- export: {match['words']} -->\n{known[match['words']]}<!-- end of export -->", text
    )
    if new != text:
        document.write_text(new, encoding="utf-8")
    return new != text


def main(words: Sequence[str] | None = None) -> int:
    """Compare all documents, or those given, or write them; gives 1 where one is not what is printed, 3 for a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs_tables", description=__doc__)
    parser.add_argument("documents", nargs="*", type=Path, metavar="DOCUMENT")
    parser.add_argument("--write", action="store_true", help="put the tables in")
    args = parser.parse_args(words)
    try:
        return _look(args.documents or documents(), put_in=args.write)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 3


def _look(pages: Sequence[Path], *, put_in: bool) -> int:
    stale = 0
    for document in pages:
        if put_in:
            sys.stdout.write(f"{document}: {'written' if write(document) else 'as printed'}\n")
            continue
        for block in blocks(document):
            same = block.body == block.printed()
            stale += not same
            sys.stdout.write(f"{document}: {block.words}: {'as printed' if same else 'STALE: --write'}\n")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
