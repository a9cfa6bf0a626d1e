"""What it takes to look at a folder of checkpoints, and to delete one: no more is read than is needed."""

from __future__ import annotations

import os

import pytest
import torch

from notebook_learner.checkpoint import CheckpointFolder, Hdf5Recorder, NamedMpkGzRecorder
from notebook_learner.checkpoint import folder as module
from notebook_learner.store import files

MANY = 12


def about(epoch, **more):
    place = {"epoch": epoch, "split": "train", "step": 4, "iteration": 4 * epoch}
    told = {"kind": "epoch", "run_id": "one", "sequence": epoch, "best": None, "run": {}, "earlier": None}
    metrics = {"valid": {"Loss": 1 / epoch}}
    return {**place, **told, "metrics": metrics, "position": place, "passes": [], "parts": {}, **more}


def saved(path, epochs=range(1, MANY + 1), recorder=None, **more):
    folder = CheckpointFolder(path, recorder or Hdf5Recorder())
    for epoch in epochs:
        folder.commit(str(epoch), {"model": {"weight": torch.ones(1000)}}, about(epoch, **more))
    age(path)
    return folder


def age(path):
    """Let the files be of a while ago: within a tick of the clock a change leaves the same time."""
    for each in path.iterdir():
        os.utime(each, (1e9, 1e9 + len(each.name)))


@pytest.fixture
def read(monkeypatch):
    """How often something is read from a file, and how many bytes."""
    calls, real = [], files.read_at

    def counting(descriptor, buffers, offset):
        calls.append(sum(len(buffer) for buffer in buffers))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(files, "read_at", counting)
    return calls


@pytest.mark.parametrize("recorder", [Hdf5Recorder(), NamedMpkGzRecorder()], ids=repr)
def test_a_second_look_reads_nothing_that_is_as_it_was(recorder, tmp_path, read):
    saved(tmp_path / "checkpoint", recorder=recorder)
    folder = CheckpointFolder(tmp_path / "checkpoint")
    known = folder.list()
    assert [info.epoch for info in known] == [*range(1, MANY + 1)]
    read.clear()
    assert folder.list() == known
    assert read == []
    saved(tmp_path / "checkpoint", [MANY + 1])
    folder = CheckpointFolder(tmp_path / "checkpoint")
    assert len(folder.list()) == MANY + 1


def test_a_look_after_a_save_of_another_process_reads_only_that(tmp_path, read):
    saved(tmp_path / "checkpoint")
    folder = CheckpointFolder(tmp_path / "checkpoint")
    folder.list()
    os.utime(tmp_path / "checkpoint", (1e9, 1e9))
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoint").iterdir()}
    other = CheckpointFolder(tmp_path / "checkpoint", Hdf5Recorder())
    other.commit("99", {"model": {"weight": torch.ones(1000)}}, about(99))
    assert times == {path: path.stat().st_mtime_ns for path in times}
    read.clear()
    assert folder.list()[-1].label == "99"
    assert len(read) <= 2


def test_a_first_look_reads_the_beginnings_of_commit_files_alone(tmp_path, read):
    saved(tmp_path / "checkpoint", parts={"rng": torch.ones(100_000)})
    read.clear()
    assert len(CheckpointFolder(tmp_path / "checkpoint").list()) == MANY
    assert len(read) <= 2 * MANY
    assert sum(read) < 8000 * MANY


def test_a_list_after_many_saves_reads_the_last_one_alone(tmp_path, read, monkeypatch):
    past = set()  # files that were there before the clock last ticked
    monkeypatch.setattr(module, "_is_past", lambda signature: {each[2] for each in signature} <= past)
    folder = CheckpointFolder(tmp_path / "checkpoint", Hdf5Recorder())
    for epoch in range(1, MANY + 1):
        folder.commit(str(epoch), {"model": {"weight": torch.ones(1000)}}, about(epoch))
        past |= {each.stat().st_ino for each in folder.path.iterdir()}
    read.clear()
    assert len(folder.list()) == MANY
    assert len(read) == 2, "header and manifest of what nothing has looked at since it was saved"


def test_a_change_in_the_tick_of_the_save_is_seen(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoint", Hdf5Recorder())
    for epoch in (1, 2, 3):
        folder.commit(str(epoch), {"model": {"weight": torch.ones(10)}}, about(epoch))
        path = tmp_path / "checkpoint" / f"state-{epoch}.h5"
        times = path.stat()
        content = bytearray(path.read_bytes())
        content[30] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert all(info.damage for info in folder.list())


def test_deleting_reads_nothing(tmp_path, read):
    folder = saved(tmp_path / "checkpoint", [1, 2, 3])
    other = CheckpointFolder(tmp_path / "checkpoint")
    known = other.list()
    read.clear()
    other.delete(known[0])
    assert read == []
    fresh = folder.commit("4", {"model": {"weight": torch.ones(10)}}, about(4))
    read.clear()
    folder.delete(fresh)
    assert read == []
    assert [info.label for info in folder.list()] == ["2", "3"]


def test_names_that_change_while_it_is_looked_at_have_nothing_read_again(tmp_path, read, monkeypatch):
    saved(tmp_path / "checkpoint")
    read.clear()
    folder, real, asked = CheckpointFolder(tmp_path / "checkpoint"), os.listdir, []

    def changing(where):
        asked.append(where)
        (tmp_path / "checkpoint" / f"note-{len(asked)}").touch()
        return real(where)

    monkeypatch.setattr(os, "listdir", changing)
    assert len(folder.list()) == MANY
    assert len(asked) > 4
    assert len(read) <= 2 * MANY


@pytest.mark.parametrize("name", ["state-3.h5", "model-3.h5"])
@pytest.mark.parametrize("harm", ["removed", "cut", "flipped"])
def test_what_has_become_of_a_file_since_is_seen(name, harm, tmp_path):
    folder = saved(tmp_path / "checkpoint", [1, 2, 3])
    assert not any(info.damage for info in folder.list())
    path = tmp_path / "checkpoint" / name
    data = path.read_bytes()
    if harm == "removed":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(data[:-1])
    else:
        path.write_bytes(bytes([*data[:600], data[600] ^ 1, *data[601:]]))
    labels = [info.label for info in folder.list() if not info.damage]
    if name == "state-3.h5" and harm == "removed":
        assert [info.label for info in folder.list()] == ["1", "2"]
    elif harm != "flipped":
        assert labels == ["1", "2"]
    if harm == "flipped":
        known = [info for info in folder.list() if info.label == "3"]
        assert any(folder.verify(info) for info in known)


@pytest.mark.parametrize(
    "metrics",
    [{"train": {"Loss": float("nan")}}, {"train": {"position": 1.0}}, {"train": {'a,"position":': 2.0}}],
)
def test_a_list_shows_what_the_whole_file_says(metrics, tmp_path):
    saved(tmp_path / "checkpoint", [1], metrics=metrics)
    (info,) = CheckpointFolder(tmp_path / "checkpoint").list()
    assert not info.damage
    assert repr(info.metrics) == repr(metrics)


def test_a_checkpoint_is_found_by_its_label_without_a_look_at_the_others(tmp_path, read):
    saved(tmp_path / "checkpoint")
    folder = CheckpointFolder(tmp_path / "checkpoint")
    read.clear()
    info = folder.find(7)
    assert info.label == "7"
    assert len(read) <= 2
