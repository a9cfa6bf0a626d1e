"""The pages of all names, from their docstrings: `python tests/reference_page.py` writes them again.

A test compares the pages with what this makes, so that no public name, verb, magic, option or command lacks a
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
from notebook_learner.learner.panel import LearnerPanel
from notebook_learner.learner.tools import Devices, Tools
from notebook_learner.magic.magics import TrainingMagics

CONCEPTS = Path(__file__).parent.parent / "tutorials" / "concepts"
HEAD = """\
# Every name

One line each, the first of what `help(...)` says; in a notebook, `LearnerBuilder.ema?` and `%%train?` tell
it all. The page begins with what a first week needs. [Another page](internals.md) has what parts of your own
need: events, loggers, renderers, breakpoints, formats. Both are made from the docstrings:
`python tests/reference_page.py`.
"""
INTERNALS_HEAD = """\
# Names for parts of your own

You need none of these to train. They are for loggers, renderers, breakpoints and formats of your own, and
they are the values that other names return. [The other names](reference.md).

```python
from notebook_learner.event import EpochEnded


class Ends:
    \"\"\"A renderer or a logger: it handles the events that it knows.\"\"\"

    def handle(self, event):
        if isinstance(event, EpochEnded):
            print("epoch", event.epoch, "is over")
```
"""
FIRST_WEEK = {
    LearnerBuilder: "loss train_step metrics samples num_epochs with_batch_size seed early_stopping break_on "
    "with_file_checkpointer resume build",
    Learner: "fit start pause stop step step_epoch run_until rewind status position num_epochs history plot "
    "summary save restore checkpoints batch output inspect what_if breakpoints evaluate predict",
    Artifacts: "series epochs plot summary compare",
}
FIRST_MAGICS = "%%train %%valid %train %step %rewind"
BURN = "metric_train metric_valid metric_train_numeric metric_valid_numeric"
"""Verbs of the builder that are as in Burn, beside one that does what they do."""
INTERNALS = {
    "notebook_learner.metric": "AccumulatedText AnyMetric Counted MetricGroup Ratio Reading StepContext",
    "notebook_learner.breakpoint": "Asked Breakpoint Breakpoints Condition Found FromMetrics Measured Moment "
    "Planned",
    "notebook_learner.checkpoint": "CheckpointFolder CheckpointInfo Decoded Encoded Recorder Strategy",
    "notebook_learner.artifacts": "Block Checkpoints EpochValues Evaluation Evaluations Series TakenBack",
    "notebook_learner.inspection": "BatchTensor Group Histogram Layer Memory Parameter Picture Sample "
    "StateSize Statistics",
    "notebook_learner.event": "*",
    "notebook_learner.logger": "*",
    "notebook_learner.renderer": "*",
    "notebook_learner.store": "*",
}
"""Names that stand on the page of their own; a star stands for all."""
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
    LearnerPanel: "`learner.panel`: what the panel shows beside the run",
    Devices: "`learner.devices`: the processes that train, as a table",
    Artifacts: "`Artifacts`: a run's directory, past or running",
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


def pages() -> dict[str, str]:
    """All names, by the file that has them."""
    reference = [
        HEAD,
        TWELVE,
        section("A first week", first_week()),
        *(section(title, members(cls, BURN)) for cls, title in CLASSES.items()),
        section("Magics, after `%load_ext notebook_learner`", magics()),
        *(
            section(f"{title}: `{name}`", exported(name, internal=False))
            for name, title in PACKAGES.items()
            if INTERNALS.get(name) != "*"
        ),
        section("Commands, in a shell", commands()),
        "```\n" + re.sub(r"(?m)^  ", "", _COMMANDS.split("\n\n")[0].partition("\n")[2]) + "\n```\n",
        section("Burn's names of `.metrics(...)`", chosen(LearnerBuilder, BURN)),
    ]
    internals = [
        INTERNALS_HEAD,
        section("`Moment`: what a breakpoint's function is given", members(Moment)),
        *(
            section(f"{title}: `{name}`", exported(name, internal=True))
            for name, title in PACKAGES.items()
            if name in INTERNALS
        ),
    ]
    return {"reference.md": "\n".join(reference), "internals.md": "\n".join(internals)}


def first_week() -> Iterator[tuple[str, str]]:
    """Of the builder, the learner, a run's directory and the magics."""
    for cls, names in FIRST_WEEK.items():
        for name, text in chosen(cls, names):
            yield f"{cls.__name__}.{name}", text
    yield from ((name, text) for name, text in magics() if name in FIRST_MAGICS.split())


def chosen(cls: type, names: str) -> Iterator[tuple[str, str]]:
    """Some members, in the order of their names here."""
    rows = {row[0].partition("(")[0]: row for row in members(cls)}
    yield from (rows[name] for name in names.split())


def section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and what they do."""
    lines = [f"| `{cell(name)}` | {cell(text)} |" for name, text in rows]
    return "\n".join([f"## {title}", "", "| name | what it is |", "|---|---|", *lines, ""])


def cell(text: str) -> str:
    """Text that does not end a table's cell."""
    return text.replace("|", "\\|")


def members(cls: type, but: str = "") -> Iterator[tuple[str, str]]:
    """Public methods and properties, also those of its bases in this package, in their order there."""
    seen = set(but.split())
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


def exported(package: str, *, internal: bool) -> Iterator[tuple[str, str]]:
    """What `from package import *` brings, for one of the two pages."""
    module, inner = importlib.import_module(package), INTERNALS.get(package, "").split()
    for name in (each for each in module.__all__ if (inner == ["*"] or each in inner) == internal):
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
    """Write the pages."""
    for name, text in pages().items():
        (CONCEPTS / name).write_text(text, "utf-8")
        print(f"wrote {CONCEPTS / name}")


if __name__ == "__main__":
    main()
