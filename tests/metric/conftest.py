"""What the tests of the metrics share: a loop in ten lines, and batches to feed it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from notebook_learner.metric import MetricGroup


def make_context(samples=32):
    return SimpleNamespace(samples=samples, learning_rates=[1e-3], grad_norm=None, steps_per_second=100.0)


@pytest.fixture(scope="session")
def device():
    """The best device there is: every value is checked on it."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def context():
    """An answer to all that a metric may ask about a step."""
    return make_context()


@pytest.fixture(scope="session")
def classification():
    """Make batches of scores and class indices; the last one is short."""

    def make(seed=0, batches=5, size=16, classes=7, device="cpu", dtype=torch.float32, last=3):
        generator = torch.Generator().manual_seed(seed)
        items = []
        for size_of_batch in [size] * (batches - 1) + [last]:
            output = torch.randn(size_of_batch, classes, generator=generator).to(device, dtype)
            targets = torch.randint(classes, (size_of_batch,), generator=generator).to(device)
            loss = torch.nn.functional.cross_entropy(output, targets)
            items.append(SimpleNamespace(loss=loss, output=output, targets=targets))
        return items

    return make


@pytest.fixture(scope="session")
def measure():
    """Run an epoch, read after the steps in `cuts` and at the end; return per-step values and finals."""

    def run(metrics, items, cuts=(), group=None):
        group = group or MetricGroup(metrics)
        context = make_context()
        group.attach(context)
        blocks = []
        for step, item in enumerate(items, start=1):
            context.samples = len(item.targets) if hasattr(item, "targets") else 1
            group.collect(item)
            if step in cuts or step == len(items):
                blocks.append(group.read()[0])
        columns = {
            name: np.concatenate([block[name].values for block in blocks])
            for name in (blocks[0] if blocks else ())
        }
        return columns, group.finals()

    return run
