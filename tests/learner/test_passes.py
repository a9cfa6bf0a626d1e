"""What a checkpoint needs of the passes before it: written once beside the checkpoints, checked to the byte,
and as good as if each checkpoint held all of them."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import old_run
import pytest
from exactness import differences, everything

from notebook_learner import Artifacts, CheckpointError, DamagedError
from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.checkpoint.passes import NAME
from notebook_learner.store import files

EPOCHS = 14


def logs(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for split in ("train", "valid")
        for path in sorted((directory / split).rglob("*.log"))
    }


def told(learner):
    return [(part.epoch, part.split, part.steps, dict(part.finals)) for part in learner.history.snapshot()]


def assert_alike(learner, directory, straight, beside):
    assert list(differences(everything(learner), everything(straight))) == []
    assert told(learner) == told(straight)
    assert logs(directory) == logs(beside)


def state_size(directory, label):
    return (directory / "checkpoint" / f"state-{label}.h5").stat().st_size


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that kept every checkpoint."""
    directory = tmp_path_factory.mktemp("straight") / "run"
    learner = old_run.build(directory, epochs=EPOCHS, keep=EPOCHS)
    learner.fit()
    assert learner.artifacts is not None  # all is on the disk
    return learner, directory


@pytest.fixture
def copied(straight, tmp_path):
    """Its directory, to do with as one likes."""
    shutil.copytree(straight[1], tmp_path / "run")
    return tmp_path / "run"


# The same to the bit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [1, 4, 5, 9, 13])
def test_a_checkpoint_of_any_epoch_goes_on_to_the_bits_of_the_straight_run(label, straight, copied):
    learner = old_run.build(copied, epochs=EPOCHS, which=label)
    learner.fit()
    assert_alike(learner, copied, *straight)


def test_checkpoints_of_a_branch_that_was_left_come_back_with_all_that_was_measured(straight, tmp_path):
    learner = old_run.build(tmp_path, epochs=EPOCHS, keep=EPOCHS)
    learner.fit()
    learner.restore(5)
    learner.num_epochs = 11
    learner.optimizer.param_groups[0]["lr"] = 0.5
    learner.fit()
    other = told(learner)
    learner.restore(EPOCHS)
    assert_alike(learner, tmp_path, *straight)
    learner.restore(11)
    assert told(learner) == other


def test_the_first_branch_comes_back_in_another_process_as_far_as_the_logs_tell(tmp_path):
    learner = old_run.build(tmp_path, epochs=EPOCHS, keep=EPOCHS)
    learner.fit()
    before = told(learner)
    learner.restore(5)
    learner.save()
    assert learner.artifacts is not None
    again = old_run.build(tmp_path, epochs=EPOCHS, which=EPOCHS)
    assert told(again) == before


def test_a_run_of_the_version_before_goes_on_to_the_same_bits(straight, tmp_path):
    with tarfile.open(Path(__file__).with_name("old_run.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    for which in (10, "11-3"):
        place = tmp_path / str(which)
        shutil.copytree(tmp_path / "run", place)
        learner = old_run.build(place, epochs=EPOCHS, which=which)
        learner.fit()
        assert_alike(learner, place, *straight)
        again = old_run.build(place, epochs=EPOCHS, which="latest")
        assert told(again) == told(learner)


# What it costs ------------------------------------------------------------------------------------------


def test_a_checkpoint_is_as_large_after_many_epochs_as_after_a_few(straight):
    _, directory = straight
    folder = CheckpointFolder(directory / "checkpoint")
    told = [len(repr(folder.read(folder.find(epoch), "state"))) for epoch in range(3, EPOCHS + 1)]
    assert max(told) < 1.1 * min(told)
    sizes = [state_size(directory, epoch) for epoch in range(3, EPOCHS + 1)]
    assert max(sizes) - min(sizes) <= 8192  # the file grows in steps: a longer number may cross one


def test_each_pass_is_written_once(straight):
    _, directory = straight
    text = (directory / "checkpoint" / NAME).read_text()
    for epoch in range(1, 9):
        assert text.count(f'[{epoch},"train",5,') == 1


def test_what_was_measured_at_deleted_checkpoints_is_forgotten(tmp_path):
    learner = old_run.build(tmp_path, epochs=EPOCHS)
    learner.fit()
    assert len(learner._replica.saving.store._records) <= 3


@pytest.mark.parametrize("epoch", [4, EPOCHS])
def test_the_first_save_after_a_resume_syncs_only_what_is_new(epoch, copied, monkeypatch):
    learner = old_run.build(copied, epochs=EPOCHS + 2, which=epoch)
    learner.step()
    counted = []
    real = files.sync
    monkeypatch.setattr(files, "sync", lambda descriptor: (counted.append(descriptor), real(descriptor))[1])
    learner.save()
    first = len(counted)
    learner.step()
    learner.save()
    assert first <= len(counted) - first + 1  # a line of passes may be due


def test_logs_that_a_way_back_wrote_anew_are_synced_with_the_next_save(copied, monkeypatch):
    learner = old_run.build(copied, epochs=EPOCHS, which=EPOCHS, keep=EPOCHS)
    learner.save()
    learner.restore(3)
    learner.restore(EPOCHS)
    synced = []
    real = files.open_to_read
    monkeypatch.setattr(files, "open_to_read", lambda path: (synced.append(path), real(path))[1])
    learner.save()
    assert {path.parent.name for path in synced if path.suffix == ".log"} >= {
        f"epoch-{epoch}" for epoch in range(4, EPOCHS + 1)
    }


# Damage -------------------------------------------------------------------------------------------------


def cut(path):
    os.truncate(path, path.stat().st_size - 10)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flip, os.unlink])
