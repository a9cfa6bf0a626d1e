"""A save that a dying process left under its temporary names: it counts once it is whole, and not before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from notebook_learner import LearnerBuilder
from notebook_learner.checkpoint import Hdf5Recorder, NamedMpkGzRecorder, SafetensorsRecorder
from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.store import durable

TOKEN = "0123abcd"


@pytest.fixture(
    params=[Hdf5Recorder, NamedMpkGzRecorder, SafetensorsRecorder], ids=lambda made: made.__name__
)
def unnamed(request, tmp_path):
    """The folder of one checkpoint whose files have their temporary names, and the path of its commit."""
    model = nn.Linear(3, 2)
    builder = LearnerBuilder(tmp_path).loss(nn.functional.mse_loss).renderer("silent").remote_control(False)
    builder.with_file_checkpointer(request.param()).with_application_logger(False)
    data = [(torch.ones(2, 3), torch.ones(2, 2))] * 4
    learner = builder.build(model, torch.optim.Adam(model.parameters()), None, data)
    learner.step(2)
    learner.save()
    folder = tmp_path / "checkpoint"
    for path in list(folder.iterdir()):
        path.rename(durable.temporary_name(path, TOKEN))
    (commit,) = folder.glob(".state-1-2.*")
    return folder, commit, request.param()


def test_a_whole_one_is_a_checkpoint(unnamed):
    folder, _, recorder = unnamed
    (info,) = CheckpointFolder(folder, recorder).list()
    assert (info.label, info.damage) == ("1-2", "")
    assert not CheckpointFolder(folder, recorder).verify(info)


def test_one_whose_outline_was_written_and_not_its_tensors_is_none(unnamed):
    """The room for a file is taken beforehand, so its size tells nothing."""
    folder, commit, recorder = unnamed
    data = bytearray(commit.read_bytes())
    stream = torch.get_rng_state().numpy().tobytes()
    tail = len(data) - min(len(data) // 3, len(stream))
    data[tail:] = bytes(len(data) - tail)
    commit.write_bytes(data)
    assert CheckpointFolder(folder, recorder).list() == []
