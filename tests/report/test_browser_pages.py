"""Every kind of page in a browser, light, dark, small and wide: a run on GPUs, a forecast, a gate, and the gallery."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collbench.algorithms.predictions import Forecast
from collbench.gate.verdicts import CellVerdict, GateMode, Outcome, Rules, Verdict
from collbench.report import build
from collbench.report.forecast_page import forecast_page
from collbench.report.gate_page import gate_page
from collbench.testing import synthetic_gpu_run
from collbench.topology import catalog

if TYPE_CHECKING:
    from tests.report.conftest import Browser

GALLERY = sorted((Path(__file__).resolve().parents[2] / "reports" / "gallery").glob("*.html"))
OPEN = "for (const one of document.querySelectorAll('details')) one.open = true"


def _gpu_run(folder: Path) -> str:
    return build(synthetic_gpu_run(folder / "run", sizes=(4096, 14336, 65536, 524288)).path)


def _forecast(folder: Path) -> str:
    machine = catalog.load(catalog.find("two-flat-gen5-switches"))
    return forecast_page(Forecast(machine), (1024, 65536, 4194304), ("collbench", "predict"))


def _gate(folder: Path) -> str:
    name = "all_reduce/host_ring/-/sum/bfloat16/65536/2/eager/1/out/warm/-/-"
    slow = CellVerdict(name, Verdict.REGRESSED, "", 10.0, 12.0, 1.2, 1.15, 1.25, 1.2, margin=0.03)
    same = replace(slow, verdict=Verdict.OK, ratio=1.0, low=0.99, high=1.01, current_median_us=10.0)
    return gate_page(replace(Outcome(GateMode.PAIRED, Rules(), (slow, same), blocks=8)))


KINDS: dict[str, Callable[[Path], str]] = {"gpu": _gpu_run, "forecast": _forecast, "gate": _gate}


@pytest.fixture(scope="module", params=sorted(KINDS))
def page(browser: "Browser", request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / f"{request.param}.html"
    path.write_text(KINDS[request.param](folder), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1400, False)], ids=["phone-dark", "wide-light"])
def test_it_fits_asks_for_nothing_and_axe_finds_nothing_serious(
    browser: "Browser",
    page: Path,
    width: int,
    dark: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    browser.open(page, width=width, dark=dark)
    browser.shoot(f"{page.stem}-{width}")
    browser.run(OPEN)

    assert browser.sticking_out() == []
    assert browser.violations() == []
    assert browser.messages == []
    assert set(browser.requests) == {page.as_uri()}


def test_it_fits_on_paper_in_dark_ink(browser: "Browser", page: Path) -> None:
    """A4 less its margins is 688 pixels wide; the picture of the machine is light there, whatever the reader likes."""
    browser.open(page, width=688, dark=True, media="print")
    inks = browser.run("return [...document.querySelectorAll('svg.cbt text.n')].map(e => getComputedStyle(e).fill)")

    assert browser.sticking_out() == []
    assert all(sum(map(int, re.findall(r"\d+", ink))) < 3 * 96 for ink in inks)


@pytest.mark.parametrize("width", [390, 1400])
def test_the_forest_has_a_scale_above_its_drawings_at_any_width(browser: "Browser", tmp_path: Path, width: int) -> None:
    """On a phone it went with the head of the table."""
    (tmp_path / "gate.html").write_text(_gate(tmp_path), encoding="utf-8")
    browser.open(tmp_path / "gate.html", width=width)
    zero, middle = browser.run(
        """const place = e => { const box = e.getBoundingClientRect(); return box.left + box.width / 2; };
        const zeros = [...document.querySelectorAll("svg.forest text")]
            .filter(e => e.textContent === "0" && getComputedStyle(e.closest("thead") || e).position !== "absolute")
            .filter(e => e.getBoundingClientRect().width);
        return [zeros.map(place), place(document.querySelector(".forest .zero"))]"""
    )

    assert len(zero) == 1
    assert zero[0] == pytest.approx(middle, abs=1)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a machine whose picture is narrow."""
    folder = tmp_path_factory.mktemp("small")
    sizes = (1024, 4096, 14336, 16384, 43008, 65536, 1 << 20)
    names = {"flashinfer_trtllm_fusion_pdl": 1.0, "flashinfer_pcie_copy_ring_mscopy": 1.2, "push": 1.1}
    path = folder / "small.html"
    made = synthetic_gpu_run(folder / "run", topology="two-h200-nvlink", factors=names, sizes=sizes, launches=1)
    path.write_text(build(made.path), encoding="utf-8")
    return path


def test_on_a_phone_no_name_of_a_size_runs_into_another_one(browser: "Browser", small: Path) -> None:
    browser.open(small, width=400)
    near = browser.run(
        """const boxes = [...document.querySelectorAll("#latency ~ figure svg")].map(svg =>
            [...svg.querySelectorAll("[id*=xtick] text")].map(e => [e.textContent, e.getBoundingClientRect()])
                .filter(([text]) => text));
        return [boxes.flat().length, boxes.flatMap(some => some.slice(1).map(([text, box], i) =>
            [some[i][0], text, box.left - some[i][1].right])).filter(one => one[2] < 2)]"""
    )

    assert near[0] > 8
    assert near[1] == []


def test_on_a_phone_legends_break_behind_underscores_only(browser: "Browser", small: Path) -> None:
    """`fusio` and `n` stood on two lines."""
    browser.open(small, width=400)
    broken = browser.run(
        """const range = document.createRange(), found = [];
        for (const entry of document.querySelectorAll(".legend li span")) {
          for (const node of [...entry.childNodes].filter(one => one.nodeType === 3)) {
            range.selectNodeContents(node);
            const words = node.textContent.includes(" ") ? 9 : 1;
            if (range.getClientRects().length > words) found.push(node.textContent);
          }
        }
        return [document.querySelectorAll(".legend li span").length, found]"""
    )

    assert broken[0] > 3
    assert broken[1] == []


def test_on_a_phone_what_scrolls_has_a_shadow_and_a_small_machine_fits(browser: "Browser", small: Path) -> None:
    browser.open(small, width=400)
    bars, machine = browser.run(
        """const some = [...document.querySelectorAll(".plot > .named")].filter(e => e.scrollWidth > e.clientWidth);
        const drawing = document.querySelector("#machine-drawing");
        return [some.map(e => getComputedStyle(e).backgroundImage.includes("gradient")),
            drawing.scrollWidth - drawing.clientWidth]"""
    )

    assert bars
    assert all(bars)
    assert machine <= 1


@pytest.mark.parametrize("path", GALLERY, ids=[path.stem for path in GALLERY])
def test_pages_of_the_gallery_are_whole(browser: "Browser", path: Path) -> None:
    browser.open(path, width=390, dark=True)
    browser.run(OPEN)

    assert browser.texts("h1")
    assert browser.sticking_out() == []
    assert browser.violations() == []
    assert browser.messages == []
    assert set(browser.requests) == {path.as_uri()}


def test_the_gallery_stays_small() -> None:
    assert sum(path.stat().st_size for path in GALLERY) < 3_000_000
    assert len(GALLERY) >= 3
