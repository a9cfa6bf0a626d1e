"""A learner that saves itself: when, what stays, and what happens when the disk will not have it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import h5py
import pytest
import torch
from builder_support import Tape, adam, batches, classifier, mistakes_of, net
from exactness import differences, everything

from notebook_learner import (
    BusyError,
    CheckpointError,
    ConfigurationError,
    DamagedError,
    Paused,
    StateError,
)
from notebook_learner.checkpoint import (
    CompactRecorder,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    NamedMpkGzRecorder,
    SafetensorsRecorder,
)
from notebook_learner.event import CheckpointSaved, Notice, SplitEnded
from notebook_learner.learner.wiring import directory_tenancy
from notebook_learner.run import saving
from notebook_learner.store import files

STEPS = 4  # of an epoch


def learner_in(directory, *, epochs=3, configure=lambda builder: builder, which=None, renderer=None, seed=0):
    model = net(dropout=0.3, seed=seed)
    builder = configure(classifier(directory).num_epochs(epochs).seed(5).with_file_checkpointer())
    if which is not None:
        builder.checkpoint(which)
    if renderer is not None:
        builder.renderer(renderer)
    return builder.build(model, adam(model), 0.01, batches(), batches()[:2])


def labels(learner):
    return [info.label for info in learner.checkpoints]


def names(directory):
    return sorted(path.name for path in (Path(directory) / "checkpoint").iterdir())


def pause_in(learner, step):
    """Pause from inside a step of this epoch, counted over the run's training steps."""
    with pytest.raises(Paused):
        at = [0]
        function = learner._replica.loop.passes["train"].step.function

        def stepping(batch):
            at[0] += 1
            if at[0] == step:
                learner.pause()
            return function(batch)

        learner._replica.loop.passes["train"].step.function = stepping
        try:
            learner.fit()
        finally:
            learner._replica.loop.passes["train"].step.function = function


# When and what -----------------------------------------------------------------------------------------


def test_every_epoch_is_saved_under_burns_names_and_the_last_two_and_the_best_stay(tmp_path):
    learner = learner_in(tmp_path, epochs=4)
    learner.fit()
    values = learner.history.epochs("Loss", "valid")
    kept = sorted({3, 4, int(values.argmin()) + 1})
    assert [info.epoch for info in learner.checkpoints] == kept
    assert names(tmp_path) == sorted(
        f"{part}-{epoch}.h5" for epoch in kept for part in ("model", "optim", "scheduler", "state")
    )


@pytest.mark.parametrize(
    ("strategy", "epochs"),
    [(KeepLast(1), [6]), (KeepEvery(2), [2, 4, 6]), (KeepAll(), [1, 2, 3, 4, 5, 6]), (KeepEvery(4), [4, 6])],
    ids=repr,
)
def test_a_strategy_says_what_stays_and_the_newest_always_does(strategy, epochs, tmp_path):
    learner = learner_in(tmp_path, epochs=6, configure=lambda b: b.with_checkpointing_strategy(strategy))
    learner.fit()
    assert labels(learner) == [str(epoch) for epoch in epochs]


def test_the_best_by_a_metric_that_grows_is_the_highest(tmp_path):
    from notebook_learner.metric import Accuracy, Loss

    learner = learner_in(
        tmp_path,
        epochs=5,
        configure=lambda b: b.metrics(Loss(), Accuracy()).with_checkpointing_strategy(KeepBest("Accuracy")),
    )
    learner.fit()
    best = learner.history.best("Accuracy", "valid").epoch
    assert set(labels(learner)) == {str(best), "5"}
    learner.restore("best")
    assert learner.position.epoch == best + (best < 5)


@pytest.mark.parametrize("recorder", [NamedMpkGzRecorder(), SafetensorsRecorder()], ids=lambda r: r.suffix)
def test_another_recorder_changes_the_suffix_and_nothing_else(recorder, tmp_path):
    learner = learner_in(tmp_path, configure=lambda b: b.with_file_checkpointer(recorder))
    learner.fit()
    assert {name.partition(".")[2] for name in names(tmp_path)} == {recorder.suffix}
    again = learner_in(tmp_path, configure=lambda b: b.with_file_checkpointer(recorder), which=3)
    assert list(differences(everything(again), everything(learner))) == []


