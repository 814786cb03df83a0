"""What a file holds, value by value, of the kind that it must be: a fault names the field and what was found."""

from collections.abc import Mapping
from typing import Any

from collbench.errors import InvalidError

__all__ = ["flag", "number", "rows", "table", "text", "texts", "whole"]

_NAMES: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object",
    tuple: "a list", type(None): "null",
}  # fmt: skip
_SHOWN = 40


def _get(data: Mapping[str, Any], name: str, kind: type | tuple[type, ...], expected: str) -> Any:  # noqa: ANN401 - JSON
    if name not in data:
        raise InvalidError(f"{name} is missing")
    value = data[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(name, value, expected)
    return value


def _wrong(name: str, value: object, expected: str) -> InvalidError:
    return InvalidError(f"{name} is {_NAMES.get(type(value), type(value).__name__)}, expected {expected}")


def text(data: Mapping[str, Any], name: str, default: str | None = None, *, most: int | None = None) -> str:
    """A text, of `most` characters; `default` where the field is missing.

    Raises:
        InvalidError: missing, no text, or longer.
    """
    value = str(default if default is not None and name not in data else _get(data, name, str, "a text"))
    if most is not None and len(value) > most:
        raise InvalidError(f"{name} {value[:_SHOWN]!r}... has {len(value)} characters, expected at most {most}")
    return value


def whole(data: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A whole number in [least, most].

    Raises:
        InvalidError: missing, no whole number, or out of range.
    """
    value = int(_get(data, name, int, f"a whole number from {least} to {most}"))
    if not least <= value <= most:
        raise InvalidError(f"{name} is {str(value)[:_SHOWN]}, expected {least} to {most}")
    return value


def number(data: Mapping[str, Any], name: str) -> float:
    """A number, whole or not.

    Raises:
        InvalidError: missing, or none.
    """
    return float(_get(data, name, (int, float), "a number"))


def flag(data: Mapping[str, Any], name: str) -> bool:
    """True or false.

    Raises:
        InvalidError: missing, or neither.
    """
    return bool(_get(data, name, bool, "true or false"))


def table(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object.

    Raises:
        InvalidError: missing, or none.
    """
    return dict(_get(data, name, Mapping, "an object"))


def rows(data: Mapping[str, Any], name: str, kind: type = Mapping) -> list[Any]:
    """A list of objects, or of another kind.

    Raises:
        InvalidError: missing, no list, or something else in it.
    """
    found = list(_get(data, name, (list, tuple), "a list"))
    for number, value in enumerate(found):
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _wrong(f"{name}[{number}]", value, _NAMES.get(kind, "an object"))
    return found


def texts(data: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object whose values are texts.

    Raises:
        InvalidError: missing, no object, or another value in it.
    """
    found = table(data, name)
    return {key: text(found, key) for key in found}
