"""Verdicts: the machine of the story, what upgrades change, and that nothing unknown is called fine."""

import dataclasses
from typing import Any

import pytest

from collbench.algorithms import base
from collbench.algorithms.base import known_systems, registry, select
from collbench.doctor import changes, rows
from collbench.doctor.described import Described
from collbench.errors import UsageError
from collbench.results.records import Answer, Call, Fabric, Support
from collbench.testing import host_machine
from collbench.topology.machine import Machine

STORY = Described("sm_120", 8, "pcie", "", {"cuda": "12.8", "torch": "2.10"})


def verdicts(machine: Machine) -> dict[str, dict[str, Any]]:
    """Rows by algorithm."""
    return {row["algorithm"]: row for row in rows(machine)}


def test_the_machine_of_the_story() -> None:
    """8 x sm_120 on PCIe, CUDA 12.8, torch 2.10: what fails does so for the reason that people found after weeks."""
    found = verdicts(STORY.machine())
    failing = {
        "vllm_custom_all_reduce": "more than two GPUs without full NVLink",
        "sglang_custom_all_reduce": "full NVLink or two ranks",
        "sglang_symm_mem": "KeyError: 12",
        "vllm_symm_mem": "not 12.0",
        "symm_multimem": "no multicast",
        "flashinfer_mnnvl_fusion": "multicast",
        "deepep_low_latency": "NVLink",
        "flashinfer_moe_dispatch": "NVLink",
        "mscclpp_fullmesh": "atomic",
    }
    assert {name: found[name]["verdict"] for name in failing} == dict.fromkeys(failing, "does_not_run")
    assert [name for name, words in failing.items() if words not in found[name]["reason"]] == []
    assert "torch is not to blame" in found["sglang_symm_mem"]["reason"]
    assert found["nccl_tree_ll"]["verdict"] == "runs"
    assert "captured in a CUDA graph" in found["nccl_tree_ll"]["reason"]
    assert found["nccl_all_to_all"]["verdict"] == "runs"
    assert found["flashinfer_trtllm_fusion"]["verdict"] == "unknown"
    assert "0.6.12" in found["flashinfer_trtllm_fusion"]["reason"]
    assert found["mscclpp_allpair_packet"]["verdict"] == "unknown"
    assert found["push"]["verdict"] == "unknown"  # nobody said whether these cards have P2P


@pytest.mark.parametrize(
    ("version", "verdict", "words"),
    [
        ("0.5.3", "does_not_run", "major versions [9, 10]"),
        ("0.6.12", "does_not_run", "major versions [9, 10]"),
        ("0.6.12.post1", "does_not_run", "major versions [9, 10]"),
        ("0.6.16", "unknown", "was not read"),
        ("0.7.4", "unknown", "became slower"),
    ],
)
def test_fusion_by_release(version: str, verdict: str, words: str) -> None:
    machine = STORY.changed({"flashinfer": version, "p2p": "ok"}).machine()
    row = verdicts(machine)["flashinfer_trtllm_fusion"]
    assert (row["verdict"], words in row["reason"]) == (verdict, True)
    assert row["source"]


def test_sglang_by_release() -> None:
    """On sm_120 its symmetric memory never runs; the guard decides whether that is an error or silence."""
    old, new = (verdicts(STORY.changed({"sglang": v}).machine())["sglang_symm_mem"] for v in ("0.5.8", "0.5.23"))
    assert {old["verdict"], new["verdict"]} == {"does_not_run"}
    assert "KeyError" in old["reason"]
    assert "KeyError" not in new["reason"]


def test_symmetric_kernels_of_nccl_by_release() -> None:
    """An upgrade may take something away: 2.29.2 and later ask for NVLink."""
    seen = {
        version: verdicts(STORY.changed({"nccl": version, "p2p": "ok"}).machine())["nccl_symmetric"]["verdict"]
        for version in ("2.26.2", "2.27.5", "2.28.9", "2.29.7", "2.30.7")
    }
    assert seen == {
        "2.26.2": "does_not_run", "2.27.5": "unknown", "2.28.9": "unknown", "2.29.7": "does_not_run",
        "2.30.7": "does_not_run",
    }  # fmt: skip
    assert verdicts(Described("sm_90", 8, "nvlink", software={"nccl": "2.30.7"}).machine())["nccl_symmetric"][
        "verdict"
    ] == str(Answer.RUNS)


