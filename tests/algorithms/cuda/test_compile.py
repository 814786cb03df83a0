"""NVRTC compiles every kernel for every arch, on a machine without a GPU."""

import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="needs the extra cuda")

from collbench.algorithms.cuda import compile as compiling
from collbench.algorithms.cuda.compile import ARCHS, KERNELS, SPEEDUPS, Compiled, CompileError, Variant, compile_kernel
from collbench.algorithms.cuda.designs import FLAGGED


def variants(arch: str) -> list[Variant]:
    """What the sweep runs most: 8 ranks; and the widest build."""
    some = [Variant(kernel, 8, "int32" if kernel in FLAGGED else "bfloat16", arch) for kernel in KERNELS]
    return [*some, Variant("push_flags", 8, "bfloat16", arch)]


def test_every_kernel_compiles_for_every_arch_without_spills(
    tmp_path: Path, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Registers, spills and shared memory are printed; nothing spills; all together take less than 60 s."""
    begin = time.process_time()  # of the processor: other programs do not count
    lines = []
    for arch in ARCHS:
        for variant in variants(arch):
            made = compile_kernel(variant, tmp_path)
            lines.append(
                f"{arch} {variant.kernel} n={variant.world_size} {variant.dtype}: {made.registers} registers, "
                f"{made.spills} bytes spilled, {made.shared} bytes shared, {len(made.cubin)} bytes"
            )
            assert made.cubin.startswith(b"\x7fELF")
            assert made.spills == 0, lines[-1]
            assert made.registers <= 128, lines[-1]
    spent = time.process_time() - begin
    with capsys.disabled():
        print("", *lines, f"{len(lines)} kernels in {spent:.1f} s", sep="\n")  # noqa: T201 - the record that was asked for
    record_property("kernels", lines)
    assert spent < 60


@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=() if n in {2, 16} else pytest.mark.slow) for n in (2, 3, 4, 5, 6, 7, 16)]
)
def test_other_world_sizes_do_not_spill(world_size: int, tmp_path: Path) -> None:
    """The largest kernels hold for every world size."""
    for kernel in ("one_stage_pull_data", "two_stage_push", "islands_fused", "push_all_to_all"):
        assert compile_kernel(Variant(kernel, world_size, "bfloat16", "sm_90"), tmp_path).spills == 0


@pytest.mark.parametrize("name", SPEEDUPS)
def test_leaving_a_speedup_out_is_a_build_of_its_own(name: str, tmp_path: Path) -> None:
    """The code changes for a kernel that has it, and does not spill."""
    kernel = "push" if name in {"own_in_register", "late_rearm"} else "one_stage_pull_data"
    whole, less = (
        compile_kernel(Variant(kernel, 8, "bfloat16", "sm_90", without=number), tmp_path)
        for number in (0, SPEEDUPS[name])
    )
    assert whole.cubin != less.cubin
    assert less.spills == 0


def test_programmatic_launch_is_compiled_in_from_sm_90(tmp_path: Path) -> None:
    """The variant is a build of its own, and older archs get the same code without it."""
    plain, early = (compile_kernel(Variant("push", 2, "bfloat16", "sm_90", pdl=p), tmp_path) for p in (False, True))
    assert plain.cubin != early.cubin
    assert compile_kernel(Variant("push", 2, "bfloat16", "sm_80", pdl=True), tmp_path).spills == 0


def test_a_cubin_is_kept_on_disk_in_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process takes what the first has made, unless it was damaged."""
    folder = tmp_path / "kernels"
    variant = Variant("push", 2, "float32", "sm_90")
    made = compile_kernel(variant, folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    calls: list[Variant] = []

    def again(asked: Variant) -> Compiled:
        calls.append(asked)
        return made

    monkeypatch.setattr(compiling, "_compile", again)
    compile_kernel.cache_clear()
    assert compile_kernel(variant, folder) == made
    assert calls == []
    next(folder.glob("*.cubin")).write_bytes(b"damaged")
    compile_kernel.cache_clear()
    assert compile_kernel(variant, folder) == made
    assert calls == [variant]


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    """Nobody else may slip a cubin in."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    compile_kernel(Variant("push", 2, "float32", "sm_89"), folder)
    assert list(folder.iterdir()) == []


def test_refused_source_is_one_line(tmp_path: Path) -> None:
    """The error names the kernel, the arch and the compiler's first complaint."""
    with pytest.raises(CompileError, match=r"^kernel no_such_kernel for sm_90: .*no_such_kernel"):
        compile_kernel(Variant("no_such_kernel", 2, "float32", "sm_90"), tmp_path)
