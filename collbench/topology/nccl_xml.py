"""NCCL's topology XML, in and out: `parse` a dump, `render` a file for NCCL_TOPO_FILE."""

from collbench.topology import nccl_reader, nccl_writer
from collbench.topology.graph import Topology

__all__ = ["parse", "render"]


def parse(text: str) -> Topology:
    """Topology of an NCCL or RCCL dump (NCCL_TOPO_DUMP_FILE), a cloud vendor's file, or what `render` wrote.

    What the file says against itself stands in `disagreements`: link speeds of idle links, NVLinks that only one end
    names, a GPU that has fewer NVLinks than its like.

    Raises:
        TopologyError: not such a file (NCCL graph files, hwloc files and others are refused by name), damaged, or with
            entities; names the line and quotes the element.
    """
    return nccl_reader.read(text)


def render(topology: Topology) -> tuple[str, list[str]]:
    """XML that NCCL takes in NCCL_TOPO_FILE (RCCL's version where GPUs are joined by xGMI), and what it cannot hold.

    The same nodes and links come back from `parse`. Root ports, host bridges, memory and network links stand in an
    element that NCCL skips. Bus ids that the topology lacks are made up and listed: NCCL matches GPUs by bus id. Each
    line of the list reads on from "NCCL's XML cannot hold".
    """
    return nccl_writer.write(topology)
