"""Going back and on in another way starts a branch: what was measured on the other one stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from branching_support import STEPS, Shown, learner_in, step_on, weights
from exactness import logs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from notebook_learner import Artifacts, StateError
from notebook_learner.artifacts.run_status import runs_below


def edited(learner: Any, rate: float, steps: int) -> torch.Tensor:
    learner.lr = rate
    step_on(learner, steps)
    return weights(learner)


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def values_in(directory: Path) -> dict[str, bytes]:
    return {name: text for name, text in logs(directory).items() if name != "experiment.log"}


def test_what_is_left_stays_in_files_of_burns_layout_and_in_the_record(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 20)
    losses = learner.history["train", "Loss"]
    learner.rewind(to=(2, 3))
    edited(learner, 0.1, 2)
    (branch,) = learner.branches
    assert (branch.begin.key, branch.end.iteration) == ((2, 0, 3), 20)
    assert branch.series("Loss").value.tolist() == losses.tolist()
    assert branch.series("Loss").iteration.tolist() == list(range(1, 21))
    assert files_below(tmp_path / "run" / "branches") == [
        "1/branch.json",
        "1/train/epoch-2/Loss.log",
        "1/train/epoch-3/Loss.log",
        "1/valid/epoch-2/Loss.log",
    ]
    assert Artifacts(tmp_path / "run").branches["1"].series("Loss").value.tolist() == losses.tolist()
    assert len(Artifacts(tmp_path / "run").series("Loss").value) == STEPS + 5  # the run's own line
    told = repr(learner.branches)
    assert "└─ 1: epoch 2, step 3 to epoch 3, step 4" in told and "this run to epoch 2, step 5" in told


def test_the_same_steps_again_are_no_branch(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 12)
    for count in (1, 1, 3, 5):
        learner.rewind(count)
    assert len(learner.branches) == 1
    step_on(learner, 4)
    learner.rewind(2)
    assert len(learner.branches) == 1
    learner.fit()
    assert learner.branches == [] and not (tmp_path / "run" / "branches").exists()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(returns=st.lists(st.tuples(st.integers(0, 18), st.integers(0, 4)), min_size=1, max_size=4))
@example(returns=[(16, 0), (16, 0)])  # back to the end of a pass, twice
@example(returns=[(9, 0), (15, 0)])  # then to a checkpoint on the line that was left
@example(returns=[(12, 0), (4, 0)])  # and farther back
@example(returns=[(9, 3), (11, 1)])  # some of its steps were taken again
@example(returns=[(13, 4), (9, 1), (14, 2)])  # a line that was left, and taken again to its end
@example(returns=[(9, 0), (18, 0)])  # all of it is on the way to the last checkpoint
def test_processes_that_die_on_the_way_leave_no_branch_and_no_other_log(
    returns: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each one goes on from a checkpoint, and has taken some steps again when it ends."""
    directory = tmp_path_factory.mktemp("run")
    first = learner_in(directory / "run", epochs=2)
    labels = []
    while first.status != "finished":
        first.step()
        labels.append(first.save())
    straight = values_in(first.artifacts.directory)
    first.stop()
    for number, steps in returns:
        there = learner_in(directory / "run", epochs=2, checkpoint=labels[min(number, len(labels) - 1)])
        for _ in range(steps):
            if there.status != "finished":
                there.step()
        assert not torch.isnan(torch.tensor(there.history["train", "Loss"])).any()
        there.artifacts  # noqa: B018  # waits for the files
        there.stop()
    last = learner_in(directory / "run", epochs=2, plain=True)
    last.fit()
    assert last.branches == []
    assert values_in(last.artifacts.directory) == straight


def saved_on_a_line_that_is_left(directory: Path) -> tuple[str, list[float]]:
    """A run that saved a checkpoint and went back behind it: the checkpoint, and the losses up to there."""
    learner = learner_in(directory)
    step_on(learner, 15)
    label, losses = learner.save(), learner.history["train", "Loss"].tolist()
    learner.rewind(to=9)
    edited(learner, 0.1, 9)
    learner.save()
    assert learner.artifacts is not None
    learner.stop()
    return label, losses


def test_a_checkpoint_of_a_line_that_was_left_has_the_values_of_that_line(tmp_path: Path) -> None:
    """In a new process, too, where only the branch's own logs have them."""
    label, losses = saved_on_a_line_that_is_left(tmp_path / "run")
    other = learner_in(tmp_path / "run", checkpoint=label)
    assert other.history["train", "Loss"].tolist() == losses
    assert Artifacts(tmp_path / "run").series("Loss").value.tolist() == losses


