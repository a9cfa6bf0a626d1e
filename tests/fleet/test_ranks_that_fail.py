"""A rank that dies, hangs or raises: one error that says which, nothing waits for ever, and it goes on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from fleet_support import TWO, bits, comes_to_an_end, learner_on, train_loader
from outside import Outside
from torch.nn import functional as F

from notebook_learner.errors import RankDied
from notebook_learner.ranks.leader import Fleet
from notebook_learner.ranks.reduction import Severed

posix = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def slow(model, batch):
    x, y = batch
    time.sleep(0.01)
    return F.cross_entropy(model(x), y)


def running(directory, epochs=200):
    """A learner in training, with dropout, in the background."""

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(slow).keyframes(every=5).metrics()
        builder._settings.metrics = []

    learner = learner_on(TWO, directory, dropout=0.5, epochs=epochs, configure=configure)
    torch.manual_seed(5)
    learner.start(train_loader())
    while learner.position.iteration < 10:
        time.sleep(0.01)
    return learner


@posix
def test_a_killed_rank_ends_the_run_at_once_and_restart_goes_on_to_the_same_bits(tmp_path):
    learner = running(tmp_path / "killed", epochs=12)
    pid = learner.devices[1].pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankDied) as caught:
        learner.wait()
    died = caught.value
    assert (died.rank, died.pid, died.survivors) == (1, pid, (0,))
    assert "learner.devices.restart()" in str(died)
    assert learner.status == "failed"
    assert [each.alive for each in learner.devices] == [True, False]
    with pytest.raises(RankDied):
        learner.fit()
    learner.devices.restart()
    assert [each.alive for each in learner.devices] == [True, True]
    learner.fit()
    straight = running(tmp_path / "straight", epochs=12)
    straight.wait()
    assert bits(learner) == bits(straight)


@posix
def test_a_restart_whose_last_answer_is_lost_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """Each rank has random numbers of its own, here for its dropout: they are not rank 0's."""
    learner = running(tmp_path / "killed", epochs=12)
    os.kill(learner.devices[1].pid, signal.SIGKILL)
    with pytest.raises(RankDied):
        learner.wait()
    with monkeypatch.context() as patch:
        patch.setattr(Fleet, "_dismiss", lambda fleet: fleet.fault(Severed("lost")))
        learner.devices.restart()
    learner.fit()
    straight = running(tmp_path / "straight", epochs=12)
    straight.wait()
    assert bits(learner) == bits(straight)


@posix
@pytest.mark.soak
def test_a_training_goes_on_without_the_controller_and_the_next_one_has_another(tmp_path):
    learner = running(tmp_path / "killed", epochs=12)
    first = learner.devices[1].pid
    os.kill(learner._replica.loop.ranks.crew.engines._helpers[0].pid, signal.SIGKILL)
    learner.wait()
    assert learner.status == "finished"
    straight = running(tmp_path / "straight", epochs=12)
    straight.wait()
    assert bits(learner) == bits(straight)
    del learner, straight
    gc.collect()
    assert comes_to_an_end(first), "nobody would end this engine, whose controller is gone"
    again = running(tmp_path / "again", epochs=2)
    again.wait()
    assert again.status == "finished"


def controller_of(kernel: int) -> psutil.Process:
    """ipyparallel's process that watches the engines of a kernel."""
    family = psutil.Process(kernel).children(recursive=True)
    return next(each for each in family if "ipyparallel.controller" in " ".join(each.cmdline()))


@posix
@pytest.mark.soak
def test_a_stopped_rank_is_given_up_after_some_seconds(tmp_path):
    learner = running(tmp_path)
    os.kill(learner.devices[1].pid, signal.SIGSTOP)
    with pytest.raises(RankDied, match="was stopped for 5 s"):
        learner.wait()


class Faulty(torch.utils.data.Dataset):
    """Fails for one sample, which only rank 1 has."""

    def __init__(self):
        self.broken = True

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index == 31 and self.broken:
            raise ValueError("sample 31 cannot be read")
        return torch.ones(10) * index / 32, index % 3


def test_an_exception_on_one_rank_is_raised_here_with_its_own_traceback(tmp_path):
    learner = learner_on(TWO, tmp_path)
    data = Faulty()
    with pytest.raises(ValueError, match="sample 31 cannot be read") as caught:
        learner.fit(torch.utils.data.DataLoader(data, batch_size=8))
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1" in notes
    assert "in __getitem__" in notes
    assert learner.position.step == 3
    assert [each.step for each in learner.devices] == [3, 3]
    data.broken = False
    learner.fit(torch.utils.data.DataLoader(data, batch_size=8))
    assert learner.status == "finished"


def test_an_exception_on_rank_0_leaves_all_ranks_before_the_step(tmp_path):
    failing = Outside({"at": 4})

    def step(model, batch):
        x, y = batch
        if here() == failing.value["at"]:
            failing.value["at"] = None
            raise ValueError("only here")
        return F.cross_entropy(model(x), y)

    counted = Outside([])

    def here():
        if os.getpid() == MAIN:
            counted.value.append(1)
        return len(counted.value)

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(step).metrics()
        builder._settings.metrics = []

    learner = learner_on(TWO, tmp_path, configure=configure)
    learner._supplies.use(learner, "train", train_loader())
    with pytest.raises(ValueError, match="only here"):
        learner.fit()
    assert learner.position.step == 3
    learner.fit()
    assert learner.status == "finished"


class Walked:
    """Batches that only rank 0 can walk, and hands out."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def test_a_validation_that_rank_0_hands_out_may_fail_elsewhere(tmp_path):
    """Parts that were on their way by then are of no use. Rank 0 has gone further meanwhile, so the way
    back fails as well; then all can sum again, with other data."""
    here = os.getpid()

    def step(model, batch):
        x, y = batch
        if os.getpid() != here and not bool(torch.isfinite(x).all()):
            raise ZeroDivisionError("of another rank")
        return F.cross_entropy(model(x), y)

    def configure(builder):
        builder.valid_step(step).metrics()
        builder._settings.metrics = []

    x, y = torch.ones(4, 10), torch.zeros(4, dtype=torch.int64)
    bad = torch.cat([x[:3], torch.full((1, 10), torch.nan)])
    learner = learner_on(TWO, tmp_path, configure=configure)
    with pytest.raises(ZeroDivisionError, match="of another rank"):
        learner.fit(train_loader(), Walked([(bad if at == 2 else x, y) for at in range(200)]))
    learner.fit(train_loader(), Walked([(x, y)] * 3))
    assert learner.status == "finished"


MAIN = os.getpid()

ORPHANS = """
import sys, time
sys.path[:0] = {here!r}
from test_ranks_that_fail import running
from pathlib import Path
import tempfile
learner = running(tempfile.mkdtemp())
print(*(each.pid for each in learner.devices), flush=True)
time.sleep(600)
"""


@posix
@pytest.mark.parametrize("before", ["", "the controller"])
@pytest.mark.rounds(1)
def test_no_process_outlives_a_kernel_that_was_killed(tmp_path, before):
    script = ORPHANS.format(here=[str(Path(__file__).parent), str(Path(__file__).parents[1] / "learner")])
    command = [sys.executable, "-W", "ignore", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        _, follower = map(int, kernel.stdout.readline().split())
        family = psutil.Process(kernel.pid).children(recursive=True)
        assert follower in [each.pid for each in family]
        if before:
            controller_of(kernel.pid).kill()
        kernel.kill()
    _, left = psutil.wait_procs(family, timeout=60)
    assert left == []
