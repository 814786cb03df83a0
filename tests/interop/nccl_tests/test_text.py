"""Printed tables: every layout by the names in its header, every prefix, and named errors for the rest."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.errors import InvalidError
from collbench.interop.nccl_tests.reading import parse, read
from collbench.interop.nccl_tests.table import Invocation, OutputError
from tests.conftest import Budget
from tests.interop.nccl_tests import layouts
from tests.interop.nccl_tests.layouts import CONFIG, FOOTER, PLAIN, TIMES_US, VERSIONED, table

SIZES = list(TIMES_US)
OUT = [times[0] for times in TIMES_US.values()]
IN = [times[1] for times in TIMES_US.values()]


def one(text: str) -> Invocation:
    found = parse(text)
    assert len(found) == 1
    return found[0]


def times(run: Invocation, place: str) -> list[float]:
    return [row.places[place].time_us for row in run.rows]


def test_plain_output() -> None:
    run = one(PLAIN)
    assert [row.bytes for row in run.rows] == SIZES
    assert (times(run, "out"), times(run, "in")) == (OUT, IN)
    assert (run.program, run.world_size, run.wrong, run.finished) == ("all_reduce", 8, 0, True)
    assert (run.settings.iterations, run.settings.warmup, run.settings.validation) == (20, 5, 1)
    assert {f.wrong for row in run.rows for f in row.places.values()} == {0}
    assert run.problems == run.failures == ()


def test_versions_of_the_first_line() -> None:
    run = one(VERSIONED)
    assert (run.version, run.nccl) == ("2.19.6", "2.30.7")
    assert one("NCCL version 2.20.5+cuda12.4\n" + PLAIN).nccl == "2.20.5"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (table(last="error", wrong="7e-07", root=False), None),
        (table(last="error", wrong="7e-07", root=False) + FOOTER, 0),
        (table(last="error", wrong="N/A", root=False) + FOOTER, None),
        (table(last="#wrong", wrong="N/A") + FOOTER, None),
        (table(per_iteration=True) + FOOTER, 0),
        (table(behind="#iters", behind_value="20") + FOOTER, 0),
        (table(behind="timestamp", behind_value="2026-11-29 10:00:00") + FOOTER, 0),
        (table(redop="") + FOOTER, 0),
        (table(root=False, redop="") + FOOTER, 0),
        (table(places=1) + FOOTER, 0),
    ],
)
def test_columns_are_found_by_name(text: str, wrong: int | None) -> None:
    """`error` is checked only where the footer counts none; blank redop and root shift nothing."""
    run = one(CONFIG + text)
    assert times(run, "out") == OUT
    assert [f.wrong for row in run.rows for f in row.places.values()].count(wrong) >= 3
    if "in" in run.rows[0].places:
        assert times(run, "in") == IN


def test_bitwise_columns() -> None:
    text = table(last="#wrong  #bitdiff").replace("       0", "       0         0")
    assert times(one(CONFIG + text), "in") == IN


@pytest.mark.parametrize(
    "prefix",
    ["[1,0]<stdout>:", "[host-a,1,0]<stdout>: ", "0: ", "[default0]:", "    ", "2026-11-29T10:00:00.123Z stdout F ",
     "host-a: ", "[0] ", "rank0 | "],
)  # fmt: skip
def test_prefixes_of_launchers(prefix: str) -> None:
    run = one("".join(prefix + line for line in PLAIN.splitlines(keepends=True)))
    assert (times(run, "out"), run.world_size, run.program) == (OUT, 8, "all_reduce")


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("\n", "\r\n"), f"```\n{PLAIN}```\n", PLAIN.replace("\n", "\\n"), f"\ufeff{PLAIN}",
        "".join(f"> {line}\n" for line in PLAIN.splitlines()),
    ],
)  # fmt: skip
def test_pasted_texts(text: str) -> None:
    """From Windows, out of markdown, out of a JSON string, with its mark of order, quoted in a reply."""
    assert times(one(text), "in") == IN


LOG = "host-a:855:866 [2] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f count 256"


def test_log_between_and_inside_rows() -> None:
    """NCCL writes to the same stdout: also behind the size of a row whose times are not there yet."""
    lines = PLAIN.splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(r" +1024 ", line))
    row = lines[first]
    lines[first : first + 1] = [row[:54] + LOG, LOG, row[54:85] + LOG, row[85:], LOG]
    assert times(one("\n".join(lines)), "out") == OUT


def test_rows_behind_a_comment_sign() -> None:
    """As in a script in which somebody kept the output."""
    assert times(one("".join("#" + line for line in PLAIN.splitlines(keepends=True))), "in") == IN


def test_a_row_that_was_cut_is_quoted_and_the_others_kept() -> None:
    text = PLAIN[: PLAIN.index("# Out of bounds") - 40]
    run = one(text)
    assert times(run, "out") == OUT[:2]
    assert not run.finished
    assert "1048576" in run.problems[0]
    assert "cut off" in run.problems[0]


def test_two_runs_in_one_text_and_repeated_sizes() -> None:
    second = PLAIN.replace("all_reduce_perf", "all_reduce_perf_mpi")
    found = parse(PLAIN + "$ ./all_gather_perf -g 8\n" + second)
    assert [len(run.rows) for run in found] == [3, 3]
    cycles = CONFIG + table() + "\n".join(table().splitlines()[4:]) + "\n" + FOOTER
    assert [row.bytes for row in one("$ all_reduce_perf -N 2\n" + cycles).rows] == SIZES * 2


def test_options_that_only_the_command_line_tells() -> None:
    words = "$ mpirun -np 8 ./build/all_reduce_perf -b 1K -e 1M -a 3 -R 2 -z1 --iters=999\n"
    run = one(words + CONFIG + table() + FOOTER)
    assert (run.settings.average, run.settings.blocking, run.settings.others) == ("max", 1, ("R2",))
    assert run.settings.iterations == 20, "the program's own line counts"


@pytest.mark.parametrize(
    ("line", "blocking"),
    [
        ("# Blocking Enabled: wait and barrier after each inner iteration (-m) ", 1),
        ("# Blocking Enabled: wait after each inner iteration (-m), no barrier ", 2),
        ("# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier ", 3),
        ("# Blocking Enabled: wait for completion and barrier after each collective ", 1),
        ("# Blocking Enabled: wait for completion after each collective (no barrier) ", 2),
        ("Blocking Enabled: wait for completion and barrier after each collective ", 1),
    ],
)
def test_waiting_is_told(line: str, blocking: int) -> None:
    assert one(CONFIG + line + "\n" + table()).settings.blocking == blocking


def test_ranks_and_program_from_the_numbers() -> None:
    """Without a list of devices: bus over algorithm bandwidth tells the ranks of an all_reduce."""
    run = one(table() + FOOTER)
    assert (run.program, run.world_size) == ("all_reduce", 8)
    assert "8 ranks" in run.inferred
    assert "defaults" in run.inferred


FIRST = """nThread 1 nGpus 4 minBytes 1024 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# NCCL Tests compiled with NCCL 2.1
# Using devices
#   Rank  0 on  secret device  0 [0x04] Invented
#   Rank  1 on  secret device  1 [0x06] Invented
#   Rank  2 on  secret device  2 [0x07] Invented
#   Rank  3 on  secret device  3 [0x08] Invented

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
        1024           256   float     sum    0.137   0.01   0.01    0e+00    0.134   0.01   0.01    0e+00
   134217728      33554432   float     sum   10.404  12.90  19.35    0e+00   10.417  12.88  19.33    0e+00
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 9.6
"""


def test_the_first_releases_print_milliseconds() -> None:
    run = one(FIRST)
    assert times(run, "out") == [137.0, 10404.0]
    assert (run.program, run.world_size, run.wrong, run.finished) == ("all_reduce", 4, 0, True)
    assert run.rows[0].places["in"].wrong == 0


def test_programs_without_mpi_under_mpirun_are_told() -> None:
    """Each of them is a world of its own, and what they print mixes."""
    alone = CONFIG.replace("nGpus 8", "nGpus 1").splitlines(keepends=True)
    config = "".join(line for line in alone if "Rank" not in line or "Rank  0" in line)
    run = parse(config * 4 + table() + FOOTER)[-1]
    assert "3 other runs began before its first row" in run.problems[0]


def test_groups_of_ranks_are_not_one_world() -> None:
    text = PLAIN
    for rank in range(4, 8):
        text = text.replace(f"#  Rank  {rank} Group  0", f"#  Rank  {rank} Group  1")
    assert one(text).world_size == 4


def test_an_old_table_with_errors_out_of_bounds_counts_as_unchecked() -> None:
    run = one(CONFIG + table(last="error", wrong="7e-01") + "# Out of bounds values : 3 FAILED\n")
    assert {f.wrong for row in run.rows for f in row.places.values()} == {None}
    assert "3 values out of bounds" in run.problems[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("hello\nworld\n", "line 1: 'hello': not the output of nccl-tests"),
        (CONFIG, "without a single row"),
        ("\n".join(table().splitlines()[4:]), "without their header"),
        (PLAIN.replace("12.50", "XX.XX").replace("20.25", "XX.XX").replace("210.00", "XXX.XX"), "time is 'XX.XX'"),
        (
            PLAIN.replace("  12.50  ", "  0.01250  ").replace("20.25", "0.02").replace("210.00", "0.2100"),
            "another column or unit",
        ),
        ("all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open", "libnccl"),
        ("Invalid number of GPUs: 8 requested but only 1 were found.\n", "Invalid number of GPUs"),
        (PLAIN.replace("algbw", "elgbw"), "names no algbw"),
    ],
)
def test_named_errors(text: str, message: str) -> None:
    with pytest.raises(OutputError, match=re.escape(message)):
        parse(text)


NOISE = st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode("utf-8", "replace"))


@given(st.lists(st.sampled_from(PLAIN.splitlines() + VERSIONED.splitlines() + [LOG, "{", "]"]) | NOISE, max_size=40))
def test_no_text_raises_anything_else(lines: list[str]) -> None:
    try:
        found = parse("\n".join(lines))
    except InvalidError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both ends are right
    else:
        assert any(run.rows for run in found)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(PLAIN)), st.integers(0, len(PLAIN)), st.text(alphabet="0123456789 #N/A\n.e-", max_size=12))
def test_damage_never_gives_numbers_that_do_not_fit(start: int, stop: int, put: str) -> None:
    """Whatever is cut out or put in: a time that is read is the bandwidth's time."""
    try:
        found = parse(PLAIN[: min(start, stop)] + put + PLAIN[max(start, stop) :])
    except OutputError:
        return
    for row in (row for run in found for row in run.rows):
        for f in row.places.values():
            assert abs(f.algbw_gbps - row.bytes / f.time_us / 1e3) < 0.02 + 0.6 * f.algbw_gbps


@pytest.mark.parametrize(
    "piece", ["0 ", "#\n", "1024 256 float\n", "a:1:1 [0] NCCL INFO ", "[1,0]<stdout>:", " ", "x.", "1" * 50, "{"]
)
def test_a_megabyte_of_noise_is_quick(piece: str, budget: Budget) -> None:
    text = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]

    def refused() -> None:
        for before in ("", table() + "\n"):
            try:
                parse(before + text)
            except OutputError:
                continue

    budget(1.0, time.process_time)(refused)


def test_a_file_says_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("nothing")
    with pytest.raises(OutputError, match=r"x\.log: line 1"):
        read(str(tmp_path / "x.log"))
    with pytest.raises(OutputError, match="cannot be read"):
        read(str(tmp_path))
    named = tmp_path / "my_alltoall_run.txt"
    named.write_text(CONFIG + table(redop="none"))
    assert read(str(named))[0].program == "alltoall"


def test_utf16_of_windows(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(PLAIN.encode("utf-16"))
    assert len(read(str(tmp_path / "x.txt"))[0].rows) == 3


def test_the_double_is_the_format() -> None:
    """Our own layouts keep to the widths of the program: a size of 12 columns first."""
    assert layouts.table().splitlines()[4].startswith("        1024           256     float")
