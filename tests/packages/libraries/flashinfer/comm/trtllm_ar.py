"""The `trtllm` module."""

import libraries_fake


class AllReduceFusionPattern:
    kAllReduce = 0
    kARResidualRMSNorm = 1


def get_trtllm_comm_module() -> None:
    libraries_fake.compiled()


REFERENCES: dict[int, object] = {}
"""What the real module holds until it is told of its handles: `destroy` of a workspace does not."""


def trtllm_destroy_ipc_workspace_for_all_reduce_fusion(workspace: list[list[int]], group: object = None) -> None:
    del group
    del REFERENCES[id(workspace)]
