"""From settings to a Learner: the only module that knows every part and joins them."""

from __future__ import annotations

import copy
import os
import types
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ...artifacts.live_index import FILE
from ...breakpoint import Condition
from ...carried.part import CarriedPart, Sources
from ...cluster import ClusterError, find_engines, is_cluster
from ...data.cursor import Cursor
from ...data.rank_share import Share
from ...data.rng import seeded_rng
from ...data.sources import parts_of
from ...data.to_device import way_to
from ...errors import ConfigurationError, StateError, StoreError
from ...event import Display, FanOut, MetricInfo, Notice, Sink, Split
from ...event.values import Source
from ...logger import History
from ...metric import DataWait, GradNorm, LearningRate, MetricGroup
from ...metric.base import AnyMetric, own_copy
from ...recipe.run_recipe import RunRecipe
from ...remote.detached import detached_in, end_detached
from ...remote.server import RemoteControl
from ...renderer import resolve
from ...run import interrupts as background
from ...run.control import Control
from ...run.driver import Driver
from ...run.early_stopping import EarlyStopping
from ...run.loop import Act, Loop, LoopContext
from ...run.modes import Modes
from ...run.replica import Replica
from ...run.reshaping import name_of
from ...run.settings import PRECISIONS, Registered, Settings
from ...run.trained_models import TrainedBefore
from ...state.checkpoint_files import Which
from ...state.parts import RngPart, ScalerPart, WindowPart
from ...state.state import ModelPart, Part, State, optimizer_part
from ...state.timeline import Timeline
from ...step.clipping import clips_of
from ...step.graph_step import RECORDERS, Log, RecordedStep
from ...step.moving_average import MovingAverage
from ...step.optimizers import each_of, named_of
from ...step.own_loss import (
    LIGHTNING_STEPS,
    StepKind,
    lightning_method,
)
from ...step.schedule import Schedule, functions_in, schedulers_of
from ...step.step import TrainingStep, ValidationStep
from ...step.update import Update
from ...store import RunLayout
from ..core import Batches
from ..learner import Learner
from .cells import recorded_cell
from .checks import mistakes_in
from .directory_tenancy import Tenancy
from .fork_run import Origin
from .lightning import (
    LightningGuest,
    LightningStep,
    configured,
    invited,
    is_data_module,
    loader_of,
    loaders_in,
    with_its_metrics,
)
from .loaders import CANNOT_BEGIN, NO_STEP, Loaders, data_mistakes, sample_mistakes
from .make_optimizer import make_optimizer, make_schedule, move_state, told_of_unseen
from .run_files import Storing, opening
from .sharding_checks import optimizer_mistakes
from .undo_build import unchanged_if_it_fails

Data = tuple[tuple[Split, Any], ...]


def assemble(
    settings: Settings,
    model: Any,
    optimizer: Any,
    scheduler: Any,
    train: Batches | None,
    valid: Batches | None,
) -> Learner:
    """Check, make the parts, check them, then join them. A failed build leaves the user's objects
    unchanged."""
    settings = settings.of_one_learner()
    wrong: list[str] = []
    module = train if is_data_module(train) else None
    if module is not None:
        made_of = loaders_in(module)
        train, valid = made_of.get("train"), made_of.get("valid") if valid is None else valid
    if optimizer is None and callable(getattr(model, "configure_optimizers", None)):
        train, valid = train or loader_of(model, "train"), valid or loader_of(model, "val")
        optimizer, own, settings = configured(model, settings, train)
        scheduler = own if scheduler is None else scheduler
    settings = with_its_metrics(settings, model)
    _note_engines(wrong, settings)
    if settings.share is None and isinstance(settings.devices, (list, tuple)) and len(settings.devices) > 1:
        settings.share = Share(0, len(settings.devices))
    given: Data = (("train", train), ("valid", valid))
    data: Data = tuple((split, loader) for split, loader in given if loader is not None)
    with unchanged_if_it_fails((model, *each_of(optimizer), settings.loss)):
        found = [*wrong, *mistakes_in(settings, model), *sample_mistakes(settings)]
        for split, loader in data:
            found += data_mistakes(settings, model, split, loader)
        renderer = _noted(found, lambda: resolve(settings.renderer), ValueError)
        state = _checkpoint(found, settings)
        if not isinstance(model, nn.Module):
            raise ConfigurationError(found)
        made, schedule = _made(found, settings, model, optimizer, scheduler)
        if found or made is None or schedule is None:
            raise ConfigurationError(found)
        learner = _Wiring(settings, model, made, schedule, renderer).learner(data, module)
        if state is not None:
            learner.restore(state)
        elif settings.checkpoint is not None:
            _go_on(learner, settings, settings.checkpoint, f"checkpoint({settings.checkpoint!r})")
        elif settings.resume and (settings.files_asked or settings.takes_back):
            _resume(learner, settings)
        return learner