def test_damage_is_told_by_the_files_name(harm, copied):
    harm(copied / "checkpoint" / NAME)
    learner = old_run.build(copied, epochs=EPOCHS, which=4)  # it holds its passes itself
    with pytest.raises(DamagedError, match=NAME):
        learner.restore(EPOCHS)
    assert any(NAME in problem for problem in Artifacts(copied).verify().problems)
    assert learner.position.epoch == 5


@pytest.mark.parametrize("harm", [cut, flip])
def test_the_latest_one_before_the_damage_is_taken_instead(harm, straight, copied):
    harm(copied / "checkpoint" / NAME)
    learner = old_run.build(copied, epochs=EPOCHS, which="latest")
    assert 4 < learner.position.epoch - 1 < EPOCHS
    learner.fit()
    assert_alike(learner, copied, *straight)


def test_a_file_that_was_removed_is_written_anew_by_the_next_save(straight, tmp_path):
    learner = old_run.build(tmp_path, epochs=EPOCHS, keep=2)
    learner.num_epochs = 8
    learner.fit()
    (tmp_path / "checkpoint" / NAME).unlink()
    learner.num_epochs = EPOCHS
    learner.fit()
    again = old_run.build(tmp_path, epochs=EPOCHS, which="latest")
    assert_alike(again, tmp_path, *straight)


def test_half_a_line_of_a_process_that_died_does_no_harm(straight, copied):
    with (copied / "checkpoint" / NAME).open("a") as file:
        file.write('{"after":{"offs')
    learner = old_run.build(copied, epochs=EPOCHS + 6, which="latest")
    learner.fit()
    again = old_run.build(copied, epochs=EPOCHS + 6, which="latest")
    assert told(again) == told(learner)


@pytest.mark.parametrize("call", ["append", "sync"])
def test_a_disk_that_refuses_it_is_told_of_and_asked_again(call, straight, tmp_path, monkeypatch):
    learner = old_run.build(tmp_path, epochs=EPOCHS, keep=EPOCHS)
    real, refused = getattr(files, call), []

    def refusing(descriptor, *rest):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        if name == NAME and len(refused) < 2:
            refused.append(name)
            raise OSError(28, "No space left on device")
        return real(descriptor, *rest)

    monkeypatch.setattr(files, call, refusing)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="No space left"):
            learner.fit()
    learner.fit()
    assert len(refused) == 2
    assert_alike(learner, tmp_path, *straight)
    again = old_run.build(tmp_path, epochs=EPOCHS, which="latest")
    assert told(again) == told(learner)


def test_a_new_run_in_the_directory_begins_its_own(copied):
    learner = old_run.build(copied, epochs=6)
    learner.fit()
    assert learner.artifacts is not None
    kept = next(copied.parent.glob("run-*"))
    assert (kept / "checkpoint" / NAME).exists()
    assert len(told(old_run.build(kept, epochs=EPOCHS, which=EPOCHS))) == 2 * EPOCHS
    assert told(old_run.build(copied, epochs=6, which="latest")) == told(learner)


def test_times_of_steps_come_from_it_where_the_index_is_gone(straight, copied):
    there = Artifacts(copied).series("Loss", "train").time
    (copied / "artifacts.h5").unlink()
    assert abs(Artifacts(copied).series("Loss", "train").time - there).max() < 0.01
