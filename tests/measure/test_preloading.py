"""Other people's modules in the fork server: imported once for all groups, or left out with a reason."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.algorithms import fork_safety, preloaded
from collbench.measure import nvml_answers
from collbench.measure.environment import worker_environment
from collbench.measure.nvml_answers import Gpu, answers
from collbench.measure.server import ForkServer, Unfit
from collbench.measure.team import Place, PreloadSet, ServerPool, Team

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "pre_light": "",
    "pre_fine": "",
    "pre_behind": "import pre_fine",
    "pre_touches": "from collbench.algorithms import fork_safety\nfork_safety.cuda_touched = lambda: 'it touched CUDA'",
    "pre_hangs": "import time; time.sleep(600)",
    "pre_leaves": "raise SystemExit('not for servers')",
    "pre_ends": "import os, sys; print('no licence', file=sys.stderr, flush=True); os._exit(7)",
    "pre_broken": "raise ImportError('No module named cutlass')",
    "pre_lacks": "import no_such_package",
    "pre_rubbish": "import os\nfor fd in (1, 2): os.write(fd, b'\\x00\\xff{\"ready\": 1}\\n' * 2000)",
    "pre_thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), name='usage').start()",
    "pre_brief": "import threading, time\nthreading.Thread(target=time.sleep, args=(0.2,)).start()",
    "pre_signals": "import signal\nfor s in (signal.SIGCHLD, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)",
    "pre_moves": "import os; os.chdir('/')",
    "pre_forks": "import os\nos.fork()",
    "pre_forks_and_ends": "import os, time\nif not os.fork(): time.sleep(600)\nos._exit(7)",
    "pre_reads": "import os\nSEEN = os.environ.get('COLLBENCH_SEEN', 'nothing')",
}  # fmt: skip
COUNT = "import os\nwith open(os.environ['COLLBENCH_COUNT'], 'a') as file: file.write(__name__ + ' ')\n"
BENCH = """
import os, sys
from collbench.algorithms import preloaded