def test_what_was_not_said_is_unknown_unless_it_does_not_matter() -> None:
    """P2P decides over pushes and not over NCCL; once said, so is the verdict."""
    driver = {"driver": "590.44"}
    unsaid = verdicts(STORY.changed(driver).machine())
    assert (unsaid["push"]["verdict"], unsaid["nccl_ring_ll"]["verdict"]) == ("unknown", "runs")
    assert "P2P" in unsaid["push"]["reason"]
    assert "--p2p" in unsaid["push"]["remedy"]
    assert verdicts(STORY.changed(driver | {"p2p": "ok"}).machine())["push"]["verdict"] == "runs"
    assert verdicts(STORY.changed(driver | {"p2p": "off"}).machine())["push"]["verdict"] == "does_not_run"


def test_the_driver_decides_over_our_kernels() -> None:
    """CUDA 12.8 says nothing of the driver; an old one is refused, a new one is not."""
    words = {"p2p": "ok"}
    told = {
        version: verdicts(STORY.changed(words | ({"driver": version} if version else {})).machine())["push"]["verdict"]
        for version in ("", "570.124.06", "580.95.05")
    }
    assert told == {"": "unknown", "570.124.06": "does_not_run", "580.95.05": "runs"}


def test_nothing_said_of_software_is_never_fine() -> None:
    """A bare `--for sm_120`: not one algorithm on the GPU that needs a package is called running."""
    found = verdicts(Described("sm_120", 8).machine())
    fine = [row["algorithm"] for row in found.values() if row["verdict"] == "runs" and row["measurable"]]
    assert [name for name in fine if registry()[name].device == "cuda"] == []


def test_one_unsaid_fact_is_one_verdict() -> None:
    """A torch that nobody named is missing neither for NCCL nor for gloo; and nothing is to be done twice."""
    found = verdicts(Described("sm_120", 8).machine())
    told = {name: (found[name]["verdict"], found[name]["reason"]) for name in ("gloo", "nccl_ring_ll", "gloo_joined_2")}
    assert len(set(told.values())) == 1
    assert told["gloo"][0] == "unknown"
    twice = [row for row in found.values() if len(set(row["remedy"].split("; "))) < len(row["remedy"].split("; "))]
    assert twice == []
    assert verdicts(host_machine(8, host_arch="x86_64"))["gloo"]["verdict"] == "does_not_run", "it was looked at"


@pytest.mark.parametrize("arch", ["sm_999", "sm_95", "sm_12"])
@pytest.mark.parametrize("fabric", ["pcie", "nvlink"])
def test_no_rule_knows_these_gpus(arch: str, fabric: str) -> None:
    """Whatever else was said: nothing on a GPU is called running."""
    software = {"torch": "2.14.1", "driver": "590.1", "flashinfer": "0.7.4", "vllm": "0.33", "sglang": "0.5.23"}
    found = [row for row in rows(Described(arch, 8, fabric, "ok", software).machine()) if row["device"] == "cuda"]
    assert {row["verdict"] for row in found} == {"unknown", "does_not_run"}
    ring = next(row for row in found if row["algorithm"] == "nccl_ring_ll")
    assert (ring["verdict"], "is known here" in ring["reason"]) == ("unknown", True)


def test_our_kernels_on_gpus_of_unsaid_age() -> None:
    machine = STORY.changed({"p2p": "ok", "driver": "590.1"}).machine()
    unsaid = dataclasses.replace(machine, facts={k: v for k, v in machine.facts.items() if k != "arch"})
    assert "8.0 or later" in verdicts(unsaid)["push"]["reason"]
    assert verdicts(unsaid)["nccl_ring_ll"]["verdict"] == "runs"


def test_changes_of_an_upgrade() -> None:
    """Only what differs, old and new side by side."""
    before = rows(STORY.changed({"flashinfer": "0.6.2", "p2p": "ok"}).machine())
    after = rows(STORY.changed({"flashinfer": "0.7.4", "p2p": "ok"}).machine())
    found = {one.algorithm: (one.before["verdict"], one.after["verdict"]) for one in changes(before, after)}
    assert found["flashinfer_pcie_push"] == ("does_not_run", "runs")
    assert "nccl_ring_ll" not in found
    assert changes(before, before) == []


