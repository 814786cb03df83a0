"""Runs as tables in Markdown: rows, columns, marks and notes, read back by GitHub's own parser."""

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cmarkgfm import github_flavored_markdown_to_html
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import InvalidError
from collbench.interop.markdown import Source, markdown
from collbench.measure.shortfall import Shortfall
from collbench.measure.turns import Work
from collbench.results.intervals import interval_of_medians
from collbench.results.records import Call, Cell, Fabric, Flag, Mode, Run, Samples, Status
from collbench.results.store import RunFolder
from collbench.results.summary import clean
from collbench.testing import synthetic_gpu_run, synthetic_run, synthetic_samples
from collbench.units import format_us

COSTS = {"host_ring": (46.0, 0.12), "host_tree": (24.0, 0.9), "gloo": (310.0, 0.9)}
SIZES = (1024, 14336)


def source(path: Path) -> Source:
    with RunFolder.open(path) as folder:
        return Source(folder.run, folder.samples(), folder.evidence())


def host_run(path: Path, **more: Any) -> Source:
    options: dict[str, Any] = {"costs": COSTS, "sizes": SIZES, "iterations": 20}
    return source(synthetic_run(path, **options | more).path)


def tables(page: str) -> list[list[list[str]]]:
    """Texts of the cells of each table."""
    found = []
    for table in re.findall(r"<table>(.*?)</table>", github_flavored_markdown_to_html(page), re.DOTALL):
        lines = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        found.append([re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines])
    texts = [[[html.unescape(re.sub(r"</?code>", "", cell)) for cell in line] for line in table] for table in found]
    return [[[cell.replace("\u200b", "") for cell in line] for line in table] for table in texts]


