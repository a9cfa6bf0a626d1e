"""Make the optimizer and the learning rate's schedule from the arguments of `build`, and list their
mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...event import Split
from ...metric.base import Metric
from ...run.settings import Settings
from ...step.optimizers import Optimizers, parameters_of
from ...step.schedule import Constant, Function, Schedule, Schedules, Torch, TorchScheduler, UnderWay, is_rate

Mistakes = list[str]

_THE_ONE = "the optimizer"
_TOGETHER = "networks that train together are one model: nn.ModuleDict({'g': generator, 'd': critic})"


# The optimizer ---------------------------------------------------------------------------------------


def make_optimizer(model: nn.Module, given: Any, settings: Settings) -> tuple[Optimizer | None, Mistakes]:
    """Take the given optimizer, or make one with the given factory; or take several by name."""
    if isinstance(given, (Mapping, list, tuple)):
        return _make_several(model, given, settings)
    made, by = given, "the optimizer is"
    if callable(given) and not isinstance(given, Optimizer) and not _is_strange_class(given):
        by = "what the optimizer factory returned is"
        try:
            made = given(model.parameters())
        except Exception as error:
            return None, [f"the optimizer factory failed ({type(error).__name__}: {error})"]
    if not isinstance(made, Optimizer):
        return None, [
            f"{by} {_of_type(made)}; give an optimizer such as torch.optim.Adam(model.parameters()), or a "
            "factory that is given the parameters, such as lambda p: torch.optim.Adam(p, lr=1e-3)"
        ]
    return made, list(_optimizer_mistakes(model, made, settings, _THE_ONE))


def _make_several(model: nn.Module, given: Any, settings: Settings) -> tuple[Optimizer | None, Mistakes]:
    named = _by_name(given)
    wrong = list(_several_mistakes(named, settings))
    for name, each in named.items():
        if isinstance(each, Optimizer):
            wrong += _optimizer_mistakes(model, each, settings, f"the optimizer {name!r}")
    return (None if wrong else Optimizers(named)), wrong


def _by_name(given: Any) -> dict[Any, Any]:
    """A mapping as it is; the members of a list by their numbers."""
    if isinstance(given, Mapping):
        return dict(given)
    return {str(number): each for number, each in enumerate(given)}


def _several_mistakes(named: Mapping[Any, Any], settings: Settings) -> Iterator[str]:
    if not named:
        yield "there is no optimizer: give one, or several by name: {'g': Adam(...), 'd': Adam(...)}"
    for name, each in named.items():
        if not isinstance(name, str) or not name or "/" in name:
            yield f"an optimizer has the name {name!r}; give a text without a slash, such as 'g'"
        if not isinstance(each, Optimizer):
            yield (
                f"the optimizer {name!r} is {_of_type(each)}; among several, give each one made: "
                "torch.optim.Adam(model.generator.parameters())"
            )
    if len({id(each) for each in named.values()}) < len(named):
        yield "the same optimizer is there under two names; give each of its own"
    if settings.graph:
        yield "graph() records a step of one optimizer; leave graph() out, or give one optimizer"


def _of_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _is_strange_class(given: Any) -> bool:
    return isinstance(given, type) and not issubclass(given, Optimizer)


def _optimizer_mistakes(
    model: nn.Module, optimizer: Optimizer, settings: Settings, name: str
) -> Iterator[str]:
    own = settings.train_step is not None or (settings.loss is None and hasattr(model, "train_step"))
    if isinstance(optimizer, LBFGS) and not own:
        yield (
            "LBFGS evaluates a batch several times per step: write the step yourself, train_step(fn), and "
            "call optimizer.step(closure) in it; or use another optimizer, such as torch.optim.Adam"
        )
    mine = {id(p) for p in model.parameters()}
    theirs = [p for group in optimizer.param_groups for p in group["params"]]
    strange = sum(id(p) not in mine for p in theirs)
    if not strange or settings.reshaped:  # a layer that has left may have left its parameters there
        return
    given = {id(p) for p in theirs}
    if hidden := [path for path, found in unseen_layers(model) if any(id(p) in given for p in found)]:
        yield f"{strange} of {name}'s {len(theirs)} parameters are not the model's: {_why_unseen(hidden[0])}"
        return
    yield (
        f"{strange} of {name}'s {len(theirs)} parameters are not the model's; was it made for "
        "another model, or before the model was copied or a layer of it replaced? "
        "make it from model.parameters()" + ("" if name == _THE_ONE else f"; {_TOGETHER}")
    )


def unseen_layers(model: nn.Module) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """Layers that a module holds in a plain list or dict, where torch does not see them: the path of the
    attribute, and their parameters.

    >>> model = nn.Linear(1, 1)
    >>> model.layers = [nn.Linear(2, 2)]
    >>> [(path, len(found)) for path, found in unseen_layers(model)]
    [('layers', 2)]
    """
    known = {id(p) for p in model.parameters()}
    for start, module in model.named_modules():
        for attribute, value in vars(module).items():
            if type(value) not in (list, tuple, dict) or attribute in _OF_TORCH:
                continue
            inside = value.values() if isinstance(value, dict) else value
            layers = [each for each in inside if isinstance(each, nn.Module)]
            found = [p for layer in layers for p in layer.parameters() if id(p) not in known]
            if found:
                yield f"{start}.{attribute}" if start else attribute, found


_OF_TORCH = ("_modules", "_parameters", "_buffers")


def _why_unseen(path: str) -> str:
    return (
        f"model.{path} holds layers in a plain list or dict, which torch does not see; make it an "
        "nn.ModuleList or nn.ModuleDict"
    )


def told_of_unseen(model: nn.Module, optimizer: Optimizer) -> Iterator[str]:
    """A line for each attribute with layers that train by nobody."""
    theirs = {id(p) for p in parameters_of(optimizer)}
    for path, found in unseen_layers(model):
        if any(p.requires_grad and id(p) not in theirs for p in found):
            yield (
                f"{_why_unseen(path)}: its {len(found)} parameters are in no optimizer. If they should not "
                "train, requires_grad_(False) says so"
            )


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Move an optimizer's state to the device of its parameters. Scalars (step counters) stay: torch keeps
    them on the host, unless the optimizer is capturable."""
    follow = {
        id(p): group.get("capturable", False) for group in optimizer.param_groups for p in group["params"]
    }
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            if isinstance(value, Tensor) and (value.ndim or follow[id(parameter)]):
                values[key] = value.to(device)


