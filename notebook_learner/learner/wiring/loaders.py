"""The data of a learner: loaders or datasets, given to `build` or to any `fit`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...data.cursor import Cursor
from ...data.in_memory import OnDevice
from ...data.loader_walk import Walk
from ...data.rng import SharedDraws, data_of, mix
from ...data.sources import MODES, Combined, FromFunction, is_source, is_used_up
from ...errors import ConfigurationError, a_kind
from ...evaluation.prediction import output_of
from ...event import Notice, Split
from ...event.values import Level, Source, why_never_measured
from ...logger.branches import BranchLogger
from ...metric import MetricGroup
from ...metric.base import AnyMetric
from ...metric.step_values import Logged
from ...recipe.former_code import Code
from ...recipe.run_recipe import RunRecipe
from ...run.loop import Pass
from ...run.replica import Replica
from ...run.settings import Registered, Settings
from ...state.parts import CursorPart, MetricsPart
from ...state.state import State
from ...step.optimizers import parameters_of
from ...step.own_loss import CELL, MODEL_STEPS, StepKind, lightning_method
from ...step.schedule import Schedule
from ...step.step import StepFunction, TrainingStep, ValidationStep
from ...step.update import Update
from ..core import OfOneLearner
from .cells import cells_may_come
from .checks import listed, metric_mistakes
from .lightning import is_data_module, loaders_in, trains_by_its_steps
from .make_optimizer import make_optimizer, make_schedule

if TYPE_CHECKING:
    from ...evaluation.chosen_samples import ChosenSamples

MOST_SAMPLES = 64
"""More samples than a person looks at; the panel gets all of them with each snapshot."""

MakeStep = Callable[[StepKind], TrainingStep | ValidationStep]
Way = Literal["alone", "whole", "share"]


CANNOT_BEGIN = "the training cannot begin"
NOTHING_TO_TRAIN_ON = "there is nothing to train on: fit(train_loader, valid_loader)"
NO_STEP = (
    "nothing says how to train: run a %%train cell, or give the builder loss(fn) or train_step(fn), or "
    "define train_step(self, batch) on the model"
)
NO_VALID_STEP = (
    "nothing says how to measure it: run a %%valid cell, give the builder valid_step(fn) or loss(fn), "
    "or define valid_step(self, batch) on the model"
)
NOT_VALIDATED = (
    "there is validation data but no step for it, so it is left out; a %%valid cell, or a valid_step, says "
    "how to validate"
)


class Loaders:
    """Puts loaders into a replica: the first ones, and those that replace them later."""

    def __init__(
        self,
        settings: Settings,
        model: nn.Module,
        replica: Replica,
        groups: Mapping[Split, MetricGroup],
        make_step: MakeStep,
        rules: Mapping[str, Source],
        origin: Any,
        recipe: RunRecipe,
        branches: BranchLogger,
    ) -> None:
        self.settings = settings
        self.model = model
        self.replica = replica
        self.groups = groups
        self.make_step = make_step
        self.module: Any = None
        """What made the loaders in use, if it was written for Lightning."""
        self.rules = rules
        """What depends on an epoch's value, by name: early stopping, ReduceLROnPlateau."""
        self.origin = origin
        """What the learner was built from."""
        self.recipe = recipe
        """What made the run."""
        recipe.given, recipe.code.put = self.given, self.put_code
        self.branches = branches
        """What keeps the lines that the run leaves."""
        self._given: dict[Split, Any] = {}
        self._told = False
        self._on_device: OnDevice | None = None
        self.samples = self._chosen_samples()
        """The samples whose predictions are shown."""
        self._waits: Cursor | None = None
        """Validation data for which there is no validation step yet."""

    def use(self, learner: Any, split: Split, given: Any) -> None:
        """Train on (or validate with) this data from here on. The same object again changes nothing."""
        if self._given.get(split) is given or (given is not None and self.module is given):
            return
        if split == "train" and is_data_module(given):
            for part, loader in loaders_in(given).items():
                self.use(learner, part, loader)
            self.module = given
            return
        if wrong := list(data_mistakes(self.settings, self.model, split, given)):
            raise ConfigurationError(wrong, "this data cannot be used")
        seed = self.settings.seed
        loader, own = _loader(self.settings, split, given), None if seed is None else mix(seed, len(split))
        cursor = Cursor(loader, own, self._tell, self.settings.share, self._devices, self.replica.carried)
        cursor.first_epoch = cursor.walk.first_epoch = self.settings.first_epoch
        cursor.home = cursor.walk.home = self._home(split, cursor)
        cursor.watch = partial(self._watch, split, loader)
        if seed is None:
            cursor.watch(cursor.walk)
        place = self.replica.unclaimed().get(f"data {split}")
        if place is not None and split not in self.replica.loop.passes:
            cursor.require(place)
        self._given[split] = given
        for told in _odd(self.settings, self._given, split):
            self._tell(told, "warning")
        self._put_in(split, cursor)
        if cursor.seed != own:  # the checkpoint's, in the midst of an epoch
            cursor.use_seed_later(own)

    def use_seed(self, seed: int | None) -> None:
        """Seed the run with this from the next epoch on, or from here on at the beginning of one."""
        self.settings.seed = seed
        loop = self.replica.loop
        for split, each in loop.passes.items():
            own = None if seed is None else mix(seed, len(split))
            if loop.split == split and loop.done:
                each.cursor.use_seed_later(own)
            else:
                each.cursor.use_seed(own)

    def keep_seed(self, seed: int | None) -> None:
        """The seed of the checkpoint that the run goes on from holds, also for data that comes later."""
        self.settings.seed = seed

    def _home(self, split: Split, cursor: Cursor) -> OnDevice | None:
        """Where the data live, if not where they are."""
        if self.settings.data != "device" or not self.settings.devices:
            return None
        if not cursor.walk.gathers:
            self._warn(
                f'devices(..., data="device"): the {split} data ({type(cursor.source).__name__}) stay where '
                "they are: a DataLoader can have its data on the device if it has no workers and torch's own "
                "collate, and reads TensorDatasets, or Subsets and ConcatDatasets of them"
            )
        if self._on_device is None:
            self._on_device = OnDevice(torch.device(self.settings.devices[0]), self._warn)
        return self._on_device

    def _watch(self, split: Split, loader: Any, walk: Walk) -> None:
        walk.watch(SharedDraws(data_of(split, loader), self._warn))

    @property
    def _devices(self) -> int:
        """The number of a loader's batches that a step takes."""
        share = self.settings.share
        return share.world if share is not None and self.settings.batch == "per_device" else 1

    def use_step(self, split: Split, function: StepFunction) -> None:
        """Use `function(model, batch)` as the step of this split, from the next step on."""
        if split == "train":
            self.settings.train_step = function
        else:
            self.settings.valid_step = function
        if split in self.replica.loop.passes:
            self.replica.loop.passes[split].step.function = self.make_step(split).function
        elif split == "valid" and self._waits is not None:
            waiting, self._waits = self._waits, None
            self._put_in("valid", waiting)

    def put_code(self, code: Code, follows: bool) -> None:
        """Train by this code, on the way through past steps."""
        settings, before = self.settings, Code.of(self.settings)
        settings.train_step, settings.valid_step, settings.loss = code
        if not settings.says_how_to_train(self.model):  # a cell came later, and no step was taken without it
            settings.train_step = before.train_step
        if "valid" in self.replica.loop.passes and not settings.says_how_to_validate(self.model):
            settings.valid_step = before.valid_step
        self.renew()
        for former, now in zip(before, code, strict=True):
            if former is not now and hasattr(now, "begin_again"):
                now.begin_again()
                if follows and hasattr(former, "begin_again"):
                    now.follow(former)  # the values that a cell carries from step to step
        self.replica.shape.look(tell=False)
        self.replica.carried.find_again()  # one cell in the place of another is no other shape
        self.replica.have_ranks_follow()

    def use_loss(self, function: Callable[..., Any]) -> None:
        """Use another loss, from the next step on.

        Raises:
            ConfigurationError: a step of its own computes the loss.
        """
        if self.settings.train_step is not None or self.settings.loss is None:
            raise ConfigurationError(
                ["the training step computes the loss itself; set learner.train_step instead"],
                "this loss cannot be used",
            )
        self.settings.loss = function
        self.renew()

    def functions(self) -> tuple[Any, ...]:
        """The steps and the loss in use, where a cell is not, and the model's own steps."""
        settings, steps = self.settings, ("train_step", "valid_step")
        given = [_unless_a_cell(getattr(settings, name)) for name in steps]
        model, kind = self.model.__dict__, type(self.model)  # a module takes 3 us to say that it lacks a name
        return *given, settings.loss, *(model.get(name, getattr(kind, name, None)) for name in MODEL_STEPS)

    def use_functions(self, functions: tuple[Any, ...]) -> None:
        """Use these again. A cell that was run stays in use."""
        if self.functions()[:3] == functions[:3]:
            return
        settings, (train, valid, loss, *_) = self.settings, functions
        if train is not _CELL and self.functions()[0] is not _CELL:
            settings.train_step = train
        if valid is not _CELL and self.functions()[1] is not _CELL:
            settings.valid_step = valid
        settings.loss = loss
        self.renew()

    def make_optimizer(self, given: Any) -> Optimizer:
        """The optimizer, or several by name, for the model as it is now.

        Raises:
            ConfigurationError: it cannot be used.
        """
        made, wrong = make_optimizer(self.model, given, self.settings)
        if made is None or wrong:
            raise ConfigurationError(wrong, "this optimizer cannot be used")
        return made

    def make_schedule(self, given: Any, optimizer: Optimizer) -> Schedule:
        """The schedule for an optimizer.

        Raises:
            ConfigurationError: it cannot be used.
        """
        made, wrong = make_schedule(given, optimizer, self.settings)
        if made is None or wrong:
            raise ConfigurationError(wrong, "this schedule cannot be used")
        return made

    def given(self) -> Mapping[Split, Any]:
        """The data of each split, as it was given."""
        return {**self._given}  # a copy: the writer thread reads it while `fit` may add a split

    def renew(self) -> None:
        """Look up the model's steps again, after its code has changed."""
        for split, each in self.replica.loop.passes.items():
            each.step.function = self.make_step(split).function

    def step_of(self, split: Split) -> StepFunction | None:
        """The function that was given as this split's step, or None."""
        return self.settings.train_step if split == "train" else self.settings.valid_step

    # Other data --------------------------------------------------------------------------------------

    def cursor_for(self, given: Any, what: str, way: Way = "alone") -> Cursor:
        """Make a cursor over a loader, or a dataset, that is not trained on.

        Args:
            given: the loader or dataset.
            what: what is done with it, for messages.
            way: "alone" for a single rank; "whole" for the rank that walks all batches and gives the others
                their parts; "share" for a rank that walks its own part.
        """
        if wrong := list(not_a_loader(self.settings, what, given)):
            raise ConfigurationError(wrong, "this data cannot be used")
        seed = self.settings.seed
        own = None if seed is None else mix(seed, len("valid"))
        share = self.settings.share if way == "share" else None
        devices = 1 if way == "alone" else self._devices
        return Cursor(_loader(self.settings, "valid", given), own, self._tell, share, devices)

    def _chosen_samples(self) -> ChosenSamples | None:
        asked = self.settings.samples
        if asked is None:
            return None
        from ...evaluation.chosen_samples import WHAT, ChosenSamples  # loads what few trainings need

        return ChosenSamples(asked, lambda given: self.cursor_for(given, WHAT))

    def validation_step(self, what: str) -> ValidationStep:
        """The step that validates now."""
        if not self.settings.says_how_to_validate(self.model):
            raise ConfigurationError([NO_VALID_STEP], f"{what} cannot begin")
        return self._like_validation(self.make_step("valid").function)

    def prediction_step(self, forward: StepFunction | None) -> ValidationStep:
        """A step that gives the output of the validated model."""
        if forward is not None:
            return self._whole(partial(forward, self.validated))
        if trains_by_its_steps(self.settings, self.model) and lightning_method(self.model, "predict_step"):
            return self._whole(self.make_step("predict").function)
        asked = self.settings.predicts_by_its_step(self.model)
        validate = self.make_step("valid").function if asked else None
        return self._whole(partial(output_of, self.validated, validate))

    def _like_validation(self, function: Callable[[Any], Any]) -> ValidationStep:
        step = self.make_step("valid")
        assert isinstance(step, ValidationStep)
        step.function = function
        return step

    def _whole(self, function: Callable[[Any], Any]) -> ValidationStep:
        step = self._like_validation(function)
        step.update = None  # what a model gives for a batch may not be something to join
        return step

    def metrics_for(self, given: Iterable[AnyMetric] | None, what: str) -> list[AnyMetric]:
        """The metrics to measure a set with; by default those of the validation."""
        if given is None:
            return [m for m in self.groups["valid"].metrics if not isinstance(m, Logged)]
        metrics = listed(given)
        registered = [Registered(metric, "valid", False) for metric in metrics]
        if wrong := list(metric_mistakes(registered)):
            raise ConfigurationError(wrong, f"{what} cannot measure with these metrics")
        return metrics

    @property
    def validated(self) -> nn.Module:
        """The model that is validated: the one in training, or its moving average."""
        return self.replica.loop.modes.validated

    @property
    def loss(self) -> Callable[..., Any] | None:
        """The loss of `.loss(...)`, if there is one."""
        return self.settings.loss

    def fork(self, learner: Any, state: State, directory: str | os.PathLike[str]) -> Any:
        """Make another learner like this one, in this state."""
        sibling = self.origin.fork(state, directory, self._given)
        sibling.num_epochs = learner.num_epochs
        sibling.breakpoints.become(learner.breakpoints)
        return sibling

    def require(self) -> None:
        """Raise before training if something is missing that only the end of an epoch would show."""
        passes = self.replica.loop.passes
        if "train" not in passes:
            raise ConfigurationError([NOTHING_TO_TRAIN_ON], CANNOT_BEGIN)
        missed = [why_never_measured(rule, by) for rule, by in self.rules.items() if by[0] not in passes]
        if not self.settings.says_how_to_train(self.model):
            missed.append(NO_STEP)
        missed += _replaced(self.replica.loop.update)
        if missed:
            raise ConfigurationError(missed, CANNOT_BEGIN)
        self._never_measured()

    def _put_in(self, split: Split, cursor: Cursor) -> None:
        loop = self.replica.loop
        if split == "valid" and not self.settings.says_how_to_validate(self.model):
            self._waits = cursor
            self._tell(NOT_VALIDATED)
            return
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
        """Move a new loader to its place in the state, if the learner was restored before the loader came."""
        timeline = self.replica.timeline
        timeline.keyframes = [state for state in timeline.keyframes if f"data {split}" in state.parts]
        replica, metrics = self.replica, MetricsPart(self.groups[split])
        for name in (f"data {split}", f"metrics {split}"):
            if (found := replica.claim(name)) is not None:
                if name.startswith("metrics "):
                    found, owed = metrics.own(found)
                    if replica.loop.split == split and replica.loop.done:
                        replica.owe(owed)
                replica.parts[name].restore(found)

    def _tell(self, text: str, level: Level = "info") -> None:
        self.replica.emit(Notice(text, level))

    def _warn(self, text: str) -> None:
        self._tell(text, "warning")

    def _never_measured(self) -> None:
        """Warn once about metrics of the validation alone, if there is no validation."""
        names = set(self.settings.metrics_of("valid")) - set(self.settings.metrics_of("train"))
        if names and "valid" not in self.replica.loop.passes and not self._told and self._waits is None:
            self._told = True
            self._tell(
                f"{', '.join(sorted(names))} of the validation split is never measured, as there is no "
                "validation data: fit(train_loader, valid_loader)",
                "warning",
            )


