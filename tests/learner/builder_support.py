"""What the tests of the builder share: a small model, small data, and loops written by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from notebook_learner import ClassificationOutput, ConfigurationError, LearnerBuilder, TrainOutput

SIZES = (8, 8, 8, 3)


def net(*, dtype=torch.float32, dropout=0.0, seed=0):
    """Always the same weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)).to(dtype)


class Stream:
    """A user's own iterator, which can be walked once."""

    def __init__(self, batches):
        self.inner = iter(batches)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.inner)


def batches(sizes=SIZES, *, dtype=torch.float32, seed=1):
    """Always the same (x, class) batches."""
    source = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 6, generator=source, dtype=torch.float64).to(dtype),
            torch.randint(0, 3, (size,), generator=source),
        )
        for size in sizes
    ]


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def adam(model, lr=0.01):
    return torch.optim.Adam(model.parameters(), lr=lr)


def quiet(directory):
    """A builder that shows nothing and writes no application log."""
    return LearnerBuilder(directory).renderer("silent").with_application_logger(False)


def classifier(directory):
    """A quiet builder for `net` and `batches`."""
    return quiet(directory).loss(F.cross_entropy)


def by_hand(model, optimizer, data, *, epochs=1, before_step=None, after_step=None, after_epoch=None):
    """The loop everybody writes."""
    for _ in range(epochs):
        model.train()
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if before_step is not None:
                before_step()
            optimizer.step()
            if after_step is not None:
                after_step()
        if after_epoch is not None:
            after_epoch()
    return model


def assert_same_bits(model, other):
    """Every parameter and buffer is equal to the bit."""
    mine, theirs = model.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


def assert_other_weights(model, other):
    """The control of a comparison: these two are not the same."""
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def rates(learner):
    """The learning rate that each training step was taken with."""
    return learner.history["train", "Learning Rate"].tolist()


def mistakes_of(builder, model=None, optimizer=None, *others):
    """What `build` finds wrong, line by line."""
    model = net() if model is None else model
    with pytest.raises(ConfigurationError) as caught:
        builder.build(model, sgd(model) if optimizer is None else optimizer, *others)
    assert all(line in str(caught.value) for line in caught.value.mistakes)
    return caught.value.mistakes


def one_mistake_of(builder, *given):
    """The only thing that `build` finds wrong."""
    (mistake,) = mistakes_of(builder, *given)
    return mistake


class Tape:
    """A sink that keeps every event."""

    def __init__(self):
        self.events = []

    def handle(self, event):
        self.events.append(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def files_in(directory):
    """All but `artifacts.h5`, which is derived from them, and what says where the run is steered."""
    found = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    return [name for name in found if name not in ("artifacts.h5", "control.sock")]


# Training steps --------------------------------------------------------------------------------------


def plain(model, batch):
    scores = model(batch[0])
    return ClassificationOutput(F.cross_entropy(scores, batch[1]), scores, batch[1])


def with_own_gradients(model, batch):
    item = plain(model, batch)
    return TrainOutput(model, item.loss.backward(), item)
