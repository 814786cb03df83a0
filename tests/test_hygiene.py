"""What no file of the repository may hold."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PLACES = re.compile(r"(?<![\w./])/(?:work|home|Users|root)/[\w.]")
HOSTS = re.compile("|".join(("py" + r"pi\.org", r"files\.python" + "hosted", r"download\." + r"pytorch\.org")))
MAX_BYTES = 1_000_000


def tracked(root: Path) -> list[Path]:
    """Files that git knows, or would take in, of this checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    paths = [root / name for name in done.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def code_faults(source: str) -> Iterator[str]:
    """Shells, pickles and evaluated text in a Python source, as `line: what`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput"} or "pickle" in name:
                yield f"{node.lineno}: {name}()"
            for keyword in node.keywords:
                if keyword.arg in {"shell", "allow_pickle"} and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"{node.lineno}: {keyword.arg}="
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            if {name.split(".")[0] for name in names} & {
                "pickle",
                "cPickle",
                "dill",
                "cloudpickle",
                "marshal",
                "shelve",
            }:
                yield f"{node.lineno}: import of a pickle"


def test_no_shell_and_no_pickle(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}:{fault}"
        for path in tracked(root)
        if path.suffix == ".py"
        for fault in code_faults(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_machine_path_and_no_registry(root: Path) -> None:
    """Texts name no folder of one machine and no package registry: they hold wherever they are read."""
    found = []
    for path in tracked(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if PLACES.search(line) or HOSTS.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_no_large_file(root: Path) -> None:
    assert [path.name for path in tracked(root) if path.stat().st_size > MAX_BYTES] == []


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "run('ls', shell=flag)",
        "import os\nos.system('ls')",
        "import pickle",
        "from pickle import loads",
        "import numpy\nnumpy.load('f', allow_pickle=True)",
        "frame.to_pickle('f')",
        "eval('1')",
    ],
)
def test_a_fault_is_found(source: str) -> None:
    assert len(list(code_faults(source))) == 1


def test_a_place_is_found() -> None:
    assert PLACES.search("see /" + "home/me/collbench")
    assert PLACES.search("open('/" + "work/x')")
    assert HOSTS.search("https://" + "py" + "pi.org/simple")
    assert not PLACES.search("https://example.com/home/page and ./root/x")
