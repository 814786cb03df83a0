"""README's commands are run as a newcomer would, in one empty folder, from top to bottom."""

import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
SHELLS = {"bash", "sh", "console", "shell", ""}


@dataclass(frozen=True)
class Block:
    """One fenced block of commands; `reason` says why it is not run, if it is not."""

    text: str
    reason: str | None


def blocks(markdown: str) -> list[Block]:
    """Command blocks in order; blocks in another language are no commands."""
    found = _BLOCK.finditer(markdown)
    return [Block(m["text"], m["reason"]) for m in found if m["language"] in SHELLS]


def test_blocks_are_found() -> None:
    """A mark covers the block right behind it and no other; a fence without a language is a command."""
    text = "<!-- not run: slow -->\n```bash\na\n```\n\n```\nb\n```\n"
    text += "<!-- not run: -->\n\n```sh\nc\n```\n```python\nd\n```\n"
    assert blocks(text) == [Block("a\n", "slow"), Block("b\n", None), Block("c\n", None)]


@pytest.mark.timeout(170)
def test_every_command_block_runs(root: Path, tmp_path: Path) -> None:
    """Each block that is not marked exits with 0; there is at least one of them."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    command = scripts / "collbench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m collbench "$@"\n', encoding="utf-8")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    env = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "empty"
    folder.mkdir()
    wanted = [block for block in blocks((root / "README.md").read_text(encoding="utf-8")) if block.reason is None]
    assert wanted
    for block in wanted:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text], cwd=folder, env=env, text=True, capture_output=True,
            timeout=80, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


def test_links_lead_somewhere(root: Path) -> None:
    """Every relative link of every page of ours names a file that exists."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), root / "reports" / "README.md"]
    missing = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert missing == []


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    heads = re.findall(r"^#{1,6} (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_anchors_are_headings(root: Path) -> None:
    """Every `page.md#heading` of ours is one: a heading that is worded anew takes its links along."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), root / "reports" / "README.md"]
    missing = [
        f"{page.relative_to(root)}: {target}#{anchor}"
        for page in pages
        for target, anchor in re.findall(r"\]\(([^)#\s]*\.md|)#([\w-]+)\)", page.read_text(encoding="utf-8"))
        if anchor not in _anchors((page.parent / target).resolve() if target else page)
    ]
    assert missing == []
