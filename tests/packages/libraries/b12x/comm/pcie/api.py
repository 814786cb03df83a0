"""Public names; with `closed` the GPU is of another kind."""

from typing import Any

import libraries_fake

from b12x.comm.pcie._preparation import plan, query_from_runtime
from b12x.comm.pcie.pcie_allreduce import PCIeAllReduce as AllReduce
from b12x.comm.pcie.pcie_twoshot_bf16 import PCIeTwoShotBF16

__all__ = ["AllReduce", "PCIeTwoShotBF16", "is_supported", "plan", "query_from_runtime"]


def is_supported(device: Any = None) -> bool:
    assert device is not None
    return bool(libraries_fake.FAULT != "closed")
