"""Random epochs for the metrics of the catalogue: several batches, the last one short, now and then odd."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import torch

CASES = 200


def generators(count: int = CASES) -> Iterator[tuple[int, np.random.Generator]]:
    """So many seeds, each with its own generator."""
    for seed in range(count):
        yield seed, np.random.default_rng(seed)


def sizes_of(rng: np.random.Generator, seed: int) -> list[int]:
    """Batch sizes: a single sample now and then, else some batches and a short one."""
    if seed % 10 == 0:
        return [1]
    size = int(rng.integers(2, 12))
    return [size] * int(rng.integers(1, 4)) + [int(rng.integers(1, size))]


def item_of(output: np.ndarray, targets: np.ndarray, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """What a step returns."""
    kind = dtype if targets.dtype.kind == "f" else torch.int64
    return SimpleNamespace(
        output=torch.as_tensor(output).to(dtype), targets=torch.as_tensor(targets).to(kind)
    )


def whole(items: list[SimpleNamespace]) -> tuple[np.ndarray, np.ndarray]:
    """The epoch in one piece, as doubles: exactly what the metric was given."""
    output = torch.cat([item.output for item in items]).double().numpy()
    targets = torch.cat([item.targets for item in items])
    return output, (targets.double() if targets.is_floating_point() else targets).numpy()


def classes_epoch(seed: int, rng: np.random.Generator, dtype=torch.float32) -> list[SimpleNamespace]:
    """Scores per class and indices: a class is absent now and then, or is the only one."""
    classes = int(rng.integers(2, 7))
    allowed = np.arange(classes)
    if seed % 5 == 1:
        allowed = allowed[1:]
    if seed % 5 == 2:
        allowed = allowed[-1:]
    return [
        item_of(rng.normal(size=(size, classes)), rng.choice(allowed, size), dtype)
        for size in sizes_of(rng, seed)
    ]


def binary_epoch(seed: int, rng: np.random.Generator, dtype=torch.float32) -> list[SimpleNamespace]:
    """Scores of yes and no with ties; the targets are all yes, all no or mixed."""
    share = (0.5, 0.0, 1.0, 0.2, 0.9)[seed % 5]
    return [
        item_of(rng.integers(-6, 7, size) / 3, (rng.random(size) < share).astype(np.int64), dtype)
        for size in sizes_of(rng, seed)
    ]


def labels_epoch(seed: int, rng: np.random.Generator, dtype=torch.float32) -> list[SimpleNamespace]:
    """Scores and 0/1 targets per label; a label is never due now and then."""
    labels = int(rng.integers(1, 6))
    shares = rng.random(labels) * (rng.random(labels) < 0.8)
    return [
        item_of(
            rng.normal(size=(size, labels)), (rng.random((size, labels)) < shares).astype(np.int64), dtype
        )
        for size in sizes_of(rng, seed)
    ]


def numbers_epoch(seed: int, rng: np.random.Generator, dtype=torch.float32) -> list[SimpleNamespace]:
    """Predicted numbers, one or several a sample; the targets do not vary now and then."""
    width = () if seed % 2 else (int(rng.integers(1, 4)),)
    offset, spread = round(rng.normal() * 10), 0.0 if seed % 7 == 3 else 1.0
    items = []
    for size in sizes_of(rng, seed):
        targets = offset + spread * rng.normal(size=(size, *width))
        items.append(item_of(targets + 0.3 * rng.normal(size=targets.shape), targets, dtype))
    return items


def images_epoch(
    seed: int, rng: np.random.Generator, side: int, dtype=torch.float32, top: float = 1.0
) -> list[SimpleNamespace]:
    """Images and noisy ones; now and then nearly flat, or the same."""
    channels = 1 + 2 * (seed % 2)
    items = []
    for size in (2, 1) if seed % 10 else (1,):
        targets = rng.random((size, channels, side, side + seed % 5))
        if seed % 6 == 5:
            targets = 0.5 + 0.01 * targets
        noise = 0.0 if seed % 8 == 7 else 0.1
        items.append(item_of(top * (targets + noise * rng.normal(size=targets.shape)), top * targets, dtype))
    return items
