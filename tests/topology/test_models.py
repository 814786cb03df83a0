"""Compute capability by name."""

import pytest

from collbench.topology import catalog
from collbench.topology.models import arch_of


@pytest.mark.parametrize(
    ("model", "arch"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120"), ("NVIDIA GeForce RTX 5090", "sm_120"),
        ("NVIDIA H100 80GB HBM3", "sm_90"), ("NVIDIA H200", "sm_90"), ("NVIDIA H20", "sm_90"),
        ("NVIDIA B200", "sm_100"), ("NVIDIA L40S", "sm_89"), ("NVIDIA L4", "sm_89"), ("NVIDIA A10G", "sm_86"),
        ("NVIDIA GeForce RTX 4090", "sm_89"), ("NVIDIA RTX 5000 Ada Generation", "sm_89"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"), ("Tesla V100-SXM2-32GB", "sm_70"), ("Tesla T4", "sm_75"),
        ("NVIDIA RTX A6000", "sm_86"),
    ],
)  # fmt: skip
def test_models_are_known_by_a_part_of_their_name(model: str, arch: str) -> None:
    assert arch_of(model) == arch


@pytest.mark.parametrize(
    "model", ["", "AMD Instinct MI355X", "Intel Arc Pro B70", "NVIDIA H2000X", "PB200", "Quadro RTX 5000"]
)
def test_what_is_not_known_is_not_guessed(model: str) -> None:
    assert arch_of(model) == ""


def test_every_nvidia_gpu_of_our_machine_files_is_known() -> None:
    models = {
        node.attributes.get("model", "")
        for name in catalog.names()
        for node in catalog.load(catalog.find(name)).nodes
        if str(node.kind) == "gpu"
    }
    ours = {model for model in models if model.startswith(("NVIDIA", "Tesla"))}

    assert ours
    assert {model for model in ours if not arch_of(model)} == set()
