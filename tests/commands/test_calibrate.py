"""`collbench calibrate`: from a run folder with probes to parameters that predictions take."""

import json
from pathlib import Path

import pytest

from collbench.cli import main
from collbench.contention.parameter_file import MOVED, PARAMETERS, read_parameters
from collbench.contention.parameters import priors
from collbench.errors import InvalidError
from collbench.results.probes import Probe, append_probe
from collbench.results.records import Fabric, Run
from collbench.results.store import RunFolder
from collbench.topology import catalog
from collbench.topology.machine import Machine


def folder(path: Path, probes: list[Probe], fabric: Fabric = Fabric.PCIE) -> Path:
    machine = Machine(catalog.load(catalog.find("one-plx-4xv100")), fabric, 4)
    run = Run("r", "2026-01-01T00:00:00+00:00", ("collbench", "probe"), "0", fabric, 4, 1, (), machine.as_dict())
    with RunFolder.create(path, run):
        for probe in probes:
            append_probe(path, probe)
    return path


SOME = [
    Probe("launch", value=1.5, spread=0.02),
    *(Probe("flag", "pair", 0, k, ((0, k),), value=0.7, spread=0.02) for k in (1, 2, 3)),
    Probe("bandwidth.copy", "solo", 0, 1, ((0, 1),), 1 << 23, 13.0, "GB/s", 0.01),
]


def test_parameters_are_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "run", SOME)
    assert main(["calibrate", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["kind"]) == ("collbench/1", "parameters")
    rows = {row["name"]: row for row in data["rows"]}
    assert rows["launch.graph"]["identified"]
    assert not rows["reduce.gbps"]["identified"], "no probe contains a sum"
    assert rows["launch.graph"]["value"] == pytest.approx(1.5, rel=0.05)
    known = read_parameters(path)
    assert known is not None
    assert known["launch.graph"].value == rows["launch.graph"]["value"]
    assert not known["launch.graph"].is_prior
    assert read_parameters(tmp_path) is None


def test_predictions_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The launch that was measured is the launch of every prediction, and less of it rests on priors."""
    path = folder(tmp_path / "run", SOME)
    main(["calibrate", str(path)])
    capsys.readouterr()
    words = ["predict", "--topology", "one-plx-4xv100", "-b", "4096", "--algorithms", "own", "--json"]
    assert main(words) == 0
    before = {row["algorithm"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert main([*words, "--parameters", str(path)]) == 0
    after = {row["algorithm"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    ends = priors()["kernel.ends"].value + priors()["kernel.ends.blocks"].value
    assert after["push"]["terms_us"]["launch"] == pytest.approx(1.5 + ends, rel=0.05)
    assert before["push"]["terms_us"]["launch"] > 2
    assert after["push"]["prior_share"] < before["push"]["prior_share"]
    assert main([*words, "--parameters", str(tmp_path)]) == 2
    assert "collbench calibrate" in capsys.readouterr().err


def test_table_says_what_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", str(folder(tmp_path / "run", SOME))]) == 0
    text = capsys.readouterr().out
    assert "launch.graph" in text
    assert "observations" in text
    assert "not told apart" in text
    unseen = next(line for line in text.splitlines() if line.startswith("not identifiable"))
    assert "reduce.gbps" in unseen
    assert "launch.graph" not in unseen


def test_runs_that_teach_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without probes is a usage error, ranks on processors have no parameters: one line each."""
    assert main(["calibrate", str(folder(tmp_path / "none", []))]) == 2
    assert "collbench probe" in capsys.readouterr().err
    assert main(["calibrate", str(folder(tmp_path / "host", SOME, Fabric.HOST))]) == 3
    assert "processors" in capsys.readouterr().err


def test_damaged_parameters_are_named(tmp_path: Path) -> None:
    for text in ('{"parameters": {"launch.graph": {"value": -1}}}', '{"parameters": {}}', "[]", "x", ""):
        (tmp_path / PARAMETERS).write_text(text)
        with pytest.raises(InvalidError, match=f"{PARAMETERS}.* run collbench calibrate again"):
            read_parameters(tmp_path)


def test_what_a_file_does_not_name_keeps_its_prior(tmp_path: Path) -> None:
    """A file of an older version lacks parameters that came later."""
    (tmp_path / PARAMETERS).write_text('{"parameters": {"launch.graph": {"value": 1, "sd": 0.1, "provenance": "x"}}}')
    known = read_parameters(tmp_path)
    assert known is not None
    assert known["launch.graph"].value == 1
    assert known["reduce.gbps"] == priors()["reduce.gbps"]


def test_priors_of_an_older_version_give_way_to_todays(tmp_path: Path) -> None:
    """Else what the model counts apart by now, and counted as one then, would be counted twice."""
    told = {
        "launch.eager.own": "prior: as it was", "sync.per_peer": f"prior: as it was; {MOVED}", "sync.flag": "probes",
        "capacity.a->b": "prior: topology: nominal",
    }  # fmt: skip
    rows = {name: {"value": 9.0, "sd": 0.1, "provenance": source} for name, source in told.items()}
    (tmp_path / PARAMETERS).write_text(json.dumps({"parameters": rows}))
    known = read_parameters(tmp_path)
    assert known is not None
    assert known["launch.eager.own"] == priors()["launch.eager.own"]
    assert {known[name].value for name in (*told,) if name != "launch.eager.own"} == {9.0}


def test_parameters_of_another_machine_are_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "run", SOME)
    main(["calibrate", str(path)])
    capsys.readouterr()
    words = ["predict", "-b", "4096", "--algorithms", "push", "--parameters", str(path), "--topology"]
    assert main([*words, "one-plx-4xv100"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*words, "nvswitch-8xh200"]) == 0
    assert "of its links are not in nvswitch-8xh200" in capsys.readouterr().err
