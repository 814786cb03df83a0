"""Text in GitHub-flavoured Markdown that stays text, wherever its words come from.

Source: GitHub Flavored Markdown 0.29; mentions, issue numbers and bare addresses become links behind a backslash too,
so a space without width parts them.
"""

import re

from collbench.results.summary import clean

__all__ = ["code_or_text", "fenced", "plain"]

_MOST = 300
_SPECIAL = re.compile(r"[\\`*\[\]|~$@]|(?<![^\W_])_|_(?![^\W_])")
_FIRST = re.compile(r"[-+#=]|\d+(?=[.)](?:\s|$))")
_LINKED = re.compile(r"(?<=:)(?=//)|(?<=@)(?=\S)|(?<=#)(?=\d)|(?<=\bwww)(?=\.)", re.IGNORECASE)
_NAME = re.compile(r"[\w.+:-]+", re.ASCII)
_BREAK = "&#8203;"


def plain(text: str, most: int = _MOST) -> str:
    """The text on one line of at most `most` characters before escaping: no markup, HTML, link or mention."""
    words = " ".join(clean(text).split())  # a control character may have stood before a space
    words = words if len(words) <= most else words[: most - 3] + "..."
    # parted by a character that clean() leaves none of, since the entity itself would be escaped
    words = _SPECIAL.sub(r"\\\g<0>", _LINKED.sub("\u200b", words))
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\u200b", _BREAK)
    return _first(words)


def _first(words: str) -> str:
    """What opens a list, a heading or a rule at the start of a line gets a backslash."""
    found = _FIRST.match(words)
    if not found:
        return words
    return f"{found[0]}\\{words[found.end() :]}" if found[0][0].isdigit() else f"\\{words}"


def code_or_text(name: str, most: int = _MOST) -> str:
    """A name between backticks, or as `plain` where it holds what these do not."""
    return f"`{name}`" if len(name) <= most and _NAME.fullmatch(name) else plain(name, most)


def fenced(text: str, language: str = "") -> list[str]:
    """Lines of a block of code behind a fence that the text cannot end."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text, fence]