def test_a_pause_is_saved_and_the_epochs_end_takes_its_place(tmp_path):
    learner = learner_in(tmp_path)
    pause_in(learner, 2)
    assert labels(learner) == ["1-2"]
    assert learner.checkpoints[0].place == "epoch 1, step 2"
    learner.step_epoch()
    assert labels(learner) == ["1"]


def test_a_pause_is_not_saved_where_that_was_not_wanted(tmp_path):
    learner = learner_in(tmp_path, configure=lambda b: b.autosave(on_pause=False))
    pause_in(learner, 2)
    assert labels(learner) == []


def test_an_error_in_a_step_is_a_pause_and_saved_like_one(tmp_path):
    learner = learner_in(tmp_path)
    step = learner._replica.loop.passes["train"].step
    function, count = step.function, [0]

    def failing(batch):
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("boom")
        return function(batch)

    step.function = failing
    with pytest.raises(RuntimeError, match="boom"):
        learner.fit()
    learner._replica.saving.wait()
    assert labels(learner) == ["1-2"]


def test_autosave_by_steps_keeps_only_the_newest(tmp_path):
    learner = learner_in(tmp_path, configure=lambda b: b.autosave(3))
    learner.step(4)
    assert labels(learner) == ["1-3"]
    learner.run_until((2, 3))
    assert labels(learner) == ["1", "2-2"], "step 6 of the run is the second of epoch 2"


@pytest.mark.parametrize("every", ["10 min", timedelta(minutes=10), "600s"], ids=str)
def test_autosave_by_time(every, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(saving, "monotonic", lambda: now[0])
    learner = learner_in(tmp_path, configure=lambda b: b.autosave(every))
    learner.step(2)
    assert labels(learner) == []
    now[0] = 601.0
    learner.step()
    assert labels(learner) == ["1-2"]
    now[0] = 900.0
    learner.step()
    assert labels(learner) == ["1-2"], "ten minutes count from the last save"


def test_autosave_alone_asks_for_files(tmp_path):
    model = net()
    learner = classifier(tmp_path).autosave("5 min").build(model, adam(model), None, batches())
    learner.fit()
    assert labels(learner) == ["1"]


# By hand -------------------------------------------------------------------------------------------------


def test_save_gives_the_label_to_restore_and_what_it_saved_stays(tmp_path):
    learner = learner_in(tmp_path)
    learner.step(2)
    before = everything(learner)
    label = learner.save()
    assert label == "1-2"
    learner.fit()
    assert label in labels(learner), "no strategy deletes what a person saved"
    learner.restore(label)
    assert list(differences(everything(learner), before)) == []
    assert str(learner.position) == "epoch 1, train, step 2 of 4"
    assert learner.status == "paused"


def test_a_learner_without_a_file_checkpointer_can_be_saved_by_hand_all_the_same(tmp_path):
    model = net()
    learner = classifier(tmp_path).num_epochs(2).build(model, adam(model), None, batches())
    learner.step(3)
    assert learner.save() == "1-3"
    learner.fit()
    assert labels(learner) == ["1-3"]


def test_save_without_waiting_is_on_the_disk_by_the_end_of_the_next_verb_that_waits(tmp_path):
    learner = learner_in(tmp_path)
    learner.step(2)
    learner.save(wait=False)
    assert labels(learner) == ["1-2"]


def test_training_that_runs_in_the_background_is_saved_at_a_boundary(tmp_path):
    learner = learner_in(tmp_path, epochs=200)
    learner.start()
    label = learner.save()
    learner.stop()
    assert label in labels(learner)
    info = next(info for info in learner.checkpoints if info.label == label)
    assert info.kind == "manual" and learner._replica.saving.store.folder.verify(info) == []


def test_a_step_cannot_save_the_learner_that_runs_it(tmp_path):
    learner = learner_in(tmp_path)
    step = learner._replica.loop.passes["train"].step
    function = step.function

    def saving_itself(batch):
        learner.save()
        return function(batch)

    step.function = saving_itself
    with pytest.raises(BusyError, match="training thread itself"):
        learner.step()


# Going on from one ----------------------------------------------------------------------------------------


def test_a_missing_checkpoint_lists_what_there_is(tmp_path):
    learner = learner_in(tmp_path)
    learner.fit()
    with pytest.raises(StateError, match="there is no checkpoint 7; there are: "):
        learner.restore(7)
    with pytest.raises(StateError, match="there is none yet"):
        learner_in(tmp_path / "new").restore("latest")


def test_the_builder_says_it_as_one_of_its_mistakes(tmp_path):
    model = net()
    builder = classifier(tmp_path).num_epochs(9).with_file_checkpointer().checkpoint(2)
    (mistake,) = mistakes_of(builder, model, adam(model))
    assert mistake == "checkpoint(2): there is no checkpoint 2; there is none yet"


def test_what_restore_takes_is_said(tmp_path):
    with pytest.raises(StateError, match="the epoch or label of a checkpoint, not a float"):
        learner_in(tmp_path).restore(3.0)


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path):
    learner_in(tmp_path).fit()
    other = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    learner = classifier(tmp_path).with_file_checkpointer().build(other, adam(other), None, batches())
    before = everything(learner)
    with pytest.raises(StateError, match=r"0\.weight: the state has \(8, 6\), the model \(5, 6\)"):
        learner.restore("latest")
    assert list(differences(everything(learner), before)) == []