def test_where_the_logs_of_that_line_are_gone_the_user_is_told_and_no_other_values_stand_in(
    tmp_path: Path,
) -> None:
    label, losses = saved_on_a_line_that_is_left(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "branches")
    shown = Shown()
    other = learner_in(tmp_path / "run", checkpoint=label, shown=shown)
    found = other.history["train", "Loss"]
    assert found[:STEPS].tolist() == losses[:STEPS] and np.isnan(found[STEPS:]).all() and len(found) == 15
    (told,) = [text for text in shown.told if "lack" in text]
    assert told.startswith(f"the logs lack the values of 7 steps before checkpoint {label}")


def test_a_branch_on_which_a_rate_was_changed_stays_even_where_no_loss_shows_it_yet(tmp_path: Path) -> None:
    """The loss of a step is computed before its update: with another rate, it shows a step later."""
    learner = learner_in(tmp_path / "run")
    step_on(learner, 3)
    end = edited(learner, 0.5, 1)
    learner.rewind(to=2)
    step_on(learner, 2)
    assert not torch.equal(weights(learner), end)
    (branch,) = learner.branches
    learner.go_to(branch)
    assert torch.equal(weights(learner), end)


def test_going_to_a_branch_gives_its_bits_and_keeps_the_line_that_was_left(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 20)
    first, losses = weights(learner), learner.history["train", "Loss"]
    learner.rewind(to=(2, 3))
    second = edited(learner, 0.1, 9)
    report = learner.go_to("1")
    assert report.exact and torch.equal(weights(learner), first)
    assert learner.optimizer.param_groups[0]["lr"] == 0.01
    assert learner.history["train", "Loss"].tolist() == losses.tolist()
    (other,) = learner.branches
    assert other.changes == ("lr = 0.1",)
    assert learner.go_to(other).exact and torch.equal(weights(learner), second)
    assert learner.optimizer.param_groups[0]["lr"] == 0.1


def test_a_step_inside_a_branch_can_be_entered_and_the_rest_stays_a_branch(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 14)
    there = weights(learner)
    step_on(learner, 8)
    end = weights(learner)
    learner.rewind(to=(1, 4))
    edited(learner, 0.1, 3)
    learner.go_to("1", 14)
    assert torch.equal(weights(learner), there) and learner.position.iteration == 14
    rest = next(each for each in learner.branches if each.end.iteration == 22)
    assert rest.begin.iteration == 14
    step_on(learner, 8)
    assert torch.equal(weights(learner), end)
    assert [each.end.iteration for each in learner.branches] == [7]


def test_branches_of_branches_are_entered_in_a_new_process(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 22)
    ends = {22: weights(learner)}
    learner.rewind(to=(1, 6))
    ends[18] = edited(learner, 0.1, 12)
    learner.rewind(to=(2, 2))
    ends[13] = edited(learner, 0.001, 3)
    learner.go_to("1")
    learner.save()
    assert learner.artifacts is not None
    new = learner_in(tmp_path / "run", plain=True)
    tree = {each.end.iteration: each.parent for each in new.branches}
    assert tree == {13: "", 18: next(each.name for each in new.branches if each.end.iteration == 13)}
    for _ in range(3):
        for iteration in (18, 13, 22):
            there = next((each for each in new.branches if each.end.iteration == iteration), None)
            if there is not None:
                assert new.go_to(there).exact
                assert torch.equal(weights(new), ends[iteration]), iteration


