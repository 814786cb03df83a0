"""Kernels are read back from a captured graph through the driver's own functions."""

from typing import Any

import pytest

from collbench.algorithms.kernel_nodes import KernelNode, capture_kernels, read_kernels, read_kernels_behind


class FakeDriver:
    """A libcuda with a graph of a copy node (11) and two kernel nodes (12, 13); 13 is known by its CUkernel only."""

    def __init__(self, *, tells: bool = True) -> None:
        self.failure = 0 if tells else 1

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802 - the driver's name
        if graph.value != 5:
            return 400
        count._obj.value = 3
        if nodes is not None:
            nodes[:] = [11, 12, 13]
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802 - the driver's name
        kind._obj.value = 1 if node.value == 11 else 0
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, params: Any) -> int:  # noqa: N802 - the driver's name
        made = params._obj
        made.func, made.kern = (1000, 0) if node.value == 12 else (0, 2000)
        made.grid_x, made.grid_y, made.grid_z, made.block_x, made.block_y, made.block_z = 6, 2, 1, 32, 4, 1
        return 0

    def cuKernelGetFunction(self, function: Any, kernel: Any) -> int:  # noqa: N802 - the driver's name
        function._obj.value = kernel.value + 1
        return 0

    def cuFuncGetName(self, name: Any, function: Any) -> int:  # noqa: N802 - the driver's name
        name._obj.value = b"kernel%d" % function.value
        return self.failure

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(  # noqa: N802 - the driver's name
        self, fit: Any, function: Any, threads: Any, shared: Any
    ) -> int:
        fit._obj.value = 2048 // threads.value
        return self.failure

    def cuFuncGetAttribute(self, value: Any, attribute: Any, function: Any) -> int:  # noqa: N802 - the driver's name
        assert attribute.value == 4
        value._obj.value = 40
        return self.failure


def test_kernels_of_a_graph() -> None:
    """Other nodes are passed over; names, grids and occupancy come from the driver."""
    kernels = read_kernels(5, FakeDriver())
    assert kernels == (KernelNode("kernel1000", 12, 128, 16, 40), KernelNode("kernel2001", 12, 128, 16, 40))
    assert kernels[0].text == "kernel1000<<<12, 128>>>, 40 registers, 16 blocks fit on a multiprocessor"


def test_what_the_driver_does_not_tell_is_left_open() -> None:
    """A grid without a name is still a grid; a graph that cannot be listed is an error."""
    assert read_kernels(5, FakeDriver(tells=False))[0] == KernelNode("unnamed", 12, 128)
    with pytest.raises(RuntimeError, match="cuGraphGetNodes failed with CUresult 400"):
        read_kernels(6, FakeDriver())


class FakeEdges(FakeDriver):
    """The same graph behind a kernel (10): 10 -> 11 -> 12 -> 13, the edges of `early` programmatic."""

    def __init__(self, early: tuple[int, ...] = (), *, loose: bool = False) -> None:
        super().__init__()
        self.edges = [(10, 11), (11, 12), (12, 13)][: 2 if loose else 3]
        self.early = early

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802 - the driver's name
        count._obj.value = 4
        if nodes is not None:
            nodes[:] = [12, 13, 11, 10]
        return 0

    def cuGraphGetEdges_v2(  # noqa: N802 - the driver's name
        self, graph: Any, sources: Any, targets: Any, data: Any, count: Any
    ) -> int:
        if graph.value != 5:
            return 400
        count._obj.value = len(self.edges)
        if data is not None:
            sources[:], targets[:] = ([edge[k] for edge in self.edges] for k in range(2))
            for i, edge in enumerate(self.edges):
                data[i].type = 1 if edge[1] in self.early else 0
        return 0


def test_who_may_start_before_the_kernel_before_it_has_ended() -> None:
    """The kernel put in front is left out; an edge of the programmatic kind marks the kernel behind it."""
    plain = read_kernels_behind(5, FakeEdges())
    assert [(kernel.name, kernel.early) for kernel in plain] == [("kernel1000", False), ("kernel2001", False)]
    assert plain == read_kernels(5, FakeDriver())
    early = read_kernels_behind(5, FakeEdges(early=(13,)))
    assert [kernel.early for kernel in early] == [False, True]
    assert early[1].text.endswith(", 16 blocks fit on a multiprocessor, programmatic launch")


def test_a_graph_with_several_beginnings_is_refused() -> None:
    """It is not known then which kernel was put in front."""
    with pytest.raises(RuntimeError, match="begins at 2 nodes"):
        read_kernels_behind(5, FakeEdges(loose=True))
    with pytest.raises(RuntimeError, match="cuGraphGetEdges failed with CUresult 400"):
        read_kernels_behind(6, FakeEdges())
    with pytest.raises(RuntimeError, match="this driver does not tell"):
        read_kernels_behind(5, FakeDriver())


@pytest.mark.gpu
def test_a_real_kernel() -> None:
    """On a GPU, filling a tensor is one kernel with a name, threads and an occupancy."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x = torch.zeros(1024, device="cuda:0")

    def add_one() -> None:
        x.add_(1)

    kernels = capture_kernels(add_one)
    assert len(kernels) == 1
    assert kernels[0].threads >= 32
    assert kernels[0].blocks_per_sm > 0
    assert not kernels[0].early
