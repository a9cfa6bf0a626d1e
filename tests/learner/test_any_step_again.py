"""Any step of a run is reached from a new kernel, to the bit of the straight run; what differs is named."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
import torch
from branching_support import STEPS, Shown, X, Y, learner_in, step_on, walked, weights
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Artifacts, ConfigurationError, LearnerBuilder

EDITS = {
    5: lambda learner: setattr(learner, "lr", 0.002),
    17: lambda learner: learner.optimizer.param_groups[0].update(weight_decay=0.1),
    20: lambda learner: setattr(learner, "lr", 0.004),
}


def again(directory: Path, at: Any, **options: Any) -> Any:
    """The run in a copy of its directory, at one of its steps."""
    name = f"{directory.name} at {str(at).replace('/', '-')}"
    copy = directory.with_name(name)
    shutil.copytree(directory, copy)
    return learner_in(copy, at=at, **options)


def finished(directory: Path, edits: Any = ()) -> dict[int, torch.Tensor]:
    learner = learner_in(directory)
    seen = walked(learner, edits)
    learner.fit()
    assert learner.status == "finished" and learner.artifacts is not None
    return seen


@pytest.mark.parametrize("edits", [{}, EDITS], ids=["straight", "edited by hand"])
def test_each_step_of_a_finished_run_has_the_bits_of_the_straight_run(edits: Any, tmp_path: Path) -> None:
    seen = finished(tmp_path / "run", edits)
    assert "1" not in [info.label for info in Artifacts(tmp_path / "run").checkpoints]
    for at in (0, 1, 5, 6, 16, 17, 18, 20, 25, 31):
        learner = again(tmp_path / "run", at)
        assert learner.position.iteration == at
        assert torch.equal(weights(learner), seen[at]), at
        if at in (6, 18):
            learner.fit()
            assert len(learner.history) == 4 * STEPS
            assert edits or torch.equal(weights(learner), seen[4 * STEPS])


def test_a_position_is_reached_too_and_the_way_is_told(tmp_path: Path) -> None:
    seen = finished(tmp_path / "run")
    shown = Shown()
    learner = again(tmp_path / "run", (2, 5), shown=shown)
    assert torch.equal(weights(learner), seen[STEPS + 5])
    assert shown.told[-1].startswith("rewound to epoch 2, train, step 5 of 8 (") and "exact" in shown.told[-1]


def test_a_rewind_after_a_resume_goes_back_to_the_beginning(tmp_path: Path) -> None:
    seen = finished(tmp_path / "run")
    learner = learner_in(tmp_path / "run", plain=True)
    report = learner.rewind(to=3)
    assert report.exact and torch.equal(weights(learner), seen[3])


def test_going_on_from_there_keeps_the_rest_as_a_branch_until_it_comes_out_the_same(tmp_path: Path) -> None:
    seen = finished(tmp_path / "run")
    learner = again(tmp_path / "run", 20)
    (branch,) = learner.branches
    assert (branch.begin.iteration, branch.end.iteration) == (20, 4 * STEPS)
    learner.fit()
    assert learner.branches == [] and torch.equal(weights(learner), seen[4 * STEPS])


def test_other_data_is_named_as_the_likely_cause_of_the_first_difference(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    shown = Shown()
    again(tmp_path / "run", 12, shown=shown, data=TensorDataset(X + 1, Y))
    assert "train data have the fingerprint" in shown.told[0]
    assert "Loss differs after epoch 1, train" in shown.told[-1]
    assert "likely from another data.train since the run went on" in shown.told[-1]


def test_another_loss_in_the_midst_is_named_too(tmp_path: Path) -> None:
    finished(tmp_path / "run", {10: lambda learner: setattr(learner, "loss", torch.nn.functional.l1_loss)})
    shown = Shown()
    learner = again(tmp_path / "run", 14, shown=shown)
    assert "loss.name" in shown.told[-1] and "epoch 2, train, step 3" in shown.told[-1]
    assert learner.position.iteration == 14
    exact = again(tmp_path / "run", 9)  # before it, the program's loss is the one that was used
    assert exact.position.iteration == 9


def test_a_slow_disk_loses_none_of_the_states_from_which_steps_are_taken_again(tmp_path: Path) -> None:
    learner, free = learner_in(tmp_path / "run"), threading.Event()
    learner._replica.saving.store.keeper.background.submit("a slow disk", lambda: free.wait(60))
    step_on(learner, 3)
    learner.loss = torch.nn.functional.l1_loss
    step_on(learner, 3)
    free.set()
    learner.stop()
    assert learner.artifacts is not None
    kept = [path.name for path in sorted((tmp_path / "run" / "start").glob("model*"))]
    assert kept == ["model-0.h5", "model-1-3.h5"]


def test_behind_a_change_that_cannot_be_repeated_the_state_there_leads_on(tmp_path: Path) -> None:
    def halve(learner: Any) -> None:
        learner.train_step = lambda model, batch: torch.nn.functional.l1_loss(model(batch[0]), batch[1])

    learner = learner_in(tmp_path / "run")
    seen = walked(learner, {10: halve})
    learner.fit()
    assert learner.artifacts is not None
    other = learner_in(tmp_path / "run", plain=True)
    halve(other)  # the program as it was in the end
    other.rewind(to=14)
    assert torch.equal(weights(other), seen[14])


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (99, r"resume\(at=99\): .*the run has taken 32 training steps"),
        ((9, 1), r"resume\(at=\(9, 1\)\): .*ahead"),
        ("3", r"resume\(at='3'\)"),
    ],
)
def test_a_step_that_the_run_does_not_have_is_refused_by_name(at: Any, told: str, tmp_path: Path) -> None:
    finished(tmp_path / "run")
    with pytest.raises(ConfigurationError, match=told):
        learner_in(tmp_path / "run", at=at)


def test_without_a_run_or_data_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the directory holds no checkpoint of a run to go on with"):
        learner_in(tmp_path / "none", at=3)
    finished(tmp_path / "run")
    from notebook_learner import LearnerBuilder

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    builder = LearnerBuilder(tmp_path / "run").with_file_checkpointer().loss(torch.nn.functional.mse_loss)
    with pytest.raises(ConfigurationError, match=r"nothing to train on.*rewind\(to=3\)"):
        builder.renderer("silent").resume(at=3).build(model, torch.optim.Adam(model.parameters()))


def test_without_the_state_at_the_beginning_the_way_ends_at_the_first_checkpoint(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run", start=False)
    learner.fit()
    assert learner.artifacts is not None and not (tmp_path / "run" / "start").exists()
    with pytest.raises(ConfigurationError, match="no checkpoint at or before epoch 1, train, step 3"):
        learner_in(tmp_path / "run", at=3, start=False)


def test_the_state_at_the_beginning_goes_with_the_run_when_that_is_moved_or_deleted(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    step_on(learner_in(tmp_path / "run"), 1)  # a new run
    assert (tmp_path / "run-1" / "start" / "state-0.h5").exists()
    seen = learner_in(tmp_path / "run-1", at=3)
    assert seen.position.iteration == 3


def _touch(learner: Any) -> None:
    learner.model[0].weight.data[2] = 0.5


def _forget_momentum(learner: Any) -> None:
    for held in learner.optimizer.state.values():
        held["exp_avg"].zero_()


def _clear_state(learner: Any) -> None:
    learner.optimizer.state.clear()


_OF_ADAM = "exp_avg of 0.weight"


@pytest.mark.parametrize(
    ("edit", "name"),
    [(_touch, "0.weight"), (_forget_momentum, _OF_ADAM), (_clear_state, _OF_ADAM)],
    ids=["weights", "momentum", "cleared"],
)
@pytest.mark.parametrize("step", [10, 16], ids=["inside of an epoch", "at its end"])
def test_values_set_by_hand_are_an_event_and_each_step_behind_them_is_reached(
    edit: Any, name: str, step: int, tmp_path: Path
) -> None:
    seen = finished(tmp_path / "run", {step: edit})
    told = [each for each in Artifacts(tmp_path / "run").timeline if each.kind == "edited"]
    assert [(each.epoch, each.step, name in each.text) for each in told] == [(2, step - STEPS, True)]
    for at in (step - 1, step, step + 1, 20, 31):
        learner = again(tmp_path / "run", at)
        if at != step:  # both values stood there
            assert torch.equal(weights(learner), seen[at]), at
    learner.fit()
    assert torch.equal(weights(learner), seen[4 * STEPS])


def test_where_the_state_behind_them_is_lost_they_are_the_named_cause(tmp_path: Path) -> None:
    finished(tmp_path / "run", {3: _touch})
    for path in (tmp_path / "run" / "start").glob("*-1-3.h5"):
        path.unlink()
    shown = Shown()
    learner = again(tmp_path / "run", 15, shown=shown)
    assert learner.position.iteration == 15
    assert "new values of 0.weight by hand at step 3" in shown.told[-1], shown.told


@pytest.mark.parametrize("look", ["inspect", "what_if", "verify", "rewind", "evaluate", "try_step"])
def test_a_look_at_the_run_is_no_change_by_hand(look: str, tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 5)
    {
        "inspect": learner.inspect,
        "what_if": lambda: learner.what_if(steps=2, lr=0.5),
        "verify": learner.verify,
        "rewind": lambda: learner.rewind(2),
        "evaluate": lambda: learner.evaluate([(X, Y)]),
        "try_step": learner.tools.try_step,
    }[look]()
    step_on(learner, 5)
    assert [each.text for each in learner.timeline if each.kind == "edited"] == []


def test_options_and_weights_set_by_hand_behind_a_rewind_are_noticed_too(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 12)
    learner.rewind(to=9)
    learner.optimizer.param_groups[0]["lr"] = 0.003
    _touch(learner)
    seen = walked(learner)
    told = [each.text for each in learner.timeline if each.kind == "edited"]
    assert told == ["lr = 0.003, new values of 0.weight"]
    for at in (10, 20):
        assert torch.equal(weights(again(tmp_path / "run", at)), seen[at]), at


def _told_by_hand(learner: Any) -> list[str]:
    return [each.text for each in learner.timeline if each.kind == "edited"]


def _failing(directory: Path, step: int, halt: int = -1) -> tuple[Any, Event, Event]:
    """A run that fails at a step, once; before that it may halt at one, until the second event."""
    failed, halts, goes_on = Event(), Event(), Event()  # no state, as they are locks: set, they stay so

    def each_update(learner: Any) -> None:
        at = learner.position.iteration
        if at == halt and not goes_on.is_set():
            halts.set()
            assert goes_on.wait(60)
        if at == step and not failed.is_set():
            failed.set()
            raise RuntimeError("once")

    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    builder = LearnerBuilder(directory).loss(torch.nn.functional.mse_loss).num_epochs(4).renderer("silent")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(X, Y), 4, shuffle=True)
    return builder.on("update", each_update).build(model, optimizer, None, loader), halts, goes_on


def test_values_set_by_hand_after_an_error_are_noticed(tmp_path: Path) -> None:
    learner, *_ = _failing(tmp_path / "run", 6)
    with pytest.raises(RuntimeError, match="once"):
        learner.fit()
    learner.model.weight.data += 1
    learner.fit()
    assert _told_by_hand(learner) == ["new values of weight"]


def test_a_rate_set_in_a_run_that_fails_later_is_no_change_of_weights(tmp_path: Path) -> None:
    learner, halts, goes_on = _failing(tmp_path / "run", 20, halt=4)
    learner.start()
    assert halts.wait(60)
    Timer(0.5, goes_on.set).start()
    learner.lr = 0.02
    with pytest.raises(RuntimeError, match="once"):
        learner.wait()
    learner.fit()
    assert _told_by_hand(learner) == ["lr = 0.02"]
