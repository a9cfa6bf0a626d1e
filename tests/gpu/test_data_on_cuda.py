"""Data that live on the device: the same batches, none of which crosses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, no_waits
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.data.cursor import Cursor
from notebook_learner.data.in_memory import OnDevice
from notebook_learner.data.sampling import END


def pairs(rows: int = 40) -> TensorDataset:
    source = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(rows, 16, generator=source), torch.randint(0, 5, (rows,), generator=source)
    )


DATA = {
    "tensors": pairs,
    "a subset": lambda: Subset(pairs(), range(30, 2, -1)),
    "several": lambda: ConcatDataset([pairs(), Subset(pairs(), range(9))]),
}


def on(data: TensorDataset) -> TensorDataset:
    return TensorDataset(*(tensor.to(DEVICE) for tensor in data.tensors))


def walked(cursor: Cursor) -> list[list[Tensor]]:
    torch.manual_seed(1)
    cursor.begin(epoch=1)
    return list(iter(cursor.fetch, END))


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_batches_of_data_on_the_device_are_torchs(name: str, pinned: bool) -> None:
    data = DATA[name]()
    torch.manual_seed(1)
    expected = list(DataLoader(data, 8, shuffle=True))
    cursor = Cursor(DataLoader(data, 8, shuffle=True, pin_memory=pinned))
    cursor.home = cursor.walk.home = OnDevice(torch.device(DEVICE), pytest.fail)
    found = walked(cursor)
    assert {column.device for batch in found for column in batch} == {torch.device(DEVICE)}
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(one.cpu(), other) for one, other in zip(mine, theirs, strict=True))


def test_data_that_the_user_has_put_there_are_gathered_there() -> None:
    torch.manual_seed(1)
    expected = list(DataLoader(on(pairs()), 8, shuffle=True))
    found = walked(Cursor(DataLoader(on(pairs()), 8, shuffle=True)))
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("index", [40, -41])
def test_an_index_beyond_the_data_is_torchs_error_and_the_device_lives(index: int) -> None:
    cursor = Cursor(DataLoader(on(pairs()), batch_sampler=[[0, index], [1]]))
    cursor.begin(epoch=1)
    with pytest.raises(IndexError):
        cursor.fetch()
    assert float(torch.ones(2, device=DEVICE).sum()) == 2


def learner(directory: Path, where: Any, pinned: bool = False) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.3), nn.Linear(8, 5)).to(DEVICE)
    return (
        LearnerBuilder(directory)
        .loss(F.cross_entropy)
        .num_epochs(2)
        .renderer("silent")
        .devices([DEVICE], data=where)
        .build(
            model,
            torch.optim.Adam(model.parameters(), lr=1e-2),
            None,
            DataLoader(pairs(), 8, shuffle=True, pin_memory=pinned),
        )
    )


def test_training_from_there_gives_the_same_bits_also_after_a_rewind(
    tmp_path: Path, deterministic: None
) -> None:
    host = learner(tmp_path / "host", "host")
    host.step(2)
    size = _bytes(host.capture().parts)
    host.fit()
    device = learner(tmp_path / "device", "device", pinned=True)
    device.step(7)
    device.rewind(5)
    assert _bytes(device.capture().parts) == size, "the data are in no state"
    device.fit()
    for mine, theirs in zip(device.model.parameters(), host.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def test_no_step_waits_for_its_batch(tmp_path: Path) -> None:
    made = learner(tmp_path, "device")
    made.step(2)
    cursor = made._replica.loop.passes["train"].cursor
    with no_waits():
        cursor.fetch()
        cursor.fetch()