def _note_engines(found: list[str], settings: Settings) -> None:
    """Find the engines, if the devices are those of a cluster; a mistake is noted like all others."""
    given = settings.devices
    if isinstance(given, list) and len(given) == 1:
        given = given[0]  # a cluster's id
    if settings.cluster is None and is_cluster(given):
        here, address = settings.here, settings.address
        settings.cluster = _noted(found, lambda: find_engines(given, here, address), ClusterError)
        settings.devices = None if settings.cluster is None else settings.cluster.devices
        settings.here = settings.address = None


def _resume(learner: Learner, settings: Settings) -> None:
    if settings.takes_back:  # only when nothing else prevents going on here
        end_detached(settings.directory)
    if found := learner._look_for_checkpoints():
        _go_on(learner, settings, "latest" if settings.files_asked else found[-1].label, "resume()")
    if settings.at is not None:
        _go_to(learner, settings.at, bool(found))


def _go_on(learner: Learner, settings: Settings, which: Which, said: str) -> None:
    """Go on from a checkpoint in the run's own folder."""
    try:
        learner._drive(partial(learner._restore_checkpoint, which, given=settings.takes_given))
    except (StateError, StoreError) as refused:
        none = which == "latest" and not learner.checkpoints
        more = "; use resume() instead, which then starts from the beginning" if none else ""
        raise ConfigurationError([f"{said}: {refused}{more}"]) from refused


def _go_to(learner: Learner, at: Any, goes_on: bool) -> None:
    """Go to a step of the run that goes on."""
    said, others = f"resume(at={at!r})", learner._supplies.recipe.take_recorded()
    if not goes_on:
        raise ConfigurationError([f"{said}: the directory holds no checkpoint of a run to go on with"])
    try:
        learner._supplies.require()
    except ConfigurationError as missing:
        why = f"{others}{missing.mistakes[0]}; or call learner.rewind(to={at!r}) later"
        raise ConfigurationError([f"{said} takes steps again: {why}"]) from missing
    try:
        report = learner.rewind(to=at)
    except (StateError, ValueError) as refused:
        raise ConfigurationError([f"{said}: {refused}"]) from refused
    learner._emit(Notice(str(report), "info" if report.exact else "warning"))


def _noted(found: list[str], make: Callable[[], Any], error: type[Exception]) -> Any:
    """Return what was made, or note a mistake and return None."""
    try:
        return make()
    except error as refused:
        found.append(str(refused))
        return None


def _checkpoint(found: list[str], settings: Settings) -> State | None:
    """Load the state to go on from; after a mistake in the settings it is not looked for."""
    which, keeper = settings.checkpoint, settings.checkpointer
    if keeper is None or settings.files_asked or found:
        return None
    if settings.takes_back and detached_in(settings.directory):
        return None  # the detached process has the newest state, in the directory
    state: State | None = None
    if which is not None:
        state = _noted(found, lambda: keeper.load(which), StateError)
    elif settings.resume:
        state = _noted([], lambda: keeper.load("latest"), StateError)  # no state yet: a new start
    settings.goes_on = state is not None
    return state


def _made(
    found: list[str], settings: Settings, model: nn.Module, optimizer: Any, scheduler: Any
) -> tuple[Optimizer | None, Schedule | None]:
    """Make optimizer and schedule. The model moves to its device first, since some optimizers make their
    state at once. After a mistake the model does not move, and they are made only to be checked."""
    if not found:
        _move(model, optimizer, settings)
    made, wrong = make_optimizer(model, optimizer, settings)
    found += wrong
    if made is None:
        return None, None
    found += optimizer_mistakes(settings, made)
    schedule, wrong = make_schedule(scheduler, made, settings)
    found += wrong
    return made, schedule


def _move(model: nn.Module, optimizer: Any, settings: Settings) -> None:
    device = _device_of(settings, model)
    if isinstance(settings.loss, nn.Module):  # for example because of class weights
        settings.loss.to(device)
    if settings.devices is None:
        return  # the model stays where it is, even on several devices
    model.to(device)
    for each in each_of(optimizer):
        if isinstance(each, Optimizer):
            move_state(each, device)


