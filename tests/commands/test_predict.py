"""`collbench predict`, as its users call it."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.cli import build_parser, main

Shell = Callable[..., subprocess.CompletedProcess[str]]
STORY = ("predict", "--topology", "two-flat-gen5-switches.toml", "-b", "43008")

ROW = {
    "topology", "algorithm", "bytes", "total_us", "low_us", "high_us", "terms_us", "bottleneck", "floor_us",
    "prior_share", "notes", "verdict",
}  # fmt: skip


def test_the_one_stage_rows_name_the_path_between_the_switches(collbench: Shell) -> None:
    """With the sixteen flows that share it."""
    done = collbench(*STORY)
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()[2:]}
    for name in ("one_stage_pull", "one_stage_pull_buffered", "push"):
        assert lines[name].endswith("switch0 -> root0 (16 flows)")
        assert lines[name].split()[1] == "43008"


def test_json_rows_have_the_shape_that_was_promised(collbench: Shell) -> None:
    done = collbench(*STORY, "--json")
    data = json.loads(done.stdout)
    assert (data["schema"], data["kind"]) == ("collbench/1", "predict")
    for row in data["rows"]:
        assert set(row) == ROW
        assert sum(row["terms_us"].values()) == pytest.approx(row["total_us"], rel=1e-12)
        assert row["floor_us"] <= row["low_us"] < row["total_us"] < row["high_us"]
        assert set(row["bottleneck"]) == {"link", "flows", "gbps"}
    assert data["left_out"]["two-flat-gen5-switches"]["nccl_auto"]


def test_a_machine_may_stand_without_its_option(collbench: Shell) -> None:
    """Alone, and as the first of two."""
    alone = collbench("predict", "two-flat-gen5-switches", "-b", "43008")
    assert alone.stdout == collbench(*STORY).stdout
    pair = collbench("predict", "two-flat-gen5-switches", "--compare", "root-leaf-switches", "-b", "8K")
    assert pair.stdout.startswith("A = two-flat-gen5-switches")


def test_what_nobody_vouches_for_is_marked_and_no_answer_in_text_json_and_page(
    collbench: Shell, tmp_path: Path
) -> None:
    """Ring with LL128 is the fastest of all at 2 MiB, and nobody knows whether it runs on these cards."""
    words = ("predict", "two-flat-gen5-switches", "-b", "1M", "-e", "2M", "-f", "2", "--algorithms", "nccl")
    data = json.loads(collbench(*words, "--json").stdout)
    last = [row for row in data["rows"] if row["bytes"] == 2 << 20]
    unsure = min(last, key=lambda row: row["total_us"])
    assert (unsure["algorithm"], unsure["verdict"]) == ("nccl_ring_ll128", "unknown")
    assert "no answer, since nobody knows whether it runs here: " in unsure["notes"][0]
    assert {row["verdict"] for row in data["rows"]} == {"runs", "unknown"}
    fastest = {one["bytes"]: one["algorithm"] for one in data["fastest"]}
    assert set(fastest.values()) == {"nccl_ring_simple"}
    assert not [one for one in data["crossovers"] if "ll128" in one["after"] + one["before"]]

    text = collbench(*words).stdout
    marks = {tuple(line.split()[:2]): line for line in text.splitlines() if line.startswith("nccl_")}
    assert "  ?     " in marks["nccl_ring_ll128", str(2 << 20)]
    assert "  *     " in marks["nccl_ring_simple", str(2 << 20)]
    assert "? no answer, since nobody knows whether it runs there: nccl_ring_ll128, nccl_tree_ll128" in text
    assert "ll128 is faster" not in text

    both = collbench("predict", "two-flat-gen5-switches", "--compare", "aws-g5-8xa10g", *words[2:]).stdout
    assert not [line for line in both.splitlines()[3:6] if "ll128" in line]

    collbench(*words, "--html", str(tmp_path / "page.html"))
    title, _, below = (tmp_path / "page.html").read_text(encoding="utf-8").partition("<h1>")[2].partition("</h1>")
    assert title == "By the model, nccl_ring_simple is fastest at every size."
    assert below.partition("</p>")[0].strip().startswith('<p class="gain">Predicted; intervals overlap at ')


def test_json_names_the_fastest_and_whose_intervals_overlap(collbench: Shell) -> None:
    data = json.loads(collbench(*STORY, "--json").stdout)
    (one,) = data["fastest"]
    rows = {row["algorithm"]: row for row in data["rows"]}
    best = rows[one["algorithm"]]
    assert best["total_us"] == min(row["total_us"] for row in data["rows"] if row["verdict"] == "runs")
    assert one["overlaps"]
    assert all(rows[name]["low_us"] <= best["high_us"] for name in one["overlaps"])
    assert not [name for name in one["overlaps"] if rows[name]["verdict"] != "runs"]


@pytest.mark.parametrize("words", [
    ("two-flat-gen5-switches",), ("direct-4x4090-no-p2p",), ("two-arc-b70",), ("one-plx-4xv100",),
    ("two-flat-gen5-switches", "--compare", "aws-g5-8xa10g"), ("four-switches-16gpu", "--compare", "nvswitch-8xh200"),
])  # fmt: skip
@pytest.mark.parametrize("width", [80, 100, 120, 240])
def test_a_terminal_gets_lines_that_fit(words: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but words that cannot be broken; the interval is always there, and the answer below the table."""
    lines = on_a_terminal(width, monkeypatch, "predict", *words)
    assert not [line for line in lines if len(line) > width]
    head = next(line for line in lines if line.split()[:1] == ["algorithm"] or line.startswith("fastest at"))
    assert "[low, high]" in head
    assert "  collbench sweep --nproc" in "\n".join(lines)


