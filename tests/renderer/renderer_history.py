"""A history with made-up numbers, so that figures and summaries need no training."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from notebook_learner.event import MetricInfo


@dataclass
class FakeHistory:
    """What `StepSource` asks for, out of two dictionaries."""

    lengths: dict[str, list[int]] = field(default_factory=lambda: {"train": [], "valid": []})
    data: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    final: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    infos: tuple[MetricInfo, ...] = ()

    def metrics(self, split):
        return [name for name, of in self.final if of == split]

    def epochs(self, name, split):
        return self.final[name, split]

    def epoch_numbers(self, split):
        return np.arange(1, len(self.lengths[split]) + 1)

    def values(self, name, split):
        return self.data[name, split]

    def steps(self, split):
        lengths = self.lengths[split]
        pairs = [(epoch, step) for epoch, length in enumerate(lengths, 1) for step in range(1, length + 1)]
        return np.array(pairs, dtype=[("epoch", np.int64), ("step", np.int64)])


KINDS = {
    "Loss": ("", False, lambda t: 0.2 + 2.1 * np.exp(-5 * t), 0.15),
    "Accuracy": ("%", True, lambda t: 96 - 86 * np.exp(-6 * t), 6.0),
    "Top-5 Accuracy": ("%", True, lambda t: 99.5 - 50 * np.exp(-9 * t), 2.0),
    "Learning Rate": ("", None, lambda t: 5e-4 * (1 + np.cos(np.pi * t)), 0.0),
    "Iteration Speed": ("it/s", None, lambda t: 120 + 0 * t, 6.0),
}


def made_up(epochs, length, names=("Loss", "Accuracy"), seed=0, valid=("Loss", "Accuracy", "Top-5 Accuracy")):
    """A run that learns."""
    random = np.random.default_rng(seed)
    history = FakeHistory({"train": [length] * epochs, "valid": [max(length // 5, 1)] * epochs})
    infos = []
    for name in names:
        unit, better, shape, noise = KINDS.get(name, next(iter(KINDS.values())))
        t = np.linspace(0, 1, epochs * length)
        values = shape(t) + noise * random.standard_normal(len(t)) * (0.4 + np.exp(-3 * t))
        history.data[name, "train"] = values
        history.final[name, "train"] = values.reshape(epochs, length).mean(axis=1)
        infos.append(MetricInfo(name, "train", unit, better))
        if name in valid:
            end = np.linspace(1 / epochs, 1, epochs)
            history.final[name, "valid"] = shape(end) + noise * 0.15 * random.standard_normal(epochs)
            history.data[name, "valid"] = np.repeat(history.final[name, "valid"], max(length // 5, 1))
            infos.append(MetricInfo(name, "valid", unit, better))
    history.infos = tuple(infos)
    return history