def test_the_latest_that_is_whole_is_taken_and_the_damage_told(tmp_path):
    learner_in(tmp_path, configure=lambda b: b.with_checkpointing_strategy(KeepAll())).fit()
    path = tmp_path / "checkpoint" / "model-3.h5"
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    told = Tape()
    learner = learner_in(tmp_path, which="latest", renderer=told)
    assert learner.position.epoch == 3 and learner.position.step == 0
    learner.fit()
    assert any("model-3.h5" in notice.text and notice.level == "warning" for notice in told.of(Notice))
    with pytest.raises(DamagedError, match=r"model-3\.h5"):
        damaged = bytearray(path.read_bytes())
        damaged[-20] ^= 1
        path.write_bytes(damaged)
        learner.restore(3)


def test_half_precision_is_refused_for_going_on(tmp_path):
    told = Tape()
    compact = lambda b: b.with_file_checkpointer(CompactRecorder())  # noqa: E731
    learner = learner_in(tmp_path, configure=compact, renderer=told)
    learner.fit()
    (notice,) = [notice.text for notice in told.of(Notice) if "half precision" in notice.text]
    assert "the largest relative error" in notice and "training cannot go on from it" in notice
    with pytest.raises(StateError, match=r"saved in half precision.*load_model"):
        learner.restore(3)


def test_a_new_run_in_the_folder_of_an_old_one_judges_only_its_own(tmp_path, monkeypatch):
    """Two runs share a folder where an earlier version of this package wrote the second one."""
    monkeypatch.setattr(directory_tenancy, "holds_run", lambda directory: False)
    learner_in(tmp_path, epochs=6, configure=lambda b: b.with_checkpointing_strategy(KeepAll())).fit()
    learner = learner_in(
        tmp_path, epochs=2, seed=1, configure=lambda b: b.with_checkpointing_strategy(KeepLast(1))
    )
    learner.fit()
    assert labels(learner)[-1] == "2", "the latest is the new run's, though the old one had more epochs"
    assert {"3", "4", "5", "6"} < set(labels(learner)), "what an earlier run left is not ours to delete"
    learner.restore("latest")
    assert learner.num_epochs == 2 and learner.status == "finished"


