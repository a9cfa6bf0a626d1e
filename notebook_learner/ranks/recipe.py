"""What rank 0 sends the other ranks to build their learners, and what it sends again after a change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..carried.part import Moved
from ..data.cursor import Cursor
from ..data.rank_share import Share
from ..errors import ConfigurationError, StateError
from ..event import Event, Notice, Split
from ..metric.base import own_copy
from ..metric.rows import HOW_TO_MERGE, says_how_to_merge
from ..run.rank_protocol import Alone, Supplier, Task
from ..run.replica import Replica
from ..run.settings import Registered, Settings
from ..step.optimizers import as_given
from ..step.schedule import scheduler_of
from ..trial.changes import Changes
from .process_settings import of_all_ranks
from .rank_processes import Crew, Failed, Member
from .shipping import Names, names_of, pack, pack_by_value


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a follower builds its learner from."""

    settings: Settings
    model: Any
    optimizer: Any
    scheduler: Any


class RecipeSource:
    """Rank 0's learner as the source from which the other ranks build theirs."""

    def __init__(self, settings: Settings, replica: Replica, given: Supplier) -> None:
        self.settings = settings
        self.replica = replica
        self.given = given
        self.learner: Callable[[], Any] = lambda: None
        """Returns the learner itself, for steps that refer to it."""
        self._sent: dict[str, Any] = {}

    def forget(self) -> None:
        """Forget what the other ranks know: the next `tell` sends everything."""
        self._sent = {}

    def tell(self, crew: Crew) -> bool:
        """Send what the other ranks do not know yet; return whether their layers run other code now."""
        crew.files.look()
        self._send_settings(crew)
        if "recipe" not in self._sent:
            for member in crew.members:
                member.send("make", sys.path, os.getcwd(), self._recipe(member, len(crew.members) + 1))
            self._sent["reached"] = self._reached(_heard(crew, "be built like rank 0"))
            self._sent["recipe"] = True
            self._sent["classes"] = self._classes()
        other = self._send_classes(crew)
        moved = self.replica.carried.moved()
        passes = self.replica.loop.passes
        for split, loader in self.given().items():
            known = self._sent.get(f"data {split}")
            edited = any(name.startswith(f"{split} data") for name in moved.by_hand)
            if split in passes and (known is None or known[0] is not loader or edited):
                self._send_data(crew, split, loader, moved)
        self._send_functions(crew, moved)
        return other

    def _send_settings(self, crew: Crew) -> None:
        """Send what is set for the whole process, such as torch's precision: a cell sets it here alone."""
        if torch.is_autocast_enabled(self.replica.loop.update.parameters[0].device.type):
            raise ConfigurationError(
                [
                    "torch.autocast is on around this call, and would hold on rank 0 alone; put it into the "
                    'step, or say .precision("bf16") in the builder'
                ],
                "the training cannot begin",
            )
        found = of_all_ranks()
        if self._sent.get("settings") == found:
            return
        for member in crew.members:
            member.send("settings", found)
        for rank, missed in enumerate(_heard(crew, "take torch's settings"), 1):
            if missed:
                told = f"rank {rank} cannot have rank 0's setting of: {', '.join(missed)}"
                self.replica.emit(Notice(told, "warning"))
        self._sent["settings"] = found

    def _classes(self) -> dict[str, type]:
        return {name: type(module) for name, module in self.replica.loop.update.model.named_modules()}

    def _send_classes(self, crew: Crew) -> bool:
        """Send the classes of layers that have changed. Classes that were defined again are sent by value:
        the other ranks have imported the old files."""
        known, now = self._sent["classes"], self._classes()
        fresh = {name: kind for name, kind in now.items() if known.get(name, kind) is not kind}
        if fresh:
            anew = {kind.__module__ for name, kind in fresh.items() if _is_same(kind, known[name])}
            packed = pack_by_value(fresh, anew)
            for member in crew.members:
                member.send("classes", packed)
            _heard(crew, "take the new code")
            self._sent["classes"] = now
        return bool(fresh)

    def _send_data(self, crew: Crew, split: Split, loader: Any, moved: Moved) -> None:
        packed = None
        if self.replica.loop.passes[split].cursor.walk.cuts:
            try:
                packed = pack(loader)
            except Exception as refused:
                raise ConfigurationError(
                    [
                        f"the {split} data cannot be sent to the other devices' processes ({refused}); give "
                        "the dataset functions and classes that can be pickled"
                    ],
                    "the training cannot begin",
                ) from refused
        for member in crew.members:
            member.send("data", split, packed, moved)
        _heard(crew, f"take the {split} data")
        self._sent[f"data {split}"] = (loader,)

    def packed(self, changes: Changes) -> bytes:
        """The changes of a trial, pickled by value like a step."""
        try:
            return pack(changes, self._names())
        except Exception as refused:
            names = ", ".join(changes.values)
            raise StateError(
                f"a change ({names}) cannot be sent to the other devices' processes: {refused}"
            ) from refused

    def packed_to_look(self, batch: Any, tokenizer: Any) -> bytes:
        """The batch and the tokenizer that another rank is to inspect, pickled."""
        try:
            return pack((batch, tokenizer), self._names())
        except Exception as refused:
            raise StateError(
                f"the batch or the tokenizer cannot be sent to the other devices' processes: {refused}"
            ) from refused

    def packed_task(self, task: Task, cursors: Callable[..., Cursor]) -> tuple[bytes, Cursor, bool]:
        """The task on a set for the other ranks, rank 0's cursor, and whether rank 0 hands out their parts.

        If each rank can draw the order of a loader, each rank walks the loader and loads only its part.

        Raises:
            Alone: the other ranks cannot do the task.
        """
        whole, share = (cursors(task.loader, task.what, way) for way in ("whole", "share"))
        if task.metrics is None and not whole.walks_again:
            raise Alone("its loader can be walked only once")
        if wrong := [each.name for each in task.metrics or () if not says_how_to_merge(each)]:
            raise Alone(f"{wrong[0]} keeps a state of its own: {HOW_TO_MERGE}")
        metrics = None if task.metrics is None else [own_copy(each) for each in task.metrics]
        done = replace(task, loader=None, metrics=metrics)
        fed = self._packed_task(done, None)
        if not share.walk.cuts or isinstance(share.loader, Sequence):  # no list is sent whole to every rank
            return fed, whole, True
        passes = self.replica.loop.passes
        there = [split for split, given in self.given().items() if given is task.loader and split in passes]
        if there and passes[there[0]].cursor.walk.cuts:
            return self._packed_task(done, there[0]), share, False
        try:
            return self._packed_task(replace(done, loader=task.loader), None), share, False
        except Alone:  # only the loader cannot be sent
            return fed, whole, True

    def _packed_task(self, task: Task, split: Split | None) -> bytes:
        try:
            return pack((task, split), self._names())
        except Exception as refused:
            raise Alone(f"it cannot be sent to the other devices' processes: {refused}") from refused

    def _names(self) -> Names:
        return names_of(self.replica.loop.update, self.learner())[0]

    def _reached(self, there: list[dict[str, str]]) -> list[tuple[str, Any]]:
        """What models and optimizers reach here and in the other ranks, which have just been built. `there`
        has the names of these objects, each with its class."""
        here = self.replica.carried.of_models().items()
        return [
            (name, each)
            for name, each in here
            if all(known.get(name) == type(each).__qualname__ for known in there)
        ]

    def _send_functions(self, crew: Crew, moved: Moved) -> None:
        """Send the steps by value, at each run: so they see the notebook's current values.

        An object that the model reaches, too, such as a list that a hook fills, is sent by its name: on each
        rank it stays one object. After the first time, of one that no step changes the notebook's value
        counts.
        """
        if "functions" in self._sent:
            carried = self.replica.carried
            self._sent["reached"] = [
                (name, each)
                for name, each in self._sent["reached"]
                if (path := carried.path_of_changed(each)) and path not in moved.by_hand
            ]
        names = {**{id(each): name for name, each in self._sent["reached"]}, **self._names()}
        functions = {"train": self.settings.train_step, "valid": self.settings.valid_step}
        found = {split: each for split, each in functions.items() if each is not None}
        epochs = self.replica.loop.num_epochs
        try:
            packed = pack(found, names)
        except Exception as refused:
            raise ConfigurationError(
                [f"a step cannot be sent to the other devices' processes: {refused}"],
                "the training cannot begin",
            ) from refused
        if self._sent.get("functions") != (packed, epochs):
            for member in crew.members:
                member.send("functions", packed, epochs, moved)
            _heard(crew, "take the steps")
            self._sent["functions"] = packed, epochs

    def _recipe(self, member: Member, world: int) -> bytes:
        settings = replace(
            self.settings.of_a_copy(),
            directory="rank",  # a rank never writes there
            metrics=[Registered(own_copy(r.metric), r.split, r.plotted) for r in self.settings.registered()],
            samples=None,  # rank 0 shows them
            metrics_given=True,
            loggers=[QuietOutput()],
            renderer="silent",
            application_log=False,
            remote_control=False,
            devices=[_as_seen(member.device)],
            cluster=None,
            share=Share(member.rank, world),
            checkpointer=None,
            files_asked=False,
            strategy=None,
            recorder=None,
            autosave=None,
            breakpoints=[],
            reshaped=self.replica.shape.log,
            train_step=None if self.settings.train_step is None else told_later,
            valid_step=None if self.settings.valid_step is None else told_later,
        )
        update = self.replica.loop.update
        model, optimizer = update.model, as_given(update.optimizer)
        names = {id(self.learner()): "the learner"}
        try:
            return pack(Recipe(settings, model, optimizer, scheduler_of(update.schedule)), names)
        except Exception as refused:
            raise ConfigurationError(
                [
                    f"{type(model).__name__} cannot be sent to the other devices' processes: {refused}; a "
                    "model, an optimizer and metrics have to be pickled for that"
                ],
                "the training cannot begin",
            ) from refused


def _is_same(one: type, other: type) -> bool:
    """By name."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


class QuietOutput:
    """A logger that keeps nothing, for ranks other than 0: only rank 0 writes logs."""

    def handle(self, event: Event) -> None:
        """Ignore an event."""


def told_later(model: Any, batch: Any) -> Any:
    """Stand in for a step, which rank 0 sends separately."""
    raise ConfigurationError(["this rank has not received its step yet"], "the training cannot begin")


def _as_seen(device: torch.device) -> torch.device:
    """The device's name in the engine's process, which sees no other GPU."""
    return torch.device("cuda:0") if device.type == "cuda" else device


def _heard(crew: Crew, what: str) -> list[Any]:
    found = []
    for member in crew.members:
        answer = member.answer()
        if isinstance(answer, Failed):
            raise ConfigurationError(
                [f"rank {member.rank} could not {what}:\n{answer.text}"], "the training cannot begin"
            )
        found.append(answer)
    return found
