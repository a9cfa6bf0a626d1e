"""Models that were written for Lightning: their optimizers, steps and hooks, by the names that its trainer
calls. Nothing of Lightning is imported, so any module with these names will do."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...errors import ConfigurationError, StepError, a_kind
from ...event import Notice, Split
from ...metric.step_values import LossIfAny
from ...run.loop import Act, After, Loop
from ...run.settings import Registered, Settings
from ...step.optimizers import named_of
from ...step.own_loss import LIGHTNING_STEPS, StepKind, lightning_method
from ...store import same_file

_ELSEWHERE = (
    *("backward", "configure_callbacks", "configure_gradient_clipping", "log", "log_dict"),
    *("lr_scheduler_step", "on_after_backward", "on_after_batch_transfer", "on_before_backward"),
    *("on_before_batch_transfer", "on_before_optimizer_step", "on_before_zero_grad", "on_fit_end"),
    *("on_fit_start", "on_load_checkpoint", "on_save_checkpoint", "on_train_end", "on_train_start"),
    *("on_validation_batch_end", "on_validation_batch_start", "on_validation_end", "on_validation_start"),
    *("optimizer_step", "optimizer_zero_grad", "test_step", "transfer_batch_to_device"),
)
"""Methods that Lightning calls and this package does not. The user is told which of them a model has."""
_MANUAL = "lr_scheduler_"
"""A step that drives itself moves its own schedulers: they are carried by these names."""


# Before the training -----------------------------------------------------------------------------------


def configured(model: Any, settings: Settings, train: Any) -> tuple[Any, Any, Settings]:
    """What `configure_optimizers` gives: the optimizer or several, the schedule, and the settings that say
    when it moves.

    Args:
        model: a module with Lightning's names.
        settings: the builder's.
        train: the training data, if they are there already.

    Raises:
        ConfigurationError: what it gives cannot be used.
    """
    for name, args in (("prepare_data", ()), ("setup", ("fit",)), ("configure_model", ())):
        if lightning_method(model, name):
            getattr(model, name)(*args)
    with _lent(model, {"trainer": _Trainer(settings, _batches_in(train))}):
        given = model.configure_optimizers()
    optimizers, schedules = _sorted_out(given)
    if not optimizers or not all(isinstance(each, Optimizer) for each in optimizers):
        raise ConfigurationError([f"configure_optimizers returned {a_kind(given)}, not an optimizer"])
    if not _drives_itself(model):
        return (*_the_one(optimizers, schedules), _with_its_place(settings, schedules))
    own = {f"{_MANUAL}{number}": each["scheduler"] for number, each in enumerate(schedules)}
    several = optimizers if len(optimizers) > 1 else optimizers[0]
    return several, None, replace(settings, carried={**settings.carried, **own})


def _batches_in(train: Any) -> int | None:
    try:
        return len(train) if isinstance(train, (DataLoader, list, tuple)) else None
    except TypeError:  # of an iterable dataset
        return None


def _sorted_out(given: Any) -> tuple[list[Any], list[Mapping[str, Any]]]:
    """The optimizers, and the schedulers with what is said of each, from any of Lightning's forms."""
    if isinstance(given, (list, tuple)) and len(given) == 2 and all(isinstance(each, list) for each in given):
        return given[0], [_said_of(each) for each in given[1]]
    each = given if isinstance(given, (list, tuple)) else [given]
    optimizers = [one["optimizer"] if isinstance(one, Mapping) else one for one in each if one is not None]
    told = [one for one in each if isinstance(one, Mapping) and one.get("lr_scheduler") is not None]
    return optimizers, [{"monitor": one.get("monitor"), **_said_of(one["lr_scheduler"])} for one in told]


def _said_of(schedule: Any) -> Mapping[str, Any]:
    return schedule if isinstance(schedule, Mapping) else {"scheduler": schedule}


