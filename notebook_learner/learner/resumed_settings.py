"""Where the program's settings and a checkpoint's differ: a line says each, and what holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer

from ..errors import StateError
from ..event.values import Level
from ..state.state import State
from ..step.optimizers import named_of
from ..step.schedule import Schedule, schedulers_of

Members = Mapping[str, Any]
"""The values of a recipe, by their dotted names."""

KEPT = ("seed", "schedule")
"""What the state has, so that the checkpoint's value goes on."""
TAKEN = (
    "epochs",
    "batch_size",
    "accumulation",
    "clip_norm",
    "clip_value",
    "precision",
    "ema",
    "early_stopping",
    "loss",
    "train_step",
    "valid_step",
    "data",
)
"""What is the program's own, or comes with its objects, so that the program's value holds."""
_TOLD_ELSEWHERE = ("name", "class")
_FUNCTIONS = ("loss", "train_step", "valid_step")
NOT_COMPARED = (
    "the checkpoint does not say what it was trained with, beside its optimizer, as older ones do not. "
    "Seed, schedule, batch size, number of epochs and data are not compared"
)
_GIVEN = '. .resume(settings="given") takes the cell\'s'


_FROM = {"seed": ", from the next epoch on", "schedule": ", from its beginning"}


class Different(NamedTuple):
    """A setting that the program and a checkpoint have in different ways."""

    name: str
    cell: Any
    checkpoint: Any

    @property
    def group(self) -> str:
        """The setting, or the object, that it is of."""
        return self.name.partition(".")[0]

    @property
    def level(self) -> Level:
        """To train longer is nothing to be warned of."""
        return "info" if self.name == "epochs" else "warning"

    def said(self, given: bool) -> str:
        """What differs, and what holds."""
        if self.group == "data":
            return (
                f"the {self.name.partition('.')[2]} data have the fingerprint {self.cell}, those that the "
                f"checkpoint was trained on {self.checkpoint}: took the cell's"
            )
        cell, checkpoint = _said(self.cell), _said(self.checkpoint)
        if self.group in TAKEN or self.name.endswith(".per"):
            return f"{self.name}: the cell says {cell}, the checkpoint {checkpoint}: took {cell}"
        if given:
            later = _FROM.get(self.name, "")
            return f"{self.name}: the checkpoint says {checkpoint}, the cell {cell}: took {cell}{later}"
        return f"{self.name}: the cell says {cell}, the checkpoint {checkpoint}: kept {checkpoint}{_GIVEN}"


def differences(cell: Members, checkpoint: Members) -> Iterator[Different]:
    """The settings in which a program and the recipe of a checkpoint differ.

    >>> [each.said(False) for each in differences({"batch_size": 16}, {"batch_size": 8, "seed": None})]
    ['batch_size: the cell says 16, the checkpoint 8: took 16']
    """
    another = is_another_schedule(cell, checkpoint)
    if another:
        yield Different("schedule", _classes(cell), _classes(checkpoint))
    for name in dict.fromkeys([*cell, *checkpoint]):
        group, _, last = name.partition(".")
        if group not in (*KEPT, *TAKEN) or last in _TOLD_ELSEWHERE or (another and group == "schedule"):
            continue
        if group in _FUNCTIONS and not (".reads." in name and name in cell and name in checkpoint):
            continue  # that is told with a digest of its code and its options
        if group == "data" and name not in cell:
            continue  # it comes with `fit`
        if cell.get(name) != checkpoint.get(name) and not (group == "data" and name not in checkpoint):
            yield Different(name, cell.get(name), checkpoint.get(name))


class OwnSchedule:
    """The program's schedule as it was built, for a run that goes on from a checkpoint.

    Args:
        optimizer: the optimizer, before the checkpoint is restored.
        schedule: the schedule, likewise.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        self._groups = {
            name: [dict(group) for group in each.param_groups] for name, each in named_of(optimizer).items()
        }
        self._schedule = schedule
        self._beginning = schedule.capture()
        self._options = [dict(vars(each)) for each in schedulers_of(schedule)]

    def stand_for(self, state: State, cell: Members, checkpoint: Members, given: bool) -> None:
        """If a checkpoint was trained with a schedule of another class, the program's takes its place.

        Raises:
            StateError: the program's settings do not count.
        """
        others = _optimizers(cell) != _optimizers(checkpoint)  # that is refused by name, too
        if not checkpoint or others or not is_another_schedule(cell, checkpoint):
            return
        if not given:
            raise StateError(
                f"schedule: the cell says {_classes(cell)}, the checkpoint {_classes(checkpoint)}. Give the "
                'same one; or let the cell\'s begin here: .resume(settings="given")'
            )
        parts: Any = state.parts
        parts["scheduler"] = self._beginning
        saved = parts["optimizer"]
        for name, groups in self._groups.items():
            theirs: list[dict[str, Any]] = (saved["named"][name] if name else saved).get("groups", [])
            for group, live in zip(theirs, groups, strict=False):
                for key in [key for key in group if key not in live]:
                    del group[key]
                group.update({key: value for key, value in live.items() if _is_of_a_schedule(key, group)})

    def take(self, name: str) -> bool:
        """Take an option of the schedule as the program gave it; whether that is possible."""
        option = name.rpartition(".")[2]
        found = schedulers_of(self._schedule)
        if len(found) != 1 or option not in self._options[0]:
            return False
        setattr(found[0], option, self._options[0][option])
        return True


def _is_of_a_schedule(key: str, group: Mapping[str, Any]) -> bool:
    return key != "params" and (key not in group or key in ("lr", "initial_lr", "betas", "momentum"))


def _optimizers(members: Members) -> list[str]:
    return [name for name in members if name.startswith("optimizer") and name.endswith(".class")]


def is_another_schedule(cell: Members, checkpoint: Members) -> bool:
    """Whether the two have schedules of different classes."""
    return _classes(cell) != _classes(checkpoint)


def _classes(members: Members) -> str:
    parts = [name.split(".") for name in members if name.startswith("schedule.")]
    return ", ".join(str(members[".".join(path)]) for path in parts if path[-1] == "class") or "none"


def _said(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
