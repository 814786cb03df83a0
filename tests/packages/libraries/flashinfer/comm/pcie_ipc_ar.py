"""The workspace for PCIe."""

from typing import Any

import libraries_fake

from flashinfer.comm.pcie_ipc_policy import IpcLaunchConfig, IpcVariant


def get_pcie_ipc_comm_module() -> None:
    libraries_fake.compiled()


class PcieIpcAllReduceWorkspace:
    def __init__(self, group: Any, max_numel: int, dtype: Any = None, max_blocks: int = 128) -> None:
        self.group, self.max_numel, self.memop_supported = group, max_numel, False

    def supports(self, inp: Any) -> bool:
        return bool(inp.numel() <= self.max_numel)

    def prepare(self, shapes: Any, *, dtype: Any = None) -> None:
        return None

    def tuned_launch_config(self, inp: Any) -> IpcLaunchConfig:
        return IpcLaunchConfig(16, 256, IpcVariant.UNSTAGED)

    def rebind_stream(self) -> None:
        return None

    def all_reduce(self, inp: Any, *, out: Any = None, config: Any = None, enable_pdl: bool = False) -> Any:
        assert isinstance(config, IpcLaunchConfig)
        libraries_fake.into(out, inp, self.group)
        return out

    def destroy(self) -> None:
        self.group = None