def _the_one(optimizers: list[Any], schedules: list[Mapping[str, Any]]) -> tuple[Any, Any]:
    wrong = []
    if len(optimizers) > 1:
        wrong.append(
            f"configure_optimizers gives {len(optimizers)} optimizers; then the step drives them itself: set "
            "self.automatic_optimization = False, and call self.manual_backward(loss) and optimizer.step()"
        )
    if len(schedules) > 1:
        wrong.append(
            "configure_optimizers gives several schedules of one optimizer; chain them: ChainedScheduler"
        )
    if any(each.get("frequency", 1) != 1 for each in schedules):
        wrong.append(
            "configure_optimizers gives a schedule with a frequency; leave it out: it moves each time"
        )
    if wrong:
        raise ConfigurationError(wrong)
    return optimizers[0], schedules[0]["scheduler"] if schedules else None


def _with_its_place(settings: Settings, schedules: list[Mapping[str, Any]]) -> Settings:
    if not schedules:
        return settings
    monitor, when = schedules[0].get("monitor"), schedules[0].get("interval", "epoch")
    if monitor is None:
        return replace(settings, scheduler_when=when)
    source = "valid" if monitor.startswith("val") else "train", _as_file(monitor)
    return replace(settings, scheduler_when=when, scheduler_metric=source, scheduler_by_log=True)


def with_its_metrics(settings: Settings, model: Any) -> Settings:
    """With the loss as a metric of each step that returns one, if the user named no metric."""
    if settings.metrics_given or not trains_by_its_steps(settings, model):
        return settings
    splits: tuple[Split, ...] = ("train", "valid")
    methods = [(split, lightning_method(model, LIGHTNING_STEPS[split])) for split in splits]
    measured = [Registered(LossIfAny(), split, True) for split, method in methods if _returns(method)]
    return replace(settings, metrics=measured, metrics_given=True)


def trains_by_its_steps(settings: Settings, model: Any) -> bool:
    """Whether Lightning's steps of the model are used: nothing else says how to train."""
    if settings.train_step is not None or settings.loss is not None or hasattr(model, "train_step"):
        return False
    return bool(lightning_method(model, LIGHTNING_STEPS["train"]))


def _returns(method: Any) -> bool:
    """Whether a method may return something."""
    code = getattr(method, "__code__", None)
    if code is None:
        return method is not None
    steps = [*dis.get_instructions(code)]
    nothing = {"LOAD_CONST", "RETURN_CONST"}  # the second one since Python 3.12
    left = [(after, before) for before, after in pairwise(steps) if after.opname.startswith("RETURN_")]
    return any(not any(each.opname in nothing and each.argval is None for each in pair) for pair in left)


def _as_file(name: str) -> str:
    """A logged name without the slash, which would be a folder of log files."""
    return name.replace("/", "-").replace("\\", "-")


def _drives_itself(model: Any) -> bool:
    return not getattr(model, "automatic_optimization", True)


def loader_of(model: Any, name: str) -> Any:
    """What the model's `train_dataloader` or `val_dataloader` gives, or None."""
    make = lightning_method(model, f"{name}_dataloader")
    return make() if make else None


def is_data_module(given: Any) -> bool:
    """Whether it is data that were written for Lightning: an object that makes loaders."""
    return callable(getattr(given, "train_dataloader", None)) and not isinstance(given, (type, Iterable))


def loaders_in(module: Any) -> dict[Split, Any]:
    """The loaders that a data module makes for a training, by split."""
    for name, args in (("prepare_data", ()), ("setup", ("fit",))):
        if lightning_method(module, name):
            getattr(module, name)(*args)
    made: dict[Split, Any] = {"train": loader_of(module, "train"), "valid": loader_of(module, "val")}
    return {split: loader for split, loader in made.items() if loader is not None}


# What the model finds in its methods -------------------------------------------------------------------


