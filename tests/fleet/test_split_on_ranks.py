"""A batch in parts is for one device: on several, each takes its part of every batch."""

from __future__ import annotations

import pytest
import torch
from fleet_support import TWO, by_hand, furthest, learner_on, train_loader

from notebook_learner.errors import StateError
from notebook_learner.event import Notice


class Told:
    def __init__(self):
        self.texts = []

    def handle(self, event):
        if isinstance(event, Notice):
            self.texts.append(event.text)


def test_it_is_refused_by_name_and_training_goes_on(tmp_path):
    learner = learner_on(TWO, tmp_path)
    torch.manual_seed(5)
    learner._supplies.use(learner, "train", train_loader())
    learner.step()
    with pytest.raises(StateError, match=r"split_batch\(2\) is for one device; on several"):
        learner.split_batch(2)
    learner.split_batch(1)
    learner.fit()
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6


def test_a_run_of_one_device_goes_on_with_two_in_whole_batches_and_says_so(tmp_path):
    alone = learner_on(None, tmp_path, configure=lambda builder: builder.with_file_checkpointer())
    torch.manual_seed(5)
    alone._supplies.use(alone, "train", train_loader())
    alone.split_batch(2)
    alone.step(5)
    alone.save()
    told = Told()
    both = learner_on(
        TWO, tmp_path, configure=lambda builder: builder.with_file_checkpointer().resume().renderer(told)
    )
    both.fit(train_loader())
    assert furthest(both.model, by_hand(train_loader())) < 1e-6
    assert [text for text in told.texts if text.startswith("split_batch(2) is for one device")] != []
