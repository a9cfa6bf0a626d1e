"""`NonFinite` looks at the weights once a block, and still stops before the very step."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from builder_support import Stream, assert_same_bits, classifier
from outside import Outside
from torch import Tensor, nn, optim

from notebook_learner import Learner, Paused
from notebook_learner.breakpoint import NonFinite
from notebook_learner.breakpoint.conditions import _KEEPING

BAD = [float("inf"), float("-inf"), float("nan")]
KEEPING = sorted(_KEEPING, key=lambda kind: kind.__name__)


class Glitch(torch.autograd.Function):
    """The identity; one entry of the gradient is spoilt on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float | None) -> Tensor:
        ctx.value = value
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        gradient = grads[0].clone()
        if ctx.value is not None:
            gradient.view(-1)[0] = ctx.value
        return gradient, None


class Net(nn.Module):
    """Its loss stays finite; at one step one gradient does not."""

    def __init__(self, step: int, value: float = float("inf")) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.seen = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.step, self.value = step, value

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        glitch = self.value if self.training and int(self.seen) == self.step else None
        return self.last(Glitch.apply(self.first(x), glitch))


def data(steps: int = 60) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 6, generator=source), torch.randint(0, 3, (4,), generator=source))
        for _ in range(steps)
    ]


class Counted(NonFinite):
    """Counts how often it looked at all gradients of a step."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.looks = 0

    def measure(self, moment: Any) -> Tensor:
        self.looks += 1
        return super().measure(moment)


def learner_on(
    directory: Path, model: nn.Module, *conditions: Any, optimizer: Any = None, configure: Any = None
) -> Learner:
    builder = classifier(directory).seed(3).num_epochs(2).break_on(*conditions).with_application_logger(True)
    if configure is not None:
        configure(builder)
    return builder.build(model, optimizer or optim.Adam(model.parameters()), None, data(), data(5))


def stops_before(learner: Learner, step: int) -> None:
    with pytest.raises(Paused):
        learner.fit()
    assert learner.position.iteration == step - 1
    assert all(p.isfinite().all() for p in learner.model.parameters())
    assert "not finite" in learner.hit.text


@pytest.mark.parametrize("kind", KEEPING, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("clips", [False, True], ids=["as it is", "clipped by norm"])
def test_these_optimizers_keep_in_a_parameter_what_was_not_finite(
    kind: type[optim.Optimizer], value: float, clips: bool
) -> None:
    """For as long as a block can be."""
    source = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, generator=source))
    optimizer = kind([parameter], lr=1e-3)  # type: ignore[call-arg]
    for step in range(1, 200):
        parameter.grad = torch.randn(5, generator=source)
        if step == 7:
            parameter.grad[2] = value
        if clips:
            nn.utils.clip_grad_norm_([parameter], 1.0)
        optimizer.step()
        assert bool(parameter.isfinite().all()) == (step < 7)


@pytest.mark.parametrize("kind", KEEPING, ids=lambda kind: kind.__name__)
def test_it_stops_before_the_step_whose_gradient_is_not_finite(
    kind: type[optim.Optimizer], tmp_path: Path
) -> None:
    model = Net(step=37)
    optimizer = kind(model.parameters(), lr=1e-3)  # type: ignore[call-arg]
    learner = learner_on(tmp_path, model, Counted(), optimizer=optimizer)

    stops_before(learner, 37)
    assert 0 < looks(learner) <= 60, "only the steps of one block were looked at in full"
    model.step = 0
    learner.fit()
    assert learner.status == "finished"


@pytest.mark.parametrize("step", [1, 2, 59, 60, 61, 120])
@pytest.mark.parametrize("window", [1, 7])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_anywhere_in_an_epoch_and_in_a_window(step: int, window: int, value: float, tmp_path: Path) -> None:
    """Gradients of an open window show themselves; the last, short window is applied when the split ends."""
    model = Net(step, value)
    learner = learner_on(
        tmp_path, model, NonFinite(), configure=lambda builder: builder.grads_accumulation(window)
    )
    stops_before(learner, step)


def test_while_all_is_well_no_step_is_looked_at_in_full_and_no_bit_differs(tmp_path: Path) -> None:
    model, other = Net(step=0), Net(step=0)
    learner = learner_on(tmp_path / "watched", model, Counted())
    learner.fit()
    learner_on(tmp_path / "alone", other).fit()

    assert looks(learner) == 0
    assert_same_bits(model, other)


class Mending(optim.SGD):
    """An optimizer of the user's own: it may do anything with an infinity."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        super().step(closure)


def looks(learner: Learner) -> int:
    """A learner has conditions of its own, copied from those it was given."""
    return learner.breakpoints[1].condition.looks


def looks_at_every_step(learner: Learner) -> bool:
    learner.step(5)
    return looks(learner) == 5


