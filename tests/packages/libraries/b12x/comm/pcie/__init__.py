"""What users import."""

from b12x.comm.pcie.api import AllReduce, PCIeTwoShotBF16, is_supported, plan, query_from_runtime

__all__ = ["AllReduce", "PCIeTwoShotBF16", "is_supported", "plan", "query_from_runtime"]