def test_going_back_behind_the_newest_checkpoint_saves_the_place_before_the_logs_are_cut(tmp_path):
    learner = learner_in(tmp_path)
    learner.run_until((2, 3))
    learner.rewind(to=(1, 2))
    again = learner_in(tmp_path, which="latest")
    assert again.position.key == learner.position.key
    assert again.history["train", "Loss"].tolist() == learner.history["train", "Loss"].tolist()


# When the disk will not have it -----------------------------------------------------------------------------


class Full:
    """A disk that takes no checkpoint while `on`."""

    def __init__(self, monkeypatch, error=errno.ENOSPC):
        self.on, self.real, self.error = False, files.write_at, error
        monkeypatch.setattr(files, "write_at", self.write_at)

    def write_at(self, descriptor, buffers, offset):
        if self.on:
            raise OSError(self.error, os.strerror(self.error))
        return self.real(descriptor, buffers, offset)


def test_a_full_disk_ends_fit_with_training_intact_and_fit_writes_what_waits(tmp_path, monkeypatch):
    straight = learner_in(tmp_path / "straight")
    straight.fit()

    disk = Full(monkeypatch)
    learner = learner_in(tmp_path / "run")
    learner.run_until((2, 2))
    assert labels(learner) == ["1"]
    disk.on = True
    with pytest.raises(CheckpointError, match=r"No space left on device.*call fit"):
        learner.fit()
    assert learner.status == "failed"
    assert labels(learner) == ["1"], "the checkpoint before is as it was"
    with pytest.raises(CheckpointError, match="No space left"):
        learner.fit()
    disk.on = False
    learner.fit()
    assert learner.status == "finished"
    assert list(differences(everything(learner), everything(straight))) == []
    assert {"2", "3"} <= set(labels(learner))
    assert not [name for name in names(tmp_path / "run") if name.endswith(".tmp")]


def test_save_raises_at_once_and_the_learner_goes_on(tmp_path, monkeypatch):
    disk = Full(monkeypatch, errno.EIO)
    learner = learner_in(tmp_path)
    learner.step(2)
    disk.on = True
    with pytest.raises(CheckpointError, match="checkpoint 1-2 could not be written"):
        learner.save()
    disk.on = False
    assert learner.save() == "1-2"
    learner.fit()


def test_a_derived_file_that_cannot_be_written_is_told_of_and_stops_nothing(tmp_path, monkeypatch):
    told = Tape()
    learner = learner_in(tmp_path, renderer=told)
    real = files.create

    def refusing(path):
        if "artifacts.h5" in path.name:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return real(path)

    monkeypatch.setattr(files, "create", refusing)
    learner.fit()
    assert learner.status == "finished"
    assert any("artifacts.h5 could not be written" in notice.text for notice in told.of(Notice))


def test_a_state_that_no_file_can_hold_names_its_place(tmp_path):
    learner = learner_in(tmp_path)
    learner.optimizer.param_groups[0]["callback"] = len
    learner.step()
    with pytest.raises(CheckpointError, match=r"optim\['groups'\]\[0\]\['callback'\] is a builtin"):
        learner.save()
    del learner.optimizer.param_groups[0]["callback"]
    learner.fit()
    assert learner.status == "finished"


# The end of the process -----------------------------------------------------------------------------------

TRAINS = """
import sys, time
sys.path.insert(0, {here!r})
import test_saving
learner = test_saving.learner_in({directory!r}, epochs=10**6)
"""


FITS = """
import threading
def tell():  # only a verb at work answers a signal: before it and after it Python's own way is taken
    while learner.position.iteration < 3: time.sleep(0.01)
    print('training', flush=True)
threading.Thread(target=tell, daemon=True).start()
learner.fit()
"""


def run_script(directory, rest, *, wait_for="training", action=None):
    script = TRAINS.format(here=str(Path(__file__).parent), directory=str(directory)) + rest
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    if action is not None:
        assert child.stdout.readline().strip() == wait_for
        child.send_signal(action)
    out, err = child.communicate(timeout=200)
    return child.returncode, out, err