_CELL = SimpleNamespace(__name__=CELL)
"""Stands for a cell's step. The cell on the page counts, also after a rewind."""


def _unless_a_cell(step: Any) -> Any:
    return _CELL if step is not None and isinstance(step, OfOneLearner) else step


def _replaced(update: Update) -> Iterator[str]:
    """Find layers that were replaced after the build: their parameters would never be trained. Each verb that
    trains checks this, not each step: it takes 0.2 ms for a model of 300 parameters."""
    mine = {id(p): p.requires_grad for p in update.model.parameters()}
    theirs = {*map(id, parameters_of(update.optimizer))}
    stale, new = theirs - mine.keys(), [key for key, trains in mine.items() if trains and key not in theirs]
    if stale and new:
        yield (
            f"{len(new)} of the model's parameters are not the optimizer's, which still holds "
            f"{len(stale)} of before: a layer was replaced after build; replace it first, then make "
            "the optimizer from model.parameters() and build"
        )


def _odd(settings: Settings, given: Mapping[Split, Any], split: Split) -> Iterator[str]:
    """Warn about what is allowed, but seldom meant."""
    if len(given) == 2 and given["train"] is given["valid"]:
        yield (
            "training and validation have the very same data, so validation says nothing about new data; "
            "give another loader to validate with"
        )
    loader = given[split]
    if is_used_up(loader) and settings.num_epochs > 1:
        yield (
            f"the {split} data, {a_kind(loader)}, can be walked only once, and the training has "
            f"{settings.num_epochs} epochs; give the function that makes it, fit(batches), or a list"
        )
    if isinstance(loader, DataLoader) and loader.persistent_workers and _is_iterable(loader):
        yield (
            f"not in the state: the {split} data ({type(loader.dataset).__name__}): worker processes that "
            "live on from epoch to epoch (persistent_workers=True) hold where an iterable dataset is, and "
            "cannot be asked; after the first epoch a rewind, what_if or a resume may read other samples. "
            "persistent_workers=False is exact"
        )
    size = getattr(loader, "batch_size", None) if isinstance(loader, DataLoader) else None
    if size is not None and settings.batch_size not in (None, size):
        yield (
            f"with_batch_size({settings.batch_size}) is for datasets; the {split} data is a DataLoader with "
            f"a batch size of its own, {size}, which holds"
        )