class _Trainer:
    """What `self.trainer` is: where the training stands."""

    sanity_checking = False
    logger = progress_bar_callback = None

    def __init__(self, settings: Settings, batches: int | None, loop: Loop | None = None) -> None:
        self.accumulate_grad_batches = settings.window
        share = settings.share
        self.world_size = 1 if share is None else share.world
        self.global_rank = self.local_rank = 0 if share is None else share.rank
        self.is_global_zero = self.global_rank == 0
        self._settings, self._batches, self._loop = settings, batches, loop

    @property
    def current_epoch(self) -> int:
        """The number of the epoch, from 0."""
        return 0 if self._loop is None else self._loop.epoch - 1

    @property
    def global_step(self) -> int:
        """The finished training steps; where a step drives itself, its batches."""
        return 0 if self._loop is None else self._loop.iteration // self.accumulate_grad_batches

    @property
    def max_epochs(self) -> int:
        """The number of epochs."""
        return self._settings.num_epochs if self._loop is None else self._loop.num_epochs

    @property
    def num_training_batches(self) -> int:
        """The number of batches in an epoch."""
        batches = self._batches if self._loop is None else self._loop.passes["train"].cursor.total
        if batches is None:
            raise ConfigurationError(
                [
                    "the model asks how many batches an epoch has: give build(model, train=loader) a loader "
                    "with a length"
                ]
            )
        return batches

    @property
    def estimated_stepping_batches(self) -> int:
        """The number of optimizer steps of the whole training."""
        return self.max_epochs * -(-self.num_training_batches // self.accumulate_grad_batches)

    @property
    def is_last_batch(self) -> bool:
        """Whether no batch of this epoch follows."""
        return self._loop is not None and self._loop.done + 1 == self._loop.current.cursor.total

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """The epoch's values so far, by name."""
        finals = {} if self._loop is None else self._loop.finals
        return {name: torch.tensor(value) for (_, name), value in finals.items()}

    @property
    def optimizers(self) -> list[Optimizer]:
        """All of them, in their order."""
        return [] if self._loop is None else list(named_of(self._loop.update.optimizer).values())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(each for each in dir(self) if not each.startswith("_"))
        raise AttributeError(f"self.trainer has no {name!r} in this package; it has {known}")


class _OptimizerInStep:
    """What `self.optimizers()` gives: the optimizer, with Lightning's `toggle_model`."""

    def __init__(self, optimizer: Optimizer, guest: LightningGuest) -> None:
        self.optimizer, self._guest = optimizer, guest

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Inside, only this optimizer's parameters train."""
        with self._guest.toggled(self):
            yield

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class LightningGuest:
    """Calls a model's methods as Lightning's trainer does, and answers what they ask of it."""

    def __init__(self, settings: Settings, loop: Loop, model: Any) -> None:
        self.uncalled = _told_of(model, settings.window)
        """Which of the model's hooks have no place here, in words."""
        self._loop, self._model = loop, model
        self.learner: Callable[[], Any] = _nobody
        self._trainer = _Trainer(settings, None, loop)
        self._schedulers = [each for name, each in settings.carried.items() if name.startswith(_MANUAL)]
        self._flags: dict[Any, bool] = {}
        self._told: set[str] = set()
        self.last: Any = None
        """What the step returned, for `on_train_batch_end`."""

    def number_of(self, step: LightningStep) -> int:
        """The number of the batch in its split, or in the set that is gone through beside the training."""
        if self._loop.visit is None:
            return self._loop.done
        if step.visit is not self._loop.visit:
            step.visit, step.visited = self._loop.visit, 0
        step.visited += 1
        return step.visited - 1

    def functions(self) -> Iterator[tuple[str, Any]]:
        """What the user wrote and this calls."""
        for name in (*LIGHTNING_STEPS.values(), *_CALLED):
            if method := lightning_method(self._model, name):
                yield name, getattr(method, "__func__", method)

    def call(self, model: Any, name: str, *args: Any) -> Any:
        """Call a method of the model, which finds there what it asks of its trainer."""
        __tracebackhide__ = True
        with _lent(model, self._gifts()):
            try:
                return getattr(model, name)(*args)
            finally:
                self._put_flags_back()

    def _gifts(self) -> dict[str, Any]:
        return {
            "trainer": self._trainer,
            "log": self.log,
            "log_dict": self.log_dict,
            "optimizers": self.optimizers,
            "lr_schedulers": self.lr_schedulers,
            "manual_backward": _run_backward,
            "toggle_optimizer": self.toggle,
            "untoggle_optimizer": self.untoggle,
            "toggled_optimizer": self.toggled,
            "clip_gradients": _clip,
            "print": print,
        }

    # Values by name ------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: Any = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        **options: Any,
    ) -> None:
        """Note a value of this step, or of the epoch at its end."""
        if self._loop.acting == "epoch":
            return self._tell(
                f"self.log({name!r}, ...) in on_train_epoch_end comes after the epoch's values were read: it "
                "is left out; log it in training_step"
            )
        if reduce_fx not in ("mean", torch.mean):
            self._tell(f"self.log({name!r}, reduce_fx={reduce_fx!r}): the epoch's value is the mean")
        self.learner().log(self._free(name), value)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Note several values."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)

    def _free(self, name: str) -> str:
        """The name as one of a log file, which is not that of a registered metric."""
        name = _as_file(name)
        group = self._loop.measuring
        if group is None:
            return name
        taken = [each.name for each in group.metrics if each.name not in group.logged]
        return f"{name} logged" if any(same_file(name, each) for each in taken) else name

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.learner()._emit(Notice(text, "warning"))

    # Manual optimization -------------------------------------------------------------------------------

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or all of them in their order."""
        every: list[Any] = self._trainer.optimizers
        if use_pl_optimizer:
            every = [_OptimizerInStep(each, self) for each in every]
        return every[0] if len(every) == 1 else every

    def lr_schedulers(self) -> Any:
        """The scheduler, or all of them in their order, or None."""
        return self._schedulers[0] if len(self._schedulers) == 1 else self._schedulers or None

    def toggle(self, optimizer: Any) -> None:
        """Let only the parameters of this optimizer train."""
        mine = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for parameter in self._parameters():
            self._flags.setdefault(parameter, parameter.requires_grad)
            parameter.requires_grad_(self._flags[parameter] and id(parameter) in mine)

    def untoggle(self, optimizer: Any) -> None:
        """Let all parameters train that did."""
        self._put_flags_back()

    @contextmanager
    def toggled(self, optimizer: Any) -> Iterator[None]:
        """Inside, only the parameters of this optimizer train."""
        self.toggle(optimizer)
        try:
            yield
        finally:
            self.untoggle(optimizer)

    def _parameters(self) -> Iterator[Any]:
        every = self._trainer.optimizers
        return (each for one in every for group in one.param_groups for each in group["params"])

    def _put_flags_back(self) -> None:
        for parameter, trains in self._flags.items():
            parameter.requires_grad_(trains)
        self._flags.clear()

    # Between steps -------------------------------------------------------------------------------------

    @property
    def pieces(self) -> Any:
        """The batch in parts, after `split_batch`."""
        return self._loop.update.pieces

    def end_update(self, _: Any) -> None:
        """After a batch and its update."""
        output, self.last = self.last, None
        given = output if isinstance(output, Mapping) else {"loss": getattr(output, "detach", lambda: None)()}
        self.call(self._model, "on_train_batch_end", given, self._loop.batch, self._loop.done)

    def end_epoch(self, _: Any) -> None:
        """After an epoch with its validation."""
        self.call(self._model, "on_train_epoch_end")

    def close(self, split: Split) -> None:
        """Before a split's values are read: let the model log its own."""
        __tracebackhide__ = True
        if split == "valid":
            with torch.no_grad():
                self.call(self._loop.modes.validated, "on_validation_epoch_end")