def test_the_best_checkpoint_leaves_the_tail_as_a_branch(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    learner.fit()
    before = learner.history.epochs("Loss", "valid").tolist()
    learner.restore(learner.checkpoints[0].label)
    (branch,) = learner.branches
    assert branch.epochs("Loss", "valid").tolist() == before
    assert Artifacts(tmp_path / "run").verify()


def test_forks_hang_in_the_tree_where_they_began_also_on_a_line_that_was_left(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 6)
    first = learner.fork(tmp_path / "first")
    step_on(learner, 6)
    learner.fork(tmp_path / "second")
    learner.rewind(to=(1, 7))
    edited(learner, 0.1, 1)
    learner.save()
    tree = [
        "this run to epoch 1, step 8",
        f"├─ fork {tmp_path / 'first'}: epoch 1, step 6",
        "└─ 1: epoch 1, step 7 to epoch 2, step 4",
        f"   └─ fork {tmp_path / 'second'}: epoch 2, step 4",
    ]
    assert learner.branches.tree().splitlines() == tree
    assert learner.branches["1"].changes == ()
    assert Artifacts(tmp_path / "run").branches.tree().splitlines() == ["this run", *tree[1:]]
    own = first.branches.tree()
    assert own == (
        f"this run to epoch 1, step 6, forked from {tmp_path / 'run'} at epoch 1, train, step 6 of 8, "
        "training step 6"
    )
    learner.go_to("1")
    assert learner.branches.tree().splitlines()[-1] == f"└─ fork {tmp_path / 'second'}: epoch 2, step 4"


def test_a_finished_run_stays_finished_when_it_goes_back(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 4 * STEPS - 1)
    assert not learner.artifacts.finished
    learner.fit()
    learner.restore(learner.checkpoints[0].label)
    run = Artifacts(tmp_path / "run")
    assert learner.status == "paused" and run.status == "finished" and run.finished
    edited(learner, 0.1, 2)
    assert run.status == "paused" and run.finished


def test_a_branch_that_is_not_there_is_named(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 4)
    with pytest.raises(StateError, match="there is no branch '7' of this run; there are: none"):
        learner.go_to(7)
    learner.rewind(2)
    edited(learner, 0.1, 1)
    with pytest.raises(ValueError, match="branch 1 ends at epoch 1, train, step 4"):
        learner.go_to("1", (3, 1))
    assert learner.position.iteration == 3


def test_a_new_run_in_the_directory_has_no_branches_of_the_former_one(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 4)
    learner.rewind(2)
    edited(learner, 0.1, 1)
    learner.save()
    step_on(learner_in(tmp_path / "run"), 1)
    assert not (tmp_path / "run" / "branches").exists()
    assert len(Artifacts(tmp_path / "run-1").branches) == 1


def test_a_stranger_s_branches_are_left_out_where_they_are_damaged(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 6)
    for count, rate in ((3, 0.1), (2, 0.2), (1, 0.3)):
        learner.rewind(count)
        edited(learner, rate, 2)
    assert learner.artifacts is not None
    folder = tmp_path / "run" / "branches"
    names = sorted(path.name for path in folder.iterdir())
    told = json.loads((folder / names[0] / "branch.json").read_text())
    (folder / names[0] / "branch.json").write_text(json.dumps({**told, "parent": names[0]}))
    (folder / names[1] / "branch.json").write_text('{"begins": 3}')
    (folder / names[1] / "train").rename(folder / names[1] / "elsewhere")
    assert [each.name for each in Artifacts(tmp_path / "run").branches] == names[2:]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 7)), min_size=3, max_size=8))