def _device_of(settings: Settings, model: nn.Module) -> torch.device:
    if settings.devices is not None:
        return torch.device(settings.devices[0])
    return next(model.parameters()).device


class _Wiring:
    """The parts of one learner while they are joined."""

    def __init__(
        self, settings: Settings, model: nn.Module, optimizer: Optimizer, schedule: Schedule, renderer: Sink
    ) -> None:
        self.settings = settings
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.renderer = renderer
        self.device = _device_of(settings, model)
        self.precision = PRECISIONS[settings.precision]
        if settings.compile is not None:
            compile_forward(model, settings.compile)
        self.average = _average(settings, model)
        averaged = self.average is not None and settings.ema_validates
        self.validated: nn.Module = self.average.module if averaged and self.average else model
        self.registered = _own_metrics(settings.registered())
        self.watch = self._watch()
        self.guest: LightningGuest | None = None

    def learner(self, data: Data, module: Any) -> Learner:
        """Join all parts, and put in the data, and the data module that they are of."""
        update = self._update()
        groups = self._groups()
        opened = opening(
            self.settings, self.model, self.registered, self.device, self.optimizer, self.schedule
        )
        replica = self._replica(update, groups, opened.metrics)
        make_step = partial(self._step, update, groups["train"].log)
        origin = Origin(self.settings, self.model, replica, assemble)
        rules, recipe = self._rules(), self.storing.recipe
        loaders = Loaders(
            self.settings,
            self.model,
            replica,
            groups,
            make_step,
            rules,
            origin,
            recipe,
            self.storing.branches,
        )
        driver = Driver(replica.loop.control)
        background.attend()
        driver.process = os.getpid()
        driver.saves_its_end = replica.saving.autosave.on_pause
        remote = _remote(self.settings, replica)
        tenancy = Tenancy(
            self.storing,
            self.settings.about_a_run_there,
            self.settings.keeps_files,
            driver,
            replica.sinks,
            _nothing if remote is None else remote.close,
            remote or _unsteered,
        )
        learner = Learner(replica, driver, opened, loaders, tenancy, remote or _unsteered)
        _join_acts(replica, learner, self.settings)
        recipe.code.make = partial(recorded_cell, weakref.ref(learner))
        if self.guest is not None:
            self.guest.learner = weakref.ref(learner)
            if self.guest.uncalled:
                replica.emit(Notice(self.guest.uncalled, "warning"))
        replica.shaping.functions, replica.shaping.use_functions = loaders.functions, loaders.use_functions
        replica.shaping.renew = loaders.renew
        replica.shape.look()
        if self.settings.share is not None and self.settings.share.rank == 0:
            self._found_fleet(learner, replica, loaders)
        for told in told_of_unseen(self.model, self.optimizer):
            replica.emit(Notice(told, "warning"))
        for split, loader in data:
            loaders.use(learner, split, loader)
        loaders.module = module
        if isinstance(self.renderer, Display):
            learner._shown_on(self.renderer)
        return learner

    def _found_fleet(self, learner: Learner, replica: Replica, loaders: Loaders) -> None:
        from ...ranks.leader import Fleet  # torch.distributed and more, for several devices
        from ...ranks.recipe import RecipeSource

        source = RecipeSource(self.settings, replica, loaders.given)
        source.learner = weakref.ref(learner)
        devices = [torch.device(each) for each in self.settings.devices]
        replica.loop.ranks = Fleet(replica, source, devices, self.settings.cluster)

    # The parts ---------------------------------------------------------------------------------------

    def _watch(self) -> EarlyStopping | None:
        rule = self.settings.early_stopping
        if rule is None:
            return None
        metric = self.settings.metrics_of(rule.split)[rule.metric]
        return rule.watch(getattr(metric, "higher_is_better", None))

    def _rules(self) -> dict[str, Source]:
        """The metrics by which early stopping and ReduceLROnPlateau decide."""
        rules = {}
        if self.watch is not None:
            rules[str(self.watch)] = self.watch.goes_by
        if self.schedule.goes_by is not None:
            rules["ReduceLROnPlateau"] = self.schedule.goes_by
        return rules

    def _update(self) -> Update:
        half = self.precision is torch.float16
        update = Update(
            self.model,
            self.optimizer,
            self.schedule,
            window=self.settings.window,
            scaler=GradScaler(self.device.type) if half else None,
            clips=clips_of(self.settings.clip_norm, self.settings.clip_value),
            average=self.average,
        )
        metrics = [r.metric for r in self.registered]
        update.watch_norm = any(isinstance(metric, GradNorm) for metric in metrics)
        update.watch_rates = any(isinstance(metric, LearningRate) for metric in metrics)
        return update

    def _groups(self) -> dict[Split, MetricGroup]:
        return {
            "train": MetricGroup([r.metric for r in self.registered if r.split == "train"]),
            "valid": MetricGroup([r.metric for r in self.registered if r.split == "valid"]),
        }

    def _replica(
        self, update: Update, groups: dict[Split, MetricGroup], metrics: tuple[MetricInfo, ...]
    ) -> Replica:
        settings, watch = self.settings, self.watch
        loop = Loop(
            {},
            update,
            self.schedule,
            Modes(self.model, self.validated),
            Control(),
            lambda event: None,
            num_epochs=settings.num_epochs,
            policies=() if watch is None else (watch,),
        )
        self.guest = invited(settings, loop, self.model)
        loop.before = TrainedBefore(self.model, str(settings.directory))
        loop.counts_waits = any(isinstance(r.metric, DataWait) for r in self.registered)
        for split, group in groups.items():
            group.attach(LoopContext(loop))
            group.owner = partial(_model_of, loop, split)
        rng = RngPart()
        if settings.seed is not None:
            rng.begin_with(seeded_rng(settings.seed))
        history = History()
        recipe = RunRecipe(
            settings,
            self.model,
            update,
            lambda: loop.position,
            lambda: loop.num_epochs,
            RunLayout(os.fspath(settings.directory)).directory / FILE,
        )
        storing = self.storing = Storing(settings, metrics, history.snapshot, self.model, recipe)
        replica = Replica(
            loop,
            self._parts(loop, update, rng),
            rng,
            Timeline(settings.keyframe_every, settings.keyframe_memory),
            history,
            FanOut([history, *storing.listeners], [self.renderer], storing.writers),
            storing.saving(),
            settings.reshaped,
            settings.in_parts and settings.share is not None,
        )
        replica.by_hand, replica.causes = recipe.by_hand(), recipe.causes
        recipe.repeated = replica.have_ranks_follow
        replica.timeline.beside = lambda: sum(each.cursor.kept_bytes for each in loop.passes.values())
        storing.emit = replica.emit
        for condition, once in settings.breakpoints:
            own = copy.deepcopy(condition) if isinstance(condition, Condition) else condition
            replica.watch.breakpoints.add(own, once=once)  # what it has seen belongs to this run alone
        return replica

    def _carried(self, loop: Loop, update: Update, tell: Callable[[str], None]) -> CarriedPart:
        """What steps reach outside of the other parts."""
        share, off = self.settings.share, self.settings.exactness == "off"
        models = [("model", self.model)]
        if self.average is not None:
            models.append(("ema_model", self.average.module))
        sources = Sources(
            models,
            lambda: named_of(update.optimizer),
            lambda: [
                ("schedule", update.schedule),
                *(("scheduler", each) for each in schedulers_of(update.schedule)),
                ("scaler", update.scaler),
            ],
            lambda: [*_functions(loop), *(self.guest.functions() if self.guest else ())],
            lambda: [
                (name, part, cursor.walk.generators)
                for split, cursor in _cursors(loop)
                for name, part in parts_of(split, cursor.source)
            ],
            self.settings.carried,
        )
        silent = off or (share is not None and share.rank > 0)  # rank 0 tells it
        return CarriedPart(
            Sources([], dict, list, list, list, {}) if off else sources,
            _nothing_told if silent else tell,
            self.settings.exactness == "required" and not silent,
            share is not None and self.settings.in_parts,
        )

    def _parts(self, loop: Loop, update: Update, rng: RngPart) -> dict[str, Part]:
        """Everything that a step can change, except the data, which comes with its loaders."""
        parts: dict[str, Part] = {
            "model": ModelPart(self.model),
            "optimizer": optimizer_part(self.optimizer),
            "scheduler": self.schedule,
            "window": WindowPart(update),
            "rng": rng,
            "loop": loop,
            "carried": self._carried(loop, update, lambda text: loop.emit(Notice(text, "warning"))),
        }
        if update.scaler is not None:
            parts["scaler"] = ScalerPart(update.scaler)
        if self.average is not None:
            parts["ema"] = ModelPart(self.average)
        if self.watch is not None:
            parts["early_stopping"] = self.watch
        return parts

    def _step(self, update: Update, log: Log, split: StepKind) -> TrainingStep | ValidationStep:
        way = way_to(self.device, self.settings.prefetch)
        if split != "train":
            return ValidationStep(self._function(split, self.validated), way, self.precision, update)
        function = self._function(split, self.model)
        if self.settings.graph:
            return RecordedStep(function, way, self.precision, update, RECORDERS[self.device.type], log)
        return TrainingStep(function, way, self.precision, update)

    def _function(self, split: StepKind, model: nn.Module) -> Callable[[Any], Any]:
        """What is called for a batch."""
        if self.guest is not None and lightning_method(model, LIGHTNING_STEPS[split]):
            return LightningStep(self.guest, model, split)
        return self.settings.step_for(split, model) or _not_yet_known


