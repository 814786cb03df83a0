"""Takes the environment of rank 0 out of a text before anything reads it, quotes it or fails in the middle of it."""

import re

__all__ = ["without_environment"]

_LIST = re.compile(
    r"""("env"\s*:\s*[\[{])(.*?)(?=[\]}]\s*(?:,\s*"\w{1,60}"\s*:|\}\s*\Z)|\Z)""",
    re.DOTALL,
)
"""To the bracket before the next key, as quotes inside of a value are escaped; of a list that was cut, to the end."""

_BEFORE, _NEXT = ('"version"', '"args"'), '"nccl_version"'
"""The keys around it: where those before it are missing, the beginning was cut off, maybe in the middle of the list."""

_ANY = re.compile(r"[^\n]")


def without_environment(text: str) -> str:
    """The text with blanks in place of what `-J` wrote under `"env"`; lines and characters keep their numbers."""
    if '"env"' in text:
        return _LIST.sub(lambda match: match[1] + _ANY.sub(" ", match[2]), text)
    at = text.find(_NEXT)
    if at > 0 and not any(key in text[:at] for key in _BEFORE):
        return _ANY.sub(" ", text[:at]) + text[at:]
    return text