class Told:
    def answer(self, command):
        loaded = sorted(m for m in sys.modules if m.startswith("pre_") and m != __name__)
        seen = getattr(sys.modules.get("pre_reads"), "SEEN", "")
        return {"loaded": loaded, "evidence": preloaded.evidence(), "seen": seen,
                "check": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK", ""), "folder": os.getcwd()}
    def close(self):
        pass

def make(ranks, spec):
    return Told()
"""


class Hosted:
    """A team of two ranks over a pool whose servers find the modules, and what was imported so far."""

    def __init__(self, folder: Path) -> None:
        self.count = folder / "count"
        self.pool = ServerPool()
        self.team = Team(Place(2, 2), self.pool, folder)

    def told(self, *foreign: str, limit_s: float = 40.0, **order: Any) -> dict[str, Any]:
        """Start a group, ask what it finds, end it."""
        spec = {
            "bench": "pre_bench:make", "algorithm": "", "seed": 1, "devices": ["cpu"] * 2, "deadline_s": 10.0,
            "share_gpu": False,
        }  # fmt: skip
        asked = {"imports": [], "preload": "", "environment": {}, "foreign": list(foreign), "limit_s": limit_s}
        self.team.start({**asked, "spec": spec, **order})
        answers = self.team.run({"op": "tell"}, 20)
        self.team.stop(kill=True)
        assert answers[0] == answers[1]
        return answers[0]

    def imported(self, module: str) -> int:
        """How often it was, in any process."""
        return self.count.read_text().split().count(module) if self.count.exists() else 0

    def news(self) -> list[str]:
        """What the pool has to say since it was asked last."""
        told: list[str] = []
        self.pool.tell(told.append)
        return told


@pytest.fixture
def hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosted]:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(COUNT + text)
    (tmp_path / "pre_bench.py").write_text(BENCH)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("COLLBENCH_COUNT", str(tmp_path / "count"))
    made = Hosted(tmp_path)
    yield made
    made.team.stop(kill=True)
    made.pool.close()


def test_one_import_serves_all_groups(hosted: Hosted) -> None:
    """What is not installed is passed over, and the workers say what was paid for them."""
    foreign = ("pre_light", "no_such_package.module", "pre_fine.part", "pre_fine", "pre_behind")
    for _ in range(4):
        told = hosted.told(*foreign)
        assert told["loaded"] == ["pre_behind", "pre_fine", "pre_light"]
        assert told["evidence"]["preloaded"].startswith("pre_light, pre_fine, pre_behind: 0.")
        assert told["evidence"]["preloaded"].endswith(" s, once for all groups")
        assert "not preloaded" not in told["evidence"]
    assert [hosted.imported(module) for module in ("pre_light", "pre_fine", "pre_behind")] == [1, 1, 1]
    assert hosted.news() == []


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("pre_touches", "it touched CUDA"),
        ("pre_leaves", "SystemExit: not for servers"),
        ("pre_ends", "importing it: it ended with exit code 7; no licence"),
        ("pre_broken", "ImportError: No module named cutlass"),
        ("pre_forks_and_ends", "importing it: it ended with exit code 7"),
        ("pre_lacks", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("pre_thread", "it leaves threads running, which a fork would lose: "),
    ],
)
def test_what_is_unfit_costs_one_start_and_is_named(hosted: Hosted, module: str, why: str) -> None:
    """What stands before it stays, what stands behind it goes too; later groups pay nothing for it."""
    for _ in range(3):
        told = hosted.told("pre_light", module, "pre_behind")
        assert told["loaded"] == ["pre_light"]
        assert told["evidence"]["not preloaded"].startswith(f"{module}: {why}")
        assert told["evidence"]["not preloaded"].endswith(f"; pre_behind: behind {module}")
    assert [hosted.imported(name) for name in ("pre_light", module, "pre_behind")] == [2, 1, 0]
    (line,) = hosted.news()
    assert line.startswith(f"{module} is imported by each worker by itself: {why}")
    assert hosted.news() == []


def test_an_import_that_hangs_ends_within_its_share_of_the_limit(hosted: Hosted) -> None:
    begin = time.monotonic()
    told = hosted.told("pre_light", "pre_hangs", limit_s=10.0)
    assert time.monotonic() - begin < 12.0
    assert told["loaded"] == ["pre_light"]
    assert "pre_hangs: importing it: no answer within 4 s" in told["evidence"]["not preloaded"]
    assert hosted.told("pre_light", "pre_hangs", limit_s=10.0)["loaded"] == ["pre_light"]
    assert hosted.imported("pre_hangs") == 1


def test_whom_an_import_forked_ends_with_its_server(hosted: Hosted) -> None:
    """Also where the server ended by itself: it is noticed at once, although the child would outlive it."""
    begin = time.monotonic()
    assert hosted.told("pre_light", "pre_forks_and_ends")["loaded"] == ["pre_light"]
    assert time.monotonic() - begin < 10.0
    hosted.team.stop(kill=True)
    hosted.pool.close()
    wanted = f"COLLBENCH_COUNT={hosted.count}".encode()
    end = time.monotonic() + 5.0
    while (left := _with(wanted)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []


def _with(variable: bytes) -> list[int]:
    """Processes other than this one that have it in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if variable in words and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def test_one_library_costs_another_nothing(hosted: Hosted) -> None:
    """Each preload set has a server of its own, and one without other people's modules is as it was."""
    assert hosted.told("pre_touches")["loaded"] == []
    assert hosted.told("pre_fine")["loaded"] == ["pre_fine"]
    assert hosted.told() == {"loaded": [], "evidence": {}, "seen": "", "check": "", "folder": str(Path.cwd())}


@pytest.mark.parametrize("module", ["pre_rubbish", "pre_brief", "pre_signals", "pre_moves", "pre_forks"])
def test_what_does_no_harm_stays(hosted: Hosted, module: str) -> None:
    """Rubbish on both outputs, a brief thread, handlers of signals, another folder, a fork that comes back."""
    told = hosted.told(module)
    assert (told["loaded"], told["check"], told["folder"]) == ([module], "", str(Path.cwd()))
    assert hosted.told(module)["loaded"] == [module]
    assert hosted.imported(module) == 1


def test_variables_that_are_read_at_import_have_servers_of_their_own(hosted: Hosted) -> None:
    """Others reach the workers only, and one server serves them all."""
    assert hosted.told("pre_reads", environment={"COLLBENCH_SEEN": "late"})["seen"] == "nothing"
    for value in ("a", "b", "a"):
        assert hosted.told("pre_reads", variables={"COLLBENCH_SEEN": value})["seen"] == value
    assert hosted.imported("pre_reads") == 3


def test_the_server_says_which_module_was_at_fault(hosted: Hosted) -> None:
    with (
        ForkServer((), worker_environment(), ("pre_fine", "pre_broken")) as server,
        pytest.raises(Unfit, match=r"^pre_broken: ImportError"),
    ):
        server.wait_ready()


def test_the_set_is_read_from_an_order() -> None:
    order = {"imports": ["torch"], "preload": "", "foreign": ["vllm"], "variables": {"B": "2", "A": "1"}}
    assert PreloadSet.of(order) == PreloadSet(("torch",), "", ("vllm",), (("A", "1"), ("B", "2")))
    assert PreloadSet.of({"imports": [], "preload": "/lib/libnccl.so"}) == PreloadSet((), "/lib/libnccl.so")


def test_preloading_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLLBENCH_PRELOAD=0 leaves other people's modules to the workers; our own imports stay."""
    monkeypatch.setenv("COLLBENCH_PRELOAD", "0")
    order = {"imports": ["torch"], "preload": "", "foreign": ["pre_fine"], "variables": {"COLLBENCH_SEEN": "x"}}
    assert PreloadSet.of(order) == PreloadSet(("torch",))


class _Cuda:
    """torch.cuda of a machine whose CUDA must not be touched: every real function initialises it."""

    def __init__(self) -> None:
        self.up = False

    def is_initialized(self) -> bool:
        return self.up

    def _real(self, device: Any = None) -> Any:
        self.up = True
        return SimpleNamespace(name="real", major=1, minor=0, multi_processor_count=132)

    get_device_capability = get_device_name = get_device_properties = current_device = _real


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    made = _Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    return made


H200 = Gpu("NVIDIA H200", (9, 0), 140 << 30)


def test_nvml_answers_while_libraries_are_imported(cuda: _Cuda) -> None:
    """Name, capability and the device at import; functions that somebody keeps are torch's own afterwards."""
    with answers(H200):
        assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
        kept = cuda.get_device_properties
        found = kept(0)
        assert (cuda.get_device_capability(), cuda.get_device_name(0), cuda.current_device()) == (
            (9, 0), "NVIDIA H200", 0,
        )  # fmt: skip
        assert (found.name, found.major, found.minor, fork_safety.cuda_touched()) == ("NVIDIA H200", 9, 0, "")
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
    assert kept(0).name == "real"
    assert cuda.get_device_name(0).name == "real"


def test_what_nvml_does_not_know_is_asked_of_cuda_and_seen(cuda: _Cuda) -> None:
    with answers(H200):
        assert cuda.get_device_properties(0).multi_processor_count == 132
    assert fork_safety.cuda_touched() == "it initialised CUDA through torch"


def test_without_a_gpu_that_speaks_for_all_nothing_is_answered(cuda: _Cuda) -> None:
    with answers(None):
        cuda.get_device_capability()
    assert fork_safety.cuda_touched() == "it initialised CUDA through torch"


@pytest.mark.parametrize(("answer", "told"), [(True, "torch refuses CUDA in forked processes"), (False, "")])
def test_torch_is_asked_in_a_child_as_well(cuda: _Cuda, answer: bool, told: str) -> None:  # noqa: FBT001 - a case
    cuda._is_in_bad_fork = lambda: answer  # type: ignore[attr-defined]
    assert fork_safety.why_not(fork_safety.threads()) == told


@pytest.mark.parametrize(("capabilities", "found"), [([(9, 0), (9, 0)], (9, 0)), ([(9, 0), (12, 0)], None), ([], None)])
def test_gpus_that_differ_have_no_common_answer(
    monkeypatch: pytest.MonkeyPatch, capabilities: list[tuple[int, int]], found: tuple[int, int] | None
) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: len(capabilities),
        nvmlDeviceGetHandleByIndex=lambda i: i, nvmlDeviceGetName=lambda _: b"GPU",
        nvmlDeviceGetCudaComputeCapability=lambda i: capabilities[i],
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=1),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = nvml_answers.the_gpu()
    assert (gpu.capability if gpu else None) == found


