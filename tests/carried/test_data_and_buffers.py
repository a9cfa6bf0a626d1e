"""Loaders with a state of their own, data that draw by turns with steps, buffers that change in kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from carried_support import Notices, weights
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import StateError

SAMPLES, SIZE = 40, 8
X = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 2, (SAMPLES,), generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A model with a buffer that forward changes in kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.dropout, self.kind = nn.Linear(4, 2), nn.Dropout(0.4), kind
        first = {"grows": torch.zeros(1), "another type": torch.zeros(2, dtype=torch.int64)}
        self.register_buffer("kept", first.get(kind))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "grows":
            self.kept = torch.cat([self.kept, torch.ones(1)])
        elif self.kind == "another type":
            self.kept = self.kept + 0.3
        elif self.kind == "None at first":
            self.kept = torch.ones(2) if self.kept is None else self.kept * 1.1
        scale = 1.0 if self.kept is None else 1 + self.kept.sum() / 10
        return self.dropout(self.body(x)) * scale


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 2, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x[:, 0].abs() * 10).long().clamp(max=49))


class OwnState:
    """A loader with a generator of its own, that says where it is."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.at, self.order = 0, list[int]()

    def __len__(self) -> int:
        return SAMPLES // SIZE

    def __iter__(self) -> Iterator[Any]:
        if not self.order:
            self.order, self.at = torch.randperm(SAMPLES, generator=self.generator).tolist(), 0
        while self.at < len(self):
            chosen = self.order[self.at * SIZE : (self.at + 1) * SIZE]
            self.at += 1
            yield X[chosen], Y[chosen]
        self.order = []

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "at": self.at, "order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.at, self.order = state["at"], list(state["order"])


def shuffled(draw: Any) -> Iterator[int]:
    """Indices out of a small buffer, each drawn when it is asked for."""
    buffer: list[int] = []
    for number in range(SAMPLES):
        buffer.append(number)
        if len(buffer) > 6:
            yield buffer.pop(draw(len(buffer)))
    while buffer:
        yield buffer.pop(draw(len(buffer)))


def of_torch(count: int) -> int:
    return int(torch.randint(0, count, (1,)))


class ShuffleBuffer(IterableDataset[Any]):
    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[Any]:
        return ((X[index], Y[index]) for index in shuffled(self.draw))


class ShufflingSampler(Sampler[int]):
    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return shuffled(of_torch)


def loader_of(kind: str) -> Any:
    data = TensorDataset(X, Y)
    if kind == "own state":
        return OwnState()
    if kind == "buffer of an iterable":
        return DataLoader(ShuffleBuffer(of_torch), SIZE)
    if kind == "buffer of an iterable, Python's generator":
        return DataLoader(ShuffleBuffer(random.randrange), SIZE)
    if kind == "buffer of a sampler":
        return DataLoader(data, SIZE, sampler=ShufflingSampler())
    if kind == "persistent workers":
        return DataLoader(ShuffleBuffer(of_torch), SIZE, num_workers=1, persistent_workers=True)
    return DataLoader(data, SIZE, shuffle=True)


def step(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def program(
    directory: Path, kind: str, seed: int | None, shown: Notices | None = None, resume: bool = False
) -> Learner:
    """Everything anew, as in a new kernel."""
    torch.manual_seed(5)
    random.seed(5)
    model = Sparse() if kind == "sparse gradients" else Net(kind)
    builder = LearnerBuilder(directory).train_step(step).num_epochs(3).metrics().with_file_checkpointer()
    builder.renderer(shown or "silent")
    if kind == "sparse gradients":
        builder.grads_accumulation(2)
    if seed is not None:
        builder.seed(seed)
    if resume:
        builder.resume()
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, loader_of(kind))


EXACT = [
    *("own state", "buffer of an iterable, Python's generator"),
    *("grows", "another type", "None at first", "sparse gradients"),
]
SEEDED = ["buffer of an iterable", "buffer of a sampler"]


@pytest.mark.parametrize(
    ("kind", "seed"), [*((kind, None) for kind in EXACT), *((kind, 7) for kind in (*EXACT, *SEEDED))]
)
def test_they_come_back_to_the_bits_of_the_straight_run(kind: str, seed: int | None, tmp_path: Path) -> None:
    shown = Notices()
    straight = program(tmp_path / "straight", kind, seed, shown)
    straight.fit()
    assert not [text for text in shown.texts if text.startswith("not in the state")]

    back_and_forth = program(tmp_path / "back", kind, seed)
    back_and_forth.step(4)
    back_and_forth.rewind(2)
    back_and_forth.step(5)
    back_and_forth.rewind(3)
    back_and_forth.what_if(3, lr=0.5)
    back_and_forth.tools.try_step()
    back_and_forth.fit()
    assert torch.equal(weights(back_and_forth), weights(straight))

    for steps in (3, 5, 6, 8):
        folder = tmp_path / str(steps)
        first = program(folder, kind, seed)
        first.step(steps)
        first.save()
        second = program(folder, kind, seed, resume=True)
        second.fit()
        assert torch.equal(weights(second), weights(straight)), steps


@pytest.mark.parametrize("kind", SEEDED)
def test_data_that_draw_by_turns_with_the_steps_are_named_once(kind: str, tmp_path: Path) -> None:
    shown = Notices()
    learner = program(tmp_path, kind, None, shown)
    learner.step(3)
    learner.fit()
    (told,) = [text for text in shown.texts if text.startswith("not in the state")]
    assert "torch's global generator" in told and ".seed(n) on the builder is exact" in told
    assert ("ShufflingSampler" if kind == "buffer of a sampler" else "ShuffleBuffer") in told


@pytest.mark.parametrize("seed", [None, 7])
def test_an_iterable_in_workers_that_live_on_is_named(seed: int | None, tmp_path: Path) -> None:
    shown = Notices()
    program(tmp_path, "persistent workers", seed, shown).step(1)
    (told,) = [text for text in shown.texts if text.startswith("not in the state")]
    assert "persistent_workers=False is exact" in told


def test_a_parameter_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    learner = program(tmp_path, "plain", None)
    state = learner.capture()
    learner.model.body.weight.data = learner.model.body.weight.data.double()  # type: ignore[union-attr, operator]
    with pytest.raises(
        StateError, match=r"body.weight: the state has \(2, 4\) float32, the model .* float64"
    ):
        learner.restore(state)