# The schedule ----------------------------------------------------------------------------------------


def make_schedule(given: Any, optimizer: Optimizer, settings: Settings) -> tuple[Schedule | None, Mistakes]:
    """Make the schedule: a constant, a function of the step, or a scheduler of torch; for several optimizers,
    one for each."""
    if isinstance(optimizer, Optimizers):
        return _make_schedules(given, optimizer, settings)
    if isinstance(given, (Mapping, list, tuple)):
        return None, ["there is one optimizer, so give one schedule, not several"]
    return _make_schedule(given, optimizer, settings)


def _make_schedules(
    given: Any, optimizers: Optimizers, settings: Settings
) -> tuple[Schedule | None, Mistakes]:
    """One for each optimizer: by its name, or the same rate or function for all."""
    several = isinstance(given, (Mapping, list, tuple))
    if isinstance(given, TorchScheduler):
        return None, [
            f"there are several optimizers ({', '.join(optimizers.named)}), and one scheduler: give them by "
            "name, {'g': scheduler_g, 'd': scheduler_d}"
        ]
    named = _by_name(given) if several else dict.fromkeys(optimizers.named, given)
    if strange := [name for name in named if name not in optimizers.named]:
        return None, [
            f"there is a schedule for {strange[0]!r}, and no optimizer of that name; there are: "
            f"{', '.join(optimizers.named)}"
        ]
    made, wrong = dict[str, Constant | Torch](), Mistakes()
    for name, each in optimizers.named.items():
        schedule, mistakes = _make_schedule(named.get(name), each, settings)
        wrong += [f"the schedule {name!r}: {mistake}" for mistake in mistakes]
        if schedule is not None:
            made[name] = schedule
    return (None if wrong else Schedules(made)), wrong


def _make_schedule(
    given: Any, optimizer: Optimizer, settings: Settings
) -> tuple[Constant | Torch | None, Mistakes]:
    if given is None or (isinstance(given, Real) and not isinstance(given, bool)):
        return _constant(given, optimizer, settings)
    if isinstance(given, UnderWay):
        return Function(optimizer, given.function, settings.scheduler_when, None), Mistakes()
    if callable(given) and not isinstance(given, TorchScheduler):
        return _from_callable(given, optimizer, settings)
    return _of_torch(given, optimizer, settings, "the scheduler is")


