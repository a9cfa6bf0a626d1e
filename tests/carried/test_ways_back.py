"""What steps reach comes back on ways that are taken less often: beyond a resume, twice, and with `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from carried_support import Notices, weights
from test_what_steps_reach import BATCHES, EPOCHS, KINDS, SIZE, Net, plain_step, program, straight
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.carried.kinds import CellKind, SequenceKind
from notebook_learner.errors import StateError


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_back_beyond_the_place_where_it_was_resumed(kind: str, tmp_path: Path) -> None:
    first = program(tmp_path / "resumed", kind)
    first.save()
    first.step(4)
    first.save()
    second = program(tmp_path / "resumed", kind, resume=True)
    assert second.position.step == 4
    second.rewind(2)
    second.rewind(2)
    second.fit()
    assert torch.equal(weights(second), straight(tmp_path / "straight", kind))


@pytest.mark.parametrize("kind", ["list", "replay buffer"])
def test_a_restore_that_fails_in_its_midst_changes_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values that were put until then are no change by the user."""
    learner = program(tmp_path / "run", kind)
    learner.step(2)
    label = learner.save()
    learner = program(tmp_path / "run", kind)  # of which no step has changed anything
    here = {name: put for name, put in [(each.__name__, each.put) for each in (SequenceKind, CellKind)]}
    times = [0]

    def failing(self: Any, live: Any, taken: Any) -> None:
        times[0] += 1
        here[type(self).__name__](self, live, taken)
        if times[0] == 1:
            raise RuntimeError("in the midst")

    with monkeypatch.context() as patch:
        for each in (SequenceKind, CellKind):
            patch.setattr(each, "put", failing)
        with pytest.raises(StateError, match="in the midst"):
            learner.restore(label)
    assert times[0] > 1
    learner.fit()
    assert torch.equal(weights(learner), straight(tmp_path / "straight", kind))


@pytest.mark.parametrize("kind", KINDS)
def test_inspecting_twice_moves_nothing(kind: str, tmp_path: Path) -> None:
    learner = program(tmp_path / "inspected", kind)
    learner.inspect()
    learner.inspect()
    learner.tools.try_step()
    learner.fit()
    assert torch.equal(weights(learner), straight(tmp_path / "straight", kind))


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_with_fit_gets_the_values_of_the_checkpoint_then(kind: str, tmp_path: Path) -> None:
    notices = Notices()

    def fitted(directory: str, *resumed: bool) -> Learner:
        for resume in resumed:
            torch.manual_seed(0)
            model, turn = Net(lambda: 1.0), KINDS[kind]()

            def step(model: nn.Module, batch: Any, turn: Callable[[], float] = turn) -> Tensor:
                return plain_step(model, batch) * (1 + turn() / 50)

            data = TensorDataset(torch.randn(BATCHES * SIZE, 4), torch.randint(0, 2, (BATCHES * SIZE,)))
            builder = LearnerBuilder(tmp_path / directory).train_step(step).num_epochs(EPOCHS).metrics()
            builder.renderer(notices).with_file_checkpointer()
            if resume:
                builder.resume()
            learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
            learner.fit(DataLoader(data, SIZE, shuffle=True), epochs=EPOCHS // len(resumed))
        return learner

    assert torch.equal(weights(fitted("resumed", False, True)), weights(fitted("straight", False)))
    assert not [text for text in notices.texts if "no place" in text or "not in the state" in text]
