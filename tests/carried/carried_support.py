"""What the tests of this folder share."""

from __future__ import annotations

import torch
from torch import Tensor

from notebook_learner import Learner
from notebook_learner.event import Event, Notice


class Notices:
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.texts.append(event.text)


def weights(learner: Learner) -> Tensor:
    return torch.cat([each.detach().flatten() for each in learner.model.parameters()])
