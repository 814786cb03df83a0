"""A small XML tree that knows its line numbers and refuses entities, depth and noise."""

import xml.sax
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, Locator

import defusedxml.sax
from defusedxml import DefusedXmlException

from collbench.topology.graph import TopologyError

__all__ = ["Element", "read_tree"]

_DEPTH = 100
_ELEMENTS = 200_000
_QUOTE = 80
_LARGEST = 10**15


@dataclass(slots=True)
class Element:
    """One element with its attributes, children and line (from 1). Text between elements is not kept."""

    name: str
    attributes: Mapping[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        """Attribute as text without blanks around it."""
        return self.attributes.get(name, default).strip()

    def all(self, name: str) -> Iterator["Element"]:
        """Children of that name."""
        return (child for child in self.children if child.name == name)

    def integer(self, name: str, default: int = 0) -> int:
        """Attribute as a whole number (decimal, or hexadecimal with 0x); `default` where it is absent or empty.

        Raises:
            TopologyError: it is no number.
        """
        text = self.get(name)
        if not text:
            return default
        try:
            value = int(text, 16) if text.lower().startswith("0x") else int(text)
        except ValueError:
            raise self.error(f'{name}="{_short(text)}" is no whole number') from None
        if abs(value) > _LARGEST:
            raise self.error(f'{name}="{_short(text)}" is too large')
        return value

    def error(self, problem: str) -> TopologyError:
        """An error at this element: line, the element as it stands, what is wrong."""
        attributes = "".join(f' {key}="{value}"' for key, value in self.attributes.items())
        return TopologyError(f"line {self.line}: <{_short(self.name + attributes)}>: {problem}")


def read_tree(text: str, roots: tuple[str, ...]) -> Element:
    """Parse XML and give its root element.

    Lines before the root (a prompt, a log line) and after its end are cut where the root is one of `roots`.

    Raises:
        TopologyError: not XML, entities or a document type in it, more than 100 levels or 200,000 elements.
    """
    body, skipped = _cut(text, roots)
    handler = _Builder(skipped)
    try:
        defusedxml.sax.parseString(body.encode("utf-8", "replace"), handler, forbid_dtd=True)
    except xml.sax.SAXParseException as error:
        line = (error.getLineNumber() or 1) + skipped
        raise TopologyError(f"line {line}: {_quoted(text, line)}: not XML ({error.getMessage()})") from None
    except DefusedXmlException as error:
        raise TopologyError(f"XML with a document type or entities is refused ({type(error).__name__})") from None
    except (LookupError, ValueError) as error:
        raise TopologyError(f"line 1: {_quoted(text, 1)}: not XML ({error})") from None
    if handler.root is None:
        raise TopologyError("line 1: no element: expected XML")
    return handler.root


class _Builder(ContentHandler):
    def __init__(self, skipped: int) -> None:
        super().__init__()
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        self._skipped = skipped
        self._place: Locator | None = None

    def setDocumentLocator(self, locator: Locator) -> None:  # noqa: N802 - the name that SAX calls
        self._place = locator

    def startElement(self, name: str, attrs: AttributesImpl) -> None:  # noqa: N802 - the name that SAX calls
        line = (self._place.getLineNumber() or 0 if self._place else 0) + self._skipped
        element = Element(name, dict(attrs.items()), line)
        self._count += 1
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        if len(self._open) > _DEPTH:
            raise element.error(f"more than {_DEPTH} levels deep")
        if self._count > _ELEMENTS:
            raise element.error(f"more than {_ELEMENTS} elements")

    def endElement(self, _name: str) -> None:  # noqa: N802 - the name that SAX calls
        self._open.pop()


def _cut(text: str, roots: tuple[str, ...]) -> tuple[str, int]:
    """The document without what stands around it, and how many lines went before it."""
    start, end = 0, len(text)
    for root in roots:
        found = text.find(f"<{root}")
        close = f"</{root}>"
        if found >= 0 and "<" not in text[:found].replace("<!--", "").replace("<?", ""):
            start = found
            end = text.rfind(close) + len(close) if close in text else len(text)
            break
    lead = text[:start]
    if "<" in lead or not lead.strip():  # a declaration or comments: they are XML and stay
        start = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    return text[start:end], text[:start].count("\n")


def _quoted(text: str, line: int) -> str:
    lines = text.splitlines()
    return repr(_short(lines[line - 1].strip())) if 0 < line <= len(lines) else "end of the file"


def _short(text: str) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= _QUOTE else clean[: _QUOTE - 3] + "..."
