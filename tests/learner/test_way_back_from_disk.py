"""`rewind` in a process that has resumed: it goes back to the checkpoints that the run has come by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builder_support import adam, batches, classifier, net
from exactness import differences, everything, logs

from notebook_learner import Learner, Position, StateError
from notebook_learner.checkpoint import KeepAll, KeepLast
from notebook_learner.metric import Accuracy, Loss
from notebook_learner.state.checkpoint_files import MOST_STRETCHES, Lineage

EPOCHS = 4


def learner_of(
    directory: Path,
    *,
    resume: bool = False,
    strategy: Any = None,
    epochs: int = EPOCHS,
    start: bool = True,
) -> Learner:
    torch.manual_seed(4)
    model = net(dropout=0.3, seed=1)
    builder = classifier(directory).num_epochs(epochs).metrics(Loss(), Accuracy()).seed(5)
    builder.with_file_checkpointer(start=start).with_checkpointing_strategy(strategy or KeepAll())
    if resume:
        builder.resume()
    return builder.build(model, adam(model), lambda step: 0.05 / (1 + step), batches(), batches()[:2])


def left_at(directory: Path, *places: tuple[Any, ...]) -> None:
    """A process that trained to these places, saved at each, and is gone."""
    learner = learner_of(directory)
    for place in places:
        learner.run_until(place)
        learner.save()
    learner._replica.saving.close()
    learner._replica.let_go()


def text_logs(directory: Path) -> dict[str, bytes]:
    return {name: text for name, text in logs(directory).items() if name != "experiment.log"}


@pytest.mark.parametrize("back", [(2, 3), (2, 0), (1, "valid", 2), (3, 1), (1, 1)])
def test_after_a_resume_it_goes_back_over_the_files_to_the_same_bits(
    back: tuple[Any, ...], tmp_path: Path
) -> None:
    straight = learner_of(tmp_path / "straight")
    straight.run_until(back)
    there = straight.capture()
    left_at(tmp_path / "run", (1, 1), (3, 2))
    learner = learner_of(tmp_path / "run", resume=True)
    assert learner.position.key == (3, 0, 2)
    assert learner._reach.key <= Position(1, "train", 1).key
    report = learner.rewind(to=back)
    assert report.exact
    assert list(differences({**learner.capture().parts}, {**there.parts})) == []
    assert [part.steps for part in learner.history.snapshot()] == [part.steps for part in there.record]
    assert learner.rewind(to=(1, 1)).exact
    learner.fit()
    straight.fit()
    assert list(differences(everything(learner), everything(straight))) == []
    assert text_logs(tmp_path / "run") == text_logs(tmp_path / "straight")


def test_each_later_process_knows_the_way_of_all_before_it(tmp_path: Path) -> None:
    left_at(tmp_path / "run", (1, 1))
    for place in ((2, 1), (3, 1)):
        learner = learner_of(tmp_path / "run", resume=True)
        learner.run_until(place)
        learner.save()
        learner._replica.saving.close()
    learner = learner_of(tmp_path / "run", resume=True)
    assert learner.rewind(to=(1, 2)).exact


def test_a_killed_process_leaves_a_way_to_go_back(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import os, signal
from pathlib import Path
from test_way_back_from_disk import learner_of
learner = learner_of(Path({str(tmp_path / "run")!r}))
learner.run_until((3, 2))
learner.save()
learner._replica.saving.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ}, check=False)
    assert done.returncode == -9
    learner = learner_of(tmp_path / "run", resume=True)
    assert learner.rewind(to=(2, 1)).exact


def test_a_checkpoint_of_a_branch_that_was_left_is_not_gone_back_to(tmp_path: Path) -> None:
    first = learner_of(tmp_path / "run")
    first.run_until((3, 2))
    first.save()  # of steps that are taken back next
    first.rewind(to=(2, 1))
    first.optimizer.param_groups[0]["weight_decay"] = 0.3  # from here on it is another history
    first.run_until((2, 2))
    first.save()
    first._replica.saving.close()
    first._replica.let_go()
    learner = learner_of(tmp_path / "run", resume=True)
    learner.restore("2-2")
    learner.run_until((3, 3))
    learner._replica.timeline.keyframes.clear()
    assert [info.label for info in learner.checkpoints] >= ["1"]
    way = learner._replica.saving.lineage
    assert not any(way.passes(info) for info in learner.checkpoints if info.label == "3-2")
    report = learner.rewind(to=(3, 2))
    assert report.exact, "the step that was taken with the other weight decay"
    assert learner.position.key == (3, 0, 2)


def test_where_only_another_branch_has_one_the_error_names_it_and_how_to_go_there(tmp_path: Path) -> None:
    left_at(tmp_path / "run", (2, 1))
    learner = learner_of(tmp_path / "run", resume=True)
    learner._replica.saving.lineage = Lineage().branched((2, 0, 1))  # as from an earlier version's files
    learner._replica.timeline.keyframes.clear()
    with pytest.raises(StateError, match="no keyframe and no checkpoint at or before") as refused:
        learner.rewind(to=(2, 0))
    assert learner._reach.key == (2, 0, 1), "the place where it stands"
    assert f"the earliest place to go back to is {learner.position};" in str(refused.value)
    assert "learner.restore('1')" in str(refused.value)
    assert "with_file_checkpointer" not in str(refused.value), "that is in use already"
    assert "KeepAll" not in str(refused.value), "so is this"
    learner.restore("1")
    assert learner.position.key == (2, 0, 0)


def test_a_strategy_that_deletes_is_named_where_it_is_the_cause(tmp_path: Path) -> None:
    learner = learner_of(tmp_path / "run", strategy=KeepLast(1), start=False)
    learner.run_until((3, 1))
    learner._replica.timeline.keyframes.clear()
    with pytest.raises(StateError, match=r"with_checkpointing_strategy\(KeepAll\(\)\)"):
        learner.rewind(to=(1, 2))


def test_a_commit_file_of_an_earlier_version_or_a_stranger_tells_no_way() -> None:
    told = [
        {},
        {"lineage": 3},
        {"lineage": [["a"]]},
        {"lineage": [[1, [1, 0, 0]]]},
        {"lineage": [["a", "xyz"]]},
    ]
    assert [Lineage.of(commit).stretches for commit in told] == [()] * 5
    falling = {"lineage": [["a", [3, 0, 0]], ["b", [1, 0, 0]]]}
    assert Lineage.of(falling).stretches == ()
    way = Lineage().branched((1, 0, 0)).branched((2, 0, 1))
    assert Lineage.of({"lineage": way.plain}) == way


def test_going_back_and_forth_for_ever_lists_no_more_than_so_many_stretches() -> None:
    way = Lineage()
    for step in range(500):
        way = way.branched((1, 0, step))
    assert len(way.stretches) == MOST_STRETCHES
