"""The data of a learner: loaders or datasets, given to `build` or to any `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...errors import ConfigurationError
from ...event import Notice, Split
from ...metric import MetricGroup
from ..data.cursor import Cursor
from ..epoch_value import Source, why_never_measured
from ..loop import Pass
from ..parts import CursorPart, MetricsPart
from ..replica import Replica
from ..rng import mix
from ..step.step import TrainingStep, ValidationStep
from .settings import Settings

MakeStep = Callable[[Split], TrainingStep | ValidationStep]


CANNOT_BEGIN = "the training cannot begin"
NOTHING_TO_TRAIN_ON = "there is nothing to train on: fit(train_loader, valid_loader)"


class Loaders:
    """Puts loaders into a replica, the first ones and those that take their place later."""

    def __init__(
        self,
        settings: Settings,
        model: nn.Module,
        replica: Replica,
        groups: Mapping[Split, MetricGroup],
        make_step: MakeStep,
        rules: Mapping[str, Source],
    ) -> None:
        self.settings = settings
        self.model = model
        self.replica = replica
        self.groups = groups
        self.make_step = make_step
        self.rules = rules
        """What goes by an epoch's value, by name: early stopping, ReduceLROnPlateau."""
        self._given: dict[Split, Any] = {}

    def use(self, learner: Any, split: Split, given: Any) -> None:
        """Train on (or validate with) this from here on. The same object again changes nothing."""
        if self._given.get(split) is given:
            return
        if wrong := list(data_mistakes(self.settings, self.model, split, given)):
            raise ConfigurationError(wrong, "this data cannot be used")
        self._given[split] = given
        seed = self.settings.seed
        loader = _loader(self.settings, split, given)
        self._put_in(split, Cursor(loader, None if seed is None else mix(seed, len(split)), self._tell))

    def require(self) -> None:
        """Before training: raise where something would be missed only at the end of an epoch."""
        passes = self.replica.loop.passes
        if "train" not in passes:
            raise ConfigurationError([NOTHING_TO_TRAIN_ON], CANNOT_BEGIN)
        missed = [why_never_measured(rule, by) for rule, by in self.rules.items() if by[0] not in passes]
        if missed:
            raise ConfigurationError(missed, CANNOT_BEGIN)

    def _put_in(self, split: Split, cursor: Cursor) -> None:
        loop = self.replica.loop
        if split in loop.passes:
            here = loop.done if loop.split == split else 0
            cursor.take_over(loop.passes[split].cursor, here)
            loop.passes[split].cursor = cursor
            return
        loop.passes = {**loop.passes, split: Pass(cursor, self.make_step(split), self.groups[split])}
        self.replica.parts[f"data {split}"] = CursorPart(
            lambda: loop.passes[split].cursor, lambda: loop.done if loop.split == split else 0
        )
        self.replica.parts[f"metrics {split}"] = MetricsPart(self.groups[split])
        self._catch_up(split)

    def _catch_up(self, split: Split) -> None:
        """Where the learner was restored before this loader came, the loader's place is in that state."""
        timeline, here = self.replica.timeline, self.replica.loop.position
        timeline.keyframes = [state for state in timeline.keyframes if f"data {split}" in state.parts]
        state = timeline.nearest(here)
        if state is not None and state.position.key == here.key:
            for name in (f"data {split}", f"metrics {split}"):
                self.replica.parts[name].restore(state.parts[name])

    def _tell(self, text: str) -> None:
        self.replica.emit(Notice(text))


def data_mistakes(settings: Settings, model: Any, split: Split, given: Any) -> Iterator[str]:
    """What is wrong with a loader or dataset."""
    said = f"the {split} data is of type {type(given).__name__}"
    if isinstance(given, type):
        yield f"the {split} data is the class {given.__name__}; give an instance"
    elif isinstance(given, Dataset) or (not isinstance(given, Iterable) and _is_like_a_dataset(given)):
        if settings.batch_size is None:
            yield f"{said}, a dataset; say with_batch_size(32) to have it loaded, or give a DataLoader"
    elif isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        yield f"{said}; give an iterable of batches, such as a DataLoader or a list of them, or a dataset"
    if split == "valid" and isinstance(model, nn.Module) and not settings.says_how_to_validate(model):
        yield (
            f"there is a validation loader, but {type(model).__name__} has no valid_step(self, batch); "
            "define it, or add valid_step(fn) to the builder"
        )


def _loader(settings: Settings, split: Split, given: Any) -> Iterable[Any]:
    """The loader, made of a dataset where one was given."""
    if isinstance(given, IterableDataset):
        return DataLoader(given, batch_size=settings.batch_size)  # keeps its own order
    if isinstance(given, Dataset) or (settings.batch_size is not None and _is_like_a_dataset(given)):
        return DataLoader(given, batch_size=settings.batch_size, shuffle=split == "train")
    loader: Iterable[Any] = given
    return loader


def _is_like_a_dataset(given: Any) -> bool:
    """Samples by index from a class of another library; a plain list is a list of batches."""
    if isinstance(given, (list, tuple, DataLoader)):
        return False
    return hasattr(given, "__getitem__") and hasattr(given, "__len__")
