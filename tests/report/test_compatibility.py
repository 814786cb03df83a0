"""The doctor's words on the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.doctor.described import Described
from collbench.report import build
from collbench.report.compatibility import compatibility
from collbench.results.records import Fabric, Run, Status
from collbench.testing import host_machine, synthetic_run


def run_on(machine: dict[str, Any]) -> Run:
    """A run of which only the machine matters."""
    return Run("r", "", (), "0", Fabric.PCIE, 8, 1, (), machine=machine)


def story(**facts: str) -> dict[str, Any]:
    """8 x sm_120 on PCIe, as a run keeps it."""
    machine = Described("sm_120", 8, "pcie", "ok", {"torch": "2.10", "cuda": "12.8"}).machine()
    return replace(machine, facts={**machine.facts, **facts}).as_dict()


def test_warnings_and_systems_of_the_runs_machine() -> None:
    found = compatibility(run_on(story(acs="on", iommu="on")), [])
    assert [text.split(":")[0] for text in found["warnings"]][:1] == [
        "ACS redirects traffic between GPUs through the root port"
    ]
    verdicts = {row["algorithm"]: row["verdict"] for row in found["unmeasured"]}
    assert (verdicts["vllm_symm_mem"], verdicts["vllm_flashinfer_pcie_ipc"]) == ("would not run", "unknown")
    served = Described("sm_120", 8, "pcie", "ok", {"torch": "2.14", "vllm": "0.33.0", "flashinfer": "0.7.4"}).machine()
    rows = compatibility(run_on(served.as_dict()), [])["unmeasured"]
    assert {row["algorithm"]: row["verdict"] for row in rows}["vllm_flashinfer_pcie_ipc"] == "would run"


def test_a_failure_gets_the_remedy_of_the_same_reason_only() -> None:
    """What crashed, or failed for another reason than the doctor knows, gets none."""
    known = {
        "algorithm": "symm_multimem",
        "status": "unsupported",
        "reason": "no multicast on this device",
        "cells": "",
    }
    other = known | {"reason": "it died"}
    found = compatibility(run_on(story()), [known, other, known | {"algorithm": "strange"}])["failures"]
    assert [bool(one["remedy"]) for one in found] == [True, False, False]
    assert [one["reason"] for one in found] == [known["reason"], "it died", known["reason"]]


def test_what_had_no_time_left_needs_more_of_it() -> None:
    late = {"algorithm": "push", "status": "not_run", "reason": "the budget of 140 s was used up", "cells": ""}
    first, second = compatibility(run_on(story()), [late, late | {"algorithm": "islands"}])["failures"]
    assert "--resume" in first["remedy"]
    assert second["remedy"] == "the same"


@pytest.mark.parametrize("machine", [{}, {"topology": 5}, {"topology": {"nodes": [], "links": []}}])
def test_a_run_without_its_machine_keeps_its_failures(machine: dict[str, Any]) -> None:
    failure = {"algorithm": "a", "status": "crashed", "reason": "it died", "cells": "1"}
    found = compatibility(run_on(machine), [failure])
    assert found == {"warnings": [], "unmeasured": [], "failures": [failure | {"remedy": ""}]}


def test_ranks_on_processors_are_not_told_about_gpu_systems() -> None:
    assert compatibility(run_on(host_machine(8).as_dict()), [])["unmeasured"] == []


def test_the_page_shows_them(tmp_path: Path) -> None:
    machine = Described("sm_120", 8, "pcie", "ok", {"torch": "2.10", "cuda": "12.8"}).machine()
    made = synthetic_run(
        tmp_path / "run", costs={"push": (5.0, 0.1), "symm_multimem": (9.0, 0.1)}, machine=machine,
        failing={"symm_multimem": (Status.UNSUPPORTED, "no multicast on this device")},
    )  # fmt: skip
    page = build(made.path)
    assert "use GPUs behind an NVSwitch" in page
    assert "KeyError: 12" in page
