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
maps = pathlib.Path("/proc/self/maps")
def mapped():
    return sorted({line.split()[-1] for line in maps.read_text().splitlines() if "libnccl.so" in line})
if not mapped():
    package = importlib.util.find_spec("nvidia")
    places = package.submodule_search_locations if package is not None else []
    files = [pathlib.Path(place) / "nccl" / "lib" / "libnccl.so.2" for place in places]
    for path in [*(str(file) for file in files if file.is_file()), "libnccl.so.2"]:
        try:
            ctypes.CDLL(path)
            break
        except OSError:
            pass
versions = []
for name in mapped():
    code = ctypes.c_int()
    ctypes.CDLL(name).ncclGetVersion(ctypes.byref(code))
    versions.append(f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}")
if versions:
    found["nccl-loaded"] = ", ".join(versions)
print(json.dumps(found))
"""


def ask(deadline_s: float) -> dict[str, str]:
    """`torch`, `cuda` and `nccl-loaded` as a fresh process sees them; empty where it fails or takes too long.

    It imports torch, which maps libnccl, and makes no CUDA context. Where torch maps none, the library is loaded that
    the package installs, or that the loader finds. Several versions, separated by commas: two are mapped at once.
    """
    import json

    try:
        found = json.loads(child.output((sys.executable, "-c", _CODE), deadline_s, name="torch"))
    except (CollbenchError, ValueError):
        return {}
    return {str(name): str(value) for name, value in found.items()}
