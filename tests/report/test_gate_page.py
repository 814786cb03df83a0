"""The page of a comparison: whole, safe, and every number that is drawn also stands there as text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from collbench.gate.verdicts import CellVerdict, GateMode, Outcome, Rules, Verdict
from collbench.report.gate_page import gate_page

HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}\x1b\u202e</td>"
SLOW = CellVerdict("a", Verdict.REGRESSED, "", 10.0, 12.0, 1.2, 1.15, 1.25, 1.2, margin=0.03)
SAME = replace(SLOW, cell_id="b", verdict=Verdict.OK, ratio=1.0, low=0.99, high=1.01, current_median_us=10.0)


class Tags(HTMLParser):
    """Counts start and end tags; void ones are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(page: str) -> list[str]:
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


def page_of(*cells: CellVerdict, **fields: Any) -> str:
    return gate_page(replace(Outcome(GateMode.PAIRED, Rules(), cells, blocks=8), **fields))


def test_each_cell_is_a_row_and_an_interval_worst_first() -> None:
    page = page_of(SAME, SLOW)

    assert tags(page).count("circle") == 2
    assert page.index("REGRESSED</td>") < page.index("OK</td>")
    assert "+20.0 %" in page
    assert "+15.0 .. +25.0 %" in page


def test_an_interval_lies_on_its_side_of_the_band() -> None:
    """Slower is to the right of what does not count, and the same is inside."""
    page = page_of(SLOW, SAME)

    bands = [
        (float(x), float(x) + float(w)) for x, w in re.findall(r'class="band" x="([\d.]+)" y="0" width="([\d.]+)', page)
    ]
    spans = [(float(a), float(b)) for a, b in re.findall(r'class="whisker" d="M([\d.]+) [\d.]+H([\d.]+)"', page)]
    assert spans[0][0] > bands[0][1]
    assert bands[1][0] < spans[1][0] < spans[1][1] < bands[1][1]


@pytest.mark.parametrize("field", ["faults", "notes"])
def test_hostile_text_stays_text(field: str) -> None:
    cell = replace(SLOW, cell_id=HOSTILE, reason=HOSTILE)
    hidden: dict[str, Any] = {"not_compared": ((HOSTILE, HOSTILE),), "record": {HOSTILE: HOSTILE}, field: (HOSTILE,)}

    page = page_of(cell, **hidden)

    assert "script" not in tags(page)
    assert page.count("{{ 7*7 }}") >= 5
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_no_verdict_says_so_and_fetches_nothing() -> None:
    page = page_of(faults=("base: damaged",))

    assert "No verdict:</b> base: damaged" in page
    assert "Nothing was compared." in page
    assert not re.search(r"(?:src|href)=", page)
    assert "http" not in page.replace("http-equiv", "")
