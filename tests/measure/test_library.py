"""A library given by path is asked for its version before anything is measured."""

import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.algorithms.base import registry
from collbench.errors import UsageError
from collbench.measure.library import nccl_facts, of_libraries
from collbench.results.records import Call, Fabric
from collbench.topology.graph import Node, NodeKind, Topology
from collbench.topology.machine import Machine


def built(folder: Path, version: int) -> str:
    """A library that knows its version and nothing else."""
    source, library = folder / f"{version}.c", folder / f"libnccl{version}.so.2"
    source.write_text(f"int ncclGetVersion(int *v) {{ *v = {version}; return 0; }}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


def test_what_is_no_library_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_text("not a library")
    with pytest.raises(UsageError, match=r"not a library of NCCL that loads here: .*libnccl"):
        nccl_facts(str(path))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_version_is_the_librarys_own_word(tmp_path: Path) -> None:
    facts = nccl_facts(built(tmp_path, 23007))
    assert facts["nccl"] == "2.30.7"
    assert len(facts["nccl_sha256"]) == 64


GPUS = tuple(Node(f"gpu{i}", NodeKind.GPU) for i in range(2))
MACHINE = Machine(Topology(GPUS, ()), Fabric.PCIE, 2, software={"torch": "2.11.0", "nccl": "2.28.9"})


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_several_libraries_are_a_variant_each(tmp_path: Path) -> None:
    """Each version has workers and support of its own; algorithms that do not run on NCCL are there once."""
    chosen = [registry()[name] for name in ("nccl_ring_ll", "host_ring")]
    machine, found = of_libraries([built(tmp_path, 22809), built(tmp_path, 23007)], MACHINE, chosen)
    assert [(a.name, a.variant) for a in found] == [
        ("nccl_ring_ll", "2.28.9"), ("nccl_ring_ll", "2.30.7"), ("host_ring", ""),
    ]  # fmt: skip
    assert [Path(a.preload).name for a in found] == ["libnccl22809.so.2", "libnccl23007.so.2", ""]
    assert machine.software["nccl_libraries"] == "2.28.9, 2.30.7"
    assert [found[k].support(MACHINE, Call(1024, 2)).reason for k in (0, 1)] == ["NCCL 2.28.9", "NCCL 2.30.7"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_one_library_leaves_the_names_of_cells_alone(tmp_path: Path) -> None:
    machine, (one,) = of_libraries([built(tmp_path, 23007)], MACHINE, [registry()["nccl_auto"]])
    assert (one.variant, machine.software["nccl"]) == ("", "2.30.7")