DRIVER = """
static int up;
int cuInit(unsigned flags) { up = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = up; return up ? 0 : 3; }
"""
ASK = """
import ctypes, os, sys
from collbench.algorithms import fork_safety
print([fork_safety.cuda_touched()])
driver = ctypes.CDLL(sys.argv[1])
print([fork_safety.cuda_touched()])
driver.cuInit(0)
print([fork_safety.cuda_touched()])
"""


def test_a_driver_that_is_up_is_seen_without_torch(tmp_path: Path) -> None:
    """It need not be there, and may be mapped, as torch does; what `cuInit` did shows."""
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    except OSError:
        pytest.skip("no C compiler here")
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(library)], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    told = [json.loads(line.replace("'", '"')) for line in done.stdout.splitlines()]
    assert told == [[""], [""], ["it initialised the CUDA driver"]]


def test_a_process_with_threads_forks_nobody() -> None:
    stop = threading.Event()
    known = fork_safety.threads()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    try:
        assert fork_safety.strays(known, settle_s=0.05)
        assert fork_safety.why_not().startswith("it leaves threads running")
    finally:
        stop.set()
        thread.join()
    assert fork_safety.strays(known, settle_s=1.0) == ""


def test_jemallocs_thread_may_be_lost() -> None:
    """Libraries bring it with pyarrow. A thread of another name beside it is told alone."""
    known = fork_safety.threads()
    stop, named = threading.Event(), threading.Event()

    def work(name: str) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        stop.wait()

    workers = [threading.Thread(target=work, args=(name,), daemon=True) for name in ("jemalloc_bg_thd", "usage")]
    try:
        for worker, told in zip(workers, ("", "usage"), strict=True):
            named.clear()
            worker.start()
            named.wait()
            assert fork_safety.strays(known) == told
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_nothing_is_preloaded_without_a_fork_server() -> None:
    assert preloaded.evidence() == {}
    assert not preloaded.holds(["flashinfer.comm"])
    assert preloaded.holds([])
