"""`collbench topo`: forms, files, errors."""

import argparse
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench import cli
from collbench.cli import main
from collbench.commands import topo
from collbench.topology import catalog, nccl_xml
from collbench.topology.graph import Topology
from collbench.topology.listing import listing

Run = Callable[..., tuple[int, str, str]]
Shell = Callable[..., subprocess.CompletedProcess[str]]
STORY = "two-flat-gen5-switches"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("--json")` -> exit code, stdout, stderr of `collbench topo --json`."""

    def call(*words: str) -> tuple[int, str, str]:
        try:
            code = cli.main(["topo", *words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        done = capsys.readouterr()
        return code, done.out, done.err

    return call


def test_text_of_the_story(run: Run) -> None:
    """Tree from the socket down, groups, the cut between them; nothing on stderr."""
    code, out, err = run("--from", STORY)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "two-flat-gen5-switches: 8 GPUs, 2 switches, 1 socket"
    assert lines[2].startswith("socket0  AMD Ryzen Threadripper PRO 7955WX")
    gpu = next(line for line in lines if "gpu3" in line)
    assert gpu.startswith("│     └─ gpu3  NVIDIA RTX PRO 6000")
    assert gpu.endswith("Gen5 x16, 53.8 GB/s, 0.19 us")
    assert "  A: gpu0 gpu1 gpu2 gpu3" in lines
    assert any(line.startswith("  A - B: 53.8 GB/s over ") for line in lines)


def test_text_names_links_beside_the_tree(run: Run) -> None:
    out = run("--from", "nvswitch-8gpu")[1]
    assert "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7 - nvswitch0: NVLink4 x18, 371 GB/s" in out
    out = run("--from", "two-pex890xx-virtual-switches")[1]
    assert "vswitch0 - vswitch1: in one chip, 0.005 us" in out
    assert "socket0 - socket1: between sockets, 83.2 GB/s, 0.095 us" in out


def test_text_shows_slow_links_hidden_pairs_and_disagreements() -> None:
    data = catalog.load(catalog.find("one-plx-4xv100")).as_dict()
    for link in data["links"]:
        link["current_generation"] = 1 if link["generation"] else 0
    data |= {"hidden": [["gpu0", "gpu1"]], "disagreements": ["sysfs says 3,\nNVML says 4\x1b[31m"]}
    text = listing(Topology.from_dict(data), [("sysfs", "ok"), ("nvml", "failed: no answer in 10 s")])
    assert "Gen3 x16 (now Gen1)" in text
    assert "PCIe path not known\n  gpu0 - gpu1\n" in text
    assert "Disagreements\n  sysfs says 3, NVML says 4[31m\n" in text
    assert "Sources\n  sysfs  ok\n  nvml   failed: no answer in 10 s\n" in text


def test_this_machine(run: Run) -> None:
    """Without --from the machine itself, whatever it is: a socket at least, and what became of each source."""
    code, out, _ = run()
    assert code == 0
    assert "socket" in out
    assert "\nSources\n  sysfs " in out


def test_json_is_the_documented_object(run: Run, tmp_path: Path) -> None:
    """--json and --format json say the same, and what they write can be read again."""
    _, out, err = run("--from", STORY, "--json")
    data = json.loads(out)
    assert err == ""
    assert list(data) == ["schema", "kind", "name", "nodes", "links", "groups", "hidden", "disagreements"]
    assert (data["schema"], data["kind"]) == ("collbench/1", "topology")
    assert {"src", "dst", "class", "capacity_gbps", "latency_us", "provenance"} <= set(data["links"][0])
    assert run("--from", STORY, "--format", "json")[1] == out
    kept = tmp_path / "kept.json"
    kept.write_text(out)
    assert run("--from", str(kept), "--json")[1] == out


def test_toml_is_a_machine_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(run("--from", STORY, "--format", "toml")[1])
    assert catalog.load(path) == catalog.load(catalog.find(STORY))
    assert run("--from", str(path))[0] == 0


def test_nccl_xml_tells_what_it_cannot_hold(run: Run) -> None:
    """The XML on stdout, what is lost on stderr; NCCL's own reader gets the GPUs back."""
    code, out, err = run("--from", STORY, "--format", "nccl-xml")
    assert code == 0
    assert len(nccl_xml.parse(out).gpus) == 8
    assert err
    assert all(line.startswith("collbench: ") for line in err.splitlines())


@pytest.mark.parametrize("form", topo.FORMATS)
def test_every_format_of_every_machine(run: Run, form: str) -> None:
    for name in catalog.names():
        code, out, _ = run("--from", name, "--format", form)
        assert code == 0
        assert out.endswith("\n")


def test_a_capture_is_read(run: Run, tmp_path: Path) -> None:
    """The output of nvidia-smi topo -m of another machine."""
    path = tmp_path / "topo.txt"
    path.write_text("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-15\t0\nGPU1\tPIX\t X \t0-15\t0\n")
    code, out, err = run("--from", str(path), "--json")
    assert (code, err) == (0, "")
    assert [len(group) for group in json.loads(out)["groups"]] == [2]
    assert run("--from", str(path))[1].splitlines()[0].startswith("topo.txt: 2 GPUs"), "it is not this machine"


MATRIX = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tSYS\nGPU1\tPIX\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"
STATES = "nvidia-smi topo -p2p r\n \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tCNS\n GPU2\tCNS\tCNS\tX\n"


def test_matrix_and_peer_states_of_one_machine_go_together(run: Run, tmp_path: Path) -> None:
    """In either order; what nvidia-smi says of peer access is shown, by pairs where it differs."""
    files = [tmp_path / "m.txt", tmp_path / "p2p.txt"]
    for file, text in zip(files, (MATRIX, STATES), strict=True):
        file.write_text(text)
    for order in (files, files[::-1]):
        rc, out, _ = run(*(word for file in order for word in ("--from", str(file))))
        assert rc == 0
        assert "A: gpu0 gpu1" in out
        assert "read: OK gpu0-gpu1, gpu1-gpu0\n" in out
        assert "read: CNS gpu0-gpu2, gpu1-gpu2, gpu2-gpu0, gpu2-gpu1\n" in out


@pytest.mark.timeout(20)
def test_a_pipe_is_read_and_one_without_a_writer_is_not_waited_for(run: Run, tmp_path: Path) -> None:
    fifo, file = tmp_path / "pipe", tmp_path / "m.txt"
    os.mkfifo(fifo)
    rc, _, err = run("--from", str(fifo))
    assert rc == 3
    assert "empty: expected the output of " in err
    file.write_text(MATRIX)
    command = f"{sys.executable} -m collbench topo --from <(sleep 0.5; cat {file})"
    done = subprocess.run(["bash", "-c", command], text=True, capture_output=True, timeout=15, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "A: gpu0 gpu1" in done.stdout


def test_other_captures_stand_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text(MATRIX)
    (tmp_path / "n.txt").write_text(
        "available: 1 nodes (0)\nnode 0 cpus: 0 1\nnode 0 size: 100 MB\nnode 0 free: 9 MB\n"
    )
    rc, _, err = run("--from", str(tmp_path / "m.txt"), "--from", str(tmp_path / "n.txt"))
    assert rc == 3
    assert "numactl -H stands alone: only nvidia-smi topo -m and topo -p2p go together" in err


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (MATRIX, "a second nvidia-smi topo -m: give one machine at a time"),
        ("nvidia-smi topo -p2p r\n \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n", "2 GPUs, where there are 3 before it"),
    ],
)
def test_captures_that_cannot_be_of_one_machine(second: str, told: str, run: Run, tmp_path: Path) -> None:
    for name, text in (("a", MATRIX), ("b", second)):
        (tmp_path / name).write_text(text)
    rc, out, err = run("--from", str(tmp_path / "a"), "--from", str(tmp_path / "b"))
    assert (rc, out) == (3, "")
    assert told in err


def test_a_capability_that_is_said_twice_is_refused(run: Run, tmp_path: Path) -> None:
    """The later would hide what the earlier says of pairs without access."""
    for name, text in (("a", STATES), ("b", STATES.replace("CNS", "OK"))):
        (tmp_path / name).write_text(text)
    rc, _, err = run("--from", str(tmp_path / "a"), "--from", str(tmp_path / "b"))
    assert rc == 3
    assert f"read again, after {tmp_path / 'a'}" in err
    (tmp_path / "b").write_text(STATES.replace("-p2p r", "-p2p w").replace("CNS", "OK"))
    rc, out, _ = run("--from", str(tmp_path / "a"), "--from", str(tmp_path / "b"))
    assert rc == 0
    assert "read: CNS gpu0-gpu2" in out
    assert "write: OK between all" in out


def test_an_nccl_file_is_read(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(run("--from", STORY, "--format", "nccl-xml")[1])
    code, out, _ = run("--from", str(path), "--json")
    assert code == 0
    assert [len(group) for group in json.loads(out)["groups"]] == [4, 4]


@pytest.mark.parametrize(
    ("name", "begins"), [("a.svg", "<svg"), ("a.json", "{"), ("a.toml", "schema"), ("a.xml", "<"), ("a.txt", STORY)]
)
def test_out_says_the_format(run: Run, tmp_path: Path, name: str, begins: str) -> None:
    """The ending of --out decides where --format is silent; stdout stays empty."""
    code, out, _ = run("--from", STORY, "--out", str(tmp_path / name))
    assert (code, out) == (0, "")
    assert (tmp_path / name).read_text().startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_out_replaces_a_file_and_keeps_its_mode_and_links(run: Run, tmp_path: Path) -> None:
    target, link = tmp_path / "real.svg", tmp_path / "link.svg"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run("--from", STORY, "--out", str(link))[0] == 0
    assert link.is_symlink()
    assert target.read_text().startswith("<svg")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    fresh = tmp_path / "fresh.svg"
    assert run("--from", STORY, "--out", str(fresh))[0] == 0
    assert stat.S_IMODE(fresh.stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--format", "png"], 2, "invalid choice: 'png'"),
        (["--json", "--format", "svg"], 2, "--json and --format svg: give one of them"),
        (["--from", "nowhere"], 2, "--from nowhere: no such file, and no machine of that name; there are aws-g5"),
        (["--from", STORY, "--out", "missing/x.svg"], 3, "--out missing/x.svg: cannot be written: No such file"),
        (["--from", STORY, "--out", "."], 3, "--out .: cannot be written"),
        (["--from", "empty.json"], 3, "empty.json: no JSON"),
        (["--from", "list.json"], 3, "list.json: expected what collbench topo --json writes"),
        (["--from", "other.json"], 3, "other.json: topology: 'nodes' is missing"),
        (["--from", "bad.toml"], 3, "bad.toml:1: no TOML"),
        (["--from", "noise.txt"], 3, "noise.txt"),
        (["--from", "."], 3, ""),
        (["--from", "bytes.json"], 3, "bytes.json: no JSON"),
    ],
)
def test_a_fault_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("empty.json", b""), ("list.json", b"[]"), ("other.json", b'{"a": 1}'), ("bad.toml", b"= ="),
        ("noise.txt", b"nothing to see here"), ("bytes.json", b"\xff\xfe\x00"),
    ):  # fmt: skip
        Path(name).write_bytes(content)
    before = sorted(Path().iterdir())
    found, out, err = run(*words)
    assert (found, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert says in err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert sorted(Path().iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    code, _, err = run("--from", STORY, "--out", str(tmp_path / "x.svg"))
    assert code == 3
    assert "Permission denied" in err


def test_a_full_disk_leaves_the_old_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there stays, and no scrap of the new file."""
    path = tmp_path / "kept.svg"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    code, _, err = run("--from", STORY, "--out", str(path))
    assert code == 3
    assert err == f"collbench: --out {path}: cannot be written: No space left on device\n"
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept.svg"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_is_written_to_and_its_fault_reported(run: Run) -> None:
    """/dev/full is no plain file: it is not replaced, and it is full."""
    code, _, err = run("--from", STORY, "--out", "/dev/full")
    assert code == 3
    assert "No space left" in err
    assert Path("/dev/full").is_char_device()


def test_a_failed_source_is_said_on_stderr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is there all the same."""
    from collbench.topology import discover

    found = discover.Discovery(
        catalog.load(catalog.find(STORY)),
        (discover.Source("sysfs", "ok"), discover.Source("nvml", "failed", "no answer\nin 10 s")),
    )
    monkeypatch.setattr(discover, "discover", lambda: found)
    code, out, err = run("--json")
    assert code == 0
    assert json.loads(out)["name"] == STORY
    assert err == "collbench: source nvml failed: no answer in 10 s\n"


def test_a_terminal_without_line_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain characters where stdout cannot show the others, and no error."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert topo.run(argparse.Namespace(origins=[STORY], format=None, out=None, json=False)) == 0
    sys.stdout.flush()
    assert b"|     `- gpu3  NVIDIA" in raw.getvalue()


