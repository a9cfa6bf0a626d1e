"""The run's directory is moved while its learner trains, and another one, or none, is in its place."""

from __future__ import annotations

import shutil

import pytest
import torch
from builder_support import assert_same_bits
from rerun_support import a_run_in, builder_in, built, tree, without_the_log

from notebook_learner import Artifacts, StoreError
from notebook_learner.errors import MovedError


@pytest.fixture
def run(tmp_path):
    """Where the run of a test goes; a folder with other runs beside it."""
    return tmp_path / "runs" / "digits"


def at_step(number, do):
    """A training step, which does something else, too, at one of its calls."""
    calls = 0

    def step(model, batch):
        nonlocal calls
        calls += 1
        if calls == number:
            do()
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    return step


def swapping(run, number):
    """A learner in whose step the run of another one is moved to the place of its own."""
    aside, other = run.with_name("aside"), run.with_name("other")
    a_run_in(other, epochs=4, files=True)

    def swap():
        learner._replica.saving.store.keeper.background.wait()  # between the two renames there is none
        run.rename(aside)
        other.rename(run)

    builder = builder_in(run, epochs=4, files=True)
    builder._settings.loss = None
    learner = built(builder.train_step(at_step(number, swap)))
    return learner


BEGINS = {
    "fit": lambda learner: learner.fit(),
    "start": lambda learner: (learner.start(), learner.wait()),
    "step": lambda learner: learner.step(16),
    "run_until": lambda learner: learner.run_until((4, 2)),
}


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("number", [2, 4, 6])
def test_a_run_that_is_moved_to_the_place_of_another_is_not_written_to(begin, number, run):
    learner = swapping(run, number)
    before = tree(run.with_name("other"))
    with pytest.raises(MovedError) as told:
        BEGINS[begin](learner)
    learner._replica.saving.store.keeper.background.wait()
    aside = run.with_name("aside")
    assert f"its directory was moved, and {str(run)!r} is another one now; its own is {str(aside)!r}" in str(
        told.value
    )
    assert "Move it back and call fit() again" in str(told.value) and "fork(" in str(told.value)
    assert learner.status == "paused" and learner.position.epoch <= 3
    assert tree(run) == before
    assert "paused at" in (aside / "experiment.log").read_text().splitlines()[-1]
    for verb in (learner.fit, learner.save, learner.step, lambda: learner.restore(1), learner.rewind):
        with pytest.raises(StoreError, match="its directory was moved"):
            verb()
    assert tree(run) == before and Artifacts(run).verify()


@pytest.mark.parametrize("then", ["moved back", "gone on elsewhere"])
def test_afterwards_it_goes_on_to_the_same_bits(then, run, tmp_path):
    learner = swapping(run, 6)
    straight = a_run_in(tmp_path / "straight", epochs=4, files=True)
    with pytest.raises(MovedError):
        learner.fit()
    if then == "moved back":
        run.rename(run.with_name("other"))
        run.with_name("aside").rename(run)
        learner.fit()
        learner._replica.saving.close()
        log = "train/epoch-3/Loss.log"
        assert tree(run)[log] == tree(tmp_path / "straight")[log]
        assert Artifacts(run).verify() and Artifacts(run.with_name("other")).verify()
    else:
        learner = learner.fork(tmp_path / "fork")
        learner.fit()
    assert_same_bits(learner.model, straight.model)


def test_one_that_was_moved_away_is_not_begun_anew_in_its_place(run):
    aside = run.with_name("aside")
    builder = builder_in(run, epochs=3, files=True)
    builder._settings.loss = None
    learner = built(builder.train_step(at_step(6, lambda: run.rename(aside))))
    with pytest.raises(MovedError, match=r"is not there any more; its own is '.*aside'"):
        learner.fit()
    assert not run.exists() and learner.status == "paused"
    aside.rename(run)
    learner.fit()
    assert learner.status == "finished" and Artifacts(run).verify()


def test_a_copy_in_the_place_of_a_deleted_run_is_another_run(run):
    """The number of an inode may be given again; not while it is open."""
    learner = built(builder_in(run, epochs=3, files=True))
    learner.step(6)
    learner._replica.saving.close()
    shutil.copytree(run, run.with_name("copy"), ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(run)
    run.with_name("copy").rename(run)
    before = tree(run)
    with pytest.raises(StoreError, match="another one now"):
        learner.fit()
    assert tree(run) == before


def test_a_learner_that_is_over_does_not_take_another_run_for_its_own(run):
    learner = a_run_in(run, epochs=2, files=True)
    run.rename(run.with_name("aside"))
    a_run_in(run, epochs=1, files=True)
    before = without_the_log(tree(run))
    for verb in (lambda: learner.fit(epochs=1), learner.save, lambda: learner.restore(1)):
        with pytest.raises(StoreError, match="its directory was moved"):
            verb()
    assert without_the_log(tree(run)) == before
