"""The page: whole, safe, the same twice, and complete without script."""

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import InvalidError, UsageError
from collbench.report import build
from collbench.results.probes import Probe, append_probe
from collbench.results.records import Fabric, Mode, Run, Status
from collbench.results.store import RunFolder
from collbench.testing import host_machine, synthetic_gpu_run, synthetic_run, synthetic_samples

_EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e\x1b[31m$\\frac$\ufffe"

FAILING = {"gloo": (Status.UNSUPPORTED, "gloo needs torch: pip install 'collbench[sweep]'")}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(synthetic_run(tmp_path_factory.mktemp("page") / "run", failing=FAILING).path)


class _Reader(HTMLParser):
    """Collects tags with attributes, and checks that what is opened is closed."""

    void = frozenset({"meta", "input", "br", "wbr", "link", "path", "rect", "line", "circle"})
    optional = frozenset({"td"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in {"td", "tr"} and self.open[-1] == "td":
            self.open.pop()
        if tag == "tr" and self.open[-1] == "tr":
            self.open.pop()
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open[-1] in {"td", "tr"} and self.open[-1] != tag:
            self.open.pop()
        assert self.open.pop() == tag


def _section(page: str, name: str) -> str:
    return page.partition(f'<h2 id="{name}">')[2].partition("</section>")[0]


def test_sections_stand_in_their_order(page: str) -> None:
    """Answer, machine, figures, cells, environment: what people look for, in the order in which they ask."""
    assert re.findall(r"<h2 id=\"([a-z-]+)\">", page) == [
        "fastest",
        "worth",
        "machine",
        "latency",
        "crossovers",
        "why",
        "contention",
        "distributions",
        "launching",
        "not-run",
        "accuracy",
        "environment",
        "all",
    ]
    assert page.count("<h1>") == 1
    title, rest = (
        "host_one_stage_pull is fastest at 1K, host_two_stage from 14K.",
        "In one launch: the order may be chance.",
    )
    assert f'<h1>{title}</h1>\n<p class="gain">{rest}</p>' in page
    assert "says nothing about PCIe links" in page
    assert "No interval: one launch" in page


def test_it_is_well_formed_and_ids_are_unique(page: str) -> None:
    reader = _Reader(page)
    ids = Counter(attributes["id"] for _, attributes in reader.tags if attributes.get("id"))

    assert reader.open == []
    assert [name for name, count in ids.items() if count > 1] == []
    targets = [a["href"] for _, a in reader.tags if (a.get("href") or "").startswith("#")]
    assert all(target is not None and target[1:] in ids for target in targets)


def test_every_table_and_picture_can_be_read_out(page: str) -> None:
    tags = _Reader(page).tags

    assert all(a.get("aria-label") or a.get("aria-hidden") for tag, a in tags if tag == "svg")
    assert ("html", {"lang": "en"}) in tags
    assert page.count("<summary>The figure as a table</summary>") == page.count('<div class="plot')
    assert _section(page, "latency").count('<div class="plot">') == 2
    assert all(a.get("scope") for tag, a in tags if tag == "th")


def test_nothing_is_fetched_and_no_style_is_inline(page: str) -> None:
    for tag, attributes in _Reader(page).tags:
        assert "src" not in attributes
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not (attributes.get("href") or "#").startswith(("http", "//", "file"))
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in re.sub(r"url\(#", "", page)
    assert "@import" not in page


def test_the_policy_allows_this_pages_own_text_only(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))

    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy[1]
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run and its page with every section: predictions, probes, intervals, both modes and cadences."""
    path = synthetic_gpu_run(tmp_path_factory.mktemp("whole") / "run", facts={"iommu": "on", "arch": "sm_120"}).path
    return path, build(path)


def test_a_whole_page_is_well_formed_and_the_same_twice(whole: tuple[Path, str]) -> None:
    path, page = whole
    reader = _Reader(page)
    ids = Counter(attributes["id"] for _, attributes in reader.tags if attributes.get("id"))
    targets = {a["href"] for _, a in reader.tags if (a.get("href") or "").startswith("#")}

    assert page == build(path)
    assert reader.open == []
    assert [name for name, count in ids.items() if count > 1] == []
    assert [target for target in targets if (target or "")[1:] not in ids] == []
    assert not [tag for tag, attributes in reader.tags if "style" in attributes]
    assert len(page.encode()) < 2_000_000


def test_every_figure_of_a_whole_page_has_a_finding_a_label_and_a_table(whole: tuple[Path, str]) -> None:
    figures = re.findall(r"<figure.*?</figure>", whole[1], re.DOTALL)
    captions = [re.search(r"<figcaption><p>(.+?)</p>", figure) for figure in figures]

    assert len(figures) > 10
    assert all(captions)
    assert all("<table" in figure for figure in figures)
    for figure in figures:
        assert "<svg" not in figure or re.search(r'<svg[^>]*aria-label="[^"]{20,}"', figure)


def test_warnings_of_the_machine_and_of_its_links_stand_at_the_top(whole: tuple[Path, str]) -> None:
    top = whole[1].partition("<main>")[0]

    assert "the IOMMU is on: peer traffic may be redirected" in top
    assert "times as fast [" in top
    assert "tokens per second" in top


def test_hostile_probes_are_shown_and_do_nothing(tmp_path: Path) -> None:
    made = synthetic_gpu_run(tmp_path / "run", factors={"push": 1.0}, sizes=(1024,), launches=1, iterations=5)
    for name, flows in ((_EVIL, ()), ("bandwidth.copy", ((0, 1), (1, 2)))):
        append_probe(made.path, Probe(name, _EVIL, flows=flows, value=1.0, unit=_EVIL, reason=_EVIL))
    page = build(made.path)

    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "\x1b" not in page
    assert _Reader(page).open == []


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", modes=(Mode.EAGER, Mode.GRAPH))

    assert build(made.path) == build(made.path)


def test_every_cell_stands_in_the_page(page: str) -> None:
    """Also those that did not run, with their reason."""
    body = page.partition('<table id="cells">')[2].partition("</table>")[0]

    assert body.count("<tr>") == 1 + 48
    assert body.count("unsupported") == 8
    assert "gloo needs torch: pip install &#39;collbench[sweep]&#39;" in page
    assert page.count("all 8 cells") == 1


def test_hostile_texts_are_shown_and_do_nothing(tmp_path: Path) -> None:
    """Names, reasons, versions, settings, variables and problems come from files that anybody can write."""
    machine = host_machine(2, p2p=_EVIL)
    made = synthetic_run(
        tmp_path / "run", costs={_EVIL: (5.0, 0.1), "b": (6.0, 0.1)}, failing={"b": (Status.WRONG, _EVIL)},
        sizes=(1024,), machine=replace(machine, software={"x": _EVIL}),
    )  # fmt: skip
    data = json.loads((made.path / "run.json").read_text())
    data |= {"run_id": _EVIL, "version": _EVIL, "created": _EVIL, "command": [_EVIL], "settings": {_EVIL: _EVIL}}
    data["environment"] = {_EVIL: {_EVIL: _EVIL}}
    (made.path / "run.json").write_text(json.dumps(data))
    with (made.path / "samples.jsonl").open("a") as file:
        file.write(json.dumps({"cell_id": _EVIL}) + "\n")
    page = build(made.path)

    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert _Reader(page).open == []


def test_names_of_people_and_machines_are_left_out(tmp_path: Path) -> None:
    machine = host_machine(2, hostname="joe-box", user="joe", lib="/srv/joe/lib")
    made = synthetic_run(tmp_path / "run", machine=machine, failing={"gloo": (Status.CRASHED, "in /srv/joe/x.py")})
    _change(made.path, lambda data: data.update(command=["/srv/joe/bin/collbench", "sweep", "--out", "/srv/joe/r"]))
    page = build(made.path)

    assert "joe" not in page
    assert "collbench sweep --out PATH" in page
    assert str(tmp_path) not in page


def _change(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((path / "run.json").read_text())
    change(data)
    (path / "run.json").write_text(json.dumps(data))


def test_problems_of_the_run_are_told(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", finish=False)
    with (made.path / "samples.jsonl").open("a") as file:
        file.write('{"cell_id": "half a')
    page = build(made.path)

    assert "cut off while it was written" in page
    assert "The sweep was stopped before its end" in page


@pytest.mark.parametrize("machine", [{}, {"topology": 5}, {"topology": {"nodes": [], "links": []}}])
def test_a_run_without_its_machine_still_has_a_page(tmp_path: Path, machine: dict[str, Any]) -> None:
    made = synthetic_run(tmp_path / "run", sizes=(1024,))
    _change(made.path, lambda data: data.update(machine=machine))
    page = build(made.path)

    assert "no topology, no floors" in page
    assert "does not say on which machine" in page


def test_a_run_in_which_nothing_ran_says_so(tmp_path: Path) -> None:
    failing = dict.fromkeys(("a", "b"), (Status.UNSUPPORTED, "needs a GPU"))
    page = build(synthetic_run(tmp_path / "run", costs={"a": (1, 1), "b": (1, 1)}, failing=failing).path)

    assert "No cell ended ok: there is nothing to compare." in page
    assert page.count("needs a GPU") >= 2
    assert _Reader(page).open == []


@pytest.mark.parametrize(("sizes", "count"), [((0,), "2 of 2"), ((0, 1024), "2 of 4"), ((1024,), "")])
def test_cells_of_no_bytes_stand_in_the_table_alone(sizes: tuple[int, ...], count: str, tmp_path: Path) -> None:
    """A logarithmic axis has no place for them; the page says how many there are."""
    costs = {"a": (5.0, 0.1), "b": (9.0, 0.1)}
    made = synthetic_run(tmp_path / "run", costs=costs, sizes=sizes, calls=(1,), launches=5)
    page = build(made.path)

    alone = f"{count} measured cells stand in the table of every cell alone: zero bytes or a time of zero"
    assert (alone in page) is bool(count)
    assert ("No measured cell can be drawn: there is nothing to compare." in page) is (sizes == (0,))
    assert ("<h1>a" in page) is (1024 in sizes)
    assert "No cell ended ok" not in page


def test_a_run_without_samples_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", Run("r", "", (), "0", Fabric.HOST, 2, 1, ())).close()
    with pytest.raises(InvalidError, match="holds no samples: go on with"):
        build(tmp_path / "run")
    with pytest.raises(UsageError, match="no such run folder"):
        build(tmp_path / "absent")


def test_one_cell_alone_makes_a_page(tmp_path: Path) -> None:
    made = synthetic_run(tmp_path / "run", costs={"a": (5.0, 0.1)}, sizes=(1024,), calls=(1,), noise=0.0)

    assert "<h1>Only a ran.</h1>" in build(made.path)


def test_chains_of_different_length_are_named(tmp_path: Path) -> None:
    """Gloo runs 8 calls where others run 122: one figure, and its caption says so."""
    made = synthetic_run(tmp_path / "run", costs={"a": (5.0, 0.1), "gloo": (300.0, 1.0)}, calls=(122,), sizes=(1024,))
    cells = [replace(c, calls=8) if c.algorithm == "gloo" else c for c in made.run.cells]
    _change(made.path, lambda data: data.update(cells=[cell.row() for cell in cells]))
    (made.path / "samples.jsonl").unlink()
    (made.path / "samples.parquet").unlink()
    with RunFolder.open(made.path, write=True) as folder:
        for cell in cells:
            folder.append(synthetic_samples(cell, 10.0))
    page = build(made.path)

    assert "Chains are shorter than 122 calls where memory or time ask for it: gloo 8." in page
    assert _section(page, "latency").count('<div class="plot">') == 1


def test_more_rows_than_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collbench.report.tables.MOST_ROWS", 10)
    page = build(synthetic_run(tmp_path / "run", failing=FAILING).path)

    assert "The first 10 of 48 cells." in page
    assert "all 8 cells" in page


def test_sixty_algorithms_stay_small_and_quick(tmp_path: Path, benchmark: Any) -> None:
    """60 algorithms x 20 sizes: under 8 s and 2 MB, 12 curves a figure at most."""
    made = synthetic_run(
        tmp_path / "run", costs={f"algorithm_{i}": (5.0 + i, 0.01 * (i + 1)) for i in range(60)},
        sizes=[64 * 2**i for i in range(20)], calls=(122,), finish=False,
    )  # fmt: skip
    page = benchmark.pedantic(build, args=(made.path,), rounds=1)

    assert len(page.encode()) < 2_000_000
    assert _section(page, "latency").count('<div class="plot">') == 1
    assert "The 12 fastest of 60 algorithms. The table has all." in page
    assert _section(page, "latency").count('<th scope="row">') == 60
    assert max(figure.partition("</ul>")[0].count("<li>") for figure in page.split('<ul class="legend"')[1:]) <= 12
    assert benchmark.stats.stats.max < 8.0


def test_titles_differ_where_panels_do(tmp_path: Path) -> None:
    """Cells of another dtype are never drawn with those of this one."""
    made = synthetic_run(tmp_path / "run", costs={"a": (5.0, 0.1)}, sizes=(1024, 2048), calls=(1,), finish=False)
    cells = [replace(c, call=replace(c.call, dtype="float32")) for c in made.run.cells]
    _change(made.path, lambda data: data["cells"].extend(cell.row() for cell in cells))
    with RunFolder.open(made.path, write=True) as folder:
        for cell in cells:
            folder.append(synthetic_samples(cell, 7.0))
    page = html.unescape(build(made.path))

    assert "<h3>Eager, isolated, dtype bfloat16</h3>" in page
    assert "<h3>Eager, isolated, dtype float32</h3>" in page


def test_one_is_singular_and_large_ratios_have_no_decimals(tmp_path: Path) -> None:
    """A cell, its only one, one that takes too long; and 1306.83x beside 1307x said the same twice."""
    costs = {"a": (1.0, 0.0), "gloo": (1306.83, 0.0)}
    failing = {"b": (Status.HUNG, "no answer")}
    one = build(synthetic_run(tmp_path / "1", costs={"b": (1.0, 0.0)}, sizes=(64,), calls=(1,), failing=failing).path)
    far = build(synthetic_run(tmp_path / "2", costs=costs, sizes=(64, 128), calls=(1,), noise=0.001).path)

    assert "<b>1</b> cell</li>" in one
    assert "its one cell" in one
    assert not re.findall(r"\b1(?:</b>)? (?:cells|launches|sizes|pairs|flows)\b", one + far)
    assert set(re.findall(r"1\d{3}[.\d]*x", _section(far, "fastest"))) == {"1307x"}


def test_a_tail_of_few_iterations_is_called_what_it_is(tmp_path: Path) -> None:
    few, many = (
        build(synthetic_run(tmp_path / str(n), costs={"a": (5.0, 0.1)}, sizes=(1024,), iterations=n).path)
        for n in (20, 100)
    )

    assert "below 100 iterations p99_us is in effect the slowest one" in few
    assert "in effect the slowest" not in many