def test_commands_on_a_terminal_are_joined_by_a_shell_and_known_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those below the table: whom to ask, and what to measure."""
    text = "\n".join(on_a_terminal(80, monkeypatch, "predict", "two-flat-gen5-switches", "-b", "8K"))
    found = [
        shlex.split(one.replace("\\\n", "")) for one in re.findall(r"^  (collbench (?:.*\\\n)*.*)$", text, re.MULTILINE)
    ]
    assert [words[1] for words in found] == ["doctor", "sweep"]
    for words in found:
        args = build_parser().parse_args(words[1:])
        assert args.command == words[1]
    assert args.algorithms.split(",")[0] == "islands"


def test_a_terminal_has_same_traffic_once_and_a_pipe_every_row(
    collbench: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("predict", "two-flat-gen5-switches", "-b", "8K")
    lines = on_a_terminal(80, monkeypatch, *words)
    piped = collbench(*words).stdout.splitlines()
    rows = [line for line in piped if line.split()[1:2] == ["8192"]]
    assert piped[1].split()[:5] == ["algorithm", "bytes", "total_us", "low_us", "high_us"]
    assert piped[1].split()[-2:] == ["mark", "bottleneck"]
    assert len(rows) == 38
    assert sum(" 8192 " in line for line in lines) < 30
    told = " ".join(lines)
    assert all(line.split()[0] in told for line in rows)
    assert "not shown at 80 characters, but in a pipe: terms" in told


def on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    screen = _Screen()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        patch.setenv("COLUMNS", str(width))
        assert main(words) == 0
    return screen.getvalue().splitlines()


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_range_of_sizes_says_where_the_fastest_changes(collbench: Shell) -> None:
    words = ("--topology", "two-flat-gen5-switches", "-b", "1K", "-e", "64K", "-f", "8", "--algorithms", "own")
    done = collbench("predict", *words)
    assert done.returncode == 0, done.stderr
    sizes = {line.split()[1] for line in done.stdout.splitlines() if "flow" in line}
    assert sizes == {"1024", "8192", "65536"}
    assert re.search(
        r"from about \d+K on, two_stage_push is faster than islands \(within 5% of each other from", done.stdout
    )


@pytest.mark.parametrize("words", [
    ("--compare", "two-flat-gen5-switches", "root-leaf-switches"),
    ("--topology", "two-flat-gen5-switches", "--compare", "root-leaf-switches"),
])  # fmt: skip
def test_rewiring(collbench: Shell, words: tuple[str, ...]) -> None:
    """A root switch above the leaves makes a push a third faster: sixteen flows no longer share one path."""
    done = collbench("predict", *words, "-b", "43008", "--algorithms", "push,nccl_ring_ll")
    assert done.returncode == 0, done.stderr
    push = next(line.split() for line in done.stdout.splitlines() if line.startswith("push"))
    assert -60 < int(push[4].rstrip("%")) < -20
    assert "switch0 -> root0 (16 flows)" in done.stdout
    assert "leaf0 -> root_switch0 (8 flows)" in done.stdout


def test_a_comparison_begins_with_the_answer(collbench: Shell) -> None:
    """The fastest of each side per size, then every algorithm with floors and links, then where the fastest changes."""
    words = ("--compare", "two-flat-gen5-switches", "two-switches-8x4090-no-p2p", "-b", "4K", "-e", "256K", "-f", "64")
    done = collbench("predict", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2].split()[:4] == ["fastest", "at", "on", "A"]
    assert [line.split()[0] for line in lines[3:5]] == ["4096", "262144"]
    assert lines[6].split()[5:7] == ["A_floor", "B_floor"]
    assert "B: no peer access: all bytes go through host memory" in done.stdout
    only = next(line for line in lines if line.startswith("only on A: "))
    assert {"push", "one_stage_pull", "symm_one_shot"} <= set(only.removeprefix("only on A: ").split(", "))


def test_machines_of_different_size_say_so(collbench: Shell) -> None:
    """More ranks change more than the wiring does."""
    words = ("--compare", "two-flat-gen5-switches", "four-switches-16gpu", "-b", "4K", "--algorithms", "push")
    assert "A has 8 ranks and B 16: --nproc 8 compares wirings alone" in collbench("predict", *words).stdout
    assert "compares wirings" not in collbench("predict", *words, "--nproc", "8").stdout


def test_nothing_left_to_predict_says_why_once(collbench: Shell) -> None:
    done = collbench("predict", "--topology", "direct-4x4090-no-p2p", "--algorithms", "own")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("P2P is off") == 1
    assert "P2P is off): one_stage_pull, " in done.stderr


def test_an_edited_copy_is_told_apart_by_its_file(collbench: Shell, tmp_path: Path, root: Path) -> None:
    """Half of the uplink, the name left as it was."""
    source = (root / "topologies" / "two-flat-gen5-switches.toml").read_text()
    (tmp_path / "half.toml").write_text(source.replace("capacity_gbps = 53.8\n", "capacity_gbps = 26.9\n"))
    words = ("--compare", "two-flat-gen5-switches", "half.toml", "-b", "64K", "--algorithms", "push,nccl_ring_ll")
    done = collbench("predict", *words, "--json")
    data = json.loads(done.stdout)
    names = ["two-flat-gen5-switches (two-flat-gen5-switches)", "two-flat-gen5-switches (half.toml)"]
    assert list(data["left_out"]) == names
    times = {(row["topology"], row["algorithm"]): row["total_us"] for row in data["rows"]}
    assert times[names[1], "push"] > 1.5 * times[names[0], "push"]


PREDICTED = ("aws-g5-8xa10g", "connectx8-switch-pairs", "cube-mesh-8xv100", "four-switches-16gpu", "two-arc-b70",
             "xgmi-mesh-8xmi355x")  # fmt: skip


@pytest.mark.parametrize("name", PREDICTED)
def test_every_kind_of_machine_is_predicted(collbench: Shell, name: str) -> None:
    done = collbench("predict", "--topology", name, "-b", "8K")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("flow") >= 6


def test_without_peer_access_only_staging_is_predicted(collbench: Shell) -> None:
    """NCCL goes through host memory; what maps its peers' memory is left out, with the reason."""
    done = collbench("predict", "--topology", "two-switches-8x4090-no-p2p", "-b", "8K", "--json")
    data = json.loads(done.stdout)
    assert {row["algorithm"].split("_")[0] for row in data["rows"]} == {"nccl"}
    ring = next(row for row in data["rows"] if row["algorithm"] == "nccl_ring_ll")
    assert "root" in ring["bottleneck"]["link"], "neighbours below one switch meet at its uplink"
    assert ring["bottleneck"]["flows"] > 1
    for name in ("push", "one_stage_pull", "vllm_one_stage", "symm_one_shot"):
        assert "P2P is off" in data["left_out"]["two-switches-8x4090-no-p2p"][name]
    told = collbench("predict", "--topology", "two-switches-8x4090-no-p2p", "-b", "8K").stdout
    assert "left out, the GPUs cannot reach each other's memory (P2P is off): " in told


