"""GPUs as ranks: one of them is the plain path, and several change no number.

What needs several cards and NCCL says so where they are missing. None of that was ever run: no machine with
several was at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from fleet_support import bits, furthest, learner_on, train_loader, valid_loader

from notebook_learner import Learner, LearnerBuilder

ONE, TWO = ["cuda:0"], ["cuda:0", "cuda:1"]
several = pytest.mark.skipif(
    torch.cuda.device_count() < 2 or not dist.is_nccl_available(), reason="needs two GPUs and NCCL"
)
each_way = pytest.mark.parametrize("strategy", ["ddp", "fsdp"])


def begun(directory: Path, devices: list[str], strategy: str = "ddp") -> Learner:
    def configure(builder: LearnerBuilder) -> None:
        builder.with_file_checkpointer()
        if len(devices) > 1:
            builder.strategy(strategy)  # type: ignore[arg-type]  # a parameter of the tests

    learner = learner_on(devices, directory, dropout=0.2, configure=configure)
    torch.manual_seed(5)
    return learner


def trained(learner: Learner, moves: Callable[[Learner], object] = lambda learner: None) -> Learner:
    learner.fit(train_loader(), valid_loader(), epochs=1)
    moves(learner)
    learner.fit(train_loader(), valid_loader(), epochs=2)
    return learner


def test_one_gpu_is_the_plain_path_without_other_processes(tmp_path: Path) -> None:
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    learner = trained(begun(tmp_path, ONE))
    assert learner._replica.ranks is None and len(learner.devices) == 1
    assert {each.pid for each in psutil.Process().children(recursive=True)} <= before
    assert next(learner.model.parameters()).device == torch.device("cuda:0")


@several
@each_way
def test_two_gpus_give_the_numbers_of_one(strategy: str, tmp_path: Path) -> None:
    def fitted(devices: list[str]) -> Learner:
        learner = learner_on(
            devices,
            tmp_path / str(len(devices)),
            configure=lambda b: b.strategy(strategy) if len(devices) > 1 else b,
        )
        torch.manual_seed(5)
        learner.fit(train_loader(), valid_loader())
        return learner

    one, two = fitted(ONE), fitted(TWO)
    assert furthest(two.model, one.model) < 1e-5
    assert [*two.history["valid", "Accuracy"]] == [*one.history["valid", "Accuracy"]]


@several
@each_way
def test_stepping_and_rewinding_change_no_bit(strategy: str, deterministic: None, tmp_path: Path) -> None:
    def moves(learner: Learner) -> None:
        learner.num_epochs = 3
        learner.step(4)
        learner.rewind(3)
        learner.step(2)

    straight = trained(begun(tmp_path / "straight", TWO, strategy), lambda learner: learner.step(3))
    assert bits(trained(begun(tmp_path / "moved", TWO, strategy), moves)) == bits(straight)


@several
@each_way
def test_a_checkpoint_of_two_gpus_is_one_of_one(strategy: str, tmp_path: Path) -> None:
    two = trained(begun(tmp_path, TWO, strategy))
    one = learner_on(ONE, tmp_path / "one")
    one.restore(two.capture())
    assert bits(one) == bits(two)
