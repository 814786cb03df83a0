"""Machines that one does not have, in words."""

import pytest

from collbench.doctor.described import MODELS, Described, parse_arch, parse_pairs
from collbench.doctor.verdicts import KNOWN_ARCHS
from collbench.errors import UsageError
from collbench.results.records import Fabric


def test_the_words_become_a_machine() -> None:
    """One rank per GPU, NCCL as it comes with torch, no native atomics on PCIe, and P2P unknown unless said."""
    machine = Described("sm_120", 8, "pcie", "", {"torch": "2.10", "cuda": "12.8"}).machine()
    assert (machine.ranks, len(machine.topology.gpus), machine.fabric, machine.arch) == (8, 8, Fabric.PCIE, "sm_120")
    assert (machine.software["nccl"], machine.facts["p2p_atomics"]) == ("2.27.5", "ns")
    assert "p2p" not in machine.facts
    assert Described("sm_120", 8, p2p="off").machine().facts["p2p"] == "off"


def test_nvlink_reaches_every_peer() -> None:
    machine = Described("sm_90", 4, "nvlink", software={"torch": "2.14.1+cu130"}).machine()
    assert (machine.fabric, machine.facts["p2p"], machine.software["nccl"]) == (Fabric.NVLINK, "ok", "2.30.7")


def test_what_is_said_of_nccl_wins_and_an_unread_torch_brings_none() -> None:
    assert Described("sm_90", 2, software={"torch": "2.14", "nccl": "2.28.9"}).machine().software["nccl"] == "2.28.9"
    assert "nccl" not in Described("sm_90", 2, software={"torch": "2.99"}).machine().software
    assert "nccl" not in Described("sm_90", 2, software={"torch": "nightly"}).machine().software


def test_changes_replace_words_and_versions() -> None:
    old = Described("sm_120", 8, "pcie", "", {"torch": "2.10"})
    new = old.changed({"for": "sm_100", "gpus": "4", "fabric": "nvlink", "torch": "2.14", "vllm": "0.33"})
    assert new == Described("sm_100", 4, "nvlink", "", {"torch": "2.14", "vllm": "0.33"})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"arch": "sm90"}, r"did you mean sm_90\?"),
        ({"arch": "h10"}, r"did you mean H100\?"),
        ({"arch": "RTX PR0 6000"}, r"did you mean RTX PRO 6000\?"),
        ({"arch": ""}, "compute capability"),
        ({"gpus": 0}, "1 to 256"),
        ({"gpus": 257}, "1 to 256"),
        ({"fabric": "infiniband"}, "pcie or nvlink"),
        ({"p2p": "maybe"}, "ok or off"),
    ],
)
def test_words_that_cannot_be(words: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Described(**({"arch": "sm_90", "gpus": 8} | words))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["gpus=many", "gpus=-1", "gpus=99999", "fabric=x", "p2p=x", "for=x"])
def test_changes_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError):
        Described("sm_90", 8).changed(parse_pairs(text, "--compare"))


@pytest.mark.parametrize("text", ["torch", "torch=", "=2", "torch=2,torch=3", "a b=1", "torch=latest", "x=\x1b[1m"])
def test_pairs_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--with"):
        parse_pairs(text, "--with")


@pytest.mark.parametrize("model", MODELS)
def test_models_that_are_offered_are_known(model: str) -> None:
    assert parse_arch(model) in KNOWN_ARCHS


def test_pairs() -> None:
    assert parse_pairs(" sglang=0.5.9, flashinfer=0.7.2.post1 ", "--with") == {
        "sglang": "0.5.9",
        "flashinfer": "0.7.2.post1",
    }
    assert parse_pairs("", "--with") == {}
    assert parse_arch("sm_90a") == 90
