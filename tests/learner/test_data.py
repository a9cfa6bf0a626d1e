"""The data cursor stands at any batch of any loader, and draws what a hand-written loop would."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from notebook_learner.data.cursor import Cursor
from notebook_learner.data.rng import capture_rng, restore_rng
from notebook_learner.data.sampling import END


class Counted(Dataset[Any]):
    """Augmented samples, and how many were loaded in this process."""

    def __init__(self, size: int = 23) -> None:
        self.size = size
        self.loaded = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        self.loaded += 1
        return torch.tensor(float(index)) + torch.rand(()) + np.random.rand() + random.random()


class FetchedTogether(Counted):
    """A dataset that is asked for a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [torch.rand(()) + index for index in indices]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Tensor]:
        for index in range(23):
            yield torch.tensor(float(index)) + torch.rand(())


class Shuffling:
    """A foreign loader: shuffles at the start, and draws a little at every batch."""

    def __iter__(self) -> Iterator[Tensor]:
        for index in torch.randperm(6).tolist():
            yield torch.tensor(float(index)) + torch.rand(())


class Remembering:
    """A loader that keeps its own position, as torchdata's StatefulDataLoader does."""

    def __init__(self) -> None:
        self.at = 0
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        if self.at == 0:
            self.order = torch.randperm(9).tolist()
        while self.at < 9:
            self.at += 1
            yield self.order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.order = state["at"], list(state["order"])