def _remote(settings: Settings, replica: Replica) -> RemoteControl | None:
    """Make the remote control of the run, or None."""
    if not settings.remote_control or not settings.keeps_files:
        return None
    anew = weakref.WeakMethod(replica.stand_anew)  # a listening thread must not keep it alive

    def changed() -> None:
        if (stand_anew := anew()) is not None:
            stand_anew()

    return RemoteControl(settings.directory, changed)


def _unsteered(learner: Learner) -> str:
    return ""


def _nothing() -> None:
    pass


def _nothing_told(text: str) -> None:
    pass


def _model_of(loop: Loop, split: Split) -> nn.Module:
    """The model that the steps of a split are given."""
    return loop.modes.model if split == "train" else loop.modes.validated


def _cursors(loop: Loop) -> Iterator[tuple[str, Cursor]]:
    return ((split, each.cursor) for split, each in loop.passes.items())


def _join_acts(replica: Replica, learner: Learner, settings: Settings) -> None:
    """Have the loop call the user's functions, with the learner that it does not keep alive."""
    loop, theirs = replica.loop, weakref.ref(learner)
    replica.shape.functions = {name_of(each): Act(each, theirs) for each in settings.reshapes}
    for when, function in settings.acts:
        loop.acts.setdefault(when, []).append(Act(function, theirs))
    if "update" in loop.acts:
        loop.update.after = partial(loop.act, "update")