def test_other_vendors_have_traffic_but_none_of_nvidias_software(collbench: Shell) -> None:
    done = collbench("predict", "--topology", "two-arc-b70", "-b", "8K")
    assert "these GPUs are Intel's, for which collbench has no kernels" in done.stdout
    assert "left out, made for NVIDIA's GPUs, and these are Intel's: " in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("nccl")]
    assert [line for line in done.stdout.splitlines() if line.startswith("push ")]


def test_old_cards_have_traffic_but_not_our_kernels(collbench: Shell) -> None:
    done = collbench("predict", "--topology", "one-plx-4xv100", "-b", "8K")
    assert "our kernels do not run here (" in done.stdout
    assert "left out, sm_70 is older than sm_80: vllm_one_stage" in done.stdout


def test_ranks_on_processors_are_not_predicted(collbench: Shell) -> None:
    done = collbench("predict", "--topology", "cpu-host")
    assert (done.returncode, done.stdout) == (3, "")
    assert "has no GPUs: ranks on processors are not predicted" in done.stderr
    assert done.stderr.count("\n") == 1


def test_compared_rows_say_whose_they_are(collbench: Shell) -> None:
    done = collbench("predict", "--compare", "two-flat-gen5-switches", "root-leaf-switches", "-b", "1K", "--json")
    names = {row["topology"] for row in json.loads(done.stdout)["rows"]}
    assert names == {"two-flat-gen5-switches", "root-leaf-switches"}


