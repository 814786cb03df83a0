"""Texts in Markdown stay text, as GitHub's own parser reads them."""

import html
import re

import pytest
from cmarkgfm import github_flavored_markdown_to_html
from hypothesis import example, given
from hypothesis import strategies as st

from collbench.results.markdown import code_or_text, fenced, plain
from collbench.results.summary import clean

MARKS = st.text(st.sampled_from("ab1 _*~`|\\[]()<>&;:/@#!$-+=.\n'\"{}w\u202e\u200b"), max_size=40)
TEXTS = st.text(max_size=60) | MARKS


def words(text: str) -> str:
    """The text on one line with single spaces."""
    return " ".join(clean(text).split())


def shown(page: str) -> str:
    """What a reader sees of HTML without elements."""
    assert not re.search(r"<[a-zA-Z/!]", page), page
    return html.unescape(page).replace("\u200b", "")


def paragraph(text: str) -> str:
    page: str = github_flavored_markdown_to_html(text)
    return page.strip().removeprefix("<p>").removesuffix("</p>")


@given(TEXTS)
@example("www.example.org and http://example.org, a@example.org, ftp://x")
@example("1. a")
@example("&amp;lt; <b> __a__ _a_ a_b ~~x~~ $x$ ![x](y) [x]: y")
@example("- a")
@example("====")
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    assert shown(paragraph(plain(text))) == words(text)


@given(TEXTS)
@example("a|b`c|d`")
@example("\\|")
def test_a_text_stays_in_its_cell(text: str) -> None:
    page = github_flavored_markdown_to_html(f"| a | b |\n|---|---|\n| {plain(text)} | end |\n")
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert [shown(cell) for cell in cells] == [words(text), "end"]


@given(TEXTS)
def test_a_block_of_code_ends_where_it_should(text: str) -> None:
    lines = "\n".join([*fenced(words(text), "sh"), "", "behind"])
    page = github_flavored_markdown_to_html(lines)
    assert page.endswith("</code></pre>\n<p>behind</p>\n")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nccl_ring_ll", "`nccl_ring_ll`"), ("a`b", r"a\`b"), ("a|b", r"a\|b"), ("x" * 400, "x" * 297 + "...")],
)
def test_names_are_code_where_that_is_safe(name: str, expected: str) -> None:
    assert code_or_text(name) == expected


@pytest.mark.parametrize("text", ["@all", "me@host", "#12", "http://x", "WWW.example.org"])
def test_nothing_is_a_link_or_a_mention(text: str) -> None:
    """GitHub looks for these in what was rendered, where a backslash is gone."""
    assert "&#8203;" in plain(text)


def test_long_texts_are_cut() -> None:
    assert plain("y" * 301) == "y" * 297 + "..."
    assert plain("y" * 301, 400) == "y" * 301