@pytest.mark.soak
def test_a_process_that_is_told_to_end_saves_the_very_step_it_stands_at(tmp_path):
    code, _, err = run_script(tmp_path, FITS, action=signal.SIGTERM)
    assert code == -signal.SIGTERM, err
    learner = learner_in(tmp_path, epochs=10**6, which="latest")
    newest = learner.checkpoints[-1]
    assert newest.kind in ("auto", "epoch") and newest.iteration >= 2
    record = learner.history.snapshot()
    assert sum(part.steps for part in record if part.split == "train") == newest.iteration


def test_what_was_handed_over_is_on_the_disk_when_the_interpreter_ends(tmp_path):
    code, out, err = run_script(tmp_path, "learner.step(3); print(learner.save(wait=False))")
    assert (code, out, err) == (0, "1-3\n", "")
    assert labels(learner_in(tmp_path)) == ["1-3"]


def test_training_in_the_background_is_saved_when_the_interpreter_ends(tmp_path):
    code, _, err = run_script(
        tmp_path, "learner.start()\nwhile learner.position.iteration < 3: time.sleep(0.01)"
    )
    assert (code, err) == (0, "")
    again = learner_in(tmp_path, epochs=10**6, which="latest")
    assert again.position.iteration >= 3


# What others see --------------------------------------------------------------------------------------------


def test_artifacts_show_what_the_learner_measured_and_saved(tmp_path):
    learner = learner_in(tmp_path)
    learner.fit()
    seen = learner.artifacts
    assert seen.series("Loss", "train").value.tolist() == learner.history["train", "Loss"].tolist()
    assert [info.label for info in seen.checkpoints] == labels(learner)
    assert seen.run.num_epochs == 3 and seen.run.seed == "5"
    assert seen.verify()
    fresh = seen.load_model(net(seed=9), epoch="latest")
    for name, tensor in learner.model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor)


@pytest.mark.parametrize("way", ["by the pause", "by hand"])
def test_artifacts_h5_names_the_checkpoint_of_a_run_at_rest(way, tmp_path):
    learner = learner_in(tmp_path)
    pause_in(learner, 2)
    if way == "by hand":
        learner.step(1)
        learner.save()
    learner._replica.saving.close()
    with h5py.File(tmp_path / "artifacts.h5") as file:
        assert list(file["checkpoints"]) == labels(learner) != []


def test_every_checkpoint_is_announced_once_and_logged(tmp_path):
    told = Tape()
    log = lambda b: b.with_application_logger(True)  # noqa: E731
    learner = learner_in(tmp_path, configure=log, renderer=told)
    learner.step(2)
    learner.save()
    learner.fit()
    assert [event.label for event in told.of(CheckpointSaved)] == ["1-2", "1", "2", "3"]
    assert "INFO  checkpoint 1-2 saved, " in (tmp_path / "experiment.log").read_text()


def test_checkpoints_print_as_a_table(tmp_path):
    learner = learner_in(tmp_path)
    learner.fit()
    text = repr(learner.checkpoints)
    assert "end of epoch 3" in text and "complete" in text and "Loss" in text


def test_saving_costs_the_measurements_nothing(tmp_path):
    """The same events with and without checkpoints: a listener sees no difference."""
    tapes = Tape(), Tape()
    learner_in(tmp_path / "a", renderer=tapes[0]).fit()
    model = net(dropout=0.3)
    plain = classifier(tmp_path / "b").num_epochs(3).seed(5).renderer(tapes[1])
    plain.build(model, adam(model), 0.01, batches(), batches()[:2]).fit()
    ended = [[(e.epoch, e.split, dict(e.finals)) for e in tape.of(SplitEnded)] for tape in tapes]
    assert ended[0] == ended[1]


def test_a_strategy_that_cannot_be_is_refused_where_it_is_written():
    with pytest.raises(ConfigurationError, match="KeepLast"):
        KeepLast(0)
