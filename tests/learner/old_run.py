"""A run whose every number is exact in float32, so that its bits are the same on every machine.
`old_run.tar.xz` is what the version of 2026-11-23 left of it on the disk: ten epochs and three steps of
the next one, all passes within the commit files (version 1 of them).

`python old_run.py DIRECTORY`, with that version on the path, has written it.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder
from notebook_learner.checkpoint import KeepLast
from notebook_learner.metric import Loss


class Weights(nn.Module):
    """Four weights, of which random ones count in a step."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def train_step(self, batch):
        (x,) = batch
        return (self.weight * x * (torch.rand(len(x), 4) < 0.5)).sum()

    def valid_step(self, batch):
        (x,) = batch
        return (self.weight * x).sum()


def build(directory, *, epochs=10, which=None, keep=1):
    torch.manual_seed(3)
    model = Weights()
    data = TensorDataset(torch.arange(80.0).reshape(20, 4) % 3)
    builder = LearnerBuilder(directory).metrics(Loss()).num_epochs(epochs).seed(7).renderer("silent")
    builder.with_file_checkpointer().with_checkpointing_strategy(KeepLast(keep))
    builder.early_stopping("Loss", patience=20)
    if which is not None:
        builder.checkpoint(which)
    loaders = DataLoader(data, 4, shuffle=True), DataLoader(data, 10)
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.25), None, *loaders)


if __name__ == "__main__":
    learner = build(sys.argv[1])
    learner.fit()
    learner.num_epochs = 14
    learner.step(3)
    learner.save()
    assert learner.artifacts is not None
