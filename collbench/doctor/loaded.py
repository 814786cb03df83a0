"""Which torch and which NCCL a process really loads (`--deep`): asked of a process that loads them and does no more."""

import sys

from collbench.errors import CollbenchError
from collbench.topology import child

__all__ = ["ask"]

_CODE = """
import ctypes, importlib.util, json, os, pathlib
found = {}
spec = importlib.util.find_spec("torch")
if spec is not None:
    import torch
    found["torch"] = torch.__version__
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
names = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "libnccl" in line}
for name in sorted(names)[:1]:
    code = ctypes.c_int()
    ctypes.CDLL(name).ncclGetVersion(ctypes.byref(code))
    found["nccl-loaded"] = f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"
print(json.dumps(found))
"""


def ask(deadline_s: float) -> dict[str, str]:
    """`torch`, `cuda` and `nccl-loaded` as a fresh process sees them; empty where it fails or takes too long.

    It imports torch, which maps libnccl, and makes no CUDA context.
    """
    import json

    try:
        found = json.loads(child.output((sys.executable, "-c", _CODE), deadline_s, name="torch"))
    except (CollbenchError, ValueError):
        return {}
    return {str(name): str(value) for name, value in found.items()}
