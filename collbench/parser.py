"""How a call is read: what is wrong is said in one line, which names the option or the command that was meant."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from collbench.errors import nearest, one_line

__all__ = ["Parser"]

_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Prints `-b, --begin SIZE` on every Python; before 3.13 argparse repeats the metavar behind each name."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        return f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, takes no abbreviations (a new option would break them), knows `--debug`.

    What it reads has `given`: the options that stand in the call, as they were typed, by their `dest`.

    A command refuses the words that it does not know itself: argparse leaves them to the parser above it, which can
    point to its own `--help` only.
    """

    def __init__(self, **settings: object) -> None:
        settings = {"formatter_class": _Formatter, "allow_abbrev": False} | settings
        super().__init__(**settings)  # type: ignore[arg-type]  # add_parser() passes on whatever argparse takes
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        self._given: list[argparse.Action] = []

    def parse_known_args(  # type: ignore[override]  # argparse's overloads say the same
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Read the call; there are no unknown words in what comes back."""
        words = sys.argv[1:] if args is None else list(args)
        self._given.clear()
        found, rest = super().parse_known_args(words, namespace)
        if rest and not self._takes(found, rest):
            self.error(self._unknown(rest))
        # a command's own, read before, stand there already
        found.given = {action.dest: _typed(action, words) for action in self._given} | getattr(found, "given", {})
        return found, []

    def _takes(self, found: argparse.Namespace, rest: Sequence[str]) -> bool:
        """Give a word behind the options to the word that may be left out: argparse took it for left out."""
        open_ = [a for a in self._actions if not a.option_strings and a.nargs == "?"]
        open_ = [action for action in open_ if getattr(found, action.dest) == action.default]
        if len(rest) != 1 or len(open_) != 1 or rest[0].startswith("-"):
            return False
        setattr(found, open_[0].dest, self._get_value(open_[0], rest[0]))
        return True

    def error(self, message: str) -> NoReturn:
        """Exit with 2, and with the message in one line."""
        text = one_line(message)
        see = f"see {self.prog} --help"
        self.exit(2, f"collbench: {text} {see.capitalize()}\n" if text.endswith("?") else f"collbench: {text}; {see}\n")

    def _unknown(self, words: Sequence[str]) -> str:
        option = next((word for word in words if word.startswith("-")), "")
        if not option:
            return f"unexpected word {words[0]!r}"
        told, meant = f"no option {option.partition('=')[0]}", self._option_meant(option)
        return f"{told}: did you mean {meant}?" if meant else told

    def _option_meant(self, word: str) -> str:
        """The option with a name like this, or the one that has it among its values; empty if there is none."""
        name = word.partition("=")[0].strip("-")
        names = {text.lstrip("-"): text for action in self._actions for text in action.option_strings}
        for action in self._actions:
            if action.option_strings and name in (action.choices or ()):
                return f"{action.option_strings[-1]} {name}"
        return names.get(nearest(name, names), "")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:  # noqa: ANN401 - argparse's signature
        if action.option_strings:
            self._given.append(action)
        return super()._get_values(action, arg_strings)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:  # noqa: ANN401 - argparse's signature
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if action.type not in _NUMBERS:
                raise
            told = f"expected {_NUMBERS[action.type]}, not {arg_string!r}"
            raise argparse.ArgumentError(action, told) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - argparse's signature
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        meant = nearest(str(value), known)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public name for it
            told = f"no command {value!r}: "
            told += f"did you mean {meant}?" if meant else f"choose from {', '.join(known)}"
            raise argparse.ArgumentError(None, told)
        told = f"invalid choice: {value!r} (choose from {', '.join(known)})"
        raise argparse.ArgumentError(action, f"{told}: did you mean {meant}?" if meant else told)


def _typed(action: argparse.Action, words: Sequence[str]) -> str:
    """The name of an option that stands among the words; its first one where a value is tied to it."""
    typed = {word.partition("=")[0] for word in words}
    return next((name for name in action.option_strings if name in typed), action.option_strings[0])
