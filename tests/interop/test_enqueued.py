"""What a call enqueued, read from evidence as runs hold it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.interop.enqueued import Kernel, kernels, short_name, told

VLLM = "_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li8EEEvPNS_8RankDataENS_11RankSignalsEPNS_6SignalEPT_ii"
TORCH = "_ZN64_GLOBAL__N__62167398_25_CUDASymmetricMemoryOps_cu_39041df9_1350726one_shot_all_reduce_kernelIN3c10"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (VLLM, "cross_device_reduce_1stage"), (TORCH, "one_shot_all_reduce_kernel"),
        ("_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
         "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("_ZL4kernPi", "kern"), ("push", "push"), ("_ZSt4sortv", "_ZSt4sortv"), ("_Z99x", "_Z99x"), ("_Z", "_Z"),
        ("_Z0", "_Z0"), ("_Z99999999999999999999999x", "_Z99999999999999999999999x"),
    ],
)  # fmt: skip
def test_the_name_in_a_symbol(symbol: str, name: str) -> None:
    """What is no such symbol, or is cut, stays as it is."""
    assert short_name(symbol) == name


@given(st.text(st.sampled_from("_ZNLI0123456789abE<>, x;"), max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    short_name(text)
    told({"1K": kernels({"kernel": text})})


def test_own_kernels_take_their_registers_from_beside() -> None:
    evidence = {"kernel": "push 7x128", "registers push": "88", "registers islands": "108"}
    assert kernels(evidence) == ((Kernel("push", "7x128", 88),),)


def test_what_starts_early_is_told() -> None:
    """As ours and FlashInfer's fusion say it in their evidence."""
    assert told({"1K": kernels({"kernel": "push 1x64+pdl", "registers push": "48"})}) == (
        "`push` 1x64, 48 registers, programmatic launch"
    )
    fusion = {"kernel": "fuse<<<1, 64>>>, 48 registers", "launch_with_pdl": "True"}
    assert told({"1K": kernels(fusion)}) == "`fuse` 1x64, 48 registers, programmatic launch"
    assert "programmatic" not in told({"1K": kernels(fusion | {"launch_with_pdl": "False"})})
    driver = {
        "kernel": "a<<<1, 64>>>, 8 registers, 2 blocks fit on a multiprocessor, programmatic launch; b<<<1, 32>>>"
    }
    assert told({"1K": kernels(driver)}) == "`a` 1x64, 8 registers, programmatic launch, then `b` 1x32"
    both = {"1K": kernels({"kernel": "push 1x64+pdl"}), "4K": kernels({"kernel": "push 2x64"})}
    assert told(both) == "`push` 1x64 (1K), programmatic launch; `push` 2x64 (4K)"


def test_equal_kernels_of_a_call_are_counted() -> None:
    text = "a<<<1, 1>>>, 10 registers; b<<<2, 32>>>; a<<<1, 1>>>, 10 registers, 3 blocks fit on a multiprocessor"
    assert kernels({"kernel": text}) == ((Kernel("a", "1x1", 10, 2), Kernel("b", "2x32")),)
    assert told({"1K": kernels({"kernel": text})}) == "`a` 1x1, 10 registers, 2 times and `b` 2x32"
    assert told({"1K": kernels({"kernel": "a<<<1, 1>>>; b<<<2, 32>>>"})}) == "`a` 1x1, then `b` 2x32"


def test_ranks_that_differ_are_told() -> None:
    found = kernels({"kernel": "push 1x64", "kernel@3": "push 1x128", "gate": "open"})
    assert told({"1K": found}) == "`push` 1x64 or 1x128"


@pytest.mark.parametrize("text", ["not read: RuntimeError: no", "", "of 7 candidates"])
def test_what_is_not_known_is_left_out(text: str) -> None:
    assert kernels({"kernel": text}) == ()
    assert told({"1K": kernels({"kernel": text})}) == ""


def test_sizes_stand_where_they_differ() -> None:
    sizes = {"1K": "push 1x64", "4K": "push 1x64", "1M": "push 64x512"}
    assert (
        told({size: kernels({"kernel": text}) for size, text in sizes.items()}) == "`push` 1x64 (1K, 4K), 64x512 (1M)"
    )
    sizes = {"1K": "push 1x64", "1M": "islands 8x512"}
    text = told({size: kernels({"kernel": text}) for size, text in sizes.items()})
    assert text == "`push` 1x64 (1K); `islands` 8x512 (1M)"
    sizes = {"1K": "a<<<1, 1>>>; b<<<1, 1>>>", "1M": "a<<<1, 1>>>"}
    text = told({size: kernels({"kernel": text}) for size, text in sizes.items()})
    assert text == "`a` 1x1, then `b` 1x1 (1K); `a` 1x1 (1M)"


def test_a_name_from_a_file_stays_in_its_cell() -> None:
    assert told({"1K": kernels({"kernel": "a|b`c<<<1, 1>>>"})}) == r"a\|b\`c 1x1"
