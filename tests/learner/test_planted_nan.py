"""The hunt for a NaN: planted in a layer at step 1,234 of 3,000, in the data, in an update."""

from __future__ import annotations

import itertools

import pytest
import torch
from builder_support import assert_same_bits, classifier
from torch import nn
from torch.nn import functional as F

from notebook_learner import Paused
from notebook_learner.breakpoint import NonFinite

STEPS, PLANTED = 3000, 1234


class Swelling(nn.Module):
    """A layer whose output grows tenfold and more a step, from ten steps before it overflows."""

    def __init__(self):
        super().__init__()
        self.at = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.broken = True

    def forward(self, x):
        if self.training:
            self.at += 1
        late = max(0, int(self.at) - (PLANTED - 10))
        return x * (8e3**late) if self.broken else x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.swelling = Swelling()
        self.squash = nn.Tanh()
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.drop(self.squash(self.swelling(self.first(x)) * 1.0)))


def data(steps=STEPS, wrong=None):
    source = torch.Generator().manual_seed(1)
    made = []
    for step in range(1, steps + 1):
        x, y = torch.randn(4, 6, generator=source), torch.randint(0, 3, (4,), generator=source)
        if step == wrong:
            x[2, 3] = float("nan")
        made.append((x, y))
    return made


def learner_on(directory, model, batches, *conditions):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    builder = classifier(directory).seed(3).break_on(*conditions)
    return builder.build(model, optimizer, None, batches)


def test_in_a_layer_it_is_found_at_its_step_and_can_be_watched_growing(tmp_path):
    model = Net()
    learner = learner_on(tmp_path / "hunt", model, data(), NonFinite())
    with pytest.raises(Paused) as stopped:
        learner.fit()
    assert learner.position.iteration == PLANTED - 1, "before the update of that very step"
    assert "swelling" in learner.hit.text and "swelling" in str(stopped.value)
    assert all(p.isfinite().all() for p in model.parameters())

    assert learner.rewind(10).exact
    largest = []
    for _ in range(9):
        learner.step()
        largest.append(learner.inspect()["swelling"].activation.max)
    assert all(later > 100 * earlier for earlier, later in itertools.pairwise(largest))
    assert learner.position.iteration == PLANTED - 2
    assert learner.inspect("next")["swelling"].activation.max > 1e25

    model.swelling.broken = False
    learner.fit()
    assert learner.status == "finished" and learner.position.iteration == STEPS
    assert all(p.isfinite().all() for p in model.parameters())


def test_in_the_data_it_is_the_batch_that_is_named(tmp_path):
    learner = learner_on(tmp_path, Net_without_swelling(), data(wrong=PLANTED), NonFinite())
    with pytest.raises(Paused, match="1 of 24 values of the batch"):
        learner.fit()
    assert learner.position.iteration == PLANTED - 1
    assert learner.batch[0].isnan().sum() == 1
    assert learner.inspect().first_non_finite.stage == "input"
    learner.batch[0][2, 3] = 0.0  # the list's own tensor: mended for good
    learner.fit()
    assert learner.status == "finished"


def Net_without_swelling():
    model = Net()
    model.swelling.broken = False
    return model


def test_where_an_update_breaks_the_weights_it_stops_before_that_update(tmp_path):
    """The loss shows it only a step later; by then it would be too late."""
    model = Net_without_swelling()
    rates = lambda step: 3e38 if step == 40 else 1e-13  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-13, weight_decay=1e10)
    learner = classifier(tmp_path).break_on(NonFinite()).build(model, optimizer, rates, data(60))
    with pytest.raises(Paused, match=r"the update of this step makes .* non-finite"):
        learner.fit()
    assert learner.position.iteration == 40
    assert all(p.isfinite().all() for p in model.parameters())


def test_stopping_and_looking_leave_the_bits_of_a_hand_written_loop(tmp_path):
    batches = data(40)
    learner = learner_on(tmp_path, mine := Net_plain(), batches, NonFinite(), lambda m: m.step in (5, 20))
    while learner.status != "finished":
        try:
            learner.fit()
        except Paused:
            learner.inspect()
    hand = Net_plain()
    optimizer = torch.optim.Adam(hand.parameters(), lr=1e-3)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(hand(x), y).backward()
        optimizer.step()
    assert_same_bits(mine, hand)


def Net_plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
