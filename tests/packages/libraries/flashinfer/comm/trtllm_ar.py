"""The `trtllm` module."""

import libraries_fake


class AllReduceFusionPattern:
    kAllReduce = 0
    kARResidualRMSNorm = 1


def get_trtllm_comm_module() -> None:
    libraries_fake.compiled()
