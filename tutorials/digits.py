"""First contact: train a small network on scikit-learn's 8x8 pictures of digits.

    python tutorials/digits.py

It takes a few seconds on a laptop's CPU. What it measured is in `runs/digits`: a text file for each
metric, split and epoch, `experiment.log` with what happened, and the curves as a picture.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import ClassificationOutput, Learner, LearnerBuilder
from notebook_learner.metric import Accuracy, LearningRate, Loss

RUN = "runs/digits"
EPOCHS = 20
BATCH = 64

Batch = tuple[Tensor, Tensor]


class DigitNet(nn.Module):
    """Two convolutions and two layers on top.

    A model says itself what a step is. `valid_step` runs without gradients and in eval mode. What
    `train_step` returns has a `.loss`, from which the learner computes the gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores for the ten digits."""
        scores: Tensor = self.layers(images)
        return scores

    def train_step(self, batch: Batch) -> ClassificationOutput:
        """What to minimise, and what the metrics read."""
        images, targets = batch
        output = self(images)
        return ClassificationOutput(F.cross_entropy(output, targets), output, targets)

    valid_step = train_step


def load_data() -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    """1,437 digits to train on and 360 to validate with."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    targets = torch.tensor(digits.target)
    split = train_test_split(images, targets, test_size=0.2, random_state=0, stratify=targets)
    train_images, valid_images, train_targets, valid_targets = split
    train = TensorDataset(train_images, train_targets)
    valid = TensorDataset(valid_images, valid_targets)
    return DataLoader(train, BATCH, shuffle=True), DataLoader(valid, BATCH)


def build_learner(steps: int) -> Learner:
    """Say once what a training consists of; `build` checks all of it together."""
    torch.manual_seed(0)  # the initial weights; everything later follows from `.seed(0)` below
    model = DigitNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return (
        LearnerBuilder(RUN)
        .metrics(Loss(), Accuracy())
        .metrics(LearningRate(), valid=False)
        .num_epochs(EPOCHS)
        .seed(0)
        .build(model, optimizer, OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps))
    )


def main() -> None:
    """Train, then draw what came of it."""
    train, valid = load_data()
    learner = build_learner(steps=EPOCHS * len(train))
    learner.fit(train, valid)

    # A Learner can be handled while it trains. Ctrl-C pauses it between two steps, and then, say in
    # the next cell of a notebook, any of these may follow; none changes the result by a bit:
    #
    #     learner.step(3)                  take three steps more, and show what they measured
    #     learner.batch, learner.output    what the last step was given, and what it made of that
    #     learner.rewind(10)               take ten steps back; stepping on gives the same numbers
    #     learner.run_until((12, 5))       go on to epoch 12, step 5
    #     learner.fit()                    go on to the end
    #
    # learner.start(train, valid) trains in the background instead, until learner.pause() or wait().
    # The table that training ended with is learner.summary().

    learner.plot().savefig(f"{RUN}/curves.png")
    best = learner.history.best("Accuracy", "valid")
    print(f"best validation accuracy: {best.value:.1f} % (epoch {best.epoch}); curves: {RUN}/curves.png")


if __name__ == "__main__":
    main()