def test_a_cell_is_the_median_and_the_interval_of_its_launches(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", launches=5, calls=(1,))
    ((head, *lines),) = tables(markdown([one]))

    assert head == ["algorithm", "1K", "14K"]
    assert [line[0] for line in lines] == ["host_tree", "host_ring", "gloo"]
    launches = [np.max(s.latency_us, axis=0) for s in one.samples if "/host_tree/-/sum/bfloat16/1024/" in s.cell_id]
    interval = interval_of_medians([float(np.median(fold)) for fold in launches])
    assert interval
    low, high = map(format_us, interval)
    assert lines[0][1] == f"{format_us(float(np.median(np.concatenate(launches))))} ({low}\u00a0to\u00a0{high})"


def test_a_table_for_each_mode_and_number_of_calls(tmp_path: Path) -> None:
    page = markdown([host_run(tmp_path / "run", modes=(Mode.EAGER, Mode.GRAPH))])

    assert re.findall(r"^\*\*(.*)\*\*$", page, re.MULTILINE) == [
        "all_reduce, sum of bfloat16, eager, single calls", "all_reduce, sum of bfloat16, eager, chains of 122 calls",
        "all_reduce, sum of bfloat16, graph, single calls", "all_reduce, sum of bfloat16, graph, chains of 122 calls",
    ]  # fmt: skip
    assert len(tables(page)) == 4


@pytest.mark.parametrize(("launches", "mark", "words"), [(1, "¹", "1 launch"), (4, "⁴", "4 launches")])
def test_fewer_launches_are_marked_and_counted(tmp_path: Path, launches: int, mark: str, words: str) -> None:
    page = markdown([host_run(tmp_path / "run", launches=launches, calls=(1,))])

    ((_, *lines),) = tables(page)
    assert all(cell.endswith(f"\u00a0{mark}") for line in lines for cell in line[1:])
    assert f"- {mark} no interval: {words}; an interval takes 5\n" in page
    assert "in brackets" not in page


def test_a_cell_with_fewer_launches_than_the_others_is_marked_alone(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", launches=5, calls=(1,))
    lost = [s for s in one.samples if not ("/gloo/" in s.cell_id and s.launch > 1)]
    page = markdown([replace(one, samples=lost)])

    ((_, *lines),) = tables(page)
    assert [["²" in cell for cell in line[1:]] for line in lines] == [[False, False], [False, False], [True, True]]
    assert "from the medians of 5 launches\n- ² no interval: 2 launches; an interval takes 5\n" in page


@pytest.mark.parametrize("zeros", [1, 5])
def test_times_of_zero_are_said_to_have_no_logarithm(tmp_path: Path, zeros: int) -> None:
    """There are launches enough: these are not why; what lacks launches beside it is told apart."""
    one = host_run(tmp_path / "run", launches=5, calls=(1,))
    samples = [
        replace(s, latency_us=((0.0,) * 20,) * 2) if "/gloo/" in s.cell_id and s.launch < zeros else s
        for s in one.samples
        if not ("/host_tree/" in s.cell_id and s.launch > 1)
    ]
    page = markdown([replace(one, samples=samples)])

    lines = {line[0]: line[1:] for line in tables(page)[0][1:]}
    assert all(cell.endswith("\u00a0⁵") for cell in lines["gloo"])
    assert all(cell.endswith("\u00a0²") for cell in lines["host_tree"])
    assert (
        "- ² no interval: 2 launches; an interval takes 5\n"
        "- ⁵ no interval: a median of 5 launches is zero, which has no logarithm\n"
    ) in page


def test_what_is_not_ok_has_its_status_and_one_line_per_reason(tmp_path: Path) -> None:
    """Rows that nothing was started of stand below the table only."""
    failing = {"gloo": (Status.HUNG, "no answer of /srv/joe/x"), "a": (Status.UNSUPPORTED, "b|c"),
               "d": (Status.UNSUPPORTED, "b|c")}  # fmt: skip
    costs = COSTS | {"a": (1.0, 1.0), "d": (1.0, 1.0)}
    page = markdown([host_run(tmp_path / "run", costs=costs, calls=(1,), failing=failing)])

    ((_, *lines),) = tables(page)
    assert [line[0] for line in lines] == ["host_tree", "host_ring", "gloo"]
    assert lines[-1][1:] == ["hung", "hung"]
    assert page.endswith("- unsupported: b\\|c: `a`, `d`\n- hung: no answer of PATH: `gloo`\n")


def test_reasons_and_flags_name_the_sizes_that_they_hold_for(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", calls=(1,))
    samples = [
        Samples(s.cell_id, 0, Status.NOT_RUN, "no time was left") if "/gloo/-/sum/bfloat16/14336/" in s.cell_id
        else replace(s, flags=(Flag.THROTTLED,)) if "/host_ring/" in s.cell_id else s
        for s in one.samples
    ]  # fmt: skip
    page = markdown([replace(one, samples=samples)])

    assert "- throttled (clocks were held down): `host_ring`\n" in page
    assert "- not_run: no time was left: `gloo` (at 14K)\n" in page


def test_how_to_go_on_is_no_part_of_a_table(tmp_path: Path) -> None:
    """The run lies elsewhere, and what a launch takes differs from row to row where the reason does not."""
    ring, gloo = (Work((name, ""), (0,), seconds) for name, seconds in (("host_ring", 1.0), ("gloo", 2.0)))
    told = {one.key[0]: Shortfall([ring, gloo], 5, 3.0).reason(one.key) for one in (ring, gloo)}
    assert all("--resume" in reason for reason in told.values())
    failing = {name: (Status.NOT_RUN, reason) for name, reason in told.items()}
    page = markdown([host_run(tmp_path / "run", calls=(1,), failing=failing)])
    assert page.endswith("- not_run: the budget of 3 s held 5 launches of no algorithm: `gloo`, `host_ring`\n")


def test_a_cell_that_was_not_planned_is_empty_and_said_to_be(tmp_path: Path) -> None:
    """As at a size where the chains of one algorithm are shorter, which have a table of their own."""
    one = host_run(tmp_path / "run", calls=(1,))
    cells = tuple(cell for cell in one.run.cells if (cell.algorithm, cell.call.bytes) != ("gloo", 14336))
    samples = [s for s in one.samples if "/gloo/-/sum/bfloat16/14336/" not in s.cell_id]
    page = markdown([replace(one, run=replace(one.run, cells=cells), samples=samples)])

    ((_, *lines),) = tables(page)
    assert lines[-1][0] == "gloo"
    assert lines[-1][-1] == ""
    assert "- empty: not planned at this size with this number of calls\n" in page
    assert "- empty" not in markdown([one])


def test_wide_tables_come_in_parts_with_the_same_rows(tmp_path: Path) -> None:
    sizes = tuple(1024 << i for i in range(7))
    plain = tables(markdown([host_run(tmp_path / "a", sizes=sizes, calls=(1,))]))
    wide = tables(markdown([host_run(tmp_path / "b", sizes=sizes, calls=(1,), launches=5, iterations=5)]))

    assert [len(table[0]) for table in plain] == [8]
    assert [table[0][1:] for table in wide] == [["1K", "2K", "4K", "8K", "16K"], ["32K", "64K"]]
    assert [line[0] for line in wide[0]] == [line[0] for line in wide[1]]


def test_variant_place_and_buffers_make_rows_of_their_own() -> None:
    call = Call(1024, 2)
    cells = (
        Cell("x", call, Mode.EAGER, 1), Cell("x", call, Mode.EAGER, 1, "2.30.7"),
        Cell("x", call, Mode.EAGER, 1, "", "in"),
        Cell("x", call, Mode.EAGER, 1, "", "out", "cold"), Cell("x", replace(call, epilogue="norm"), Mode.EAGER, 1),
        Cell("x", call, Mode.EAGER, 1, skew="dispatch-z1-s0"),
    )  # fmt: skip
    run = Run("x", "2026", ("x",), "0", Fabric.HOST, 2, 1, cells)
    page = markdown([Source(run, [synthetic_samples(cell, 10.0 + i) for i, cell in enumerate(cells)])])

    first, *others = tables(page)
    assert [line[0] for line in first[1:]] == ["x", "x 2.30.7", "x, in place", "x, cold buffers"]
    assert len(others) == 2
    assert "**all_reduce, sum of bfloat16, epilogue norm, eager, single calls**" in page
    assert "**all_reduce, sum of bfloat16, splits dispatch-z1-s0, eager, single calls**" in page


def test_what_was_enqueued_is_the_last_column(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", calls=(1,))
    evidence = {(s.cell_id, s.launch): {"kernel": "ring 1x64"} for s in one.samples if "/host_ring/" in s.cell_id}
    ((head, *lines),) = tables(markdown([replace(one, evidence=evidence)], with_kernels=True))

    assert head[-1] == "enqueued"
    assert [line[-1] for line in lines] == ["", "ring 1x64", ""]


def test_the_head_says_where_it_was_measured_and_no_more(tmp_path: Path) -> None:
    run = synthetic_gpu_run(tmp_path / "run", sizes=(1024,), launches=1, iterations=5, probed=False)
    one = source(run.path)
    command = ("/opt/joe/bin/collbench", "sweep", "--nccl", "/home" + "/joe/libnccl.so.2", "--out", "a`b```c")
    machine = dict(one.run.machine) | {"facts": {"hostname": "joes-box", "uuid": "GPU-1"}}
    page = markdown([replace(one, run=replace(one.run, command=command, machine=machine))])

    assert page.startswith("8 ranks, fabric `pcie`: 8 x NVIDIA RTX PRO 6000")
    assert "\n2026-01-01, collbench 0.\n" in page
    assert "````sh\ncollbench sweep --nccl PATH --out 'a`b```c'\n````\n" in page
    assert not re.search(r"joe|GPU-1", page)


def test_a_shared_gpu_says_nothing_about_links(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", calls=(1,))
    page = markdown([replace(one, run=replace(one.run, fabric=Fabric.SHARED_GPU))])

    assert "nothing is said about links" in page
    assert "nothing is said about links" not in markdown([one])


def test_ranks_that_took_turns_and_a_sweep_that_was_stopped_are_told(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", calls=(1,), finish=False)
    machine = dict(one.run.machine) | {"facts": {"threads": "2"}}
    page = markdown([replace(one, run=replace(one.run, machine=machine))])

    assert "; 8 ranks took turns on 2 hardware threads; stopped before its end." in page


def test_times_of_another_tool_are_said_to_be_its(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", calls=(1,))
    page = markdown([replace(one, run=replace(one.run, settings={"tool": "nccl-tests", "group_times": True}))])

    assert "- microseconds per call, as nccl-tests gives them\n" in page


def test_rows_of_several_runs_say_whose_they_are(tmp_path: Path) -> None:
    first, second = (host_run(tmp_path / name, calls=(1,), seed=i) for i, name in enumerate("ab"))
    second = replace(second, run=replace(second.run, run_id="other", created="2026-02-03T00:00:00+00:00"))
    page = markdown([first, second])

    ((head, *lines),) = tables(page)
    assert head == ["algorithm", "sweep", "1K", "14K"]
    assert sorted(line[1] for line in lines) == ["A"] * 3 + ["B"] * 3
    assert "Rows are of 2 sweeps, made at different times" in page
    assert "Sweep B: 2026-02-03" in page


def test_runs_of_two_machines_are_no_table(tmp_path: Path) -> None:
    """Nor is a run beside itself, nor one that does not say where it was made; other software is."""
    one = host_run(tmp_path / "run", calls=(1,))
    hard = dict(one.run.machine["fingerprint"]["hard"])

    def other(**keys: str) -> Source:
        machine = dict(one.run.machine) | {"fingerprint": {"hard": hard | keys}}
        return replace(one, run=replace(one.run, run_id="other", machine=machine))

    with pytest.raises(InvalidError, match=r"run 2 is not of the first one's machine \(gpu: none and H200\)"):
        markdown([one, other(gpu="H200")])
    with pytest.raises(InvalidError, match="is given twice"):
        markdown([one, one])
    with pytest.raises(InvalidError, match="does not say on which machine"):
        markdown([one, replace(one, run=replace(one.run, run_id="other", machine={}))])
    assert markdown([one, other(nccl="2.31.2")])


def test_a_run_without_cells_says_so(tmp_path: Path) -> None:
    one = host_run(tmp_path / "run", calls=(1,))
    assert markdown([replace(one, run=replace(one.run, cells=()), samples=[])]).endswith(
        "No collective was measured.\n"
    )
    assert markdown([Source(Run("x", "", (), "0", Fabric.HOST, 2, 1, ()), [])])


NAMES = st.text(st.characters(codec="utf-8"), max_size=20) | st.text("|`\\*_<>[]()&@#:/ab \n", max_size=20)


@given(NAMES, NAMES, NAMES)
def test_names_and_reasons_from_a_file_stay_text(name: str, variant: str, reason: str) -> None:
    """One table of three columns whose first cell says the name, and a list without any element of theirs."""
    cells = (Cell(name, Call(1024, 2), Mode.EAGER, 1, variant), Cell(name, Call(2048, 2), Mode.EAGER, 1, variant))
    run = Run("x", reason, (name, reason), variant, Fabric.HOST, 2, 1, cells)
    samples = [synthetic_samples(cells[0], 10.0), Samples(cells[1].cell_id, 0, Status.CRASHED, reason)]
    page = markdown([Source(run, samples, {(cells[0].cell_id, 0): {"kernel": f"{name}<<<1, 1>>>"}})])

    ((_, line),) = tables(page)
    shown = [" ".join(clean(text).split()) for text in (name, variant)]
    assert [line[0], line[2]] == [" ".join(filter(None, shown)), "crashed"]
    allowed = r"</?(?:p|pre|code|strong|table|thead|tbody|tr|th|td|ul|li)(?: (?:align|lang|class)=\"[a-z-]+\")?>"
    assert re.sub(allowed, "", github_flavored_markdown_to_html(page)).count("<") == 0
