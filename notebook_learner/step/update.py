"""From a loss to new weights: backward, the accumulation window, scaling, clipping, the optimizer.

A window of n batches gives the gradient of one batch with n times the samples. Each micro-batch counts with
the number of samples (tokens) of its loss, and a short last window is a smaller batch. The numbers need not
be known in advance: each gradient is weighted relative to the window's first batch, and the sum is divided
once at the end. So equal batches are only ever multiplied by 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer
from torch.optim.swa_utils import AveragedModel

from ..data.batch import count_samples
from ..errors import StepError
from .clipping import Clip
from .optimizer_calls import clear, step, tell_of_steps
from .optimizers import named_of, parameters_of
from .other_ranks import Driven, Together
from .output import Gradients, assign, weight_of
from .schedule import Schedule

_BACKWARD_TWICE = (
    "train_step ran backward() itself and then returned a plain output, so that the learner runs it again; "
    "leave the backward() out, or return TrainOutput(model, None, item), or call optimizer.step() in the "
    "step as well; a step that moves the weights by hand returns loss.detach()"
)


_NOT_ALL = (
    "an optimizer steps by the gradients of one device's samples alone: while backward still runs, or in a "
    "step that left it to the learner before; on several devices, call optimizer.step() after backward(), in "
    "each step"
)
_IN_PARTS = (
    'train_step calls optimizer.step() itself, which strategy("fsdp") cannot do with parts of the weights; '
    'use strategy("ddp"), or leave backward() and optimizer.step() to the learner and return the loss'
)
_NO_CLOSURE = (
    "LBFGS evaluates a batch several times per step: call optimizer.step(closure) in train_step, where the "
    "closure clears the gradients, runs backward and returns the loss"
)


class Before(NamedTuple):
    """What an update finds before a step."""

    gradients: list[tuple[Tensor | None, int]]
    lengths: list[Tensor]


class Update:
    """One optimizer step per window: unscale -> divide -> clip -> step -> average -> schedule."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        window: int = 1,
        scaler: GradScaler | None = None,
        clips: Iterable[Clip] = (),
        average: AveragedModel | None = None,
    ) -> None:
        self.model = model
        self.window = window
        self.scaler = scaler
        self.clips = tuple(clips)
        self.average = average
        self.parameters = list(model.parameters())
        self.watch_norm = False
        self.watch_rates = False
        """Whether the norm and the rates of every step are needed."""
        self.look: Callable[[], None] | None = None
        """Called before each optimizer step, with gradients that are not clipped yet."""
        self.after: Callable[[], None] | None = None
        """Called after each update."""
        self.keeps_graph = False
        """Whether the graph stays after its backward pass, for an observer of the step."""
        self.count = 0
        """Micro-batches in the open window; 0 between windows."""
        self.norm: Tensor | None = None
        self.norms: dict[str, Tensor] = {}
        """The norm of each optimizer's gradients, if there are several."""
        self.drives = False
        """Whether the user's step calls `optimizer.step()`. Then it owns backward and zero_grad, too."""
        self.stepped: list[str] = []
        """The names of the optimizers that the user's step has stepped, in this step."""
        self.entered = False
        """Whether the user's step runs now."""
        self.idle = False
        """Whether this rank has no sample of the batch, and takes the step only because the others do."""
        self.alone = False
        """Whether a step is only looked at, on this rank alone."""
        self._calls = 0
        """A number for the user's calls of optimizers in this step, in their order."""
        self.rates: list[Any] = []
        self.use(optimizer, schedule)
        self._first: Tensor | float = 1.0
        self._total: Tensor | float = 0.0
        self._skipped = 0
        self._folded: list[Tensor | None] | None = None
        self._hidden: list[Tensor | None] | None = None
        """The window's own gradients, while others are shown in their place."""
        self._moved: list[nn.Parameter] = []
        self.together: Together | None = None
        self.closes = False
        """Whether this batch is the last one of its window; only known if there are other ranks."""
        self.pieces: Any = None
        """The batch that goes through the model in parts now."""
        self.divide(1)

    def divide(self, parts: int) -> None:
        """Take each batch in so many parts from here on: the sum of their gradients is weighted as in a
        window of that many batches."""
        self.split = parts
        self.weighs = self.together is not None or self.window > 1 or parts > 1
        """Whether gradients are summed by weight, and divided once."""
        self.plain = not self.weighs and self.scaler is None and not self.clips and self.average is None
        """Gradients need no scaling, weighing or clipping: the step is torch's own three calls."""

    def join(self, together: Together) -> None:
        """From here on, gradients are those of all ranks."""
        self.together = together
        self.divide(self.split)

    def use(self, optimizer: Optimizer, schedule: Schedule) -> None:
        """Train with these from here on."""
        self.optimizer, self.schedule, self._groups = optimizer, schedule, -1
        for name, each in named_of(optimizer).items():
            tell_of_steps(each, self, name)
        self._needs_closure = any(isinstance(each, LBFGS) for each in named_of(optimizer).values())
        self.note_rates()

    def work_on(self, parameters: list[nn.Parameter]) -> None:
        """Use these parameters in place of the model's own, in the same order."""
        self.parameters, self._groups = parameters, -1

    def follow_model(self) -> list[int | None]:
        """Layers or groups have come or gone. Return each parameter's former place; None if it is new."""
        places = {id(each): place for place, each in enumerate(self.parameters)}
        self.parameters, self._groups = list(self.model.parameters()), -1
        order = [places.get(id(each)) for each in self.parameters]
        self._folded, self._hidden = reordered(self._folded, order), reordered(self._hidden, order)
        self.note_rates()
        return order

    def begin(self) -> None:
        """Open a window if none is open. The gradients of the last one are dropped only now, so that the user
        can still look at them at a boundary."""
        self.entered = True
        if self.stepped:
            self.stepped, self._calls = [], 0
        if self.count == 0:
            if self.watch_rates:
                self.note_rates()
            if self.drives:
                self._unhide()
            else:
                clear(self.optimizer)
        elif self._hidden is not None:
            self._unhide()

    def backward(self, loss: Tensor, item: Any, batch: Any) -> None:
        """Differentiate the loss of one micro-batch."""
        if self.weighs:
            self._forbid_mixing(self._folded is not None)
            share = self._share(0.0 if self.idle else weight_of(item, batch))
            loss = loss if type(share) is float and share == 1.0 else loss * share
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        if self.closes and self.together is not None:
            self.together.coming(self._trained(), self._total)
        try:
            loss.backward(retain_graph=self.keeps_graph)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "backward through the graph a second time" in str(error):
                raise StepError(_BACKWARD_TWICE) from error
            raise
        if self.together is not None:
            self.together.made()
        self.count += 1

    def adopt(self, gradients: Gradients, item: Any, batch: Any) -> None:
        """Take gradients that the step computed itself."""
        if self.scaler is not None:
            raise StepError(
                "train_step made its own gradients (TrainOutput), but precision('fp16') has to scale the "
                "loss before backward; return the item with its `.loss` instead, or use precision('bf16')"
            )
        if self.together is not None:
            self.together.adopt()
        assign(gradients, self.model)
        if self.weighs:
            self._forbid_mixing(self.count > self._skipped and self._folded is None)
            self._fold(self._share(0.0 if self.idle else weight_of(item, batch)))
        self.count += 1

    # A step that drives itself -----------------------------------------------------------------------

    def attend(self, batch: Any, known: bool) -> None:
        """Have backward passes of the user's step give the gradients of all ranks, if it may drive itself."""
        driven = None if self.together is None else self.together.driven
        if driven is not None:
            driven.rest()
            if self.drives or not known:
                samples = 0 if self.idle else count_samples(batch)
                driven.attend(self.parameters, float(samples), keeps=not known)

    def stepping(self, name: str, closure: Any) -> Any:
        """An optimizer is about to step. The loop's own steps come after the user's code has ended. Return
        the closure to call in place of this one, or None."""
        if not self.entered:
            return None
        driven = self._require_all_gradients()
        if driven is not None:
            self._calls = crc32(f"{name}.".encode(), self._calls + 1) >> 1
        if not self.stepped and self.look is not None:
            self.look()
        if self.watch_norm:
            self._measure([name])
        if name not in self.stepped:
            self.stepped.append(name)
        return closure and driven and (lambda: driven.mean(closure()))

    def _require_all_gradients(self) -> Driven | None:
        """Raise a StepError if an optimizer would step by the gradients of this rank alone."""
        if self.together is None or self.alone:
            return None
        driven = self.together.driven
        if driven is None or not driven.attends or driven.runs:
            raise StepError(_NOT_ALL if driven is not None else _IN_PARTS)
        return driven

    def before(self) -> Before:
        """What is there before a step of which it is not known yet who runs backward and the optimizers."""
        return Before([*self._gradients()], self._lengths())

    def _gradients(self) -> Iterator[tuple[Tensor | None, int]]:
        """The gradients, with torch's counts of their changes."""
        grads = (parameter.grad for parameter in self.parameters)
        return ((grad, 0 if grad is None else grad._version) for grad in grads)

    def _lengths(self) -> list[Tensor]:
        """The length of each weight: one that was written to by `.data` has the same count of changes."""
        kept = [p.detach() for p in self.parameters if p.is_floating_point() or p.is_complex()]
        together = self.together is not None and self.together.driven is None
        return [] if together or not kept else [*torch._foreach_norm(kept)]

    def ran_backward(self, before: Before) -> bool:
        """Whether a gradient is another one than it was, or has changed."""
        pairs = zip(before.gradients, self._gradients(), strict=True)
        return any(old is not new or then != now for (old, then), (new, now) in pairs)

    def has_moved(self, before: Before) -> bool:
        """Whether a weight has changed."""
        pairs = zip(before.lengths, self._lengths(), strict=True)
        return any(not torch.equal(*torch.nan_to_num(torch.stack(pair))) for pair in pairs)

    def clear(self) -> None:
        """Let no parameter have a gradient."""
        clear(self.optimizer)

    def take_over(self) -> None:
        """From here on the user's step drives itself, also in a step that only collects gradients.

        Raises:
            StepError: something was asked for that only the loop's own update can do.
        """
        self.entered = False
        if not self.drives:
            self.require_free()
            self.drives = True

    def follow(self) -> None:
        """Do what comes after the steps that the user's code took."""
        if not self.drives:
            self.require_free()  # before anyone relies on it
        self.count = 0
        if self.together is not None and self.together.driven is not None:
            self.together.driven.agree(self._calls)
            self.together.driven.rest()
        if self.watch_norm:
            self.norms = {name: self.norms[name] for name in self.stepped}
            self.norm = nn.utils.get_total_norm([*self.norms.values()]) if self.norms else None
        if not self.stepped:
            return
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.schedule.after_update(self.stepped)
        if self.after is not None:
            self.after()

    def require_free(self, *also: str) -> None:
        """Raise a StepError if something was asked for that only the loop's own update can do."""
        asked = {
            "clip_gradients()": bool(self.clips),
            "grads_accumulation()": self.window > 1,
            'precision("fp16")': self.scaler is not None,
            'strategy("fsdp")': self.together is not None and self.together.driven is None,
            f"split_batch({self.split})": self.split > 1 and not also,
        }
        if names := [*also, *(name for name, there in asked.items() if there)]:
            raise StepError(
                f"train_step calls optimizer.step() itself, so the learner cannot do its part for "
                f"{' and '.join(names)}: it would come too late. Do it in the step, before optimizer.step(), "
                "or leave backward() and optimizer.step() to the learner and return the loss"
            )

    def _measure(self, names: Iterable[str]) -> None:
        for name in names:
            grads = [p.grad for p in parameters_of(named_of(self.optimizer)[name]) if p.grad is not None]
            self.norms[name] = nn.utils.get_total_norm(grads)

    # The loop's own ----------------------------------------------------------------------------------

    def skip(self) -> None:
        """Count a micro-batch of which this rank has no sample."""
        if self.count == 0:
            self._open_window(self.together.reference if self.together is not None else 1.0)
        self.count += 1
        self._skipped += 1

    def finish(self, last: bool) -> None:
        """Step the optimizer if the window is full, or the split ends."""
        if self.count == self.window or last:
            self.apply()

    def apply(self) -> None:
        """Close the window with one optimizer step."""
        stepped = self.move()
        self.count = 0
        if stepped:
            self.moved()

    def move(self) -> bool:
        """Let the optimizer change the parameters; return False if it skipped the step."""
        self.entered = False
        if self._needs_closure:
            raise StepError(_NO_CLOSURE)
        if self.plain and not self.watch_norm:
            if self.look is not None:
                self.look()
            step(self.optimizer)
            return True
        self._prepare()
        stepped = self._step()
        if self.together is not None:
            self.together.moved()
        return stepped

    def moved(self) -> None:
        """Update what depends on the number of steps: the average and the schedule."""
        if self.average is not None:
            self.average.update_parameters(self.model)
        if self.schedule.when == "step":
            self.schedule.after_update()
        if self.after is not None:
            self.after()

    def _prepare(self) -> None:
        self._unhide()
        self._unfold()
        divided = False
        if self.together is not None:  # before unscaling, in which all ranks must find an infinity
            divided = self.scaler is None
            self._total = self.together.add_up(self._trained(), self._total, divided)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.weighs and not divided:
            self._divide()
        if self.look is not None:
            self.look()
        if not self.watch_norm and not self.clips:
            return
        trained = self._trained()
        whole = None if self.together is None else self.together.norm
        if self.watch_norm:
            norm = nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
            self.norm = norm if whole is None else whole(norm)
            if len(several := named_of(self.optimizer)) > 1:
                self._measure(several)
        for clip in self.clips:
            clip(trained, whole)

    def _trained(self) -> list[nn.Parameter]:
        """The parameters that the optimizer changes. Others may collect gradients too, but these are never
        cleared, and a norm must not depend on the number of steps since that began."""
        groups = self.optimizer.param_groups
        if len(groups) != self._groups:  # the user may add one during a pause
            moved = {id(p) for group in groups for p in group["params"]}
            self._moved = [p for p in self.parameters if id(p) in moved]
            self._groups = len(groups)
        return self._moved

    def note_rates(self) -> None:
        """Note the rates that the open window will be applied with, or that the last one was."""
        # A schedule writes into a tensor rate, so code that keeps the rate needs a copy.
        rates = [group.get("lr") for group in self.optimizer.param_groups]
        self.rates = [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]

    def rates_of(self, name: str) -> list[Any]:
        """Of the noted rates, those of the optimizer of this name."""
        first, named = 0, named_of(self.optimizer)
        for known, each in named.items():
            count = len(each.param_groups)
            if known == name:
                return self.rates[first : first + count]
            first += count
        there = ", ".join(named) if "" not in named else "one, without a name"
        raise StepError(f"there is no optimizer {name!r}; there are: {there}")

    def _step(self) -> bool:
        if self.scaler is None:
            step(self.optimizer)
            return True
        # The scaler skips the step if a gradient is not finite. It reads that from the device, once. If the
        # optimizer stepped, none was infinite. A fused optimizer always steps, and skips inside: then only
        # the scale shows it, and a second read would wait for the device again.
        fused = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        before = self.scaler.get_scale() if fused else 0.0
        stepped = list[bool]()
        hook = self.optimizer.register_step_post_hook(lambda *_: stepped.append(True))
        try:
            self.scaler.step(self.optimizer)
        finally:
            hook.remove()
        self.scaler.update()
        return self.scaler.get_scale() >= before if fused else bool(stepped)

    # The window --------------------------------------------------------------------------------------

    def _forbid_mixing(self, mixed: bool) -> None:
        if mixed:
            raise StepError(
                "train_step returned a TrainOutput for some batches of an accumulation window and a plain "
                "output for others; return the same kind throughout a window"
            )

    def _share(self, weight: Tensor | float) -> Tensor | float:
        """This micro-batch's weight relative to the window's first; adds it to the window's total."""
        if isinstance(weight, Tensor):
            weight = self._checked(weight)
        if self.count == 0:
            # A first batch without any token must not divide by zero.
            first = weight.clamp(min=1) if isinstance(weight, Tensor) else max(float(weight), 1.0)
            self._open_window(first if self.together is None else self.together.reference)
        share = weight / self._first
        self._total = self._total + share
        return share

    def _open_window(self, first: Tensor | float) -> None:
        self._first, self._total, self._skipped = first, 0.0, 0

    def _checked(self, weight: Tensor) -> Tensor:
        """A weight on the device, not in half precision: there, a count above 256 is not exact."""
        if weight.numel() != 1:
            raise StepError(
                f"the `weight` of the step's output has shape {tuple(weight.shape)}; accumulation needs one "
                "number there, how many samples (or tokens) the loss is a mean of"
            )
        like = self.parameters[0]
        double = like.dtype in (torch.float64, torch.complex128)
        return weight.detach().reshape(()).to(like.device, torch.float64 if double else torch.float32)

    def _divide(self) -> None:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        total = self._total
        if not grads:
            return
        if isinstance(total, Tensor):
            torch._foreach_div_(grads, total + (total == 0))  # without tokens there is no gradient
        elif total not in (0.0, 1.0):
            torch._foreach_div_(grads, total)

    def _fold(self, share: Tensor | float) -> None:
        """Add the gradients that the step left in `.grad` to the window's sum, with their weight."""
        if self._folded is None:
            self._folded = [None] * len(self.parameters)
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            weighted = parameter.grad * share
            held = self._folded[i]
            self._folded[i] = weighted if held is None else held + weighted
            parameter.grad = None

    def _unfold(self) -> None:
        if self._folded is None:
            return
        for parameter, grad in zip(self.parameters, self._folded, strict=True):
            parameter.grad = grad
        self._folded = None

    # Shown -------------------------------------------------------------------------------------------

    def as_before_clipping(self, last: bool) -> None:
        """For a step that is only observed: bring its gradients to what the optimizer would get."""
        if self.scaler is not None:  # not by unscale_, which cannot be undone
            grads = [p.grad for p in self.parameters if p.grad is not None]
            if grads:
                torch._foreach_mul_(grads, 1.0 / self.scaler.get_scale())
        if self.weighs and (self.count == self.window or last):
            self._unfold()
            self._divide()

    def show(self, gradients: list[Tensor | None]) -> None:
        """Show these gradients at the parameters while the loop is paused; the window's own are kept
        elsewhere."""
        if (self.count or self.drives) and self._hidden is None:
            self._hidden = [p.grad for p in self.parameters]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    @property
    def hides(self) -> bool:
        """Whether other gradients than the window's own are shown."""
        return self._hidden is not None

    def _unhide(self) -> None:
        if self._hidden is not None:
            hidden, self._hidden = self._hidden, None
            for parameter, gradient in zip(self.parameters, hidden, strict=True):
                parameter.grad = gradient

    # State -------------------------------------------------------------------------------------------

    def _clear_all(self) -> None:
        self.model.zero_grad(set_to_none=True)
        for parameter in self.parameters:
            parameter.grad = None

    def capture(self, clone: Callable[[Any], Any]) -> dict[str, Any]:
        """The open window, and what metrics may read of the last one. Between windows no gradient is part of
        the state."""
        state: dict[str, Any] = {"count": self.count, "rates": clone(self.rates), "norm": clone(self.norm)}
        if self.split > 1:
            state["split"] = self.split
        own = [p.grad for p in self.parameters] if self._hidden is None else self._hidden
        if self.drives:  # its next step may add to them
            state["left"] = [None if grad is None else clone(grad) for grad in own]
        if self.count:
            state["first"] = clone(self._first)
            state["total"] = clone(self._total)
            state["grads"] = [None if grad is None else clone(grad) for grad in own]
            state["folded"] = None if self._folded is None else [clone(grad) for grad in self._folded]
        return state

    def give_up(self, *, gradients_moved: bool) -> None:
        """A step failed and cannot be undone. If it has changed gradients, the whole window is dropped: half
        of a window's gradients, divided by all of its samples, would give too short a step."""
        self._unhide()
        if gradients_moved or self.count == 0:
            self.count, self._folded = 0, None
            self._clear_all()
        elif self._folded is not None:
            self._clear_all()  # the window's sum is stored elsewhere

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back into a captured window, or to none."""
        self.norm = _like(state["norm"], self.parameters[0])
        self._clear_all()
        self.count, self._folded, self._hidden = state["count"], None, None
        self.rates = list(state["rates"])
        self.divide(state.get("split", 1))
        if (left := state.get("left")) is not None:
            self.drives = True
            for parameter, grad in zip(self.parameters, left, strict=True):
                parameter.grad = _like(grad, parameter)
        if self.count:
            self._first = _like(state["first"], self.parameters[0])
            self._total = _like(state["total"], self.parameters[0])
            for parameter, grad in zip(self.parameters, state["grads"], strict=True):
                parameter.grad = _like(grad, parameter)
            if state["folded"] is not None:
                pairs = zip(state["folded"], self.parameters, strict=True)
                self._folded = [_like(grad, parameter) for grad, parameter in pairs]


def reordered(gradients: list[Tensor | None] | None, order: list[int | None]) -> list[Tensor | None] | None:
    """Gradients in another order of the parameters; a new parameter has none."""
    return gradients and [None if place is None else gradients[place] for place in order]


def _like(value: Any, parameter: nn.Parameter) -> Any:
    """A copy of a captured value, on the device of its parameter."""
    return value.to(parameter.device, copy=True) if isinstance(value, Tensor) else value
