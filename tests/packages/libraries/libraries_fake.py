"""What the stand-ins for FlashInfer, vLLM and SGLang share: sums over gloo, and faults by name.

`COLLBENCH_FAKE` names a fault: `silent` (calls return and do nothing), `closed` (gates are closed), `raises` (gates
look for peers that are not there), `old` (parameters have other names), `broken` (imports fail), `cuda` (built for
another CUDA), `endless` (compiles without end), `rubbish` (prints what is no text), `dies` (ends its process),
`thread` (leaves a thread behind).
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FAULT = os.environ.get("COLLBENCH_FAKE", "")


def imported() -> None:
    """Strikes at import."""
    if FAULT == "broken":
        raise ImportError("No module named 'cutlass'")
    if FAULT == "cuda":
        raise OSError("libcudart.so.12: cannot open shared object file: No such file or directory")
    if FAULT == "rubbish":
        os.write(1, b'\x00\xff{"pids": [1]}\n' * 2000)
        os.write(2, b"\x1b[31m\x80\n")
    if FAULT == "thread":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    if FAULT == "dies":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()


def compiled() -> None:
    """Compiles: once, unless it never ends; then a compiler of its own is at work too."""
    if FAULT == "endless":
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as compiler:
            with Path(os.environ["COLLBENCH_FAKE_PID"]).open("a") as file:
                file.write(f"{compiler.pid}\n")
            time.sleep(600)


def gate() -> bool:
    """What a gate answers."""
    if FAULT == "raises":
        raise AssertionError("Invalid peer device id")
    return FAULT != "closed"


def summed(x: Any, group: Any = None) -> Any:
    """The sum over all ranks."""
    import torch.distributed as dist

    total = x.float().clone()
    dist.all_reduce(total, group=group)
    return total.to(x.dtype)


def into(out: Any, x: Any, group: Any = None) -> None:
    """The same, written into `out`, or nothing at all."""
    if FAULT != "silent":
        out.copy_(summed(x.reshape(-1), group).view(out.shape))


imported()
