"""What each rank has of its own, such as random numbers, when its process ends while the learner stands."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import bits, learner_on, train_loader

from notebook_learner import Learner
from notebook_learner.errors import RankDied
from notebook_learner.ranks.leader import Fleet
from notebook_learner.ranks.reduction import Severed

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
THREE = ["cpu"] * 3


class Told:
    """A logger that keeps what users are told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Any) -> None:
        if type(event).__name__ == "Notice":
            self.texts.append(f"{event.level}: {event.text}")

    def lost(self) -> list[str]:
        return [text for text in self.texts if "processes of other devices ended" in text]


def learner_in(
    directory: Path, told: Told | None = None, every: int | None = 4, devices: Any = THREE, **options: Any
) -> Learner:
    def configure(builder: Any) -> None:
        builder.grads_accumulation(2).metric_logger(told or Told())
        builder.keyframes(every=every) if every else builder.keyframes(memory=1)
        if options.get("saved"):
            builder.with_file_checkpointer()

    learner = learner_on(devices, directory, dropout=0.5, epochs=3, configure=configure)
    torch.manual_seed(5)
    return learner


def stepped(directory: Path, told: Told | None = None, steps: int = 10, **options: Any) -> Learner:
    learner = learner_in(directory, told, **options)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(steps)
    return learner


def kill(learner: Learner, rank: int = 1) -> None:
    os.kill(learner.devices[rank].pid, signal.SIGKILL)


def refused(learner: Learner) -> None:
    with pytest.raises(RankDied):
        learner.fit()


def restarted_well(learner: Learner) -> None:
    learner.devices.restart()


def killed_and_found_by_fit(learner: Learner) -> None:
    kill(learner)
    refused(learner)
    learner.devices.restart()


def killed_and_restarted(learner: Learner) -> None:
    kill(learner, 2)
    learner.devices.restart()


def killed_before_a_change_by_hand(learner: Learner) -> None:
    kill(learner)
    learner.lr = learner.optimizer.param_groups[0]["lr"]
    refused(learner)
    learner.devices.restart()


def killed_before_a_look(learner: Learner) -> None:
    kill(learner)
    with pytest.raises(RankDied):
        learner.evaluate([(torch.zeros(6, 10), torch.zeros(6, dtype=torch.int64))])
    learner.devices.restart()
    learner.evaluate([(torch.zeros(6, 10), torch.zeros(6, dtype=torch.int64))])


def killed_while_a_state_is_captured(learner: Learner) -> None:
    kill(learner)
    state = learner.capture()
    refused(learner)
    learner.devices.restart()
    learner.restore(state)


def killed_twice(learner: Learner) -> None:
    killed_and_found_by_fit(learner)
    killed_and_restarted(learner)


WAYS = [
    restarted_well,
    killed_and_found_by_fit,
    killed_and_restarted,
    killed_before_a_change_by_hand,
    killed_before_a_look,
    killed_while_a_state_is_captured,
    killed_twice,
]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    learner = stepped(tmp_path_factory.mktemp("straight"))
    learner.fit()
    return bits(learner)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_run_goes_on_to_the_same_bits_after_a_restart_in_a_pause(way, straight, tmp_path):
    told = Told()
    learner = stepped(tmp_path, told)
    at = learner.position
    way(learner)
    assert learner.position == at
    assert [each.alive for each in learner.devices] == [True] * 3
    learner.fit()
    assert bits(learner) == straight
    found = told.lost()
    assert all(text.startswith("info: ") and "exact" in text for text in found), found
    assert bool(found) == (way is not restarted_well)


@pytest.mark.parametrize("how", ["restart", "fit"])
def test_a_run_goes_on_to_the_same_bits_where_the_last_answer_of_a_rank_is_lost(
    how, straight, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Fleet, "_dismiss", lambda fleet: fleet.fault(Severed("lost")))
        learner = stepped(tmp_path)
        if how == "restart":
            learner.devices.restart()
    learner.fit()
    assert bits(learner) == straight


def test_without_a_state_to_begin_from_the_user_is_told_that_the_run_goes_on_to_others(straight, tmp_path):
    told = Told()
    learner = stepped(tmp_path, told, every=None)
    kill(learner)
    learner.devices.restart()
    (text,) = told.lost()
    assert text.startswith("warning: ") and "other values" in text
    learner.fit()
    assert bits(learner) != straight, "this run needs no random numbers of another rank"
    assert told.lost() == [text]


@pytest.mark.parametrize("by", ["restart", "another process"])
def test_a_checkpoint_without_the_parts_of_dead_ranks_leads_to_the_same_bits(by, straight, tmp_path):
    """The one of the first epoch's end holds them: from there its steps are taken again."""
    learner = stepped(tmp_path, saved=True)
    kill(learner)
    label = learner.save()
    if by == "restart":
        learner.devices.restart()
        learner.restore(label)
        learner.fit()
        assert bits(learner) == straight
        return
    del learner
    told = Told()
    again = learner_in(tmp_path, told, saved=True)
    again.restore(label)
    again.fit(train_loader())
    assert again.status == "finished"
    assert bits(again) == straight
    (text,) = told.lost()
    assert text.startswith("info: ")


def test_one_device_is_told_of_gradients_that_died(tmp_path):
    learner = stepped(tmp_path, saved=True, steps=8)
    assert learner._replica.loop.update.count
    kill(learner)
    label = learner.save()
    del learner
    told = Told()
    alone = learner_in(tmp_path, told, saved=True, devices=None)
    alone.restore(label)
    assert [text for text in told.texts if text.startswith("warning: ") and "for the next update" in text]


@pytest.fixture
def four_threads() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def test_a_run_that_does_not_begin_leaves_torch_its_threads(four_threads, tmp_path, monkeypatch):
    """Rank 0 takes its share of the cores in a run. The number decides the last bits of a sum."""
    learner = stepped(tmp_path, steps=1, devices=THREE[:2])

    def asked(fleet: Fleet, verb: str, *arguments: Any) -> Any:
        if verb == "enter":
            raise Severed("not now")
        return ask(fleet, verb, *arguments)

    ask = Fleet._ask
    with monkeypatch.context() as patch:
        patch.setattr(Fleet, "_ask", asked)
        with pytest.raises(Severed, match="not now"):
            learner.step()
    assert torch.get_num_threads() == four_threads
    learner.step()
    assert torch.get_num_threads() == four_threads