def _is_iterable(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def data_mistakes(settings: Settings, model: Any, split: Split, given: Any) -> Iterator[str]:
    """What is wrong with a loader or dataset."""
    yield from not_a_loader(settings, f"the {split} data", given)
    if split == "valid" and isinstance(model, nn.Module) and not _may_validate(settings, model):
        yield (
            f"there is a validation loader, but {type(model).__name__} has no valid_step(self, batch); "
            "define it, or add valid_step(fn) to the builder"
        )


def not_a_loader(settings: Settings, what: str, given: Any) -> Iterator[str]:
    """Why an object is not a loader, and not a dataset."""
    said = f"{what} is of type {type(given).__name__}"
    if isinstance(given, type):
        yield f"{what} is the class {given.__name__}; give an instance"
    elif isinstance(given, nn.Module):
        yield f"{said}, a model; give a DataLoader, a list of batches, or a dataset"
    elif isinstance(given, Dataset) or (not isinstance(given, Iterable) and _is_like_a_dataset(given)):
        if settings.batch_size is None:
            yield f"{said}, a dataset; say with_batch_size(32) to have it loaded, or give a DataLoader"
    elif _is_several(given):
        yield from _mistakes_of_several(settings, what, given)
    elif isinstance(given, (str, bytes, Mapping)) or not (isinstance(given, Iterable) or is_source(given)):
        yield f"{said}; give an iterable of batches, such as a DataLoader or a list of them, or a dataset"


def sample_mistakes(settings: Settings) -> Iterator[str]:
    """What is wrong with the arguments of `.samples`."""
    asked = settings.samples
    if asked is None:
        return
    from ...inspection.batch import decoder  # loads what few trainings need

    yield from not_a_loader(settings, "samples(loader): it", asked.loader)
    if not isinstance(asked.n, int) or isinstance(asked.n, bool) or not 1 <= asked.n <= MOST_SAMPLES:
        yield f"samples(n={asked.n!r:.60}): give a whole number from 1 to {MOST_SAMPLES}"
    labels = asked.labels
    if labels is not None and (
        not isinstance(labels, (list, tuple)) or not all(isinstance(each, str) for each in labels)
    ):
        yield f"samples(labels={labels!r:.60}): give a list with the name of each class, in their order"
    if asked.tokenizer is not None and decoder(asked.tokenizer) is None:
        yield (
            f"samples(tokenizer={a_kind(asked.tokenizer)}): give an object with a decode(numbers) method, or "
            "a function from numbers to text"
        )


def _is_several(given: Any) -> bool:
    """Whether it is several loaders, to be walked together."""
    if isinstance(given, (list, tuple)):
        return bool(given) and all(isinstance(each, DataLoader) for each in given)
    if isinstance(given, Mapping):  # of loaders, and not of columns
        return not any(hasattr(each, "dtype") for each in given.values())
    return _is_combined(given)


def _is_combined(given: Any) -> bool:
    """Whether it is Lightning's CombinedLoader."""
    return hasattr(given, "iterables") and hasattr(given, "_mode")


def _mistakes_of_several(settings: Settings, what: str, given: Any) -> Iterator[str]:
    loaders = given.iterables if _is_combined(given) else given
    each = loaders.values() if isinstance(loaders, Mapping) else loaders
    if _is_combined(given) and given._mode not in MODES:
        yield (
            f"{what} is a CombinedLoader with the mode {given._mode!r}; take one of {', '.join(MODES)}, or "
            "chain the data: torch.utils.data.ConcatDataset"
        )
    if not isinstance(loaders, (Mapping, list, tuple)) or not loaders:
        yield f"{what} is {a_kind(given)} without loaders; give them by name, {{'a': loader, 'b': other}}"
    elif "validation" in what or what == "the valid data":
        yield (
            f"{what} is several loaders; validate with one, and measure each of the others by "
            "learner.evaluate(loader, name='b')"
        )
    else:
        for number, loader in enumerate(each):
            yield from not_a_loader(settings, f"{what}, loader {number}", loader)


def _may_validate(settings: Settings, model: nn.Module) -> bool:
    return settings.says_how_to_validate(model) or cells_may_come()


def _loader(settings: Settings, split: Split, given: Any) -> Iterable[Any]:
    """The given loader, or one made from a given dataset."""
    if _is_several(given):
        loaders, mode = (given.iterables, given._mode) if _is_combined(given) else (given, "max_size_cycle")
        if isinstance(loaders, Mapping):
            return Combined({name: _loader(settings, split, each) for name, each in loaders.items()}, mode)
        return Combined(type(loaders)(_loader(settings, split, each) for each in loaders), mode)
    if is_source(given):
        return FromFunction(given)
    if isinstance(given, IterableDataset):
        return DataLoader(given, batch_size=settings.batch_size)  # it keeps its own order
    if isinstance(given, Dataset) or (settings.batch_size is not None and _is_like_a_dataset(given)):
        return DataLoader(given, batch_size=settings.batch_size, shuffle=split == "train")
    loader: Iterable[Any] = given
    return loader


def _is_like_a_dataset(given: Any) -> bool:
    """Whether an object of another library's class gives samples by index; a plain list is a list of
    batches."""
    if isinstance(given, (list, tuple, DataLoader)):
        return False
    return hasattr(given, "__getitem__") and hasattr(given, "__len__")
