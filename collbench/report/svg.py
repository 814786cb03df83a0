"""Prepares an SVG for a page: no style attributes, no ids that meet others', colours by CSS variable."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collbench.results.summary import clean

__all__ = ["Styles", "inline"]

_URL = re.compile(r"url\(['\"]?#([^)'\"]+)['\"]?\)")
_FONT_SIZE = re.compile(r"(\d+(?:\.\d+)?)px")
_NO_XML = re.compile("[\ufffe\uffff]")
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_LINKS = ("href", "aria-labelledby", "aria-describedby")
_DROPPED = {"metadata", "script", "foreignObject"}
_FONT = {"font-family", "font-style", "font-variant", "font-weight", "font-stretch"}


class Styles:
    """Collects the declarations of style attributes as classes: a page that forbids inline styles needs them so."""

    def __init__(self, colours: Mapping[str, str]) -> None:
        self._colours = colours
        self._names: dict[str, str] = {}

    def name(self, declarations: str) -> str:
        """Class for the declarations of one style attribute; empty where nothing of them is kept."""
        kept = ";".join(self._kept(declarations))
        return self._names.setdefault(kept, f"z{len(self._names)}") if kept else ""

    def _kept(self, declarations: str) -> Iterator[str]:
        for part in declarations.split(";"):
            key, _, value = (text.strip() for text in part.partition(":"))
            if key == "font" and (size := _FONT_SIZE.search(value)):
                yield f"font-size:{size[1]}px"
            elif key and value and key not in _FONT and key != "font":
                yield f"{key}:{self._colours.get(value.lower(), value)}"

    def css(self) -> str:
        """The rules of all classes."""
        return "\n".join(f".{name}{{{kept}}}" for kept, name in self._names.items())


def inline(
    text: str, prefix: str, styles: Styles, label: str = "", titles: Mapping[str, Sequence[str]] | None = None
) -> tuple[str, str]:
    """SVG to be put into HTML, and the content of its own style sheets, which the caller scopes.

    Ids and what points at them get the prefix. With a `label`, which screen readers read out, the size is left to the
    page; else the picture has both of its own. `titles` names by id what each point of a curve says when it is pointed
    at, or the one text of a shape.

    Raises:
        xml.etree.ElementTree.ParseError: not XML.
    """
    from xml.etree import ElementTree as ET

    from defusedxml.ElementTree import fromstring

    root = fromstring(_NO_XML.sub("", text))
    sheets: list[str] = []
    for parent in list(root.iter()):
        for child in list(parent):
            name = _local(child.tag)
            if name == "style":
                sheets.append(child.text or "")
            if name in _DROPPED or name == "style":
                parent.remove(child)
    for element in list(root.iter()):
        _entitle(element, (titles or {}).get(element.get("id", ""), ()))
    for element in root.iter():
        _rewrite(element, prefix, styles)
    if label:
        del root.attrib["width"], root.attrib["height"]
        root.attrib |= {"role": "img", "aria-label": label}
    return ET.tostring(root, encoding="unicode", short_empty_elements=True), "\n".join(sheets)


def _local(tag: Any) -> str:  # noqa: ANN401 - ElementTree has functions as tags of comments
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _entitle(element: Any, texts: Sequence[str]) -> None:  # noqa: ANN401 - Element
    """One title per point, which matplotlib draws as `use`, or the one title of what has no points."""
    from xml.etree import ElementTree as ET

    points = [one for one in element.iter() if _local(one.tag) == "use"] or [element]
    if len(points) == len(texts):
        for point, text in zip(points, texts, strict=True):
            title = ET.Element("title")
            title.text = clean(text)
            point.insert(0, title)


def _rewrite(element: Any, prefix: str, styles: Styles) -> None:  # noqa: ANN401 - Element
    if isinstance(element.tag, str):
        element.tag = _local(element.tag)
    old = dict(element.attrib)
    element.attrib.clear()
    for qualified, value in old.items():
        name = _local(qualified)
        if name.startswith("on") or (name == "href" and not value.startswith("#")):
            continue
        if name == "id":
            value = prefix + value  # noqa: PLW2901 - the value as it shall stand
        elif name in _LINKS:
            value = " ".join(("#" if w.startswith("#") else "") + prefix + w.lstrip("#") for w in value.split())  # noqa: PLW2901 - same
        element.attrib[name] = _URL.sub(rf"url(#{prefix}\1)", value)
    for name in ("d", "points", "transform", "x", "y"):
        if name in element.attrib:
            element.attrib[name] = " ".join(_NUMBER.sub(lambda m: f"{float(m[0]):.1f}", element.attrib[name]).split())
    style = element.attrib.pop("style", "")
    classes = " ".join(filter(None, (element.attrib.get("class", ""), styles.name(style))))
    if classes:
        element.attrib["class"] = classes