def test_importing_the_command_is_light() -> None:
    """The command's module brings in no graph library: `collbench --help` must stay quick."""
    code = "import sys, collbench.commands.topo; print([m for m in ('networkx', 'numpy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_as_a_program(collbench: Shell) -> None:
    """The result alone is on stdout."""
    done = collbench("topo", "--from", STORY, "--format", "svg")
    assert done.returncode == 0
    assert done.stdout.startswith("<svg")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "'nodes' is missing, expected a list"),
        ('{"nodes": 3, "links": []}', "'nodes' is a int, expected a list"),
        ('{"nodes": [{"id": 1, "kind": "gpu"}], "links": []}', "nodes[0]: expected an object with texts id, kind"),
        ('{"nodes": [], "links": [{"src": "a"}]}', "links[0]: expected an object with texts src, dst, kind"),
        ('{"schema": "collbench/99", "nodes": [], "links": []}', "schema collbench/99 is newer"),
    ],
)
def test_a_topology_that_is_none_names_file_and_place(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert main(["topo", "--from", str(tmp_path / "bad.json")]) == 3
    err = capsys.readouterr().err
    assert err.startswith(f"collbench: {tmp_path / 'bad.json'}: topology: ")
    assert says in err


def test_no_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "--from", ""]) == 2
    assert capsys.readouterr().err == "collbench: --from '': give a file, or the name of a machine\n"


def test_a_machine_file_is_known_by_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it comes from stdin, where no ending says what it is."""
    from collbench.topology import catalog

    (tmp_path / "captured").write_bytes(catalog.find("dual-socket-direct").read_bytes())
    assert main(["topo", "--from", str(tmp_path / "captured"), "--json"]) == 0
    assert '"name": "dual-socket-direct"' in capsys.readouterr().out
