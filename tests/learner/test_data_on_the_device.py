"""`devices(..., data="device")`: data that lie in memory live on the device that trains, or it is told why
they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exactness import differences
from test_gathered_batches import Noisy, learner, loader, model, own_collate, pairs
from torch.utils.data import DataLoader

from notebook_learner import ConfigurationError, Learner, LearnerBuilder
from notebook_learner.data.in_memory import OnDevice
from notebook_learner.event import Notice


class Told:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Any) -> None:
        if isinstance(event, Notice):
            self.texts.append(event.text)


def on_device(directory: Path, data: Any, told: Any = "silent") -> Learner:
    net = model()
    builder = LearnerBuilder(directory).loss(F.cross_entropy).renderer(told).devices(["cpu"], data="device")
    return builder.build(net, torch.optim.Adam(net.parameters(), lr=1e-2), None, data)


def test_data_that_live_on_the_device_already_are_trained_on_as_always(tmp_path: Path) -> None:
    told = Told()
    other = on_device(tmp_path / "device", loader(), told)
    other.fit(epochs=3)
    usual = learner(tmp_path / "host", None)
    usual.fit()
    assert list(differences(other.model.state_dict(), usual.model.state_dict())) == []
    assert not told.texts


@pytest.mark.parametrize(
    "data",
    [
        lambda: [(torch.ones(2, 6), torch.zeros(2, dtype=torch.int64))],
        lambda: DataLoader(pairs(), 8, num_workers=1),
        lambda: DataLoader(Noisy(*pairs().tensors), 8),
        lambda: DataLoader(pairs(), 8, collate_fn=own_collate),
    ],
    ids=["a list", "workers", "samples that are drawn", "a collate of one's own"],
)
def test_data_that_cannot_live_there_are_named(data: Callable[[], Any], tmp_path: Path) -> None:
    told = Told()
    on_device(tmp_path, data(), told).step()
    assert sum("the train data" in text and "stay where they are" in text for text in told.texts) == 1


def test_another_place_for_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"data='disk'.*'host'.*'device'"):
        LearnerBuilder(tmp_path).loss(F.cross_entropy).devices(["cpu"], data="disk").build(
            model(), torch.optim.Adam, None
        )


def test_a_tensor_is_copied_once_and_anew_after_a_change_in_place() -> None:
    home = OnDevice(torch.device("meta"), pytest.fail)
    x, y = torch.ones(3), torch.ones(4)
    first = home.of(x)
    assert first.device.type == "meta"
    assert home.of(y).shape == (4,)
    assert home.of(x) is first
    x.add_(1)
    second = home.of(x)
    assert second is not first
    assert home.of(x) is second
    x.data = torch.ones(5)
    assert home.of(x).shape == (5,)
    del x
    home.of(torch.ones(6))
    assert len(home._copies) == 2, "the copy of a tensor that is gone is let go"
    here = OnDevice(torch.device("cpu"), pytest.fail)
    assert here.of(y) is y


def test_what_takes_more_than_half_of_the_free_memory_stays_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 << 20, 80 << 20))
    told: list[str] = []
    home = OnDevice(torch.device("cuda:0"), told.append)
    tensor = torch.zeros(4 << 20, dtype=torch.uint8)
    for _ in range(2):
        with pytest.raises(Exception, match=r"^$"):
            home.of(tensor)
    assert told == [
        'devices(..., data="device"): 4 MiB of data stay on the host: they would take more than half of what '
        "is free on cuda:0, 7 MiB"
    ]
