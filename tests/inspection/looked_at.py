"""Models and steps that the tests of the inspection look at."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from notebook_learner import ClassificationOutput


class ConvNet(nn.Module):
    """BatchNorm, dropout, an in-place ReLU that runs twice, a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(6 * 16, 10)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        x = self.relu(self.norm(self.conv1(x)))
        x = self.drop(self.relu(self.conv2(x)))
        return self.fc(functional.max_pool2d(x, 2).flatten(1))


class Tied(nn.Module):
    """A small transformer whose output layer is its embedding."""

    def __init__(self, words=11, width=8):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 16, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def images(count=6):
    return torch.randn(count, 1, 8, 8), torch.arange(count) % 10


def classification(model, batch):
    """One forward and backward of `model` on an (x, y) batch."""

    def run():
        x, y = batch
        output = model(x)
        loss = functional.cross_entropy(output, y)
        loss.backward()
        return ClassificationOutput(loss, output, y)

    return run


def hooks_of(model):
    """Every hook on every module: what a look must leave as it was."""
    return [
        len(hooks)
        for module in model.modules()
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
            module._forward_hooks_with_kwargs,
            module._forward_pre_hooks_with_kwargs,
        )
    ]