def test_an_own_file_in_either_format(collbench: Shell, tmp_path: Path, root: Path) -> None:
    """A machine file, or what `collbench topo --json` wrote: the same numbers."""
    source = root / "topologies" / "two-flat-gen5-switches.toml"
    (tmp_path / "mine.toml").write_text(source.read_text())
    (tmp_path / "mine.json").write_text(collbench("topo", "--from", str(source), "--json").stdout)
    toml, captured = (collbench("predict", "--topology", f"mine.{end}", "-b", "8K") for end in ("toml", "json"))
    assert toml.returncode == captured.returncode == 0, captured.stderr
    assert toml.stdout == captured.stdout


@pytest.mark.parametrize(("words", "said"), [
    ((), "give a machine file"),
    (("--topology", "nowhere.toml"), "no machine file 'nowhere.toml'"),
    (("--topology", "nvswitch-8gpu", "--compare", "a", "b"), "3 machine(s)"),
    (("nvswitch-8gpu", "--topology", "nvswitch-8gpu"), "2 machine(s)"),
    (("--topology", "nvswitch-8gpu", "-b", "none"), "size 'none'"),
    (("--topology", "nvswitch-8gpu", "-b", "4K", "-e", "1K"), "swap -b and -e"),
    (("--topology", "nvswitch-8gpu", "-f", "1"), "factor 1"),
    (("--topology", "nvswitch-8gpu", "--algorithms", "warp"), "unknown algorithm 'warp'"),
    (("--topology", "nvswitch-8gpu", "--algorithms", "host"), "none can be predicted"),
    (("--topology", "nvswitch-8gpu", "--algorithms", "own", "-b", "64M"), "no algorithm takes 67108864"),
    (("--topology", "nvswitch-8gpu", "--nproc", "9"), "9 ranks on topology nvswitch-8gpu with 8 GPUs"),
])  # fmt: skip
def test_calls_that_make_no_sense(collbench: Shell, words: tuple[str, ...], said: str) -> None:
    done = collbench("predict", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


BROKEN = {
    "cycle.json": ([("gpu0", "s0"), ("gpu1", "s1"), ("s0", "s1"), ("s1", "s2"), ("s2", "s0")], "cycle"),
    "apart.json": ([("gpu0", "s0"), ("gpu1", "s1")], "no route from gpu0 to gpu1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_topologies_that_make_no_sense(collbench: Shell, tmp_path: Path, name: str) -> None:
    pairs, said = BROKEN[name]
    nodes = [{"id": end, "kind": "gpu" if end.startswith("gpu") else "switch"} for end in sorted({*sum(pairs, ())})]
    links = [{"src": a, "dst": b, "kind": "pcie"} for pair in pairs for a, b in (pair, pair[::-1])]
    (tmp_path / name).write_text(json.dumps({"name": "broken", "nodes": nodes, "links": links}))
    done = collbench("predict", "--topology", name)
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": [], "links": []}', '{"nodes": 3}', "\x00", "[" * 100_000])
def test_files_that_hold_no_topology(collbench: Shell, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    done = collbench("predict", "--topology", "bad.json")
    assert done.returncode in {2, 3}
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "internal error" not in done.stderr


def test_a_thousand_gpus(collbench: Shell, tmp_path: Path) -> None:
    """Named, not computed for an hour."""
    ends = [f"gpu{i}" for i in range(1000)]
    nodes = [{"id": "s0", "kind": "switch"}, *({"id": end, "kind": "gpu"} for end in ends)]
    links = [{"src": a, "dst": b, "kind": "pcie"} for end in ends for a, b in ((end, "s0"), ("s0", end))]
    (tmp_path / "many.json").write_text(json.dumps({"name": "many", "nodes": nodes, "links": links}))
    done = collbench("predict", "--topology", "many.json", "-b", "1K")
    assert done.returncode in {2, 3}
    assert "1000 ranks: predictions are made for at most 256" in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_is_quick(budget: Callable[..., Callable[..., object]], root: Path) -> None:
    """All algorithms at seven sizes, from the shell. Processor time: other work on the machine says nothing of it."""
    command = [sys.executable, "-m", "collbench", "predict", "--topology", "two-flat-gen5-switches"]

    def spent() -> float:
        times = os.times()
        return times.children_user + times.children_system

    budget(0.5, spent)(lambda: subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL, timeout=60))


def test_it_loads_numpy_and_networkx_only(root: Path) -> None:
    code = (
        "import sys; from collbench.cli import main; main(['predict', '--topology', 'nvswitch-8gpu', '-b', '1K']);"
        "print([m for m in ('torch', 'pandas', 'scipy', 'matplotlib', 'seaborn', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, text=True, capture_output=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_page_is_written_and_its_path_printed(collbench: Shell, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = collbench("predict", "--topology", "two-flat-gen5-switches", "-b", "8K", "-e", "64K", "--html", str(page))

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{page}\n", "")
    text = page.read_text(encoding="utf-8")
    assert "predicted, not measured" in text
    assert str(tmp_path) not in text
    assert all(f'<th scope="row" class="n">{size}</th>' in text for size in ("8K", "14K", "16K", "32K", "42K", "64K"))


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--html", "x.html", "--json"), 2, "--html: a page is of one machine, and instead of --json"),
        (("--html", "."), 2, ". is a folder: name a file with --html"),
        (("--html", "absent/x.html"), 3, "absent/x.html"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_line(
    collbench: Shell, words: tuple[str, ...], code: int, told: str
) -> None:
    done = collbench("predict", "--topology", "two-flat-gen5-switches", "-b", "8K", *words)

    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_half_a_number_is_no_message(collbench: Shell) -> None:
    done = collbench("predict", "--topology", "two-flat-gen5-switches", "-b", "17")
    assert (done.returncode, done.stdout) == (2, "")
    assert "17 bytes" in done.stderr
    assert "bfloat16" in done.stderr


@pytest.mark.parametrize(
    ("machine", "ranks", "fit"), [("two-h200-nvlink", 3, "2 fit"), ("nvswitch-8gpu", 1, "2 to 8 fit")]
)
def test_ranks_that_do_not_fit_say_how_many_do(collbench: Shell, machine: str, ranks: int, fit: str) -> None:
    done = collbench("predict", machine, "--nproc", str(ranks))
    assert done.returncode == 2
    assert done.stderr.endswith(f" GPUs: {fit}\n")
