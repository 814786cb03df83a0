"""Which kernels a launch enqueues: captured into a CUDA graph that never runs, and read back through the driver.

It gives the real names, grids and occupancies of other people's kernels, without a profiler and without running them.
A kernel of ours is captured before them: whether theirs may start before it has ended shows in the graph's edges.
"""

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["KernelNode", "capture_kernels", "read_kernels", "read_kernels_behind"]

_KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL in cuda.h
_REGISTERS = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS in cuda.h
_PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC in cuda.h


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel launch: `blocks` x `threads`, and how many such blocks fit on one multiprocessor (0 if not known).

    `early`: it is launched so that it may start before the kernel before it has ended (programmatic dependent launch).
    """

    name: str
    blocks: int
    threads: int
    blocks_per_sm: int = 0
    registers: int = 0
    early: bool = False

    @property
    def text(self) -> str:
        """For a record: `name<<<2, 512>>>, 64 registers, 2 blocks fit on a multiprocessor, programmatic launch`."""
        registers = f", {self.registers} registers" if self.registers else ""
        fit = f", {self.blocks_per_sm} blocks fit on a multiprocessor" if self.blocks_per_sm else ""
        early = ", programmatic launch" if self.early else ""
        return f"{self.name}<<<{self.blocks}, {self.threads}>>>{registers}{fit}{early}"


class _Params(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p), ("grid_x", ctypes.c_uint), ("grid_y", ctypes.c_uint), ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint), ("block_y", ctypes.c_uint), ("block_z", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint), ("kernel_params", ctypes.c_void_p), ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p), ("ctx", ctypes.c_void_p),
    )  # fmt: skip


class _EdgeData(ctypes.Structure):
    """CUgraphEdgeData of cuda.h."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte), ("to_port", ctypes.c_ubyte), ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )  # fmt: skip


def capture_kernels(launch: Callable[[], None]) -> tuple[KernelNode, ...]:
    """Capture one launch on a stream of its own and read its kernels; nothing is executed.

    Raises:
        RuntimeError: the launch cannot be captured, or the driver does not tell.
        OSError: there is no driver library.
    """
    import torch

    driver = ctypes.CDLL("libcuda.so.1")
    before = torch.zeros(1, dtype=torch.int16, device="cuda")

    def behind_ours() -> None:
        before.add_(1)
        launch()

    # where the edges do not say, the kernels alone do
    with contextlib.suppress(RuntimeError):
        return _captured(behind_ours, lambda graph: read_kernels_behind(graph, driver))
    return _captured(launch, lambda graph: read_kernels(graph, driver))


def _captured(launch: Callable[[], None], read: Callable[[int], tuple[KernelNode, ...]]) -> tuple[KernelNode, ...]:
    import torch

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        # relaxed: a kernel's code may be loaded here for the first time, which the stricter modes forbid
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            launch()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    try:
        return read(int(graph.raw_cuda_graph()))
    finally:
        graph.reset()


def read_kernels(graph: int, driver: Any) -> tuple[KernelNode, ...]:  # noqa: ANN401 - ctypes.CDLL has no types
    """Read the kernel nodes of a CUgraph handle through the driver library `driver`.

    Raises:
        RuntimeError: the driver refuses to list the nodes.
    """
    return tuple(_read_node(node, driver) for node in _kernel_handles(_nodes(graph, driver), driver))


def read_kernels_behind(graph: int, driver: Any) -> tuple[KernelNode, ...]:  # noqa: ANN401 - see read_kernels
    """As `read_kernels`, without the one at which the graph begins, and with `early`.

    Raises:
        RuntimeError: the driver refuses to list nodes or edges, or several nodes wait for nothing.
    """
    nodes, edges = _nodes(graph, driver), _edges(graph, driver)
    first = {node for node in nodes if node not in {to for to, _ in edges}}
    if len(first) != 1:
        raise RuntimeError(f"a captured launch begins at {len(first)} nodes")
    early = {to for to, programmatic in edges if programmatic}
    handles = _kernel_handles([node for node in nodes if node not in first], driver)
    return tuple(replace(_read_node(node, driver), early=node.value in early) for node in handles)


def _nodes(graph: int, driver: Any) -> list[Any]:  # noqa: ANN401 - see read_kernels
    count = ctypes.c_size_t()
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)), "cuGraphGetNodes")
    nodes = (ctypes.c_void_p * count.value)()
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)), "cuGraphGetNodes")
    return list(nodes[: count.value])


def _edges(graph: int, driver: Any) -> list[tuple[Any, bool]]:  # noqa: ANN401 - see read_kernels
    """Of each edge the node that waits, and whether it waits only until the other lets it start."""
    if not hasattr(driver, "cuGraphGetEdges_v2"):
        raise RuntimeError("this driver does not tell of programmatic edges")
    handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
    _check(driver.cuGraphGetEdges_v2(handle, None, None, None, ctypes.byref(count)), "cuGraphGetEdges")
    sources, targets = ((ctypes.c_void_p * count.value)() for _ in range(2))
    data = (_EdgeData * count.value)()
    _check(driver.cuGraphGetEdges_v2(handle, sources, targets, data, ctypes.byref(count)), "cuGraphGetEdges")
    return [(targets[i], data[i].type == _PROGRAMMATIC) for i in range(count.value)]


def _kernel_handles(nodes: Sequence[Any], driver: Any) -> list[ctypes.c_void_p]:  # noqa: ANN401 - see read_kernels
    found = []
    for node in nodes:
        kind = ctypes.c_int(-1)
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        if kind.value == _KERNEL_NODE:
            found.append(ctypes.c_void_p(node))
    return found


def _read_node(node: ctypes.c_void_p, driver: Any) -> KernelNode:  # noqa: ANN401 - see read_kernels
    params = _Params()
    _check(driver.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(params)), "cuGraphKernelNodeGetParams")
    function = ctypes.c_void_p(params.func)
    if not params.func and params.kern:
        driver.cuKernelGetFunction(ctypes.byref(function), ctypes.c_void_p(params.kern))
    threads = params.block_x * params.block_y * params.block_z
    name, fit, registers = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_int()
    if function.value and driver.cuFuncGetName(ctypes.byref(name), function):
        name = ctypes.c_char_p()
    if function.value and driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(fit), function, ctypes.c_int(threads), ctypes.c_size_t(params.shared_bytes)
    ):
        fit = ctypes.c_int()
    if function.value and driver.cuFuncGetAttribute(ctypes.byref(registers), ctypes.c_int(_REGISTERS), function):
        registers = ctypes.c_int()
    text = (name.value or b"unnamed").decode("ascii", "replace")
    return KernelNode(text, params.grid_x * params.grid_y * params.grid_z, threads, fit.value, registers.value)


def _check(code: int, call: str) -> None:
    if code:
        raise RuntimeError(f"{call} failed with CUresult {code}")
