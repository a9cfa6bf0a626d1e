"""Wherever in a step the memory gives out, the learner stands at the boundary before, to the bit, with the
memory given back, and goes on with its batches in parts: as a loop written by hand does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stand_in
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, batches, room_for
from torch import Tensor, nn

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Loss, Metric

MIB = 1 << 20
ROOM = 24 * MIB
"""Enough for 16 rows of a mebibyte, and not for 32."""


class Greedy:
    """Takes memory on the device at one place: a mebibyte for each row, for a moment."""

    def __init__(self) -> None:
        self.place = ""

    def eats(self, place: str, rows: int) -> None:
        if self.place == place:
            torch.empty(rows * MIB, dtype=torch.uint8, device=DEVICE)


class Hungry(torch.autograd.Function):
    """What it is given, unchanged; its backward pass is greedy."""

    @staticmethod
    def forward(context: Any, x: Tensor, greedy: Greedy) -> Tensor:
        context.greedy = greedy
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None]:
        context.greedy.eats("backward", len(grad))
        return grad, None


class Net(nn.Module):
    def __init__(self, greedy: Greedy) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 4096), nn.Linear(4096, 5)
        self.greedy = [greedy]  # in a list, it is nothing of the state

    def forward(self, x: Tensor) -> Tensor:
        greedy = self.greedy[0]
        x = torch.relu(self.first(x))
        greedy.eats("forward" if self.training else "validation", len(x))
        return self.last(Hungry.apply(x, greedy))

    def get_extra_state(self) -> Tensor:
        self.greedy[0].eats("keyframe", 32)
        return torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        pass


class GreedyAdam(torch.optim.Adam):
    greedy = Greedy()

    def step(self, closure: Any = None) -> Any:
        self.greedy.eats("optimizer", 32)
        return super().step(closure)


class GreedyMetric(Metric):
    name = "Greedy"
    needs = ("output", "targets")

    def __init__(self, greedy: Greedy) -> None:
        self.greedy = greedy

    def update(self, item: Any) -> tuple[Any, int]:
        self.greedy.eats("metric", 32)
        return item.output.mean(), len(item.targets)


def data() -> list[Any]:
    """Six batches, of which the last is the smaller one of an epoch."""
    made = batches(6)
    return [*made[:-1], tuple(part[:5] for part in made[-1])]


def build(directory: Path) -> tuple[Learner, Greedy]:
    torch.manual_seed(3)
    greedy = Greedy()
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss())
        .metric_train_numeric(GreedyMetric(greedy))
        .loss(F.cross_entropy)
        .devices([DEVICE])
        .num_epochs(2)
        .exactness("off")
        .renderer("silent")
    )

    def optimizer(parameters: Any) -> GreedyAdam:
        made = GreedyAdam(parameters, lr=1e-2)
        made.greedy = greedy
        return made

    return builder.build(Net(greedy), optimizer, None, data(), batches(2)), greedy


def by_hand(split_from: int, steps: int = 12, parts: int = 2) -> Net:
    """The loop that everybody writes; from a step on, with each batch in parts."""
    torch.manual_seed(3)
    model = Net(Greedy()).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate((data() * 2)[:steps]):
        optimizer.zero_grad()
        x, y = x.to(DEVICE), y.to(DEVICE)
        if number < split_from:
            F.cross_entropy(model(x), y).backward()
        else:
            total, first = 0.0, -(-len(x) // parts)
            for x_i, y_i in zip(x.tensor_split(parts), y.tensor_split(parts), strict=True):
                share = len(x_i) / first
                (F.cross_entropy(model(x_i), y_i) * share).backward()
                total += share
            torch._foreach_div_([p.grad for p in model.parameters()], total)
        optimizer.step()
    return model


def other_weights(learner: Learner, model: nn.Module) -> list[str]:
    mine, theirs = dict(learner.model.named_parameters()), dict(model.named_parameters())
    return [name for name in theirs if not torch.equal(mine[name], theirs[name])]


def held() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@pytest.fixture
def learners(tmp_path: Path, deterministic: None) -> Iterator[Callable[..., tuple[Learner, Greedy]]]:
    yield lambda: build(tmp_path / "run")


def goes_out_of_memory(work: Callable[[], Any]) -> torch.OutOfMemoryError:
    with room_for(ROOM), pytest.raises(torch.OutOfMemoryError) as caught:
        work()
    return caught.value


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_where_a_batch_is_too_large_its_halves_go_on_under_the_same_limit(
    place: str, steps: int, learners: Any
) -> None:
    learner, greedy = learners()
    if steps:
        learner.step(steps)
    before, greedy.place = held(), place

    error = goes_out_of_memory(learner.fit)  # kept, as IPython keeps it

    assert learner.position.iteration == steps
    assert held() <= before
    assert other_weights(learner, by_hand(12, steps)) == []
    assert "learner.split_batch(2)" in "\n".join(error.__notes__)
    learner.split_batch(2)
    with room_for(ROOM):
        learner.fit()
    assert other_weights(learner, by_hand(steps)) == []


def test_a_validation_without_memory_goes_on_in_halves(learners: Any) -> None:
    learner, greedy = learners()
    greedy.place = "validation"
    before = held()

    error = goes_out_of_memory(learner.fit)

    assert (learner.position.split, learner.position.step) == ("valid", 0)
    assert held() <= before + 4 * MIB, "what the optimizer has made since is small"
    assert other_weights(learner, by_hand(12, 6)) == []
    assert "learner.split_batch(2)" in "\n".join(error.__notes__)
    learner.split_batch(2)
    with room_for(ROOM):
        learner.fit()
    assert other_weights(learner, by_hand(6)) == []


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("place", ["optimizer", "metric", "keyframe"])
def test_where_memory_is_not_the_batchs_nothing_is_lost_either(place: str, steps: int, learners: Any) -> None:
    learner, greedy = learners()
    if steps:
        learner.step(steps)
    before, greedy.place = held(), place

    error = goes_out_of_memory(learner.fit)

    assert learner.position.iteration == steps and error.__traceback__ is not None
    assert held() <= before
    assert other_weights(learner, by_hand(12, steps)) == []
    learner.split_batch(2)  # there is more room now
    learner.fit()
    assert other_weights(learner, by_hand(steps)) == []


def test_a_look_at_a_step_without_memory_says_so_and_holds_none(learners: Any) -> None:
    learner, greedy = learners()
    learner.step(3)
    before, greedy.place = held(), "forward"

    with room_for(ROOM):
        seen = learner.inspect("next")

    assert seen.failed.startswith("OutOfMemoryError") and "Net" in seen.failed
    assert "Write learner.split_batch(2), and fit() needs less memory" in "\n".join(seen.notes)
    assert "give it a smaller one, inspect(batch)" in repr(seen)
    assert held() <= before
    assert other_weights(learner, by_hand(12, 3)) == []
    learner.split_batch(2)
    with room_for(ROOM):
        assert learner.inspect(tuple(part[:16] for part in data()[3])).failed is None
        learner.fit()
    assert other_weights(learner, by_hand(3)) == []


MEASURED = {
    "evaluate": lambda learner, loader: learner.evaluate(loader),
    "predict": lambda learner, loader: learner.predict([x for x, _ in loader]),
}


@pytest.mark.parametrize("verb", MEASURED)
def test_a_set_that_takes_too_much_memory_is_measured_in_smaller_batches(verb: str, learners: Any) -> None:
    learner, greedy = learners()
    learner.step(3)
    before, greedy.place = held(), "validation"
    large = batches(2)
    small = [pair for x, y in large for pair in zip(x.chunk(4), y.chunk(4), strict=True)]

    error = goes_out_of_memory(lambda: MEASURED[verb](learner, large))

    told = "\n".join(error.__notes__)
    assert "Out of memory: " in told and "a smaller batch size" in told
    assert held() <= before
    with room_for(ROOM):
        MEASURED[verb](learner, small)
    assert other_weights(learner, by_hand(12, 3)) == []


TRIED = {
    "what_if": lambda learner: learner.what_if(2, lr=1e-3),
    "try_step": lambda learner: learner.tools.try_step(),
}


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("verb", TRIED)
def test_what_is_only_tried_leaves_no_trace_where_memory_gives_out(
    verb: str, place: str, learners: Any
) -> None:
    learner, greedy = learners()
    learner.step(3)
    before, greedy.place = held(), place

    error = goes_out_of_memory(lambda: TRIED[verb](learner))

    assert learner.position.iteration == 3
    assert held() <= before
    assert other_weights(learner, by_hand(12, 3)) == []
    assert "learner.split_batch(2)" in "\n".join(error.__notes__)
    learner.split_batch(2)
    with room_for(ROOM):
        TRIED[verb](learner)
        learner.fit()
    assert other_weights(learner, by_hand(3)) == []


def test_the_error_says_how_much_was_asked_and_what_holds_the_memory(learners: Any) -> None:
    learner, greedy = learners()
    learner.step(3)
    greedy.place = "forward"

    (told,) = [note for note in goes_out_of_memory(learner.fit).__notes__ if note.startswith("Out of memory")]

    head, *table, advice = told.splitlines()
    if stand_in.loaded():
        assert head.startswith("Out of memory: 32.00 MiB was asked for. ")
    assert head.endswith(f"What holds it on {DEVICE}:")
    sizes = {row[2:22].strip(): row[22:].strip() for row in table}
    assert [*sizes] == ["weights", "gradients", "optimizer", "keyframes", "activations, other"]
    numbers = sum(parameter.numel() for parameter in learner.model.parameters())
    assert sizes["weights"] == f"{numbers * 4 / MIB:.2f} MiB"
    assert sizes["optimizer"] == f"{numbers * 8 / MIB:.2f} MiB"
    assert sizes["keyframes"] == "0.00 MiB", "they are on the host"
    assert advice == (
        "Write learner.split_batch(2), and fit() goes on from there: each batch in 2 parts, with gradients "
        "accumulated to the same mean"
    )


def test_halves_that_are_too_large_become_quarters_and_one_sample_cannot_be_cut(learners: Any) -> None:
    learner, greedy = learners()
    greedy.place = "forward"
    learner.split_batch(2)
    with room_for(12 * MIB), pytest.raises(torch.OutOfMemoryError) as caught:
        learner.fit()
    assert "learner.split_batch(4)" in "\n".join(caught.value.__notes__)
    learner.split_batch(32)
    with room_for(0), pytest.raises(torch.OutOfMemoryError) as caught:
        learner.fit()
    assert "Give a smaller batch size" in "\n".join(caught.value.__notes__)
    learner.split_batch(4)
    with room_for(12 * MIB):
        learner.fit()
    assert learner.status == "finished"
