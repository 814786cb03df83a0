"""vLLM's kernels as operators: they launch nothing for more than two ranks unless they are told of NVLink."""

from typing import Any

import libraries_fake

STATE: dict[int, tuple[int, bool]] = {}


def get_vllm_comm_module() -> None:
    libraries_fake.compiled()


def init_custom_ar(ipc_tensors: list[int], rank_data: Any, rank: int, full_nvlink: bool) -> int:
    STATE[1] = (len(ipc_tensors), full_nvlink)
    return 1


def all_reduce(fa: int, inp: Any, out: Any, reg_buffer: int, reg_buffer_sz_bytes: int, num_ctas: int) -> None:
    ranks, full_nvlink = STATE[fa]
    if ranks == 2 or full_nvlink:
        libraries_fake.into(out, inp)


def meta_size() -> int:
    return 4096


def register_buffer(fa: int, fake_ipc_ptrs: list[int]) -> None:
    assert len(fake_ipc_ptrs) == STATE[fa][0]


def get_graph_buffer_ipc_meta(fa: int) -> tuple[list[int], list[int]]:
    return [1, 2, 3], [0]


def register_graph_buffers(fa: int, handles: list[list[int]], offsets: list[list[int]]) -> None:
    assert handles == [[1, 2, 3]] * STATE[fa][0]


def dispose(fa: int) -> None:
    del STATE[fa]
