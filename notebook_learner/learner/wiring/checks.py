"""Checks of a configuration. Each check gives its mistakes as lines, and none raises, for any argument. What
has to be made first (optimizer, schedule, data) is checked where it is made."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, get_args

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...breakpoint import Condition
from ...checkpoint.info import LABEL
from ...checkpoint.recorder import Recorder
from ...checkpoint.strategy import Strategy, best_rule
from ...errors import a_kind, wrong_arguments
from ...event import Sink
from ...metric.base import Metric, TextMetric
from ...metric.rows import HOW_TO_MERGE, says_how_to_merge
from ...recipe.plain_values import config_mistakes
from ...run.loop import After
from ...run.reshaping import name_of
from ...run.saving import seconds_of
from ...run.settings import PRECISIONS, EarlyStoppingRule, Registered, Settings
from ...state.checkpoint_files import Checkpointer
from ...step.graph_step import RECORDERS
from ...step.own_loss import may_take_keys
from ...store import check_metric_name, same_file
from .cells import cells_may_come
from .lightning import trains_by_its_steps
from .sharding_checks import dividing_mistakes


def mistakes_in(settings: Settings, model: Any) -> Iterator[str]:
    """All mistakes that can be found before anything is made."""
    yield from _directory(settings)
    yield from _counts(settings)
    yield from _numbers(settings)
    yield from _choices(settings)
    if settings.cluster is None:
        yield from device_mistakes(settings.devices)
        if settings.here is not None or settings.address is not None:
            yield f"devices({settings.devices!r}): leave out here= and address=, which go with a cluster"
    else:
        yield from device_mistakes([settings.cluster.here])
        yield from _of_one_kind({settings.cluster.here.partition(":")[0]}, settings.cluster.named)
    if settings.batch not in ("global", "per_device"):
        yield (
            f"devices(..., batch={settings.batch!r}): a loader's batch is that of all devices together, "
            "'global', or that of each, 'per_device'"
        )
    if settings.data not in ("host", "device"):
        yield f"devices(..., data={settings.data!r}): the data stay on the 'host', or live on the 'device'"
    if not isinstance(settings.prefetch, bool):
        yield f"devices(..., prefetch={settings.prefetch!r}): True copies batches ahead, False does not"
    yield from _narrowed(settings.narrowed)
    yield from metric_mistakes(settings.metrics)
    yield from _merging(settings)
    yield from _early_stopping(settings)
    yield from _sinks(settings)
    yield from _checkpoint(settings)
    yield from config_mistakes(settings.configs)
    yield from step_mistakes(settings)
    yield from _breakpoints(settings)
    yield from _compile(settings.compile)
    if settings.graph:
        yield from _graph(settings, model)
    yield from dividing_mistakes(settings, model)
    yield from _model(settings, model)


# Numbers and choices ---------------------------------------------------------------------------------


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any, accepted: Callable[[float], bool]) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and accepted(value)


def _counts(settings: Settings) -> Iterator[str]:
    counts = {
        "num_epochs": settings.num_epochs,
        "grads_accumulation": settings.window,
        "with_batch_size": settings.batch_size,
        "keyframes(every=...)": settings.keyframe_every,
        "keyframes(memory=...)": settings.keyframe_memory,
    }
    needed = ("num_epochs", "grads_accumulation")
    for name, value in counts.items():
        if (value is not None or name in needed) and not _is_whole(value, 1):
            yield f"{name} is {value!r}; give a whole number from 1"


def _numbers(settings: Settings) -> Iterator[str]:
    if settings.clips and settings.clip_norm is None and settings.clip_value is None:
        yield "clip_gradients() needs a limit: clip_gradients(norm=1.0) or clip_gradients(value=0.5)"
    for name, limit in {"norm": settings.clip_norm, "value": settings.clip_value}.items():
        if limit is not None and not _is_number(limit, lambda number: number > 0):
            yield f"clip_gradients({name}={limit!r}): give a limit above 0, such as 1.0"
    decay = settings.ema_decay
    if decay is not None and not _is_number(decay, lambda number: 0 < number < 1):
        yield f"ema({decay!r}): the decay must lie between 0 and 1, such as 0.999"
    if not _is_whole(settings.first_epoch, 0):
        yield f"num_epochs(first={settings.first_epoch!r:.60}): give 0 or 1"
    if settings.seed is not None and not _is_whole(settings.seed, 0):
        yield f"seed({settings.seed!r}): give a whole number from 0"


def _choices(settings: Settings) -> Iterator[str]:
    switches = {
        "remote_control": settings.remote_control,
        "ema(validate=...)": settings.ema_validates,
        "resume(take_back=...)": settings.takes_back,
    }
    for name, value in switches.items():
        if not isinstance(value, bool):
            yield f"{name} is {value!r:.60}; give True or False"
    if not _is_one_of(settings.precision, PRECISIONS):
        yield f'precision({settings.precision!r}): choose "fp32", "bf16" or "fp16"'
    for when, function in settings.acts:
        if when not in get_args(After):
            yield f'on({when!r:.60}, ...): choose "update", "validated" or "epoch"'
        if not callable(function):
            yield f"on({when!r:.60}, {function!r:.60}): give a function that takes the learner"
    named: dict[str, Any] = {}
    for function in settings.reshapes:
        name = name_of(function)
        if not callable(function) or not name:
            yield f"reshapes({function!r:.60}): give a function that takes the learner, with its own name"
        elif named.setdefault(name, function) is not function:
            yield f"reshapes(...) has two functions of the name {name!r}; a checkpoint names only one"
    if not _is_one_of(settings.scheduler_when, (None, "step", "epoch")):
        yield f'step_scheduler({settings.scheduler_when!r}): choose "step" or "epoch"'


def _is_one_of(value: Any, choices: Any) -> bool:
    return any(value is choice or value == choice for choice in choices)


def _directory(settings: Settings) -> Iterator[str]:
    directory: Any = settings.directory
    if not isinstance(directory, (str, os.PathLike)) or not os.fspath(directory):
        yield f"the directory is {directory!r}; give a path, such as LearnerBuilder('runs/digits')"
    elif os.path.exists(directory) and not os.path.isdir(directory):
        yield f"the directory {os.fspath(directory)!r} is a file; give a folder, or a new name"
    elif (above := _first_there(os.path.abspath(directory))) and not os.path.isdir(above):
        yield f"the directory {os.fspath(directory)!r} cannot be made: {above!r} is a file; give another name"
    elif not os.access(above, os.W_OK | os.X_OK):
        read_only = hasattr(os, "statvfs") and os.statvfs(above).f_flag & os.ST_RDONLY
        why = "Read-only file system" if read_only else "Permission denied"
        yield (
            f"the directory {os.fspath(directory)!r} cannot be written to ({why}); give one in your home "
            "directory, or in /tmp"
            + ("; to go on with a run that lies here, copy it there first" if settings.resume else "")
        )


def _first_there(directory: str) -> str:
    """The directory, or the nearest existing one above it."""
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    return directory


def device_mistakes(devices: Any) -> Iterator[str]:
    """What is wrong with the given devices."""
    if devices is None:
        return
    if not isinstance(devices, (list, tuple)):
        yield f"devices({devices!r}): give a list with one device, such as ['cuda:0']"
        return
    if not devices:
        yield "devices([]): give at least one device, such as ['cuda:0']"
        return
    known, unknown = _sorted_out(devices)
    for each in unknown:
        yield (
            f"devices([{each!r}]): torch knows no such device; try 'cpu' or 'cuda:0', or the id of an "
            "ipyparallel cluster that runs (`ipcluster list`)"
        )
    for device in dict.fromkeys(known):
        yield from _absent(device, f"devices([{str(device)!r}])")
    if not unknown and len(known) > 1:
        yield from _together(known, f"devices({[str(device) for device in known]!r})")


def _sorted_out(devices: Iterable[Any]) -> tuple[list[torch.device], list[Any]]:
    """The devices that torch knows, and those that it does not."""
    known, unknown = [], []
    for each in devices:
        try:
            known.append(torch.device(each))
        except (RuntimeError, TypeError):
            unknown.append(each)
    return known, unknown


def _together(devices: list[torch.device], said: str) -> Iterator[str]:
    """What is wrong with several devices of one machine together."""
    mixed = list(_of_one_kind({device.type for device in devices}, said))
    yield from mixed or _named_twice(devices, said)
    yield from _packages(said)


def _of_one_kind(kinds: set[str], said: str) -> Iterator[str]:
    if kinds not in ({"cpu"}, {"cuda"}):
        yield f"{said}: several devices are all CUDA devices, or all 'cpu' (a process each)"


def _named_twice(devices: list[torch.device], said: str) -> Iterator[str]:
    numbers = [device.index or 0 for device in devices if device.type == "cuda"]
    if len(set(numbers)) < len(numbers):
        yield f"{said}: name each CUDA device once"


def _packages(said: str) -> Iterator[str]:
    if not all(importlib.util.find_spec(name) for name in ("ipyparallel", "cloudpickle")):
        yield f"{said}: several devices need two more packages: pip install 'notebook_learner[devices]'"


def _absent(device: torch.device, said: str) -> Iterator[str]:
    if device.type == "meta":
        yield f"{said}: tensors have no values there, so nothing can be trained; try 'cpu' or 'cuda:0'"
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        there = f"the last one is cuda:{count - 1}" if count else "torch sees none here; try 'cpu'"
        yield f"{said}: there is no such CUDA device; {there}"
    if device.type == "mps" and not torch.backends.mps.is_available():
        yield f"{said}: torch sees no Apple GPU here; try 'cpu'"


# Metrics, and what depends on them -------------------------------------------------------------------


def listed(metrics: Any) -> list[Any]:
    """Make a list of one metric or of several; a later check refuses anything else as a metric."""
    several = isinstance(metrics, Iterable) and not isinstance(metrics, str)
    return list(metrics) if several else [metrics]


def metric_mistakes(metrics: Iterable[Registered]) -> Iterator[str]:
    """What is wrong with metrics, each alone and all together."""
    seen: list[tuple[str, str]] = []
    for registered in metrics:
        metric, split = registered.metric, registered.split
        if isinstance(metric, type):
            yield f"{metric.__name__} is a class; register an instance: {metric.__name__}()"
            continue
        if not isinstance(metric, (Metric, TextMetric)):
            yield (
                f"{metric!r} is no metric; give one of notebook_learner.metric, such as Accuracy(), or "
                "subclass notebook_learner.metric.Metric"
            )
            continue
        if mistake := check_metric_name(getattr(metric, "name", None)):
            yield f"{type(metric).__name__}: {mistake}"
            continue
        if why := wrong_arguments(getattr(metric, "update", None), "the item"):
            yield f"{type(metric).__name__}.update: {why}; write def update(self, item)"
        if registered.plotted and isinstance(metric, TextMetric):
            yield f"{metric.name} is a text metric and has no curve; register it with metric_{split}(...)"
        if any(where == split and same_file(metric.name, other) for other, where in seen):
            yield f"two {split} metrics would write the log of {metric.name!r}; register it once"
        seen.append((metric.name, split))


def _narrowed(given: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    for train, valid in given:
        if {type(train), type(valid)} != {bool} or not (train or valid):
            said = f"metrics(..., train={train!r:.40}, valid={valid!r:.40})"
            yield f"{said}: give True or False; valid=False measures in training alone"


def _merging(settings: Settings) -> Iterator[str]:
    """Metrics that several devices cannot measure together."""
    for registered in settings.registered() if settings.has_several else ():
        metric = registered.metric
        if isinstance(metric, (Metric, TextMetric)) and not says_how_to_merge(metric):
            yield (
                f"{type(metric).__name__} keeps a state of its own (state_dict or compute), and several "
                f"devices have one each: {HOW_TO_MERGE}; or leave it out"
            )


def _early_stopping(settings: Settings) -> Iterator[str]:
    rule = settings.early_stopping
    if rule is None:
        return
    if not _is_whole(rule.patience, 1):
        yield f"early_stopping(patience={rule.patience!r}): give a whole number of epochs from 1"
    if not _is_whole(rule.warmup, 0):
        yield f"early_stopping(warmup={rule.warmup!r}): give a whole number of epochs from 0"
    if not _is_number(rule.min_delta, lambda number: number >= 0):
        yield f"early_stopping(min_delta={rule.min_delta!r}): give a number from 0"
    for name, choices, said in (("mode", ("min", "max"), "'min' or 'max'"), ("restore", ("best",), "'best'")):
        if not _is_one_of(value := getattr(rule, name), (None, *choices)):
            yield f"early_stopping({name}={value!r}): choose {said}"
    if not _is_one_of(rule.split, ("train", "valid")):
        yield f"early_stopping(split={rule.split!r}): choose 'train' or 'valid'"
    else:
        yield from _watched(rule, settings)


def _watched(rule: EarlyStoppingRule, settings: Settings) -> Iterator[str]:
    said = f"early_stopping({rule.metric!r})"
    metrics = settings.metrics_of(rule.split)
    metric = metrics.get(rule.metric) if isinstance(rule.metric, str) else None
    if metric is None:
        there = ", ".join(sorted(metrics)) or "none"
        yield (
            f"{said}: no {rule.split} metric of that name; registered are: {there}; register it, or name one "
            "of these"
        )
    elif not isinstance(metric, Metric) or not metric.weighted:
        yield f"{said}: it has no value per epoch; choose a metric such as Loss"
    elif rule.mode is None and metric.higher_is_better is None:
        yield f"{said}: the metric does not say which way is better; give mode='min' or mode='max'"


# Sinks and checkpoints -------------------------------------------------------------------------------


def _sinks(settings: Settings) -> Iterator[str]:
    for logger in settings.loggers:
        if isinstance(logger, type) or not isinstance(logger, Sink):
            yield f"metric_logger({logger!r}): give an object with a handle(event) method"
        elif why := wrong_arguments(logger.handle, "the event"):
            yield f"metric_logger({a_kind(logger)}), its handle: {why}; write def handle(self, event)"
    target = settings.application_log
    if not isinstance(target, (bool, str, os.PathLike, logging.Logger)) or target == "":
        yield (
            f"with_application_logger({target!r}): give True, False, a path for the file, or a logging.Logger"
        )


def _checkpoint(settings: Settings) -> Iterator[str]:
    which, keeper = settings.checkpoint, settings.checkpointer
    yield from _files(settings)
    if keeper is not None and (isinstance(keeper, type) or not isinstance(keeper, Checkpointer)):
        yield f"with_checkpointer({keeper!r}): give an object with save(epoch, state) and load(which)"
    elif keeper is not None:
        said = f"with_checkpointer({a_kind(keeper)}), its"
        if why := wrong_arguments(keeper.save, "the epoch", "the state"):
            yield f"{said} save: {why}; write def save(self, epoch, state)"
        if why := wrong_arguments(keeper.load, "the epoch's number, 'latest' or 'best'"):
            yield f"{said} load: {why}; write def load(self, which)"
    yield from _going_on(settings)
    if which is None:
        return
    label = isinstance(which, str) and LABEL.fullmatch(which)
    if not label and not _is_one_of(which, ("latest", "best")) and not _is_whole(which, 1):
        yield (
            f'checkpoint({which!r}): give an epoch\'s number from 1, a label such as "3-117", "latest" or '
            '"best"'
        )
    elif keeper is None and not settings.files_asked:
        yield (
            f"checkpoint({which!r}) needs somewhere to load from: add with_file_checkpointer() or "
            "with_checkpointer(...); without one training would start over with fresh weights"
        )
    elif isinstance(which, int) and _is_whole(settings.num_epochs, 1) and which > settings.num_epochs:
        yield (
            f"checkpoint({which}) is past num_epochs({settings.num_epochs}), which counts from the run's "
            f"beginning; to train two epochs more, say num_epochs({which + 2})"
        )


def _going_on(settings: Settings) -> Iterator[str]:
    which = settings.checkpoint
    said = [f"checkpoint({which!r})"] if which is not None else []
    said += ["resume()"] if settings.resume else []
    if settings.overwrite and said:
        yield (
            f"{' and '.join(said)} would go on with the run in the directory, and overwrite() deletes it; "
            "keep one of them"
        )
    elif len(said) == 2:
        yield (
            f"both {said[0]} and resume() say where to go on from; keep one of them (resume() is "
            'checkpoint("latest") that starts from the beginning if there is none)'
        )
    saves = settings.files_asked or settings.takes_back is True  # a detached process has saved
    if settings.resume and settings.checkpointer is None and not saves:
        yield (
            "resume() goes on from a checkpoint, but nothing saves one; add with_file_checkpointer() or "
            "with_checkpointer(...)"
        )


def _files(settings: Settings) -> Iterator[str]:
    recorder, strategy = settings.recorder, settings.strategy
    if settings.files_asked and settings.checkpointer is not None:
        yield "with_checkpointer(...) and with_file_checkpointer() both keep the epochs; keep one of them"
    if isinstance(recorder, type):
        name = recorder.__name__
        yield f"with_file_checkpointer({name}) is a class; give an instance: {name}()"
    elif recorder is not None and not isinstance(recorder, Recorder):
        yield f"with_file_checkpointer({recorder!r}): give a recorder, such as Hdf5Recorder()"
    if isinstance(strategy, type):
        name = strategy.__name__
        yield f"with_checkpointing_strategy({name}) is a class; give an instance, such as KeepLast(2)"
    elif strategy is not None and not isinstance(strategy, Strategy):
        yield f"with_checkpointing_strategy({strategy!r}): give a strategy, such as KeepLast(2)"
    elif strategy is not None and not settings.files_asked:
        yield "with_checkpointing_strategy(...) needs checkpoints to keep; add with_file_checkpointer()"
    else:
        yield from _best(settings)
    if settings.autosave is not None:
        yield from _autosave(*settings.autosave)


def _best(settings: Settings) -> Iterator[str]:
    """A best epoch needs a metric that is measured."""
    rule = None if settings.strategy is None else best_rule(settings.strategy)
    if rule is None:
        return
    metrics = settings.metrics_of(rule.split)
    if rule.metric not in metrics:
        there = ", ".join(sorted(metrics)) or "none"
        yield f"{rule!r}: no {rule.split} metric of that name; registered are: {there}"


def _autosave(every: Any, on_pause: Any) -> Iterator[str]:
    said = f"autosave({every!r})"
    if isinstance(every, (str, timedelta)):
        try:
            seconds = seconds_of(every)
        except ValueError as error:
            yield f"{said}: {error}"
            return
        if seconds <= 0:
            yield f"{said}: give a time above zero"
    elif every is not None and not _is_whole(every, 1):
        yield f"{said}: give a number of training steps from 1, or a time such as '10 min'"
    if not isinstance(on_pause, bool):
        yield f"autosave(on_pause={on_pause!r}): give True or False"


# The model and its steps -----------------------------------------------------------------------------


def step_mistakes(settings: Settings) -> Iterator[str]:
    """What is wrong with the functions that take a step."""
    steps = {"train_step": settings.train_step, "valid_step": settings.valid_step}
    for verb, function in steps.items():
        if function is not None and not callable(function):
            yield f"{verb}({function!r}): give a function fn(model, batch) that returns the output"
        elif function is not None and (why := wrong_arguments(function, "the model", "the batch")):
            yield f"{verb}({_called(function)}): {why}; write def {verb}(model, batch)"
    loss = settings.loss
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        yield f"loss({loss.__name__}) is a class; give an instance: loss(nn.{loss.__name__}())"
    elif loss is not None and not callable(loss):
        yield f"loss({loss!r}): give a function of output and targets, such as F.cross_entropy"
    elif (
        loss is not None
        and not may_take_keys(loss)
        and (why := wrong_arguments(loss, "the model's output", "the targets"))
    ):
        yield (
            f"loss({_called(loss)}): {why}; write def loss(output, targets), or say how to train on a batch "
            "with train_step(fn) and fn(model, batch)"
        )
    kind = settings.loss_output
    if kind is not None and not callable(kind):
        yield (
            f"loss(output={kind!r}): give an output class, such as ClassificationOutput, "
            "which is called with loss, output and targets"
        )
    elif kind is not None and (why := wrong_arguments(kind, "the loss", "the output", "the targets")):
        yield f"loss(output={_called(kind)}): {why}; give one such as ClassificationOutput"
    if loss is not None and settings.train_step is not None and not settings.of_another_rank:
        yield "both loss(...) and train_step(...) say how to train; keep one of them"


def _called(function: Any) -> str:
    """A function's name for a message."""
    name = getattr(function, "__name__", "")
    return "lambda ..." if name == "<lambda>" else name or f"{type(function).__name__}(...)"


