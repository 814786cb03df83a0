"""The pages on the model: commands print what stands there, pictures are the model's, and the claims hold."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from collbench.algorithms.base import registry
from collbench.algorithms.predictions import Forecast
from collbench.results.records import Call
from collbench.topology import catalog

MODEL = Path(__file__).parents[1] / "docs" / "model"
PAGES = sorted(path.name for path in MODEL.glob("*.md"))


def script(name: str) -> ModuleType:
    """A script of the folder, as a module."""
    spec = importlib.util.spec_from_file_location(f"model_docs_{name}", MODEL / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def refresh() -> ModuleType:
    return script("refresh")


def test_pages_hold_commands(refresh: ModuleType) -> None:
    """Every console block is understood: none is skipped because it is written in another way."""
    for path in refresh.pages():
        text = path.read_text(encoding="utf-8")
        assert len(list(refresh.blocks(text))) == text.count("```console")
    assert {"README.md", "claims.md", "1-traffic.md", "2-terms.md", "4-regimes.md"} <= {p.name for p in refresh.pages()}


@pytest.mark.parametrize("name", PAGES)
def test_commands_print_what_stands_in_the_page(refresh: ModuleType, name: str) -> None:
    """Words are the same and numbers near; else run docs/model/refresh.py, and read the text around them again."""
    for block in refresh.blocks((MODEL / name).read_text(encoding="utf-8")):
        if block.is_run:
            assert refresh.is_stale(block.output, refresh.printed(block.command)) == "", block.command


@pytest.mark.parametrize(("was", "now", "stale"), [
    ("push  43008  17.7", "push  43,008  18.0", False), ("b 20.4\na 20.0", "a 20.1\nb 20.3", False),
    ("push  43008  17.7", "push  43008  25.0", True), ("push 17.7", "pull 17.7", True), ("push 17.7", "", True),
])  # fmt: skip
def test_what_counts_as_stale(refresh: ModuleType, was: str, now: str, *, stale: bool) -> None:
    assert bool(refresh.is_stale(was, now)) is stale


def test_pictures_are_reproducible_and_used(tmp_path: Path) -> None:
    """The script writes every picture of the pages but the timings', the same each time."""
    pictures = script("pictures")
    texts = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        pictures.main(folder)
        texts.append({path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()})
    assert texts[0] == texts[1]
    used = {name for page in PAGES for name in re.findall(r"\]\(([\w-]+\.svg)\)", (MODEL / page).read_text())}
    assert used == {*texts[0], "growth.svg"}


def test_pictures_show_what_the_model_says_today(refresh: ModuleType, tmp_path: Path) -> None:
    """Texts of the pictures in the folder and of pictures drawn now; else run python docs/model/pictures.py."""
    script("pictures").main(tmp_path)
    for path in tmp_path.iterdir():
        before, now = ("\n".join(re.findall(r">([^<>]+)</text>", svg.read_text())) for svg in (MODEL / path.name, path))
        assert refresh.is_stale(before, now) == "", path.name


def terms(name: str, size: int = 43_008, machine: str = "two-flat-gen5-switches") -> dict[str, float]:
    own = MODEL / "degraded" / f"{machine}.toml"
    topology = catalog.load(own if own.is_file() else catalog.find(machine))
    return dict(Forecast(topology, algorithms=[registry()[name]]).predict(registry()[name], size).terms_us)


def test_seven_times_the_link_is_four_at_the_port_and_nine_between_the_switches() -> None:
    push, ring = terms("push"), terms("nccl_ring_ll")
    assert push["port"] / ring["port"] == pytest.approx(4.0, rel=0.02)
    assert (push["port"] + push["queueing"]) / (ring["port"] + ring["queueing"]) == pytest.approx(9.1, rel=0.02)


BYTES = {
    "one-stage": ("push", 7, 16), "two-stage": ("two_stage_push", 1.75, 4),
    "islands (4 + 4, partial sums as fp32)": ("islands", 2, 2), "ring": ("nccl_ring_simple", 1.75, 1.75),
    "ring with LL, flags included": ("nccl_ring_ll", 3.5, 3.5),
}  # fmt: skip


@pytest.mark.parametrize("row", BYTES)
def test_the_table_of_bytes_is_what_the_algorithms_send(row: str) -> None:
    """In messages, at a GPU's port and between the switches."""
    name, port, uplink = BYTES[row]
    pictures = script("pictures")
    topology = pictures.machine()
    schedule = registry()[name].traffic(Call(pictures.BYTES, 8), topology)
    for kinds, expected in ((("gpu", "switch"), port), (("switch", "root_port"), uplink)):
        assert pictures.busiest(schedule, topology, kinds) / pictures.BYTES == pytest.approx(expected)
    assert f"| {row} | {port:g} | {uplink:g} |" in (MODEL / "claims.md").read_text(encoding="utf-8")


def test_a_healthy_fabric_is_an_order_of_magnitude_away_from_the_story() -> None:
    """30 ms are 246 us per call, and 38 tokens per second at least 116 us more than NCCL's."""
    for name in ("nccl_ring_ll", "nccl_tree_ll", "nccl_ring_simple"):
        assert 122 * sum(terms(name).values()) < 10_000
    assert terms("one_stage_pull", 14_336)["queueing"] < 116 / 20
    assert sum(terms("one_stage_pull", 14_336).values()) < sum(terms("nccl_ring_ll", 14_336).values())


@pytest.mark.parametrize(("state", "us"), [("write-collapse", 95), ("staging", 77), ("staging-shared", 146)])
def test_degraded_states_reach_such_numbers(state: str, us: float) -> None:
    """Within a tenth of what a study of the same reports computed by hand."""
    assert sum(terms("one_stage_pull", 14_336, state).values()) == pytest.approx(us, rel=0.1)