def test_where_the_weights_may_not_tell_every_step_is_looked_at(tmp_path: Path) -> None:
    model = Net(step=37)
    own = learner_on(tmp_path / "own", model, Counted(), optimizer=Mending(model.parameters(), 0.1))
    assert looks_at_every_step(own)
    stops_before(own, 37)

    cut = learner_on(
        tmp_path / "cut", Net(step=37), Counted(), configure=lambda b: b.clip_gradients(value=0.1)
    )
    assert looks_at_every_step(cut)
    stops_before(cut, 37)

    model = Net(step=37)
    optimizer = optim.SGD(model.last.parameters(), 0.1)  # the first layer has gradients, and never moves
    partly = learner_on(tmp_path / "partly", model, Counted(), optimizer=optimizer)
    assert looks_at_every_step(partly)
    stops_before(partly, 37)

    model = Net(step=37)
    hooked = optim.SGD(model.parameters(), 0.1)
    hooked.register_step_pre_hook(lambda *given: None)
    mended = learner_on(tmp_path / "hooked", model, Counted(), optimizer=hooked)
    assert looks_at_every_step(mended)

    asked = learner_on(tmp_path / "asked", Net(step=37), Counted(every_step=True))
    assert looks_at_every_step(asked)
    stops_before(asked, 37)
    assert str(asked.breakpoints[1].condition) == "NonFinite(every_step=True)"


def test_a_loader_that_cannot_be_walked_again_has_every_step_looked_at(tmp_path: Path) -> None:
    model = Net(step=37)
    learner = (
        classifier(tmp_path)
        .num_epochs(1)
        .break_on(Counted())
        .build(model, optim.Adam(model.parameters()), None, Stream(data()))
    )
    with pytest.raises(Paused, match="step 37"):
        learner.fit()
    assert looks(learner) >= 37


def test_weights_that_are_infinite_on_purpose_stop_nothing(tmp_path: Path) -> None:
    def with_mask() -> nn.Module:
        model = Net(step=0)
        model.mask = nn.Parameter(torch.tensor([0.0, float("-inf")]))
        return model

    model, other = with_mask(), with_mask()
    learner = learner_on(tmp_path / "watched", model, Counted())
    learner.fit()
    learner_on(tmp_path / "alone", other).fit()

    assert looks(learner) == 2 * 60, "every step of a run whose weights tell nothing"
    assert warnings_of(tmp_path / "watched") == []
    assert_same_bits(model, other)


def warnings_of(directory: Path) -> list[str]:
    lines = (directory / "experiment.log").read_text("utf-8").splitlines()
    return [line.partition("WARN")[2].strip() for line in lines if "WARN" in line]


class Once(Net):
    """Not finite the first time only: what makes it so is not part of the training's state."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.times = Outside(1)

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.training and int(self.seen) == 37 and self.times.value:
            self.times.value -= 1
            return output * float("nan")
        return output


def test_what_does_not_come_again_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model, other = Once(step=0), Net(step=0)
    learner = learner_on(tmp_path / "watched", model, Counted())
    learner.fit()
    learner_on(tmp_path / "alone", other).fit()

    assert not model.times.value and learner.hit is None
    (told,) = warnings_of(tmp_path / "watched")
    assert "NonFinite(): not every value was finite in steps" in told and "of epoch 1. The run took" in told
    assert_same_bits(model, other)


def test_where_it_does_come_again_it_is_no_riddle(tmp_path: Path) -> None:
    learner = learner_on(tmp_path, Net(step=37), NonFinite())
    stops_before(learner, 37)
    assert warnings_of(tmp_path) == []


def test_weights_so_large_that_their_squares_overflow_are_no_reason_to_look(tmp_path: Path) -> None:
    model = Net(step=0)
    model.large = nn.Parameter(torch.tensor([3e38, 3e38]))
    learner = learner_on(tmp_path, model, Counted())
    learner.fit()
    assert looks(learner) == 0 and warnings_of(tmp_path) == []


class Counting(Net):
    """Its outputs tell how often it was called: a step that is taken again is another one."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.calls = Outside(0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.value += 1
        time.sleep(0.005)  # so that there are several blocks
        return super().forward(x) * (1 + 0.001 * self.calls.value)


def test_a_way_back_that_is_not_exact_is_told(tmp_path: Path) -> None:
    learner = learner_on(tmp_path, Counting(step=55), NonFinite())
    stops_before(learner, 55)
    told = warnings_of(tmp_path)
    drifts = [re.search(r"\d+ steps were taken again and drifted by (\S+): Loss ", each) for each in told]
    assert drifts and all(drift and float(drift[1]) > 0 for drift in drifts), told


def test_where_a_later_step_fails_the_one_that_is_to_blame_is_found(tmp_path: Path) -> None:
    class Strict(Net):
        def forward(self, x: Tensor) -> Tensor:
            if not self.first.weight.isfinite().all():
                raise RuntimeError("these weights are of no use")
            return super().forward(x)

    stops_before(learner_on(tmp_path, Strict(step=37), NonFinite()), 37)


def test_where_the_way_back_is_lost_meanwhile_it_stops_at_the_next_boundary(tmp_path: Path) -> None:
    model = Net(step=37)
    learner = learner_on(tmp_path, model, NonFinite())
    learner.step(20)
    watch, timeline = learner._replica.watch, learner._replica.timeline
    refresh = watch.refresh

    def refreshed() -> None:
        refresh()
        timeline.keyframes.clear()

    watch.refresh = refreshed  # type: ignore[method-assign]
    with pytest.raises(Paused, match="no kept state lies before it"):
        learner.fit()
    assert learner.position.iteration >= 37