def _functions(loop: Loop) -> Iterator[tuple[str, Any]]:
    """The functions that are called for a batch, those of `.on`, and those that set rates."""
    for function in functions_in(loop.update.schedule):
        yield "schedule", function
    for when, acts in loop.acts.items():
        for act in acts:
            yield f"on({when})", act.function
    for split, each in loop.passes.items():
        function = each.step.function
        yield f"{split}_step", function
        cell = getattr(function, "func", None)
        if (body := getattr(cell, "body", None)) is not None:
            yield f"%%{split}", body.function
            yield f"names of %%{split}", getattr(cell, "carried", None)


# Pieces ----------------------------------------------------------------------------------------------


def _own_metrics(registered: list[Registered]) -> list[Registered]:
    """Copy a metric that is registered twice, or was used by an earlier learner, as each metric object
    accumulates one split of one learner."""
    taken: list[AnyMetric] = []
    for each in registered:
        if hasattr(each.metric, "context") or any(each.metric is other for other in taken):
            each.metric = own_copy(each.metric)
        taken.append(each.metric)
    return registered


def _average(settings: Settings, model: nn.Module) -> MovingAverage | None:
    if settings.ema_decay is None:
        return None
    try:
        return MovingAverage(model, settings.ema_decay)
    except Exception as refused:
        raise ConfigurationError(
            [f"ema({settings.ema_decay!r}) keeps a copy of the model, which cannot be copied: {refused}"]
        ) from refused


def _not_yet_known(batch: Any) -> Any:
    raise ConfigurationError([NO_STEP], CANNOT_BEGIN)


def compile_forward(model: nn.Module, options: dict[str, Any]) -> None:
    """Compile like `model.compile(**options)`, but also a module whose forward is torch's own (nn.Sequential,
    nn.Linear). There `model.compile` silently does nothing, as the compiler skips torch's files."""
    model._compiled_call_impl = torch.compile(_call_of_its_own(model._call_impl), **options)


def _call_of_its_own(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function with a code object of its own. The compiler counts per code object, and falls back to
    eager after eight models: a cell that builds a model may well run eight times."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return types.FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__
    )