def _constant(rate: Any, optimizer: Optimizer, settings: Settings) -> tuple[Constant | None, Mistakes]:
    wrong = list(_no_plateau(settings, "a constant rate"))
    if rate is not None and not is_rate(rate):
        return None, [*wrong, f"the learning rate is {rate!r}; give a number from 0, such as 1e-3"]
    return Constant(optimizer, None if rate is None else float(rate)), wrong


def _from_callable(
    given: Callable[[Any], Any], optimizer: Optimizer, settings: Settings
) -> tuple[Constant | Torch | None, Mistakes]:
    """Make a schedule from a callable: a rate per step if it turns a step's number into a rate, else a
    factory."""
    try:
        rate = given(0)
    except Exception as refused:
        why = f"{type(refused).__name__}: {refused}"
    else:
        if not is_rate(rate):
            return None, [
                f"the scheduler function gave {rate!r:.60} for step 0; it must give a rate, a number from 0"
            ]
        wrong = list(_no_plateau(settings, "a function"))
        return Function(optimizer, given, settings.scheduler_when, float(rate)), wrong
    try:
        made = given(optimizer)
    except Exception as failed:
        return None, [
            f"the scheduler callable is no function from step to rate ({why}) and no factory that takes the "
            f"optimizer ({type(failed).__name__}: {failed})"
        ]
    return _of_torch(made, optimizer, settings, "what the scheduler factory returned is")


def _of_torch(
    scheduler: Any, optimizer: Optimizer, settings: Settings, by: str
) -> tuple[Torch | None, Mistakes]:
    if not isinstance(scheduler, TorchScheduler):
        return None, [
            f"{by} {_of_type(scheduler)}; give a number for a constant rate, a scheduler of "
            "torch.optim.lr_scheduler, a factory that is given the optimizer, or a function from step to rate"
        ]
    wrong: Mistakes = []
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        wrong.append(
            f"the scheduler ({type(scheduler).__name__}) drives another optimizer than the one given; make "
            "it from this optimizer, or give a factory: lambda optimizer: StepLR(optimizer, 10)"
        )
    if not isinstance(scheduler, ReduceLROnPlateau):
        wrong += _no_plateau(settings, type(scheduler).__name__)
        return Torch(scheduler, settings.scheduler_when), wrong
    source: Any = settings.scheduler_metric or ("valid", "Loss")
    wrong += _plateau_mistakes(scheduler, source, settings)
    return Torch(scheduler, settings.scheduler_when, source), wrong


def _no_plateau(settings: Settings, what: str) -> Iterator[str]:
    if settings.scheduler_metric is not None:
        yield f"step_scheduler(metric=...) is for ReduceLROnPlateau, but {what} takes no metric; leave it out"


def _plateau_mistakes(scheduler: ReduceLROnPlateau, source: Any, settings: Settings) -> Iterator[str]:
    if settings.scheduler_when == "step":
        yield 'ReduceLROnPlateau needs an epoch\'s value; leave out step_scheduler("step")'
    if not _is_source(source):
        yield (
            f"step_scheduler(metric={source!r}): give a metric's name, or a pair such as ('train', 'Loss')"
        )
        return
    if settings.scheduler_by_log:
        return
    split, name = source
    metrics = settings.metrics_of(split)
    metric = metrics.get(name)
    if metric is None:
        there = ", ".join(sorted(metrics)) or "none"
        yield (
            f"ReduceLROnPlateau goes by the {split} {name}, but no such metric is registered (there are: "
            f"{there}); register it, or choose one with step_scheduler('epoch', metric=('{split}', ...))"
        )
    elif not isinstance(metric, Metric) or not metric.weighted:
        yield f"ReduceLROnPlateau goes by the {split} {name}, which has no value per epoch; choose another"
    elif metric.higher_is_better is not None and metric.higher_is_better != (scheduler.mode == "max"):
        better = "max" if metric.higher_is_better else "min"
        yield (
            f"ReduceLROnPlateau(mode={scheduler.mode!r}) goes by the {split} {name}, for which "
            f"{'higher' if metric.higher_is_better else 'lower'} is better; make it with mode={better!r}"
        )


def _is_source(source: Any) -> bool:
    return (
        isinstance(source, tuple)
        and len(source) == 2
        and source[0] in get_args(Split)
        and isinstance(source[1], str)
    )
