"""`.samples` on several ranks: rank 0 shows them, and no rank's numbers change."""

from __future__ import annotations

import pytest
import torch
from exactness import differences, everything
from fleet_support import TWO, learner_on, train_loader, valid_loader

from notebook_learner.logger import InMemoryMetricLogger


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_train_to_the_same_bits_and_rank_0_shows_the_samples(strategy, tmp_path):
    states = []
    for shown in (False, True):

        def configure(builder, shown=shown):
            builder.metric_logger(InMemoryMetricLogger()).strategy(strategy).num_epochs(2)
            return builder.samples(valid_loader(), n=5) if shown else builder

        torch.manual_seed(3)
        learner = learner_on(TWO, tmp_path / str(shown), configure=configure)
        learner.fit(train_loader(), valid_loader())
        states.append(everything(learner))
    assert list(differences(*states)) == []
    (sheet,) = learner.history.sheets[-1:]
    with torch.no_grad():
        x, _ = next(iter(valid_loader()))
        answers = learner.model.eval()(x[:5]).argmax(1)
    assert [row.prediction for row in sheet.content] == [str(each) for each in answers.tolist()]
