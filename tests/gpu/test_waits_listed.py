"""`python tests/gpu/waits.py` lists each wait with its place."""

from __future__ import annotations

import re
import sys

import pytest
import torch
import waits
from cuda_support import DEVICE
from torch import nn


def test_the_command_lists_the_waits_of_steps_and_of_all_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["waits.py"])
    waits.main()
    said = capsys.readouterr().out
    counts = {name: int(count) for name, count in re.findall(r"(?m)^(\S.*): (\d+)$", said)}
    for precision in ("fp32", "bf16"):
        assert counts[f"{waits.STEPS} steps in {precision}, batches on the device"] == 0
    assert counts[f"{waits.STEPS} steps in fp16, batches on the device"] == waits.STEPS
    assert re.search(r"20  .*step/update\.py:\d+ _step", said), "fp16 reads whether gradients are finite"
    assert 0 < counts["a keyframe"] < 10 and 0 < counts["save()"] < 10
    assert "fault" not in said


def test_a_planted_wait_is_listed_with_its_place() -> None:
    class Reading(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.sum().item() == 3
            return x

    model, x = Reading(), torch.ones(3, device=DEVICE)
    with waits.waits("tests/gpu/") as found:
        model(x)
        model(x)
    ((_, place),) = found
    assert found.total() == 2 and "test_waits_listed.py:" in place
