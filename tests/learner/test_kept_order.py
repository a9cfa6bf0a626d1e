"""The order of an epoch is drawn once, however often one goes back into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import Setup, differences, everything, logs
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from notebook_learner import Position, State
from notebook_learner.data.cursor import Cursor
from notebook_learner.data.sampling import END
from notebook_learner.state.timeline import Timeline


class Counted(RandomSampler):
    """Not torch's own type: its order is drawn again each time, since it may draw at any time."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A mark for each order that is drawn."""
    marks: list[int] = []
    real = torch.randperm

    def randperm(n: int, **options: Any) -> torch.Tensor:
        marks.append(n)
        return real(n, **options)

    monkeypatch.setattr(torch, "randperm", randperm)
    return marks


@pytest.mark.parametrize("seed", [7, None])
def test_going_back_and_looking_ahead_draw_no_order_again(
    seed: int | None, drawn: list[int], tmp_path: Path
) -> None:
    learner = Setup(seed=seed).learner(tmp_path)
    learner.step(4)
    once = len(drawn)
    for _ in range(3):
        learner.rewind(1)
        learner.step(1)
        learner.what_if(steps=2, lr=0.1)
    learner.inspect()
    assert len(drawn) == once == 1


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.rounds(2)
def test_over_the_end_of_an_epoch_and_back_gives_the_same_bits(
    own: bool, workers: int, tmp_path: Path
) -> None:
    """A sampler with a generator of its own draws from it again at its end."""
    setup = Setup(seed=None, own_generator=own, workers=workers)
    straight = setup.learner(tmp_path / "straight")
    straight.fit()
    learner = setup.learner(tmp_path / "back")
    learner.step(6)
    for _ in range(2):
        learner.what_if(steps=3, lr=0.1)
        learner.step(6)
        learner.rewind(5)
    learner.step(4)
    learner.rewind(to=(1, 2))
    learner.fit()
    assert list(differences(everything(learner), everything(straight))) == []
    assert logs(tmp_path / "back") == logs(tmp_path / "straight")


def loader(sampler: Any) -> DataLoader[Any]:
    return DataLoader(range(40), batch_size=4, sampler=sampler, collate_fn=list)


SAMPLERS = [
    lambda: RandomSampler(range(40)),
    lambda: RandomSampler(range(40), generator=torch.Generator().manual_seed(1)),
    lambda: RandomSampler(range(40), replacement=True, num_samples=70),
    lambda: RandomSampler(range(40), num_samples=70),
    lambda: RandomSampler(range(40), num_samples=9),
    lambda: SubsetRandomSampler(range(5, 38)),
    lambda: WeightedRandomSampler([1.0, 2.0] * 20, 50),
    lambda: Counted(range(40)),
]


@pytest.mark.parametrize("number", range(len(SAMPLERS)))
@pytest.mark.parametrize("seed", [3, None])
def test_from_any_place_an_epoch_goes_on_as_it_did_and_the_next_ones_follow(
    seed: int | None, number: int
) -> None:
    def epochs(cursor: Cursor, back: bool) -> list[Any]:
        torch.manual_seed(0)
        found = []
        for epoch in (1, 2, 3):
            cursor.begin(epoch)
            batches = []
            while (batch := cursor.fetch()) is not END:
                batches.append(batch)
                if back and len(batches) in (2, 5):
                    state, live = cursor.capture(len(batches)), torch.get_rng_state()
                    for _ in range(3 if len(batches) == 2 else 99):
                        cursor.fetch()
                    cursor.restore(state)
                    torch.set_rng_state(live)
            found.append(batches)
        return found

    straight = epochs(Cursor(loader(SAMPLERS[number]()), seed), back=False)
    assert epochs(Cursor(loader(SAMPLERS[number]()), seed), back=True) == straight
    assert straight[0] != straight[1]


def test_a_kept_order_counts_in_the_memory_of_keyframes(tmp_path: Path) -> None:
    learner = Setup(seed=None).learner(tmp_path)
    learner.step(2)
    timeline, cursor = learner._replica.timeline, learner._replica.loop.passes["train"].cursor
    held = timeline.nbytes - cursor.kept_bytes
    assert held == sum(
        {piece: size for frame in timeline.keyframes for piece, size in frame.memory.items()}.values()
    )
    first = cursor.kept_bytes
    assert first >= 8 * 2 * learner.batch[0].shape[0]
    learner.step(1)
    assert first < cursor.kept_bytes


def test_an_order_that_fills_the_bound_leaves_one_keyframe() -> None:
    timeline = Timeline(budget=1000)
    for step in range(3):
        timeline.add(State(Position(1, "train", step, step), {"x": torch.zeros(10)}))
    assert len(timeline.keyframes) == 3
    timeline.beside = lambda: 990
    timeline.add(State(Position(1, "train", 3, 3), {"x": torch.zeros(10)}))
    assert [frame.position.step for frame in timeline.keyframes] == [3]
    timeline.leave(State(Position(1, "train", 4, 4), {"x": torch.zeros(10)}))
    assert [frame.position.step for frame in timeline.keyframes] == [3]