def _breakpoints(settings: Settings) -> Iterator[str]:
    for condition, _ in settings.breakpoints:
        if isinstance(condition, type):
            yield f"break_on({condition.__name__}) is a class; give an instance: {condition.__name__}()"
        elif not (isinstance(condition, Condition) or callable(condition)):
            yield (
                f"break_on({condition!r}): give a condition such as NonFinite(), or a function of the "
                "moment, such as lambda moment: moment.loss > 100"
            )
        elif not isinstance(condition, Condition) and (why := wrong_arguments(condition, "the moment")):
            yield f"break_on({_called(condition)}): {why}; write lambda moment: moment.loss > 100"


def _compile(options: dict[str, Any] | None) -> Iterator[str]:
    if options is None:
        return
    try:
        torch.compile(_nothing, **options)  # it checks the options now, and compiles at the first call
    except Exception as refused:
        yield f"compile({_written(options)}): torch refuses it: {refused}"


def _nothing() -> None:
    """Stand in for a model."""


def _graph(settings: Settings, model: Any) -> Iterator[str]:
    """What a recorded step cannot contain."""
    if settings.cluster is not None or settings.has_several:
        yield "graph() records the step of one device; leave it out, or the other devices"
    else:
        kind = _kind_of_device(settings, model)
        if kind is not None and kind not in RECORDERS:
            yield f"graph() records CUDA graphs, and this training is on {kind}; leave it out there"
    if trains_by_its_steps(settings, model):
        yield "graph() records one step, with its batch_idx, and a training_step may use that; leave it out"
    if _is_whole(settings.window, 2):
        yield (
            f"graph() records a step with its update, and grads_accumulation({settings.window}) makes one "
            "update of several batches; leave one of the two out"
        )
    if _is_one_of(settings.precision, [name for name, kind in PRECISIONS.items() if kind is torch.float16]):
        yield "graph() cannot leave a step out, as fp16's loss scaling has to; use precision('bf16')"
    mode = (settings.compile or {}).get("mode")
    if mode in ("reduce-overhead", "max-autotune"):
        yield f"compile(mode={mode!r}) records CUDA graphs of its own; leave out mode=, or graph()"