def test_rows_have_the_contract_s_fields() -> None:
    for row in rows(STORY.machine()):
        assert {"algorithm", "verdict", "reason", "remedy", "source"} <= set(row)
        assert row["verdict"] in {"runs", "does_not_run", "unknown"}
        assert row["reason"] or row["verdict"] == "runs"


@pytest.mark.parametrize("name", [*known_systems()])
def test_every_known_system_gives_reasons_with_sources(name: str) -> None:
    """On any kind of machine a known system answers; what it says of itself has a source."""
    system = known_systems()[name]
    assert (system.runner, bool(system.reference)) == ("", True)
    machines = [
        STORY.machine(), STORY.changed({"p2p": "ok"}).machine(), Described("sm_90", 8, "nvlink").machine(),
        Described("sm_90", 2).machine(), host_machine(8), dataclasses.replace(STORY.machine(), hosts=2),
        dataclasses.replace(Described("sm_90", 1).machine(), ranks=8, share_gpu=True),
    ]  # fmt: skip
    told = [system.support(machine, Call(14_336, machine.ranks, system.collective)) for machine in machines]
    assert [answer for answer in told if not answer.reason] == []
    assert any(answer.source for answer in told)
    assert system.traffic(Call(14_336, 8, system.collective), machines[0].topology).phases


def test_a_sweep_does_not_offer_what_it_cannot_run() -> None:
    """`all` and families leave known systems out; one that is named is unsupported with a reason."""
    known = registry()
    assert not set(known) & set(known_systems())
    assert all(algorithm.runner for algorithm in select("all", known))
    (chosen,) = select("deepep_low_latency", known)
    answer = chosen.support(STORY.machine(), Call(14_336, 8))
    assert (bool(answer), "no runner" in answer.reason) == (False, True)
    with pytest.raises(UsageError, match="unknown algorithm"):
        select("deepep_low_latency,nonsense", known)


def test_ranks_that_share_a_gpu() -> None:
    """Servers never do; NCCL does from 2.30.3 on, also below what is built on it; of some libraries nobody knows."""

    def seen(nccl: str) -> dict[str, dict[str, Any]]:
        machine = Described("sm_90", 1, software={"torch": "2.11", "nccl": nccl, "driver": "580.1"}).machine()
        return verdicts(dataclasses.replace(machine, ranks=8, share_gpu=True, fabric=Fabric.SHARED_GPU))

    old, new = seen("2.28.9"), seen("2.30.7")
    for name in ("nccl_ring_ll", "nccl_all_to_all", "nccl_grouped_2"):
        assert (old[name]["verdict"], new[name]["verdict"]) == ("does_not_run", "runs"), name
    assert new["vllm_custom_all_reduce"]["verdict"] == "does_not_run"
    assert (new["nccl_symmetric"]["verdict"], new["mscclpp_packet"]["verdict"]) == ("runs", "unknown")


def test_a_support_that_raises_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other people's packages must not take the doctor down."""

    def broken(machine: Machine, call: Call) -> Support:
        raise KeyError(12)

    real = base.registry()
    monkeypatch.setattr(
        "collbench.doctor.verdicts.registry", lambda: {"gloo": dataclasses.replace(real["gloo"], support=broken)}
    )
    row = verdicts(STORY.machine())["gloo"]
    assert (row["verdict"], "KeyError" in row["reason"]) == ("unknown", True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("fabric", ["pcie", "nvlink"])
@pytest.mark.parametrize("software", [
    {}, {"torch": "2.10", "cuda": "12.8"}, {"torch": "2.14", "driver": "590.1", "flashinfer": "0.7.4"},
    {"nccl": "2.28.9", "sglang": "0.5.9"},
])  # fmt: skip
def test_every_description_has_an_answer(arch: str, gpus: int, fabric: str, software: dict[str, str]) -> None:
    """Whatever was left unsaid: each row has a verdict, and all but those that run have a reason."""
    for row in rows(Described(arch, gpus, fabric, "", software).machine()):
        assert row["verdict"] in {"runs", "does_not_run", "unknown"}
        assert row["reason"] or row["verdict"] == "runs"
