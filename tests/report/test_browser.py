"""The page of a run in a browser without a network: what people click, read, print and download works."""

import csv
import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collbench.report import build
from collbench.results.records import Mode, Status
from collbench.testing import synthetic_run

if TYPE_CHECKING:
    from tests.report.conftest import Browser

FAILING = {"gloo": (Status.UNSUPPORTED, "gloo needs torch: pip install 'collbench[sweep]'")}
MODES = (Mode.EAGER, Mode.GRAPH)
VISIBLE = "return [...document.querySelectorAll('#cells tbody tr')].filter(r => !r.hidden).map(r => r.innerText)"


@pytest.fixture(scope="module")
def page(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an invented run with everything on it."""
    folder = tmp_path_factory.mktemp("page")
    made = synthetic_run(folder / "run", failing=FAILING, modes=MODES, launches=5, iterations=20)
    path = folder / "page.html"
    path.write_text(build(made.path), encoding="utf-8")
    return path


@pytest.fixture
def quiet(browser: "Browser", page: Path) -> Any:
    """Behind the test: the page asked for nothing but itself, and the console is empty."""
    yield
    asked = {url for url in browser.requests if not url.startswith("data:")}

    assert asked <= {page.as_uri()}
    assert browser.messages == []


@pytest.mark.usefixtures("quiet")
def test_a_click_on_a_head_sorts_and_a_second_one_turns_it_round(browser: "Browser", page: Path) -> None:
    browser.open(page)
    names = [text.rstrip("\u2195\u2191\u2193 ") for text in browser.texts("#cells thead th")]
    column = names.index("p50_us") + 1
    head = browser.find(f"#cells thead th:nth-child({column}) button")
    times = f"#cells tbody td:nth-child({column})"
    shown = browser.texts(times)
    for order in ("ascending", "descending"):
        head.click()
        values = [float(text) for text in browser.texts(times) if text]

        assert browser.run("return arguments[0].parentElement.ariaSort", head) == order
        assert values == sorted(values, reverse=order == "descending")
        assert sorted(browser.texts(times)) == sorted(shown)


@pytest.mark.usefixtures("quiet")
def test_words_filter_the_rows(browser: "Browser", page: Path) -> None:
    browser.open(page)
    every = len(browser.run(VISIBLE))
    browser.type("#tools input", "ring GRAPH")
    rows = browser.run(VISIBLE)

    assert 0 < len(rows) < every
    assert all("host_ring" in row and "graph" in row for row in rows)

    browser.type("#tools input", "")
    assert len(browser.run(VISIBLE)) == every


@pytest.mark.usefixtures("quiet")
def test_the_calculator_takes_another_workload_and_refuses_nonsense(browser: "Browser", page: Path) -> None:
    """Twice the calls take twice the milliseconds; the sum beside them is the step."""
    browser.open(page)
    before = _steps(browser)
    count = int(browser.find("#w-count").get_attribute("value"))
    browser.type("#w-count", str(2 * count))
    after = _steps(browser)
    other = float(browser.find("#w-other").get_attribute("value"))

    assert before.keys() == after.keys()
    for name, (call, comm, step, tokens) in after.items():
        assert call == before[name][0]
        assert comm == pytest.approx(2 * before[name][1], abs=0.011)
        assert step == pytest.approx(comm + other, abs=0.011)
        assert tokens < before[name][3]

    browser.type("#w-count", "-3")
    assert browser.texts("#steps-note") == ["Each field takes a number of its range."]


def _steps(browser: "Browser") -> dict[str, list[float]]:
    """Numbers of the table by algorithm, without the brackets of intervals."""
    rows: list[list[str]] = browser.run(
        "return [...document.querySelectorAll('#steps tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    return {name: [float(text.partition(" ")[0]) for text in texts] for name, *texts in rows}


@pytest.mark.usefixtures("quiet")
def test_the_data_can_be_kept_as_csv(browser: "Browser", page: Path, tmp_path: Path) -> None:
    browser.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.open(page)
    browser.find("#tools a[download]").click()
    saved = tmp_path / "collbench.csv"
    end = time.monotonic() + 10
    while not saved.exists() and time.monotonic() < end:
        time.sleep(0.05)
    rows = list(csv.DictReader(io.StringIO(saved.read_text(encoding="utf-8"))))

    assert len(rows) == len(browser.run(VISIBLE))
    assert {row["status"] for row in rows} == {"ok", "unsupported"}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(browser: "Browser", page: Path, dark: bool) -> None:  # noqa: FBT001 - a parameter of the test
    browser.open(page, dark=dark)
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    back = browser.run("return getComputedStyle(document.body).backgroundColor")

    assert browser.violations() == []
    assert (sum(int(part) for part in back[4:-1].split(",")) < 384) is dark


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_but_marked_tables_scrolls_sideways(browser: "Browser", page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.shoot(f"run-{width}")
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")

    assert browser.sticking_out() == []


@pytest.mark.usefixtures("quiet")
def test_on_a_phone_words_are_stacked_and_names_stay_beside_numbers(browser: "Browser", page: Path) -> None:
    browser.open(page, width=390)
    browser.type("#w-batch", "2")
    hidden = browser.run("""return [...document.querySelectorAll(".stack")].map(e => e.parentElement)
        .filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)""")
    labels = browser.run("""return [...document.querySelectorAll("#steps tbody tr:first-child td")]
        .map(e => getComputedStyle(e, "::before").content)""")
    moved = browser.run("""const box = document.querySelector("#cells").parentElement;
        const lefts = () => [0, 1].map(i => box.querySelector("tbody tr").cells[i].getBoundingClientRect().left);
        const before = lefts();
        box.scrollLeft = 150;
        return lefts().map((left, i) => left - before[i])""")

    assert hidden == []
    assert labels == ['"us per call"', '"collectives, ms"', '"step, ms"', '"tokens/s"']
    assert moved == [0, -150]


@pytest.mark.usefixtures("quiet")
def test_the_page_is_complete_without_script(browser: "Browser", page: Path) -> None:
    browser.open(page)
    with_script = browser.texts("#cells tbody td, section p, figcaption, dd")
    browser.open(page, script=False)

    assert browser.texts("#cells tbody td, section p, figcaption, dd") == with_script
    assert browser.texts("#tools input") == browser.texts("#cells button") == []
    assert not browser.find("#calculator").is_displayed()
    assert len(browser.run(VISIBLE)) == 96


@pytest.mark.usefixtures("quiet")
def test_on_paper_everything_is_open_and_dark_ink_on_white(browser: "Browser", page: Path) -> None:
    browser.open(page, dark=True, media="print")
    colours = browser.run("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
    heights = browser.run(
        "return [...document.querySelectorAll('details > .scroll')].map(e => e.getBoundingClientRect().height)"
    )

    assert colours == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    assert heights
    assert min(heights) > 0
    assert not browser.find("#tools").is_displayed()
    assert len(browser.cdp("Page.printToPDF")["data"]) > 10_000


@pytest.mark.usefixtures("quiet")
def test_colours_follow_the_reader_without_a_reload(browser: "Browser", page: Path) -> None:
    """Ink of text and of the figures changes; one copy of each figure serves both."""
    look = """const text = document.querySelector(".plot svg text");
              return [getComputedStyle(document.body).color, getComputedStyle(text).fill]"""
    browser.open(page)
    light = browser.run(look)
    browser.media("screen", dark=True)
    browser.shoot("run-1400-dark")

    assert all(one != other for one, other in zip(light, browser.run(look), strict=True))


def test_faults_of_a_page_are_seen(browser: "Browser", tmp_path: Path) -> None:
    """Otherwise the tests above could not fail: a request, a broken policy, an error, pale text, what sticks out."""
    page = tmp_path / "bad.html"
    page.write_text("""<!doctype html><html lang="en"><head><title>bad</title>
      <meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; img-src http:; script-src 'unsafe-inline'"></head><body>
      <img alt="" src="http://127.0.0.1:9/x.png"><p style="color: red">styled</p><font color="#eee">pale</font>
      <table width="900"><tr><td>wide</td></tr></table><script>undefinedFunction()</script></body></html>""")
    browser.open(page, width=390)
    told = " ".join(browser.messages)

    assert "http://127.0.0.1:9/x.png" in browser.requests
    assert "ERR_INTERNET_DISCONNECTED" in told
    assert "Content Security Policy" in told
    assert "undefinedFunction is not defined" in told
    assert any(text.startswith("TABLE") for text in browser.sticking_out())
    assert any(text.startswith("color-contrast") for text in browser.violations())
