"""Links alone and together: what the probes show in pairs and in patterns, and the degraded states in them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.contention.findings import Evidence
from collbench.contention.regimes import detect
from collbench.errors import InvalidError
from collbench.report import build
from collbench.report.canvas import COLOURS
from collbench.report.predicted import Predicted, predict_run
from collbench.report.sharing import LEVELS, sharing
from collbench.report.svg import Styles
from collbench.results.probes import Probe, append_probe
from collbench.results.records import Fabric, Status
from collbench.results.store import RunFolder
from collbench.testing import synthetic_gpu_run, synthetic_run


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Predicted:
    made = synthetic_gpu_run(tmp_path_factory.mktemp("share") / "run", factors={"push": 1.0}, sizes=(1024,), launches=1)
    return predict_run(RunFolder.open(made.path))


def _with(told: Predicted, probes: list[Probe]) -> Predicted:
    evidence = Evidence(probes, told.evidence.topology, told.run.fabric)
    return replace(told, evidence=evidence, findings=detect(evidence))


def test_every_pair_alone_stands_in_the_matrix(told: Predicted) -> None:
    alone, flags = sharing(told, Styles(COLOURS))["sharing"]["matrices"]
    cells = [cell for _, line in alone["lines"] for cell in line]

    assert len([cell for cell in cells if cell["text"]]) == 56
    assert {cell["shade"] for cell in cells if cell["text"]} <= {f"h{i}" for i in range(LEVELS)}
    assert alone["lines"][2][1][2] == {"text": "", "shade": "", "title": ""}
    assert "Alone, 56 pairs carry about the same" in alone["finding"]
    assert "one way; the longest way is between ranks" in flags["finding"]


def test_what_is_left_of_flows_together_is_told(told: Predicted) -> None:
    """56 flows over one uplink per switch: what is left is the total over the sum of what they carry alone."""
    figure = sharing(told, Styles(COLOURS))["sharing"]["figure"]
    names = [name for name, _ in figure.table.columns]
    rows = [dict(zip(names, line, strict=True)) for line in figure.table.lines]
    (dense,) = [row for row in rows if row["by"] == "copy" and row["pattern"] == "all_to_all"]

    assert float(dense["what is left"].rstrip("%")) / 100 == pytest.approx(
        float(dense["GB/s together"]) / float(dense["GB/s alone, summed"]), abs=0.006
    )
    assert f"56 flows at once (all_to_all) carry {dense['GB/s together']} GB/s by copy engines" in figure.finding
    assert "that they carry one at a time" in figure.finding


def test_pairs_of_one_class_stand_for_each_other(told: Predicted) -> None:
    """Loads alone are measured of one pair per class; sums of other pairs take their class's value."""
    figure = sharing(told, Styles(COLOURS))["sharing"]["figure"]
    loads = [line for line in figure.table.lines if line[1] == "load"]

    assert loads
    assert all(line[-1] for line in loads)


def test_a_degraded_state_is_warned_of_and_stands_first(told: Predicted) -> None:
    """A copy at a tenth of what its link carries: the downtrained link is a warning of the whole page."""
    slow = [
        replace(p, value=p.value / 10) if p.name == "bandwidth.copy" and p.value else p for p in told.evidence.probes
    ]
    found = sharing(_with(told, slow), Styles(COLOURS))

    assert any(text.startswith("downtrained link: ") for text in found["warnings_found"])
    assert found["regimes_finding"].startswith("Degraded states found: downtrained link")
    assert found["regimes"].lines[0][:2] == ["downtrained link", "present"]


def test_ranks_on_processors_have_no_links_to_share(told: Predicted) -> None:
    """The same probes of ranks on a host: flags and every probe stay, flows alone and together go."""
    host = replace(told, run=replace(told.run, fabric=Fabric.HOST))
    shown = sharing(host, Styles(COLOURS))["sharing"]

    assert [one["title"] for one in shown["matrices"]] == ["Flight of a flag, us one way"]
    assert (shown["figure"], shown["links"]) == (None, False)
    assert len(shown["probes"].lines) == len(told.evidence.probes)


def test_states_that_were_not_tested_are_never_called_absent(told: Predicted) -> None:
    found = sharing(_with(told, []), Styles(COLOURS))
    states = {line[0]: line[1] for line in found["regimes"].lines}

    assert states["downtrained link"] == "untested"
    assert found["warnings_found"] == []
    assert found["sharing"]["figure"] is None
    assert found["sharing"]["matrices"] == []


def test_probes_that_failed_keep_their_reason(told: Predicted) -> None:
    bad = Probe(
        "bandwidth.copy", "solo", 0, 1, ((0, 1),), status=Status.HUNG, reason="no answer within 6 s", unit="GB/s"
    )
    table = sharing(_with(told, [bad]), Styles(COLOURS))["sharing"]["probes"]

    assert table.lines[0][-1] == "hung: no answer within 6 s"


def test_a_run_without_probes_says_so(tmp_path: Path) -> None:
    page = build(synthetic_run(tmp_path / "run", sizes=(1024,)).path)

    assert "This run holds no probes" in page
    assert "Each pair alone" not in page


def test_a_run_of_probes_alone_has_a_page_without_cells(told: Predicted, tmp_path: Path) -> None:
    """As collbench probe leaves it: no cells, no samples."""
    run = replace(told.run, cells=())
    RunFolder.create(tmp_path / "probes", run).close()
    for probe in told.evidence.probes:
        append_probe(tmp_path / "probes", probe)
    page = build(tmp_path / "probes")

    assert "<h1>Probes only: no collective was measured.</h1>" in page
    assert re.findall(r'<h2 id="([a-z-]+)">', page) == ["machine", "contention", "environment"]
    assert "Each pair alone" in page


def test_cells_that_were_planned_and_never_measured_are_no_run_of_probes(told: Predicted, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", told.run).close()
    append_probe(tmp_path / "run", told.evidence.probes[0])

    with pytest.raises(InvalidError, match="holds no samples"):
        build(tmp_path / "run")
