"""SVG for a page: no inline styles, no ids that meet, nothing that runs or fetches."""

from collbench.report.svg import Styles, inline

SVG = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9" height="9"
viewBox="0 0 9 9">
<metadata>who</metadata><style>*{fill:red}</style>
<defs><clipPath id="p"><rect/></clipPath></defs>
<path id="a" d="M 1.23456 2 L 3 -4.56789"
style="fill: none; stroke: #000001" clip-path="url(#p)" onclick="x()"/>
<use xlink:href="#a" style="stroke: #000001;fill: none"/><use xlink:href="https://x/y"/><script>x()</script>
<text style="font: 10px 'DejaVu Sans', sans-serif; text-anchor: middle">t</text></svg>"""


def test_styles_become_classes_with_the_pages_colours() -> None:
    styles = Styles({"#000001": "var(--ink)"})
    out, sheets = inline(SVG, "f1-", styles, "a <finding>")

    assert "style=" not in out
    assert "xmlns" not in out
    assert styles.css().splitlines() == [
        ".z0{fill:none;stroke:var(--ink)}", ".z1{stroke:var(--ink);fill:none}",
        ".z2{font-size:10px;text-anchor:middle}",
    ]  # fmt: skip
    assert sheets == "*{fill:red}"
    assert 'role="img" aria-label="a &lt;finding&gt;"' in out


def test_ids_get_the_prefix_and_so_does_what_points_at_them() -> None:
    out, _ = inline(SVG, "f1-", Styles({}), "x")

    assert 'id="f1-p"' in out
    assert 'clip-path="url(#f1-p)"' in out
    assert 'href="#f1-a"' in out


def test_nothing_runs_or_fetches() -> None:
    out, _ = inline(SVG, "", Styles({}), "x")

    for word in ("script", "onclick", "https:", "who"):
        assert word not in out


def test_without_a_label_the_picture_keeps_its_size() -> None:
    assert 'width="9"' in inline(SVG, "", Styles({}))[0]
    assert "width=" not in inline(SVG, "", Styles({}), "x")[0].replace("stroke-width", "")


def test_numbers_are_shortened() -> None:
    assert 'd="M 1.2 2 L 3 -4.6"' in inline(SVG, "", Styles({}))[0]
