"""A StopIteration out of a dataset, a collate, a sampler or a step is an error: it ends no pass early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from builder_support import adam, net
from outside import Outside
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from notebook_learner import DataError, Learner, LearnerBuilder

BATCHES, SIZE = 5, 4
SAMPLES = [(torch.randn(6, generator=torch.Generator().manual_seed(i)), i % 3) for i in range(BATCHES * SIZE)]
BAD = 2 * SIZE + 1
"""The sample with which it goes wrong: in the third batch."""


class Stops:
    """Raises at one sample until it is mended."""

    mended = False

    def at(self, number: int) -> None:
        if not self.mended and number == BAD:
            next(iter(()))


class Map(Dataset[Any]):
    def __init__(self, stops: Stops) -> None:
        self.stops = stops

    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, index: int) -> Any:
        self.stops.at(index)
        return SAMPLES[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from SAMPLES


class Collate:
    def __init__(self, stops: Stops) -> None:
        self.stops = stops

    def __call__(self, samples: list[Any]) -> Any:
        for x, _ in samples:
            if torch.equal(x, SAMPLES[BAD][0]):
                self.stops.at(BAD)
        return default_collate(samples)


class Batches(Sequence[Any]):
    def __init__(self, stops: Stops) -> None:
        self.stops = stops

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: Any) -> Any:
        samples = SAMPLES[index * SIZE : (index + 1) * SIZE]
        if not samples:
            raise IndexError(index)
        return Collate(self.stops)(samples)


class Sampler:
    def __init__(self, stops: Stops) -> None:
        self.stops = stops

    def __iter__(self) -> Iterator[int]:
        for index in range(len(SAMPLES)):
            self.stops.at(index)
            yield index

    def __len__(self) -> int:
        return len(SAMPLES)


LOADERS = {
    "dataset": lambda stops, workers: DataLoader(Map(stops), SIZE, num_workers=workers),
    "shuffled": lambda stops, workers: DataLoader(Map(stops), SIZE, shuffle=True, num_workers=workers),
    "collate": lambda stops, workers: DataLoader(
        SAMPLES,
        SIZE,
        collate_fn=Collate(stops),
        num_workers=workers,  # type: ignore[arg-type]
    ),
    "stream": lambda stops, workers: DataLoader(
        Stream(), SIZE, collate_fn=Collate(stops), num_workers=workers
    ),
    "sampler": lambda stops, workers: DataLoader(
        SAMPLES,
        SIZE,
        sampler=Sampler(stops),
        num_workers=workers,  # type: ignore[arg-type]
    ),
}


def learner_of(
    directory: Any, train: Any, valid: Any = None, configure: Any = lambda builder: builder
) -> Learner:
    model = net()
    builder = LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(2).renderer("silent").seed(3)
    return configure(builder).build(model, adam(model), None, train, valid)


def weights(learner: Learner) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in learner.model.state_dict().values()]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_pass_is_not_cut_short_and_goes_on_once_it_is_mended(tmp_path, kind, workers) -> None:
    stops = Stops()
    loader = LOADERS[kind](stops, workers)
    learner = learner_of(tmp_path / "a", loader)
    with pytest.raises((DataError, RuntimeError), match="StopIteration"):
        learner.fit()
    assert learner.status == "failed" and learner.position.epoch == 1
    ahead = kind == "shuffled" or (kind == "sampler" and workers)
    assert ahead or learner.position.step == 2
    stops.mended = True
    learner.fit()
    straight = learner_of(tmp_path / "b", LOADERS[kind](stops, workers))
    straight.fit()
    assert all(map(torch.equal, weights(learner), weights(straight)))
    assert [len(learner.history.steps("train", epoch)) for epoch in (1, 2)] == [BATCHES, BATCHES]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["dataset", "collate", "stream"])
def test_the_error_says_what_raised_it_and_what_to_look_for(tmp_path, kind, workers) -> None:
    learner = learner_of(tmp_path, LOADERS[kind](Stops(), workers))
    with pytest.raises(
        (DataError, RuntimeError), match=r"(?s)collate_fn raised StopIteration .*next\(iterator, None\)"
    ):
        learner.fit()


@pytest.mark.parametrize("kind", ["dataset", "collate", "stream"])
@pytest.mark.parametrize("workers", [0, 1])
def test_validation_evaluate_and_predict_are_not_cut_short(tmp_path, kind, workers) -> None:
    good, stops = DataLoader(SAMPLES, SIZE), Stops()  # type: ignore[arg-type, var-annotated]
    bad = LOADERS[kind](stops, workers)
    learner = learner_of(tmp_path, good, bad)
    for ask in (learner.fit, lambda: learner.evaluate(bad), lambda: learner.predict(bad)):
        with pytest.raises((DataError, RuntimeError), match="StopIteration"):
            ask()
    assert str(learner.position).startswith("epoch 1, valid, step 2")
    stops.mended = True
    assert len(learner.predict(bad)) == len(SAMPLES)


def test_a_sequence_of_batches_is_not_cut_short_on_the_way_back(tmp_path) -> None:
    stops = Stops()
    learner = learner_of(tmp_path, Batches(stops))
    with pytest.raises(RuntimeError, match="StopIteration"):
        learner.fit()
    with pytest.raises(RuntimeError, match="StopIteration"):  # it stands in mid-epoch now
        learner.fit()
    stops.mended = True
    learner.fit()
    assert len(learner.history.steps("train", 1)) == BATCHES


def test_devices_that_take_a_batch_each_are_not_cut_short() -> None:
    from notebook_learner.data.cursor import Cursor

    cursor = Cursor(LOADERS["stream"](Stops(), 0), devices=2)
    cursor.begin(1)
    cursor.fetch()
    with pytest.raises(DataError, match="collate_fn raised StopIteration"):
        cursor.fetch()


def test_the_end_of_a_users_own_iterator_stays_the_end(tmp_path) -> None:
    class Three:
        def __iter__(self) -> Iterator[Any]:
            self.left = 3
            return self

        def __next__(self) -> Any:
            if not self.left:
                raise StopIteration
            self.left -= 1
            return default_collate(SAMPLES[:SIZE])

        def __len__(self) -> int:
            return 9

    class Shorter(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(SAMPLES[: SIZE + 1])

    class Made(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return Three().__iter__()

    for number, (loader, batches) in enumerate(
        [(Three(), 3), (DataLoader(Shorter(), SIZE), 2), (DataLoader(Made(), None), 3)]
    ):
        learner = learner_of(tmp_path / str(number), loader)
        learner.step_epoch()
        assert len(learner.history.steps("train", 1)) == batches


def test_the_loaders_own_collate_is_as_it_was(tmp_path) -> None:
    collate = Collate(Stops())
    loader = DataLoader(Stream(), SIZE, collate_fn=collate)
    learner = learner_of(tmp_path, loader)
    learner.step(1)
    assert loader.collate_fn is collate


@pytest.mark.parametrize("place", ["loss", "hook", "backward", "optimizer"])
def test_in_a_step_it_is_an_error_too(tmp_path, place) -> None:
    calls = Outside([])

    def strikes(at: str) -> None:
        calls.value.append(at)
        if at == place and calls.value.count(at) == 3:
            next(iter(()))

    def loss(output: Any, y: Any) -> Any:
        strikes("loss")
        output.register_hook(lambda gradient: strikes("backward"))
        return F.cross_entropy(output, y)

    model = net()
    optimizer = adam(model)
    model.register_forward_hook(lambda *_: strikes("hook"))
    optimizer.register_step_pre_hook(lambda *_: strikes("optimizer"))
    builder = LearnerBuilder(tmp_path).loss(loss).num_epochs(1).renderer("silent")
    learner = builder.build(model, optimizer, None, DataLoader(SAMPLES, SIZE))  # type: ignore[arg-type, var-annotated]
    with pytest.raises(StopIteration):
        learner.fit()
    assert learner.position.step == 2
    learner.fit()
    assert len(learner.history.steps("train", 1)) == BATCHES
