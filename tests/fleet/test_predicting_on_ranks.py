"""`predict` on several ranks: what each finds in its part comes back in the loader's order."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fleet_support import TWO, Walked, batches, learner_on, samples, train_loader, valid_loader
from torch import Tensor
from torch.utils.data import DataLoader

from notebook_learner.event import Notice
from notebook_learner.logger import InMemoryMetricLogger


class Told(InMemoryMetricLogger):
    """Keeps what is said to people."""

    def __init__(self):
        super().__init__()
        self.said = []

    def handle(self, event):
        super().handle(event)
        if isinstance(event, Notice):
            self.said.append(event.text)


class Both(NamedTuple):
    scores: Tensor
    first: Tensor


@dataclass
class Record:
    scores: Tensor
    names: list[str]


FUNCTIONS: dict[str, Any] = {
    "none": None,
    "a part of a larger tensor": lambda output, batch: output[:, 0],
    "a dict": lambda output, batch: {"class": output.argmax(1), "name": [f"{v:.2f}" for v in batch[0][:, 0]]},
    "a list": lambda output, batch: [f"{value:.3f}" for value in batch[0][:, 1]],
    "an array": lambda output, batch: output.argmax(1).numpy(),
    "a named tuple of tuples": lambda output, batch: Both(output, (batch[0], batch[1])),
    "a record": lambda output, batch: Record(output, [str(int(y)) for y in batch[1]]),
    "several shapes": lambda output, batch: output.repeat(1, 1 + int(len(batch[0]) < 16)),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same weights on one device and on two, and what is said of the latter."""
    told = Told()
    alone = learner_on(None, tmp_path_factory.mktemp("alone"))
    ranks = learner_on(TWO, tmp_path_factory.mktemp("ranks"), configure=lambda b: b.metric_logger(told))
    return alone, ranks, told


@pytest.fixture
def said(both):
    told = both[2].said
    told.clear()
    return told


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert other.device.type == "cpu"
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for each, theirs in zip(one, other, strict=True):
            assert_same(each, theirs)
    elif isinstance(one, Record):
        assert_same(vars(one), vars(other))
    else:
        assert one == other


LOADERS = {
    "each walks its share": valid_loader(),
    "rank 0 hands out a list": batches(),
    "a loader of one's own": Walked(batches()),
    "one sample in the last batch": DataLoader(samples(34), batch_size=11),
}


@pytest.mark.parametrize("data", LOADERS)
@pytest.mark.rounds(1)
def test_outputs_come_back_in_the_loaders_order(data, both, said):
    alone, ranks, _ = both
    for function in FUNCTIONS.values():
        assert_same(alone.predict(LOADERS[data], function), ranks.predict(LOADERS[data], function))
    assert said == []


def test_a_shuffled_loader_is_walked_in_one_order_by_all(both, said):
    alone, ranks, _ = both
    found = []
    for learner in (alone, ranks):
        torch.manual_seed(3)
        found.append(learner.predict(train_loader(), lambda output, batch: (output, batch[0])))
    assert_same(*found)
    assert said == []


def test_a_tensor_is_one_batch_and_a_step_says_how(both, said):
    alone, ranks, _ = both
    x = samples().tensors[0]
    for rows in (x, x[:1], x[:2]):
        assert_same(alone.predict(rows), ranks.predict(rows))
    step = lambda model, batch: model(batch["x"])  # noqa: E731
    assert_same(alone.predict([{"x": x}] * 3, step=step), ranks.predict([{"x": x}] * 3, step=step))
    assert said == []


def test_a_function_may_mention_the_learner_and_means_the_one_of_its_rank(both):
    _, ranks, _ = both
    found = ranks.predict(valid_loader(), lambda output, batch: output - ranks.model(batch[0]))
    assert found.shape == (101, 3)
    assert not found.any()


# On rank 0 alone -------------------------------------------------------------------------------------

WHOLES: dict[str, Any] = {
    "a mean of each batch": lambda output, batch: output.mean(),
    "an entry for each batch": lambda output, batch: {"mean": float(output.mean()), "all": output},
    "a table as long as a part by chance": lambda output, batch: output.T @ output,
    "sorted by the whole batch": lambda output, batch: output[: len(output) // 2],
}


@pytest.mark.parametrize("function", WHOLES)
def test_what_is_no_entry_for_each_sample_is_made_on_rank_0_of_whole_batches(function, both, said):
    alone, ranks, _ = both
    data = batches(6)[:-1]  # a part has three samples, as many as there are classes
    assert_same(alone.predict(data, WHOLES[function]), ranks.predict(data, WHOLES[function]))
    assert said == [
        "predict: on rank 0 alone, since what is kept of a batch is not one entry for each of its samples"
    ]


def test_a_function_that_cannot_be_sent_is_called_on_rank_0(both, said):
    alone, ranks, _ = both
    own = threading.Lock()

    def function(output, batch):
        with own:
            return output

    assert_same(alone.predict(valid_loader()), ranks.predict(valid_loader(), function))
    assert len(said) == 1
    assert said[0].startswith("predict: on rank 0 alone, since it cannot be sent to the other devices'")


def test_a_loader_that_can_be_walked_only_once_is_walked_by_rank_0(both, said):
    alone, ranks, _ = both
    means = WHOLES["a mean of each batch"]
    assert_same(alone.predict(batches(), means), ranks.predict(iter(batches()), means))
    assert said == ["predict: on rank 0 alone, since its loader can be walked only once"]


def test_with_a_batch_for_each_device_every_batch_keeps_its_own_entry(tmp_path, said):
    """Of a loader that gives each device a batch of its own, nothing is cut, and nothing has to be joined."""
    told = Told()

    def configure(builder):
        builder.devices(TWO, batch="per_device").metric_logger(told)

    ranks = learner_on(None, tmp_path / "ranks", configure=configure)
    alone = learner_on(None, tmp_path / "alone")
    for function in (None, WHOLES["a mean of each batch"]):
        assert_same(alone.predict(batches(16), function), ranks.predict(batches(16), function))
    assert told.said == []