def _kind_of_device(settings: Settings, model: Any) -> str | None:
    """The kind of the device, or None if the device is a mistake of its own."""
    try:
        if settings.devices is not None:
            return torch.device(settings.devices[0]).type
        return str(next(model.parameters()).device.type)
    except Exception:
        return None


def _written(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _model(settings: Settings, model: Any) -> Iterator[str]:
    if isinstance(model, type) and issubclass(model, nn.Module):
        yield f"the model is the class {model.__name__}; give an instance: {model.__name__}(...)"
        return
    if not isinstance(model, nn.Module):
        yield f"the model is of type {type(model).__name__}; give a torch.nn.Module"
        return
    if not (settings.says_how_to_train(model) or cells_may_come()):
        yield (
            f"{type(model).__name__} does not say how it trains: define train_step(self, batch) on it, or "
            "add loss(F.cross_entropy) for (x, y) batches, or train_step(fn) with fn(model, batch)"
        )
    if settings.base is not None and (not isinstance(settings.base, str) or not settings.base):
        yield f"with_file_checkpointer(base={settings.base!r:.60}): give a text that says where it comes from"
    elif settings.base and not settings.reshapes and all(p.requires_grad for p in model.parameters()):
        yield f"with_file_checkpointer(base={settings.base!r:.60}): all weights train; leave out base="
    yield from _own_steps(settings, model)
    yield from _parameters(model)


def _own_steps(settings: Settings, model: nn.Module) -> Iterator[str]:
    """Other trainers call steps of these names with more than the batch."""
    for name, given in {"train_step": settings.train_step, "valid_step": settings.valid_step}.items():
        own = getattr(model, name, None)
        if not callable(own) or given is not None or settings.loss is not None:
            continue
        if why := wrong_arguments(own, "the batch"):
            yield (
                f"{type(model).__name__}.{name}: {why}; write def {name}(self, batch), or give the learner "
                f"another one: {name}(fn) with fn(model, batch)"
            )


def _parameters(model: nn.Module) -> Iterator[str]:
    parameters = list(model.parameters())
    if any(is_lazy(p) for p in parameters):
        yield "the model has lazy parameters without a shape yet; run one batch through it first"
    elif any(p.is_meta for p in parameters):
        yield (
            "the model is on the meta device, where parameters have no values; bring it to a real one with "
            "model.to_empty(device='cpu') and load or initialise its weights"
        )
    elif not any(p.requires_grad for p in parameters):
        yield "the model has no parameter that trains; look at requires_grad"
