"""What made two runs differ: both take their steps again, aside, up to the first that left other weights, and
that one step is looked at in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..artifacts.diff import FirstCause
from ..event.position import Position, after_training_step
from ..run.bounds import At
from ..run.rank_protocol import OWN
from ..run.replica import Replica
from ..state.state import written
from ..step.optimizers import kind_of, named_of
from ..step.options import groups_now, said_changes
from .ask import ask_function
from .excursion import excursion
from .footprint import Prints, all_of, named, named_by_path, of_output, orders_seen, outputs_seen

_OF_PLACE = ("loop", "window", "early_stopping", "scheduler", OWN)
"""Parts of a state that only say how far the run is, or what other parts say already."""


@dataclass
class StepAccount:
    """What a training step began with, and what it made."""

    order: Sequence[Sequence[str]] = ()
    batch: Prints = field(default_factory=dict)
    weights: Prints = field(default_factory=dict)
    optimizer: str = ""
    options: list[dict[str, Any]] = field(default_factory=list)
    draws: Prints = field(default_factory=dict)
    """The random states that the step has moved, as they were before it."""
    state: Prints = field(default_factory=dict)
    """The rest of the state before it."""
    outputs: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Each call of a module: its name and kind, and checksums of what it was given and what it made."""
    loss: Prints = field(default_factory=dict)
    gradients: Prints = field(default_factory=dict)


def weights_after_each_step(replica: Replica, last: int) -> tuple[Sequence[str], str]:
    """A checksum of the weights after each training step up to `last`; and in what these steps were not those
    of the record, if they were not."""
    model = replica.loop.update.model
    answer = ask_function(replica, lambda: all_of(dict(model.state_dict())), 1, last, 1)
    return answer.value, "" if answer.differs is None else str(answer.differs)


def account_of(replica: Replica, number: int) -> StepAccount:
    """Take a training step again, aside, and note what it began with and what it made."""
    after = behind(replica, number)
    start = Position(after.epoch, "train", after.step - 1)
    state, loop = replica.state_before(start), replica.loop
    with excursion(replica, what="diff()", past=True) as trip, ExitStack() as stack:
        stack.enter_context(replica.by_hand.code(state.position))
        replica.put_back(state)
        for position, repeat in replica.by_hand.edits(state.position, start):
            trip.walk(At(position))
            repeat()
        trip.walk(At(start))
        before = replica.capture().parts
        account = StepAccount(optimizer=kind_of(loop.update.optimizer))
        account.weights = dict(named(before["model"], "model"))
        account.state = dict(_rest_of(before))
        looks = orders_seen(replica), outputs_seen(replica), _optimizer_seen(replica, account)
        with looks[0] as account.order, looks[1] as account.outputs, looks[2]:
            trip.walk(At(after))
        account.batch, account.loss = dict(named(loop.batch, "batch")), of_output(loop.output)
        account.draws = _moved(before["rng"], replica.capture().parts["rng"])
    return account


def first_cause(one: StepAccount, other: StepAccount, at: Position) -> FirstCause:
    """The first thing that is not the same at a step of two runs, in the order in which a step uses them."""
    kind, name, values = next(_differences(one, other), ("the optimizer's step", "", ("", "")))
    rest = [found for found, *_ in _differences(one, other) if found != kind]
    return FirstCause(at, kind, name, values, tuple(dict.fromkeys(rest)))


def first_other_weights(ones: Sequence[str], others: Sequence[str]) -> int:
    """The number of the first training step that left other weights; one more than there are if none did.

    >>> first_other_weights(["a", "b"], ["a", "c"]), first_other_weights(["a"], ["a", "b"])
    (2, 2)
    """
    pairs = zip(ones, others, strict=False)
    return 1 + len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


Cause = tuple[str, str, tuple[str, str]]


def _differences(one: StepAccount, other: StepAccount) -> Iterator[Cause]:
    for mine, its in zip(one.order, other.order, strict=False):
        for pair in zip(mine, its, strict=False):
            if pair[0] != pair[1]:
                yield "order of the data", "samples of the batch", (_cut(pair[0]), _cut(pair[1]))
                break
    yield from _unequal("a batch's content", one.batch, other.batch)
    yield from _unequal("weights before", one.weights, other.weights)
    if one.optimizer != other.optimizer:
        yield "the optimizer", "class", (one.optimizer, other.optimizer)
    elif one.options != other.options:
        told = (said_changes(other.options, one.options), said_changes(one.options, other.options))
        rate = [each.get("lr") for each in one.options] != [each.get("lr") for each in other.options]
        yield "rate" if rate else "an option of the optimizer", "", told
    yield from _unequal("random state", one.draws, other.draws)
    yield from _unequal("state before", one.state, other.state)
    for mine, its in zip(one.outputs, other.outputs, strict=False):
        if mine[3] != its[3]:
            given = "the same" if mine[2] == its[2] else "another"
            kind = " or ".join(dict.fromkeys((mine[1], its[1])))
            yield "a module's output", f"{mine[0]} ({kind}), for {given} input", (mine[3], its[3])
            break
    yield from _unequal("the loss", one.loss, other.loss)
    yield from _unequal("a gradient", one.gradients, other.gradients)


def _unequal(kind: str, one: Prints, other: Prints) -> Iterator[Cause]:
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            yield kind, name, (one.get(name, "-"), other.get(name, "-"))
            return


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


# What a step begins with, and makes ------------------------------------------------------------------


def behind(replica: Replica, number: int) -> Position:
    """The place after a training step, also where that is an epoch's end."""
    before = after_training_step(replica.past, number - 1)
    return Position(before.epoch, "train", before.step + 1)


def _rest_of(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, part in sorted(parts.items()):
        if name == "carried":
            yield from named_by_path(written(part)["objects"])
        elif name not in ("model", "rng", *_OF_PLACE) and not name.startswith("data "):
            options = f"{name}.groups["  # they are compared as the optimizer sees them
            yield from (each for each in named(part, name) if not each[0].startswith(options))


def _moved(before: Any, after: Any) -> dict[str, str]:
    """Generators from which the step drew. Others may differ without a consequence."""
    then, now = dict(named(before, "generators")), dict(named(after, "generators"))
    return {name: value for name, value in then.items() if now.get(name) != value}


@contextmanager
def _optimizer_seen(replica: Replica, account: StepAccount) -> Iterator[None]:
    """Inside, the account gets the gradients and the options with which the optimizer steps."""
    update = replica.loop.update
    optimizers = {id(each) for each in named_of(update.optimizer).values()}

    def note(optimizer: Any, *given: Any) -> None:
        if id(optimizer) in optimizers and not account.options:
            account.options = groups_now(update.optimizer)
            gradients = {name: each.grad for name, each in update.model.named_parameters()}
            account.gradients = dict(named(gradients, "model"))

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()