def _nobody() -> Any:
    return None


def invited(settings: Settings, loop: Loop, model: Any) -> LightningGuest | None:
    """Have the loop call the hooks of a model that was written for Lightning, if it trains by them."""
    if not trains_by_its_steps(settings, model):
        return None
    guest = LightningGuest(settings, loop, model)
    if lightning_method(model, "on_validation_epoch_end"):
        loop.closing = guest.close
    acts: dict[After, Callable[[Any], None]] = {"epoch": guest.end_epoch}
    if settings.window == 1:
        acts["update"] = guest.end_update
    for when, function in acts.items():
        if lightning_method(model, _CALLED_AFTER[when]):
            loop.acts[when] = [Act(function, _nobody)]
    return guest


_CALLED_AFTER: Mapping[After, str] = {"update": "on_train_batch_end", "epoch": "on_train_epoch_end"}
_CALLED = (*_CALLED_AFTER.values(), "on_train_epoch_start", "on_train_batch_start")
_CALLED += ("on_validation_epoch_start", "on_validation_epoch_end")


def _told_of(model: Any, window: int) -> str:
    known = _ELSEWHERE if window == 1 else (*_ELSEWHERE, "on_train_batch_end")
    names = [name for name in known if lightning_method(model, name)]
    are = "is" if len(names) == 1 else "are"
    why = "not called: only the steps and the hooks around batches and epochs have a place here"
    return f"{', '.join(names)} of {type(model).__name__} {are} {why}" if names else ""


