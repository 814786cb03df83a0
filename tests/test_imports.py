"""What imports without torch: everything but what drives a GPU, so that pages and gates run on a laptop."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = ("torch", "cuda", "triton")

PROBE = f"""
import importlib, json, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
        return None

sys.meta_path.insert(0, Block())
import collbench
failed, found = {{}}, []
for module in pkgutil.walk_packages(collbench.__path__, "collbench."):
    found.append(module.name)
    try:
        importlib.import_module(module.name)
    except Exception as error:
        failed[module.name] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps({{"found": found, "failed": failed}}))
"""


def probe(code: str, root: Path) -> str:
    """Stdout of a Python program that sees this checkout."""
    env = os.environ | {"PYTHONPATH": str(root), "MPLBACKEND": "agg"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=root, env=env, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def may_need_torch(module: str) -> bool:
    """Only what runs on a GPU or starts torch's process groups: `measure` and runners of other families than host."""
    name = module.rpartition(".")[2]
    return module.startswith("collbench.measure.") or (name.endswith("_runner") and name != "host_runner")


@pytest.mark.timeout(90)
def test_everything_else_imports_without_torch(root: Path) -> None:
    """Modules that need a GPU may fail, but only by naming a blocked library; no other module fails at all."""
    seen = json.loads(probe(PROBE, root))
    assert {"collbench.cli", "collbench.topology.graph", "collbench.algorithms.base"} <= set(seen["found"])
    failed = {name: why for name, why in seen["failed"].items() if not (may_need_torch(name) and "blocked: " in why)}
    assert failed == {}


def test_the_probe_really_blocks(root: Path) -> None:
    """With the block in place torch cannot be imported, whether it is installed or not."""
    code = PROBE.partition("import collbench\n")[0] + "\ntry:\n    import torch\nexcept ImportError as e:\n    print(e)"
    assert probe(code, root).strip() == "blocked: torch"


def test_the_command_line_loads_no_heavy_library(root: Path) -> None:
    """Building the parser with all commands imports nothing that takes longer than `--help` may."""
    heavy = ["torch", "numpy", "pandas", "seaborn", "matplotlib", "scipy", "networkx", "pyarrow", "jinja2", "pynvml"]
    code = "import sys; from collbench.cli import build_parser; build_parser(); "
    code += f"print([m for m in {heavy!r} if m in sys.modules])"
    assert probe(code, root).strip() == "[]"