def weighted() -> DataLoader[Any]:
    sampler = WeightedRandomSampler(torch.ones(23), 23, generator=torch.Generator().manual_seed(1))
    return DataLoader(Counted(), batch_size=4, sampler=sampler)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: DataLoader(Counted(), batch_size=4, shuffle=True),
    "in order": lambda: DataLoader(Counted(), batch_size=4),
    "drop last": lambda: DataLoader(Counted(), batch_size=4, shuffle=True, drop_last=True),
    "generator": lambda: DataLoader(
        Counted(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "with replacement": lambda: DataLoader(
        Counted(), batch_size=4, sampler=RandomSampler(range(23), replacement=True)
    ),
    "weighted": weighted,
    "batch sampler": lambda: DataLoader(
        Counted(), batch_sampler=BatchSampler(RandomSampler(range(23)), 5, drop_last=False)
    ),
    "not batched": lambda: DataLoader(Counted(), batch_size=None, shuffle=True),
    "fetched together": lambda: DataLoader(FetchedTogether(), batch_size=4, shuffle=True),
    "tensors": lambda: DataLoader(TensorDataset(torch.arange(23.0)), batch_size=4, shuffle=True),
    "workers": lambda: DataLoader(Counted(), batch_size=4, shuffle=True, num_workers=2),
    "iterable": lambda: DataLoader(Stream(), batch_size=4),
    "iterable, workers": lambda: DataLoader(Stream(), batch_size=4, num_workers=1),
    "list": lambda: [torch.tensor(float(i)) for i in range(6)],
    "foreign": Shuffling,
    "stateful": Remembering,
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def flat(batch: Any) -> list[float]:
    tensors = batch if isinstance(batch, (list, tuple)) else [batch]
    return [float(x) for tensor in tensors for x in torch.as_tensor(tensor).reshape(-1)]


def model_draws() -> None:
    """What dropout does between two batches."""
    torch.rand(2)


def epoch(cursor: Cursor, number: int) -> list[list[float]]:
    cursor.begin(number)
    return rest(cursor)


def rest(cursor: Cursor) -> list[list[float]]:
    batches = []
    while (batch := cursor.fetch()) is not END:
        batches.append(flat(batch))
        model_draws()
    return batches


@pytest.mark.parametrize("name", LOADERS)
def test_unseeded_it_yields_what_a_for_loop_over_the_loader_yields(name: str) -> None:
    start = capture_rng()
    expected = []
    loader = LOADERS[name]()
    for _ in range(2):
        for batch in loader:
            expected.append(flat(batch))
            model_draws()
    restore_rng(start)
    cursor = Cursor(LOADERS[name]())
    assert epoch(cursor, 1) + epoch(cursor, 2) == expected


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("taken", [0, 1, 3, "all"])
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.rounds(8)
def test_it_comes_back_to_any_batch_in_a_fresh_cursor(name: str, taken: int | str, seed: int | None) -> None:
    cursor = Cursor(LOADERS[name](), seed)
    total = len(epoch(cursor, 1))
    cursor.begin(2)
    steps = total if taken == "all" else int(taken)
    for _ in range(steps):
        cursor.fetch()
        model_draws()
    state, now = cursor.capture(steps), capture_rng()
    expected = rest(cursor) + epoch(cursor, 3)

    torch.rand(100)
    other = Cursor(LOADERS[name](), seed)
    restore_rng(now)
    other.restore(state)
    got = rest(other) if steps else epoch(other, 2)
    assert got + epoch(other, 3) == expected


@pytest.mark.parametrize("seed", [None, 5])
def test_skipping_loads_no_sample(seed: int | None) -> None:
    cursor = Cursor(DataLoader(Counted(), batch_size=4, shuffle=True), seed)
    cursor.begin(1)
    for _ in range(3):
        cursor.fetch()
    state = cursor.capture(3)

    dataset = Counted()
    other = Cursor(DataLoader(dataset, batch_size=4, shuffle=True), seed)
    other.restore(state)
    other.fetch()
    assert dataset.loaded == 4


def test_a_loader_that_must_be_read_again_says_so() -> None:
    told: list[str] = []
    loader = DataLoader(Counted(600), batch_size=4, shuffle=True, num_workers=1)
    cursor = Cursor(loader, tell=told.append)
    cursor.begin(1)
    for _ in range(120):
        cursor.fetch()
    cursor.stand_at(120)
    assert cursor.fetch() is not END
    assert told == [
        "reading 120 batches again to come back to step 120: worker processes draw random numbers that "
        "only reading repeats; .seed() makes this instant"
    ]


@pytest.mark.parametrize("name", ["shuffled", "with replacement", "batch sampler", "fetched together"])
def test_seeded_batches_depend_on_the_epoch_and_on_nothing_else(name: str) -> None:
    first = Cursor(LOADERS[name](), 5)
    one, two = epoch(first, 1), epoch(first, 2)
    assert one != two
    torch.rand(1000)
    np.random.rand(3)
    again = Cursor(LOADERS[name](), 5)
    assert epoch(again, 2) == two
    assert epoch(Cursor(LOADERS[name](), 6), 1) != one


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_seeded_batches_do_not_depend_on_the_workers(workers: int, persistent: bool) -> None:
    alone = Cursor(DataLoader(Counted(), batch_size=4, shuffle=True), 5)
    helped = Cursor(
        DataLoader(Counted(), batch_size=4, shuffle=True, num_workers=workers, persistent_workers=persistent),
        5,
    )
    assert [epoch(helped, n) for n in (1, 2)] == [epoch(alone, n) for n in (1, 2)]


@pytest.mark.parametrize("name", LOADERS)
def test_seeded_data_draws_nothing_from_the_models_stream(name: str) -> None:
    before = capture_rng()
    cursor = Cursor(LOADERS[name](), 5)
    cursor.begin(1)
    while cursor.fetch() is not END:
        pass
    after = capture_rng()
    assert torch.equal(before.host.torch, after.host.torch)
    assert before.host.python == after.host.python
    assert (before.host.numpy["state"]["key"] == after.host.numpy["state"]["key"]).all()
    assert before.host.numpy["state"]["pos"] == after.host.numpy["state"]["pos"]


def test_a_repeated_sample_is_augmented_anew() -> None:
    twice = DataLoader(Counted(1), batch_size=2, sampler=[0, 0])
    cursor = Cursor(twice, 5)
    cursor.begin(1)
    first, second = flat(cursor.fetch())
    assert first != second


def test_samplers_that_ask_for_the_epoch_are_told_counting_from_zero() -> None:
    class Told(SequentialSampler):
        epochs: list[int]

        def set_epoch(self, number: int) -> None:
            self.epochs = [*getattr(self, "epochs", []), number]

    sampler = Told(range(23))
    cursor = Cursor(DataLoader(Counted(), batch_size=4, sampler=sampler))
    epoch(cursor, 1)
    epoch(cursor, 2)
    assert sampler.epochs == [0, 1]


def test_the_users_loader_is_never_changed() -> None:
    dataset = Counted()
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    before = dict(vars(loader))
    epoch(Cursor(loader, 5), 1)
    assert vars(loader) == before
    assert loader.dataset is dataset


@pytest.mark.parametrize(
    ("loader", "total"),
    [
        ([1, 2, 3], 3),
        (DataLoader(Counted(), batch_size=4), 6),
        (Shuffling(), None),
        (DataLoader(Stream(), batch_size=4), None),
    ],
    ids=["list", "loader", "foreign", "iterable"],
)
def test_the_length_is_known_where_the_loader_knows_it(loader: Any, total: int | None) -> None:
    assert Cursor(loader).total == total


def test_a_generator_walks_only_once() -> None:
    assert not Cursor(iter([1, 2])).walks_again
    assert Cursor([1, 2]).walks_again


def test_dead_workers_are_replaced_at_the_same_batch() -> None:
    expected = epoch(Cursor(LOADERS["workers"](), 5), 1)
    cursor = Cursor(LOADERS["workers"](), 5)
    cursor.begin(1)
    got = [flat(cursor.fetch()), flat(cursor.fetch())]
    iterator: Any = cursor._inner
    for worker in iterator._workers:
        worker.terminate()
        worker.join()
    cursor.drop_if_broken(2)
    assert got + rest(cursor) == expected
