"""What a sample draws is a function of the seed, the epoch and its place, however little of it is seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

from notebook_learner.data.cursor import Cursor
from notebook_learner.data.rng import HostMemory, capture_host, mix, seed_host
from notebook_learner.data.sampling import END

SIZE, BATCH, SEED, EPOCH = 90, 8, 5, 3


def nothing(index: int) -> float:
    return 0.0


def from_python(index: int) -> float:
    return random.random() + random.gauss(0, 1)


def from_numpy(index: int) -> float:
    return float(np.random.randn())  # every second one comes from what the one before left


def from_torch(index: int) -> float:
    return float(torch.randn(()))


def from_all(index: int) -> float:
    return from_python(index) + from_numpy(index) + from_torch(index)


def late(index: int) -> float:
    return from_all(index) if index % 41 == 40 else 0.0


def as_much_as_numpy_holds(index: int) -> float:
    return float(np.random.rand(312).sum()) if index % 41 == 40 else 0.0  # 624 of its 32-bit numbers


def forked(index: int) -> float:
    with torch.random.fork_rng(devices=[]):
        return float(torch.randn(()))


def of_the_seed(index: int) -> float:
    return float(np.random.default_rng(torch.initial_seed()).random())


class Own:
    """A transform with a generator of its own, started anew for each sample."""

    def __call__(self, index: int) -> float:
        return float(torch.rand((), generator=torch.Generator().manual_seed(index)))


class Drawing(Dataset[Any]):
    def __init__(self, draw: Callable[[int], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.draw(index)


class DrawingMany(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def with_noise(samples: list[Any]) -> list[Any]:
    """Putting a batch together draws, too."""
    return [*samples, from_all(0)]


def loader(dataset: Any, workers: int = 0, collate: Callable[[list[Any]], Any] = list) -> DataLoader[Any]:
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, collate_fn=collate)


def fetched(given: Any, skip: int = 0) -> list[Any]:
    cursor = Cursor(given, SEED)
    cursor.begin(EPOCH)
    cursor.stand_at(skip)
    batches = list(iter(cursor.fetch, END))
    cursor.close()
    return batches


def by_hand(given: DataLoader[Any]) -> Iterator[Any]:
    """All generators are seeded before each sample, as the runs of earlier versions did."""
    base = mix(SEED, EPOCH)
    seed_host(base)
    drawn = [list(batch) for batch in given.batch_sampler or ()]
    place = 0
    many = getattr(given.dataset, "__getitems__", None)
    for indices in drawn:
        if many:
            seed_host(mix(base, place))
            samples = many(indices)
        else:
            samples = []
            for i, index in enumerate(indices):
                seed_host(mix(base, place + i))
                samples.append(given.dataset[index])
        place += len(indices)
        yield given.collate_fn(samples)


ALL = [
    nothing, from_python, from_numpy, from_torch, from_all, late, as_much_as_numpy_holds, forked,
    of_the_seed, Own()
]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("draw", ALL, ids=lambda draw: getattr(draw, "__name__", "own"))
def test_each_sample_draws_what_it_would_if_all_were_seeded_before_it(
    draw: Callable[[int], float], workers: int
) -> None:
    expected = list(by_hand(loader(Drawing(draw), collate=with_noise)))
    given = loader(Drawing(draw), workers, with_noise)
    assert fetched(given) == expected
    assert fetched(given, skip=5) == expected[5:]


@pytest.mark.parametrize("dataset", [DrawingMany(from_all), Subset(Drawing(from_all), range(60))])
def test_a_dataset_that_gives_a_batch_at_once_is_seeded_once_for_it(dataset: Any) -> None:
    assert fetched(loader(dataset)) == list(by_hand(loader(dataset)))


def test_a_batch_of_one_sample_is_no_different() -> None:
    given = DataLoader(Drawing(late), 1, shuffle=True, collate_fn=list)
    assert fetched(given) == list(by_hand(given))


def by_its_generator(generator: torch.Generator, workers: int) -> DataLoader[Any]:
    return DataLoader(
        Drawing(nothing), BATCH, shuffle=True, generator=generator, num_workers=workers, collate_fn=list
    )


def by_its_sampler_s(generator: torch.Generator, workers: int) -> DataLoader[Any]:
    sampler = RandomSampler(range(SIZE), generator=generator)
    return DataLoader(Drawing(nothing), BATCH, sampler=sampler, num_workers=workers, collate_fn=list)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("made", [by_its_generator, by_its_sampler_s])
def test_a_generator_of_the_loader_s_own_is_seeded_too(
    made: Callable[[torch.Generator, int], DataLoader[Any]], workers: int
) -> None:
    seeded = torch.Generator().manual_seed(mix(SEED, EPOCH))
    order = list(RandomSampler(range(SIZE), generator=seeded))
    for before in (1, 2):  # what was drawn from it before does not count
        given = made(torch.Generator().manual_seed(before), workers)
        for skip in (0, 5):
            assert [index for batch in fetched(given, skip) for index, _ in batch] == order[skip * BATCH :]


def test_the_generator_of_a_loader_with_its_own_iteration_is_seeded_too() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            yield from super().__iter__()

    def own(before: int) -> Own:
        generator = torch.Generator().manual_seed(before)
        return Own(Drawing(nothing), BATCH, shuffle=True, generator=generator, collate_fn=list)

    batches = fetched(own(1))
    assert fetched(own(2)) == batches
    assert fetched(own(3), skip=5) == batches[5:]


def test_an_error_that_only_an_unseeded_sample_meets_is_none() -> None:
    base = mix(SEED, EPOCH)

    def picky(index: int) -> float:
        if index != 40:
            return 0.0
        seen = random.random()
        if not expected or seen != expected[0]:
            raise RuntimeError("not this number")
        return seen

    seed_host(base)
    order = list(RandomSampler(range(SIZE)))
    expected: list[float] = []
    seed_host(mix(base, order.index(40)))
    expected.append(random.random())
    assert (40, expected[0]) in [sample for batch in fetched(loader(Drawing(picky))) for sample in batch]


def test_an_error_of_a_sample_is_raised_as_it_is() -> None:
    def broken(index: int) -> float:
        raise LookupError(f"sample {index}")

    with pytest.raises(LookupError, match="sample"):
        fetched(loader(Drawing(broken)))

    def broken_late(index: int) -> float:
        if index == late_index:
            raise LookupError("a late one")
        return 0.0

    seed_host(mix(SEED, EPOCH))
    late_index = list(RandomSampler(range(SIZE)))[70]
    with pytest.raises(LookupError, match="a late one"):
        fetched(loader(Drawing(broken_late)))


@pytest.mark.parametrize("draw", [nothing, from_all])
def test_the_model_s_own_stream_does_not_notice(draw: Callable[[int], float]) -> None:
    def drawn() -> list[float]:
        return [float(np.random.randn()), random.gauss(0, 1), float(torch.randn(()))]

    seed_host(1)
    alone = [drawn() for _ in range(9)]
    cursor = Cursor(loader(Drawing(draw)), SEED)
    cursor.begin(EPOCH)
    seed_host(1)
    between = []
    for _ in range(9):  # after an odd number of normally distributed ones, NumPy has one that waits
        cursor.fetch()
        between.append(drawn())
    assert between == alone


def test_what_waits_in_numpy_is_put_back_with_the_rest() -> None:
    memory = HostMemory()
    for draws in (0, 1, 2, 3, 3, 1):
        np.random.standard_normal(draws)
        before = capture_host().numpy
        kept = memory.capture()
        np.random.standard_normal(1)
        memory.restore(kept)
        now = capture_host().numpy
        assert (now["has_gauss"], now["gauss"], now["state"]["pos"]) == (
            before["has_gauss"], before["gauss"], before["state"]["pos"]
        )  # fmt: skip
        assert np.array_equal(now["state"]["key"], before["state"]["key"])


def test_where_nothing_is_drawn_python_s_and_numpy_s_are_not_seeded_for_each_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cursor = Cursor(loader(Drawing(nothing)), SEED)
    cursor.begin(EPOCH)
    for _ in range(3):
        cursor.fetch()
    seeded: list[int] = []
    real, real_numpy = random.seed, np.random.seed
    monkeypatch.setattr(random, "seed", lambda seed: (seeded.append(1), real(seed)))
    monkeypatch.setattr(np.random, "seed", lambda seed: (seeded.append(1), real_numpy(seed)))
    for _ in range(4):
        cursor.fetch()
    assert len(seeded) <= 4 * 7 < 4 * 2 * BATCH
