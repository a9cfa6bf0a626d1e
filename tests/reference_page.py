"""The page of all names, from their docstrings: `python tests/reference_page.py` writes it again.

A test compares the page with what this makes, so that no public name, verb, magic, option or command lacks a
line of its own.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from notebook_learner import Artifacts, Learner, LearnerBuilder
from notebook_learner.breakpoint import Moment
from notebook_learner.command import _COMMANDS, _parser
from notebook_learner.learner.tools import Devices, Tools
from notebook_learner.magic.magics import TrainingMagics

PAGE = Path(__file__).parent.parent / "tutorials" / "concepts" / "reference.md"
HEAD = """\
# Every name

One line each, the first of what `help(...)` says; in a notebook, `LearnerBuilder.ema?` and `%%train?` tell it
all. This page is made from the docstrings: `python tests/reference_page.py`.
"""
PACKAGES = {
    "notebook_learner": "What a training needs",
    "notebook_learner.metric": "Metrics",
    "notebook_learner.breakpoint": "Breakpoints",
    "notebook_learner.checkpoint": "Checkpoints: formats, and which of them stay",
    "notebook_learner.artifacts": "Reading runs",
    "notebook_learner.inspection": "Looking at a step",
    "notebook_learner.remote": "Steering from another process",
    "notebook_learner.event": "Events, for loggers and renderers of your own",
    "notebook_learner.logger": "Loggers",
    "notebook_learner.renderer": "Renderers",
    "notebook_learner.store": "The files of a run",
}
CLASSES = {
    LearnerBuilder: "`LearnerBuilder`: say what a training consists of",
    Learner: "`Learner`: train, and handle the training",
    Tools: "`learner.tools`: what is needed now and then",
    Devices: "`learner.devices`: the processes that train, as a table",
    Artifacts: "`Artifacts`: a run's directory, past or running",
    Moment: "`Moment`: what a breakpoint's function is given",
}

TWELVE = """\
## Twelve names that do nine tenths of the work

```python
import torch
from torch.nn import functional as F

from notebook_learner import Artifacts, LearnerBuilder
from notebook_learner.metric import Accuracy, Loss

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
batches = [(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))] * 10

learner = (
    LearnerBuilder("runs/digits")  # 1: the folder of the run
    .loss(F.cross_entropy)  # 2: what the training makes small
    .metrics(Loss(), Accuracy())  # 3: what is measured
    .num_epochs(5)  # 4: how long it trains
    .with_file_checkpointer()  # 5: each epoch is saved
    .resume()  # 6: it goes on from what is saved
    .build(model, optimizer)
)
learner.fit(batches, batches[:2], epochs=1)  # 7: train; Pause stops between two steps
learner.step()  # 8: one step
learner.rewind()  # 9: take it back
learner.inspect()  # 10: look into a step
learner.evaluate(batches)  # 11: measure other data
Artifacts("runs/digits")  # 12: read the run, now or next year
```
"""
BASES_FIRST = {Artifacts}
"""Whose own names are the rare ones."""
ATTRIBUTES = {
    Learner: {
        "scheduler": "The scheduler as it was given to `build`, or as its factory made it.",
        "locals": "After a step of a `%%train` cell: the values of its names.",
    }
}
"""What is neither a method nor a property, and so has no docstring of its own."""


def page() -> str:
    """All of it."""
    sections = [
        HEAD,
        TWELVE,
        *(section(title, members(cls)) for cls, title in CLASSES.items()),
        section("Magics, after `%load_ext notebook_learner`", magics()),
        *(section(f"{title}: `{name}`", exported(name)) for name, title in PACKAGES.items()),
        section("Commands, in a shell", commands()),
        "```\n" + re.sub(r"(?m)^  ", "", _COMMANDS.split("\n\n")[0].partition("\n")[2]) + "\n```\n",
    ]
    return "\n".join(sections)


def section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and what they do."""
    lines = [f"| `{cell(name)}` | {cell(text)} |" for name, text in rows]
    return "\n".join([f"## {title}", "", "| name | what it is |", "|---|---|", *lines, ""])


def cell(text: str) -> str:
    """Text that does not end a table's cell."""
    return text.replace("|", "\\|")


def members(cls: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties, also those of its bases in this package, in their order there."""
    seen: set[str] = set()
    for base in reversed(cls.__mro__) if cls in BASES_FIRST else cls.__mro__:
        for name, member in vars(base).items() if base.__module__.startswith("notebook_learner") else ():
            member = getattr(member, "__func__", member)
            if name.startswith("_") or name in seen or not (is_verb(member) or isinstance(member, property)):
                continue
            seen.add(name)
            yield name + (arguments(member) if is_verb(member) else ""), first_sentence(member)
    yield from ATTRIBUTES.get(cls, {}).items()


def is_verb(member: Any) -> bool:
    return inspect.isfunction(member)


def arguments(function: Any) -> str:
    """Their names, as they are written in a call."""
    names, starred = [], False
    for parameter in list(inspect.signature(function).parameters.values()):
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            names.append("*")
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        names.append(prefix + parameter.name)
    return f"({', '.join(names)})"


def exported(package: str) -> Iterator[tuple[str, str]]:
    """What `from package import *` brings."""
    module = importlib.import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        is_alias = get_origin(thing) is not None  # for Python 3.10 `tuple[X, ...]` is a class, too
        is_one = not is_alias and (inspect.isclass(thing) or inspect.isfunction(thing))
        yield name, first_sentence(thing) if is_one else alternatives(thing)


def alternatives(alias: Any) -> str:
    """What a type's other name stands for; it has no docstring of its own."""
    if get_origin(alias) is tuple:
        return f"A tuple of `{get_args(alias)[0].__name__}`."
    names = [str(getattr(each, "__name__", each)) for each in get_args(alias)]
    return f"One of `{'`, `'.join(names)}`."


def magics() -> Iterator[tuple[str, str]]:
    """With their options, each of which says what it does."""
    for kind, mark in (("cell", "%%"), ("line", "%")):
        for name, method in TrainingMagics.magics[kind].items():
            function = getattr(TrainingMagics, method)
            yield f"{mark}{name}", first_sentence(function)
            for action in options_of(function.parser):
                yield f"{mark}{name} {written(action)}", capitalised(action.help or "")


def commands() -> Iterator[tuple[str, str]]:
    """Of `notebook-learner`."""
    (verbs,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    helps = {each.dest: each.help or "" for each in verbs._choices_actions}
    for name, parser in verbs.choices.items():
        words = [action.metavar for action in parser._actions if not action.option_strings]
        yield " ".join(["notebook-learner", name, *map(str, words)]), capitalised(helps[name])
        for action in options_of(parser):
            if action.option_strings:
                yield f"notebook-learner {name} {written(action)}", capitalised(action.help or "")


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest != "help"]


def written(action: argparse.Action) -> str:
    """As it is typed."""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    return " ".join(filter(None, [*action.option_strings[:1], str(value or "")])) or f"[{action.dest}]"


def first_sentence(thing: Any) -> str:
    """Of the docstring, on one line."""
    text = inspect.getdoc(thing) or ""
    # IPython puts the usage above what a magic's docstring says.
    text = re.sub(r"\A::\n\n(?:  .*\n)+\n", "", text)
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)`\"'])\.(?= [A-Z`]|$)", paragraph)[0].rstrip(".") + "." if paragraph else ""


def capitalised(text: str) -> str:
    text = text.replace("%%", "%")
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".") if text else ""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
