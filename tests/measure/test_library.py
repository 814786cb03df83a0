"""A library given by path is asked for its version before anything is measured."""

import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.measure.library import nccl_facts


def test_what_is_no_library_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_text("not a library")
    with pytest.raises(UsageError, match=r"not a library of NCCL that loads here: .*libnccl"):
        nccl_facts(str(path))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_version_is_the_librarys_own_word(tmp_path: Path) -> None:
    source, library = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text("int ncclGetVersion(int *v) { *v = 23007; return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    facts = nccl_facts(str(library))
    assert facts["nccl"] == "2.30.7"
    assert len(facts["nccl_sha256"]) == 64