def _run_backward(loss: torch.Tensor, *args: Any, **options: Any) -> None:
    loss.backward(*args, **options)  # type: ignore[no-untyped-call]


def _clip(
    optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
) -> None:
    if gradient_clip_val is None:
        raise StepError("self.clip_gradients(optimizer) needs a limit: gradient_clip_val=1.0")
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    clip = clip_grad_value_ if gradient_clip_algorithm == "value" else clip_grad_norm_
    clip(parameters, gradient_clip_val)


@contextmanager
def _lent(model: Any, gifts: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the model has these attributes. A module of Lightning takes its trainer's facts by `_trainer`;
    any other one has them itself."""
    facts = gifts["trainer"]
    own = model.__dict__
    gifts = {
        **gifts,
        "_trainer": facts,
        "current_epoch": facts.current_epoch,
        "global_step": facts.global_step,
    }
    before = {name: own[name] for name in gifts if name in own}
    own.update(gifts)
    try:
        yield
    finally:
        for name in gifts:
            own.pop(name, None)
        own.update(before)


# The steps ---------------------------------------------------------------------------------------------


class LightningStep:
    """`fn(batch) -> output` of a model's `training_step`, `validation_step` or `predict_step`."""

    def __init__(self, guest: LightningGuest, model: Any, split: StepKind) -> None:
        self._guest, self._model, self._split = guest, model, split
        self._name = LIGHTNING_STEPS[split]
        method = getattr(model, self._name)
        self.written = getattr(method, "__func__", method)
        self._takes = _takes(method)
        self._keeps = split == "train" and bool(lightning_method(model, "on_train_batch_end"))
        self._hooks = [name for name in _STARTS.get(split, ()) if lightning_method(model, name)]
        self.visit: Any = None
        self.visited = 0
        """The set that this step goes through beside the training, and how many of its batches came."""

    def __call__(self, batch: Any) -> Any:
        __tracebackhide__ = True
        guest, model, at = self._guest, self._model, self._guest.number_of(self)
        pieces = guest.pieces
        for name in self._hooks if pieces is None or pieces.begins else ():
            if name.endswith("batch_start"):
                guest.call(model, name, batch, at)
            elif at == 0:
                guest.call(model, name)
        output = guest.call(model, self._name, *(batch, at, 0)[: self._takes])
        if output is None and self._split == "train" and not _drives_itself(model):
            raise StepError(
                "training_step returned None, with which Lightning skips a batch; return the loss, or leave "
                "such batches out of the loader"
            )
        if self._keeps:
            guest.last = output
        return output


_STARTS = {"train": ("on_train_epoch_start", "on_train_batch_start"), "valid": ("on_validation_epoch_start",)}


def _takes(method: Callable[..., Any]) -> int:
    """How many of (batch, batch_idx, dataloader_idx) a step takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [each for each in inspect.signature(method).parameters.values() if each.kind in kinds]
    needed = [each for each in parameters if each.default is each.empty or each.name == "batch_idx"]
    return min(len(needed), 3) or 1
