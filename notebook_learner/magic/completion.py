"""Tab completion after a magic: its options, their choices, and the names of the notebook's learners."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from IPython.core import completer

from .magics import TrainingMagics, learners_in

_LINE = re.compile(r"^(?:\s*|.*=\s*)(%%?)(\w+)\s(.*)$")


class Completion:
    """Adds itself to a shell's completer, in the way that this version of IPython has."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.parsers = _parsers()
        newer = hasattr(completer, "SimpleCompletion")  # IPython 8.6
        self._matcher = _alone(self.matches) if newer else _among_others(shell, self.matches)

    def add(self) -> None:
        """Let Tab complete the magics from here on."""
        if self.shell.Completer is not None:
            self.shell.Completer.custom_matchers.append(self._matcher)

    def remove(self) -> None:
        """Remove the completion of the magics."""
        if self.shell.Completer is not None and self._matcher in self.shell.Completer.custom_matchers:
            self.shell.Completer.custom_matchers.remove(self._matcher)

    def matches(self, line: str) -> list[str]:
        """The completions of the word at the end of the line."""
        found = _LINE.match(line)
        parser = self.parsers.get((found[1], found[2])) if found else None
        if found is None or parser is None:
            return []
        *before, word = found[3].split(" ")
        words = [each for each in before if each]
        return [each for each in self._offered(parser, words, word) if each.startswith(word) and each != word]

    def _offered(self, parser: Any, words: list[str], word: str) -> list[str]:
        options = {name: action for action in parser._actions for name in action.option_strings}
        last = options.get(words[-1]) if words else None
        if last is not None and last.nargs != 0:  # its value is being typed
            return list(last.choices or ())
        offered = [name for name in options if name not in words]
        if not word.startswith("-") and parser._actions[0].dest != "directory":
            learners = learners_in(self.shell.user_ns)
            offered = [*(learners if not learners.keys() & set(words) else ()), *offered]
        return offered


def _parsers() -> dict[tuple[str, str], Any]:
    """The parsers by the parts of the written magic: ("%%", "train")."""
    signs = {"cell": "%%", "line": "%"}
    return {
        (signs[kind], name): getattr(TrainingMagics, method).parser
        for kind, methods in TrainingMagics.magics.items()
        for name, method in methods.items()
    }


def _alone(matches: Callable[[str], list[str]]) -> Any:
    """A matcher that hides the results of others: builtins make no sense after a magic."""

    def matcher(context: Any) -> dict[str, Any]:
        found = matches(context.text_until_cursor)
        completions = [completer.SimpleCompletion(text, type="magic") for text in found]
        return {"completions": completions, "suppress": bool(found), "matched_fragment": context.token}

    matcher.matcher_api_version = 2  # type: ignore[attr-defined]
    matcher.matcher_identifier = "notebook_learner"  # type: ignore[attr-defined]
    return matcher


def _among_others(shell: Any, matches: Callable[[str], list[str]]) -> Any:
    """IPython 7 gives a matcher a word, keeps the line elsewhere, and mixes all matchers' results."""
    return lambda word: matches(shell.Completer.text_until_cursor)
