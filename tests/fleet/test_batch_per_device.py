"""With `batch="per_device"` a loader's batch is that of one device: a step of two devices takes two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fleet_support import TWO, bits, by_hand, furthest, learner_on, samples, train_loader
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, Sampler

from notebook_learner import ClassificationOutput, Learner, LearnerBuilder
from notebook_learner.errors import ConfigurationError, StateError


def two(directory: Any, *, resumable: bool = False, dropout: float = 0.0) -> Learner:
    return on(TWO, directory, resumable=resumable, dropout=dropout)


def on(devices: list[str], directory: Any, *, resumable: bool = False, dropout: float = 0.0) -> Learner:
    def configure(builder: LearnerBuilder) -> None:
        builder.devices(devices, batch="per_device")
        if resumable:
            builder.with_file_checkpointer().resume()

    return learner_on(None, directory, dropout=dropout, configure=configure)


def fitted(learner: Learner, train: Any) -> Learner:
    torch.manual_seed(5)
    learner.fit(train)
    return learner


class Buckets(Sampler[list[int]]):
    """Batches of several sizes, in an order drawn for each epoch."""

    sizes = (9, 4, 16, 7, 1)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(sum(self.sizes)).tolist()
        for size in self.sizes:
            yield [order.pop() for _ in range(size)]

    def __len__(self) -> int:
        return len(self.sizes)


class Stream(IterableDataset[Any]):
    """Samples one after the other, as many as there are."""

    def __iter__(self) -> Iterator[Any]:
        return iter(samples())


DATA = {
    "a shuffled loader": lambda: train_loader(batch_size=8),
    "a loader with workers": lambda: DataLoader(samples(), 8, shuffle=True, num_workers=1),
    "a loader with a batch sampler of its own": lambda: DataLoader(samples(), batch_sampler=Buckets()),
    "a stream": lambda: DataLoader(Stream(), batch_size=8),
    "a list of batches": lambda: list(DataLoader(samples(), batch_size=8)),
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA.keys())
@pytest.mark.rounds(1)
def test_two_batches_are_one_step_to_the_weights_of_a_loop_written_by_hand(tmp_path: Any, data: Any) -> None:
    """Seven pairs of batches, of which the last has a short one or none; five of the batch sampler's."""
    assert furthest(fitted(two(tmp_path), data()).model, by_hand(data(), window=2)) < 1e-6


def test_batches_of_several_shapes_are_never_joined(tmp_path: Any) -> None:
    """As a sampler that sorts texts by length gives them: each device has a width of its own."""
    x, y = samples(24).tensors
    batches = [(F.pad(x[at : at + 4], (0, at)), y[at : at + 4]) for at in range(0, 24, 4)]

    def step(model: Any, batch: Any) -> Any:
        scores = model(batch[0][:, :10])
        return ClassificationOutput(F.cross_entropy(scores, batch[1]), scores, batch[1])

    def configure(builder: LearnerBuilder) -> None:
        builder.devices(TWO, batch="per_device").train_step(step)
        builder._settings.loss = None

    learner = fitted(learner_on(None, tmp_path, configure=configure), batches)
    plain = [(x[at : at + 4], y[at : at + 4]) for at in range(0, 24, 4)]
    assert furthest(learner.model, by_hand(plain, window=2)) < 1e-6


def test_an_epoch_has_a_step_for_every_two_batches(tmp_path: Any) -> None:
    batches = list(DataLoader(samples(), batch_size=8))
    learner = fitted(two(tmp_path), batches)
    assert len(batches) == 13
    assert len(learner.history.values("Loss", "train", epoch=1)) == 7


@pytest.mark.parametrize("data", [DATA["a shuffled loader"], DATA["a list of batches"]])
def test_a_run_stopped_inside_an_epoch_goes_on_to_the_bit(tmp_path: Any, data: Any) -> None:
    straight = bits(fitted(two(tmp_path / "straight", dropout=0.5), data()))

    loader = data()
    stopped = two(tmp_path / "stopped", resumable=True, dropout=0.5)
    torch.manual_seed(5)
    stopped._supplies.use(stopped, "train", loader)
    stopped.step(5)
    stopped.rewind(2)
    stopped.step(6)
    stopped.save()
    del stopped
    again = two(tmp_path / "stopped", resumable=True, dropout=0.5)
    again.fit(data())
    assert bits(again) == straight


def test_inside_an_epoch_it_goes_on_with_as_many_devices_only(tmp_path: Any) -> None:
    stopped = two(tmp_path, resumable=True)
    stopped._supplies.use(stopped, "train", train_loader(batch_size=8))
    stopped.step(3)
    stopped.save()
    with pytest.raises(
        StateError, match="steps take 2 batches, one for each device, and here they take one batch"
    ):
        on(["cpu"], tmp_path, resumable=True).fit(train_loader(batch_size=8))


def test_at_the_end_of_an_epoch_with_any_number(tmp_path: Any) -> None:
    stopped = two(tmp_path, resumable=True)
    stopped._supplies.use(stopped, "train", train_loader(batch_size=8))
    stopped.step_epoch()
    del stopped
    alone = on(["cpu"], tmp_path, resumable=True)
    alone.fit(train_loader(batch_size=8))
    assert len(alone.history.values("Loss", "train", epoch=1)) == 7
    assert len(alone.history.values("Loss", "train", epoch=2)) == 13


def test_what_is_asked_of_the_training_s_own_loader_leaves_its_place(tmp_path: Any) -> None:
    loader = train_loader(batch_size=8)
    straight = bits(fitted(two(tmp_path / "straight"), train_loader(batch_size=8)))
    asked = two(tmp_path / "asked")
    torch.manual_seed(5)
    asked._supplies.use(asked, "train", loader)
    asked.step(3)
    asked.evaluate(loader, name="seen")
    asked.inspect()
    asked.fit()
    assert bits(asked) == straight


def test_another_word_than_the_two_is_a_mistake_that_names_them(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"batch='each'.*'global'.*'per_device'"):
        learner_on(None, tmp_path, configure=lambda b: b.devices(TWO, batch="each"))