@example(moves=[(1, 6), (1, 1), (0, 4), (1, 6)])  # three rates that were set at one place
@example(moves=[(1, 1), (2, 5), (2, 2), (0, 5)])  # a branch whose values are those of the line that is left
def test_whatever_way_was_taken_each_branch_leads_to_its_own_bits(
    moves: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ends are known by their losses: the whole record of a line names the weights at its end, but for a rate
    that was changed before its last step."""
    directory = tmp_path_factory.mktemp("walk") / "run"
    learner = learner_in(directory)
    ends: dict[tuple[float, ...], list[torch.Tensor]] = {}

    def note() -> None:
        line = (learner.position.iteration, *learner.history["train", "Loss"].tolist())
        ends.setdefault(line, []).append(weights(learner))

    step_on(learner, 9)
    note()
    for kind, count in moves:
        if kind == 0 and learner.position.iteration + count < 4 * STEPS:
            step_on(learner, count)
        elif kind == 1 and learner.position.iteration > count:
            learner.rewind(count)
            learner.lr = 0.01 * count
            step_on(learner, 1)
        elif kind == 2 and learner.branches:
            there = learner.branches[count % len(learner.branches)]
            assert learner.go_to(there).exact
        elif kind == 3:
            learner.save()
            assert learner.artifacts is not None
            learner = learner_in(directory, plain=True)
        note()
    for each in list(learner.branches):
        losses = tuple(each.series("Loss").value.tolist())
        known = ends.get((each.end.iteration, *losses))
        if known is not None and each.name in [other.name for other in learner.branches]:
            assert learner.go_to(each.name).exact
            assert any(torch.equal(weights(learner), each) for each in known)


_KILLED = """
import os, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from branching_support import learner_in, step_on
learner = learner_in(Path({directory!r}), plain=True)
if learner.position.iteration == 0:
    step_on(learner, 14)
    learner.save()
print("begun", flush=True)
for number in range(1000):
    learner.rewind(1 + number % 5)
    learner.lr = 0.01 * (1 + number % 7)
    step_on(learner, 1 + number % 4)
    if number % 3 == 2 and learner.branches:
        learner.go_to(learner.branches[number % len(learner.branches)])
    losses = learner.history["train", "Loss"].tolist()
    print("line", losses, flush=True)
"""


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_a_kill_at_any_moment_loses_no_branch(rounds: int, tmp_path: Path) -> None:
    import random
    import time

    draw = random.Random(0)
    code = _KILLED.format(here=os.path.dirname(__file__), directory=str(tmp_path / "run"))
    for _ in range(rounds):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("begun")
        time.sleep(draw.uniform(0.0, 0.8))
        process.kill()
        process.communicate()
        known = {
            each.name: each.series("Loss").value.tolist() for each in Artifacts(tmp_path / "run").branches
        }
        line = Artifacts(tmp_path / "run").series("Loss").value.tolist()
        learner = learner_in(tmp_path / "run", plain=True)
        for name, losses in known.items():
            found = learner.branches[name].series("Loss").value.tolist()
            # The killed line may have come by the same steps again, and gone on: then it is that one.
            assert found == losses or found == line[: len(found)], name
            assert found[: len(losses)] == losses
        for each in list(learner.branches)[:3]:
            if each.name in [other.name for other in learner.branches]:
                reached = learner.go_to(each.name).position
                whole = each.record[-1].split == "valid" and each.record[-1].finals is not None
                assert reached.key == ((each.end.epoch + 1, 0, 0) if whole else each.end.key)
        learner.save()
        learner.stop()


def test_a_branch_that_went_to_the_end_of_training_is_finished_again(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    learner.fit()
    end = weights(learner)
    learner.rewind(to=(2, 3))
    edited(learner, 0.1, 2)
    assert learner.go_to("1").exact
    assert learner.status == "finished" and torch.equal(weights(learner), end)
    assert learner.artifacts.status == "finished"


def test_what_a_run_has_left_is_no_run_of_its_own(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 12)
    learner.rewind(5)
    edited(learner, 0.1, 2)
    assert learner.artifacts is not None
    assert list(runs_below(tmp_path)) == [tmp_path / "run"]


def test_each_way_from_one_place_is_known_by_the_rate_that_it_took(tmp_path: Path) -> None:
    """A rate that was set at the place where a branch leaves, before it was left, is that branch's, too."""
    learner = learner_in(tmp_path / "run")
    step_on(learner, 3)
    for rate in (0.2, 0.3, 0.4):
        step_on(learner, 4)
        learner.rewind(to=(1, 3))
        learner.lr = rate
    step_on(learner, 1)
    assert [each.changes for each in learner.branches] == [(), ("lr = 0.2",), ("lr = 0.3",)]
    learner.go_to("2")
    assert {each.name: each.changes for each in learner.branches} == {
        "1": (),
        "3": ("lr = 0.3",),
        "4": ("lr = 0.4",),
    }


def test_a_viewer_of_artifacts_h5_sees_the_branches(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 20)
    losses = learner.history["train", "Loss"]
    learner.rewind(to=(2, 3))
    edited(learner, 0.1, 6)
    learner.rewind(2)
    edited(learner, 0.2, 2)
    run = learner.artifacts

    def seen() -> dict[str, Any]:
        found: dict[str, Any] = {}
        with h5py.File(tmp_path / "run" / "artifacts.h5", "r") as file:
            for name, group in file["branches"].items():
                at = dict(group.attrs)
                found[name] = (at["parent"], at["epoch"], at["step"], at["end_iteration"], at["changes"])
                for split in group["series"]:
                    loss = group["series"][split]["Loss"]
                    found[name, split] = (loss["value"][:].tolist(), loss["iteration"][:].tolist())
                found[name, "epochs"] = {
                    each: group["epochs"][each]["Loss/value"][:] for each in group["epochs"]
                }
        return found

    live = seen()
    assert live["1"] == ("", 2, 3, 20, "") and live["2"][3] == STEPS + 9
    assert live["1", "train"] == (losses[STEPS:].tolist(), [*range(STEPS + 1, 21)])
    run.renew()
    assert str(seen()) == str(live)


def test_what_a_power_cut_left_of_a_branch_is_gone_when_the_run_comes_by_the_same_steps(
    tmp_path: Path,
) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 12)
    learner.save()
    learner.rewind(to=9)
    learner.save()
    learner.artifacts  # noqa: B018  # waits for the files
    shutil.copytree(tmp_path / "run", tmp_path / "cut")
    logs = [*(tmp_path / "cut" / "branches" / "1").rglob("*.log")]
    assert logs
    for log in logs:  # what was not on the disk yet
        log.write_bytes(b"")
    remains = tmp_path / "cut" / "branches" / "7" / "train" / "epoch-2" / "Loss.log"  # of one being deleted
    remains.parent.mkdir(parents=True)
    remains.write_bytes(logs[0].read_bytes())
    again = learner_in(tmp_path / "cut", plain=True)
    step_on(again, 12)
    assert not again.branches and not (tmp_path / "cut" / "branches").exists()
