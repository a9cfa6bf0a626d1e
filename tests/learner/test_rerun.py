"""Running the builder's cell again: it asks nothing and loses nothing."""

from __future__ import annotations

import gc
import shutil
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from builder_support import (
    Tape,
    assert_same_bits,
    batches,
    classifier,
    mistakes_of,
    one_mistake_of,
    sgd,
)
from rerun_support import (
    a_run_in,
    builder_in,
    built,
    half_way,
    names_in,
    tree,
    users_files_in,
    without_the_log,
)

from notebook_learner import (
    Artifacts,
    BusyError,
    ConfigurationError,
    MemoryCheckpointer,
    Paused,
    StateError,
    StoreError,
)
from notebook_learner.artifacts import earlier_run
from notebook_learner.event import Notice, RunOpened
from notebook_learner.learner.wiring import directory_tenancy
from notebook_learner.learner.wiring.directory_tenancy import Tenancy


@pytest.fixture
def run(tmp_path):
    """Where the runs of these tests go; a folder with other runs beside it."""
    return tmp_path / "runs" / "digits"


def test_a_run_that_was_over_says_in_a_new_kernel_that_it_stands_at_the_end(run):
    over = a_run_in(run, epochs=2, files=True)
    again = built(builder_in(run, epochs=2, files=True).checkpoint("latest"), data=False)
    assert (str(again.position), again.status) == (str(over.position), "finished")


# By default the earlier run is kept -----------------------------------------------------------------


def test_the_earlier_run_is_kept_beside_as_it_was(run):
    a_run_in(run, epochs=2, files=True)
    before = tree(run)
    assert {"experiment.log", "artifacts.h5", "train/epoch-2/Loss.log", "checkpoint/state-2.h5"} <= set(
        before
    )
    built(builder_in(run)).fit()
    assert names_in(run.parent) == ["digits", "digits-1"]
    assert tree(run.parent / "digits-1") == before
    assert "train/epoch-1/Loss.log" in tree(run) and "train/epoch-2/Loss.log" not in tree(run)
    assert not (run / "checkpoint").exists()


def test_the_newest_run_has_the_name_that_was_asked_for_and_numbers_grow_with_age(run):
    for _ in range(3):
        a_run_in(run)
    shutil.rmtree(run.parent / "digits-1")
    a_run_in(run)
    assert names_in(run.parent) == ["digits", "digits-2", "digits-3"]
    first_lines = [(run.with_name(name) / "experiment.log").read_text()[:24] for name in names_in(run.parent)]
    assert first_lines[1] < first_lines[2] < first_lines[0]


def test_a_line_says_where_it_is_and_what_else_could_be_done(run):
    a_run_in(run)
    screen = Tape()
    built(builder_in(run).renderer(screen)).fit()
    (notice,) = screen.of(Notice)
    assert notice.level == "info"
    assert notice.text == (
        f"{str(run)!r} held a run, which is now in {str(run) + '-1'!r}; .resume() on the builder goes on "
        "with the run in its directory instead, .overwrite() deletes it"
    )
    kinds = [type(event) for event in screen.events]
    assert kinds.index(RunOpened) < kinds.index(Notice)
    opened, told, *_ = (run / "experiment.log").read_text().splitlines()
    assert "run opened in" in opened and notice.text in told


def test_builds_without_training_move_and_write_nothing(run):
    a_run_in(run)
    before = tree(run)
    for _ in range(10):
        built(builder_in(run))
    assert names_in(run.parent) == ["digits"] and tree(run) == before


def test_what_is_said_while_it_is_built_waits_for_the_run_to_open(run):
    a_run_in(run)
    before = tree(run)

    class OnlyTrains(torch.nn.Linear):
        def train_step(self, batch):
            return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    from notebook_learner import LearnerBuilder
    from notebook_learner.learner.wiring import loaders

    model = OnlyTrains(6, 3)
    learner = LearnerBuilder(run).renderer("silent").build(model, sgd(model), None, batches())
    learner._supplies._tell(loaders.NOT_VALIDATED)
    assert tree(run) == before
    learner.fit()
    assert loaders.NOT_VALIDATED in (run / "experiment.log").read_text()
    assert loaders.NOT_VALIDATED not in (run.with_name("digits-1") / "experiment.log").read_text()


def test_a_directory_that_an_earlier_learner_takes_away_just_now_is_made_again(run, monkeypatch):
    made, real = [], Tenancy._make_directory

    def taken_away(self):
        real(self)
        made.append(run)
        if len(made) == 1:
            run.rmdir()

    monkeypatch.setattr(Tenancy, "_make_directory", taken_away)
    a_run_in(run)
    assert len(made) == 2 and (run / "experiment.log").exists()


def test_a_run_that_took_no_step_gets_no_directory_of_its_own(run):
    for _ in range(3):
        with pytest.raises(RuntimeError):
            built(builder_in(run), data=False).fit([(torch.randn(4, 7), torch.zeros(4, dtype=torch.long))])
    a_run_in(run)
    assert names_in(run.parent) == ["digits"]
    assert (run / "experiment.log").read_text().count("run opened") == 4


def test_the_lock_of_a_learner_that_is_being_collected_is_waited_for(run, monkeypatch):
    """The collector forgets who has the directory before a thread of its own lets the lock go."""
    leave, begun = Tenancy.leave, threading.Event()

    def slowly(self):
        if self is not tenancy():  # the collector may come upon a learner of an earlier test
            return leave(self)
        directory_tenancy._tenants.pop(self._lock.identity, None)  # so does the collector, in some cycles
        begun.set()
        time.sleep(1.5)
        leave(self)

    learner = built(builder_in(run))
    learner.step(1)
    learner._itself = learner  # a cycle, as a step that refers to its learner makes one
    tenancy = weakref.ref(learner._premises)
    monkeypatch.setattr(Tenancy, "leave", slowly)
    del learner
    gc.collect()
    assert begun.wait(10)
    monkeypatch.setattr(Tenancy, "leave", leave)
    a_run_in(run)
    assert (run / "experiment.log").read_text().count("run opened") == 1
    assert names_in(run.parent) == ["digits", "digits-1"]


@pytest.mark.parametrize("there", ["nothing", "an empty directory", "other files"])
def test_a_directory_without_a_run_is_used_as_it_is(there, run):
    if there != "nothing":
        run.mkdir(parents=True)
    if there == "other files":
        (run / "notes.txt").write_text("mine")
        (run / "train").mkdir()
        (run / "train" / "cat.png").write_text("a picture")
    a_run_in(run)
    assert names_in(run.parent) == ["digits"]
    if there == "other files":
        assert (run / "notes.txt").read_text() == "mine" and (run / "train" / "cat.png").exists()


def test_files_of_the_user_stay_where_they_are(run):
    a_run_in(run, files=True)
    before = tree(run)
    mine = users_files_in(run)
    built(builder_in(run)).fit()
    assert tree(run.with_name("digits-1")) == before
    now = tree(run)
    assert all(now[name] == b"mine" for name in mine)
    assert set(now) == {*mine, "experiment.log", "artifacts.h5", "train/epoch-1/Loss.log"}


def test_a_directory_that_somebody_works_in_keeps_its_place(run, monkeypatch):
    run.mkdir(parents=True)
    monkeypatch.chdir(run)
    a_run_in(".")
    a_run_in(".")
    assert names_in(run.parent) == ["digits", "digits-1"]
    assert Path.cwd() == run and "train/epoch-1/Loss.log" in tree(".")


def test_a_link_stays_a_link(run, tmp_path):
    large = tmp_path / "scratch" / "large"
    large.mkdir(parents=True)
    run.parent.mkdir()
    run.symlink_to(large)
    a_run_in(run)
    a_run_in(run)
    assert run.is_symlink() and names_in(tmp_path / "scratch") == ["large", "large-1"]
    assert "train/epoch-1/Loss.log" in tree(large)


def test_a_relative_name_is_told_as_a_relative_name(run, monkeypatch):
    run.parent.mkdir()
    monkeypatch.chdir(run.parent)
    a_run_in("digits")
    screen = Tape()
    built(builder_in("digits").renderer(screen)).fit()
    assert "'digits' held a run, which is now in 'digits-1';" in screen.of(Notice)[0].text


def test_where_it_cannot_be_moved_nothing_was_changed_and_it_says_what_to_do(run, monkeypatch):
    a_run_in(run)
    before = tree(run)

    def refuse(source, target):
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(earlier_run.files, "rename", refuse)
    learner = built(builder_in(run))
    with pytest.raises(StoreError, match=r"next to it \(Permission denied\).*\.resume\(\).*\.overwrite\(\)"):
        learner.fit()
    assert tree(run) == before and learner.status == "ready"
    monkeypatch.undo()
    learner.fit()
    assert names_in(run.parent) == ["digits", "digits-1"]


def test_a_directory_that_cannot_be_made_is_an_error_that_says_so(tmp_path):
    learner = built(builder_in(tmp_path / "file" / "run"))
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"cannot be made \(Not a directory\); give LearnerBuilder a directory"
    ):
        learner.fit()


def test_a_learner_that_writes_nothing_moves_nothing_until_it_saves(run):
    from notebook_learner.logger import InMemoryMetricLogger

    a_run_in(run)
    builder = classifier(run).metric_logger(InMemoryMetricLogger())
    learner = built(builder)
    learner.fit()
    assert names_in(run.parent) == ["digits"]
    learner.save()
    assert names_in(run.parent) == ["digits", "digits-1"]
    assert set(tree(run)) == {f"checkpoint/{part}-1.h5" for part in ("model", "optim", "scheduler", "state")}


# resume() and overwrite() -----------------------------------------------------------------------------


def test_a_cell_that_resumes_can_be_run_for_ever(run, tmp_path):
    straight = a_run_in(tmp_path / "straight", epochs=2, files=True)
    learner = built(builder_in(run, epochs=2, files=True).resume())
    assert learner.status == "ready"
    learner.step(3)
    learner.save()
    del learner
    learner = built(builder_in(run, epochs=2, files=True).resume(), seed=8)
    assert (learner.status, learner.position.step) == ("paused", 3)
    learner.fit()
    assert_same_bits(learner.model, straight.model)
    again = built(builder_in(run, epochs=2, files=True).resume(), seed=9)
    assert again.status == "finished"
    again.fit()
    assert_same_bits(again.model, straight.model)
    assert names_in(run.parent) == ["digits"]
    log = "train/epoch-2/Loss.log"
    assert tree(run)[log] == tree(tmp_path / "straight")[log]


def test_a_run_without_a_checkpoint_is_kept_where_there_is_nothing_to_resume(run):
    a_run_in(run)
    before = tree(run)
    built(builder_in(run, files=True).resume()).fit()
    assert tree(run.with_name("digits-1")) == before


def test_a_damaged_checkpoint_is_no_reason_to_start_anew(run):
    a_run_in(run, files=True)
    for path in (run / "checkpoint").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigurationError, match=r"resume\(\): "):
        built(builder_in(run, files=True).resume())
    assert names_in(run.parent) == ["digits"]


def test_a_checkpointer_of_the_users_own_is_resumed_from_too(run):
    kept = MemoryCheckpointer()
    learner = built(builder_in(run, epochs=2).with_checkpointer(kept).resume())
    assert learner.status == "ready"
    learner.fit()
    again = built(builder_in(run, epochs=3).with_checkpointer(kept).resume(), seed=5)
    assert again.position.epoch == 3
    assert_same_bits(again.model, learner.model)
    again.fit()
    assert names_in(run.parent) == ["digits"]
    assert {"train/epoch-2/Loss.log", "train/epoch-3/Loss.log"} <= set(tree(run))


def test_a_checkpoint_by_name_goes_on_in_the_same_directory(run):
    a_run_in(run, epochs=2, files=True)
    learner = built(builder_in(run, epochs=3, files=True).checkpoint(1))
    learner.fit()
    assert names_in(run.parent) == ["digits"] and len(learner.history["train", "Loss"]) == 12


def test_a_checkpoint_restored_by_hand_goes_on_there_and_one_that_is_not_there_moves_nothing(run):
    a_run_in(run, epochs=2, files=True)
    before = tree(run)
    learner = built(builder_in(run, epochs=3, files=True))
    with pytest.raises(StateError, match="no checkpoint 7"):
        learner.restore(7)
    assert tree(run) == before and learner.status == "ready"
    learner.restore(1)
    assert names_in(run.parent) == ["digits"]
    learner.fit()
    assert "train/epoch-3/Loss.log" in tree(run)


def test_after_a_restore_that_failed_a_new_run_is_a_new_run(run):
    first = a_run_in(run, epochs=2, files=True)
    before = tree(run)
    learner = built(builder_in(run, epochs=3, files=True))
    with pytest.raises(StateError):
        learner.restore(7)
    learner.fit()
    assert without_the_log(tree(run.with_name("digits-1"))) == without_the_log(before)
    mine, theirs = learner.checkpoints[-1].run, Artifacts(run.with_name("digits-1")).checkpoints[-1].run
    assert mine != theirs == first.checkpoints[-1].run


def test_overwrite_deletes_what_a_run_makes_and_nothing_else(run):
    a_run_in(run, epochs=2, files=True)
    mine = users_files_in(run)
    screen = Tape()
    learner = built(builder_in(run).overwrite().renderer(screen))
    assert "train/epoch-2/Loss.log" in tree(run), "nothing is deleted before the run begins"
    learner.fit()
    assert names_in(run.parent) == ["digits"]
    assert set(tree(run)) == {*mine, "experiment.log", "artifacts.h5", "train/epoch-1/Loss.log"}
    assert [notice.text for notice in screen.of(Notice)] == [
        f"the earlier run in {str(run)!r} was deleted, as overwrite() asks"
    ]


def test_what_cannot_be_said_together_is_told_with_the_other_mistakes(run):
    both = builder_in(run, files=True).resume().overwrite()
    assert one_mistake_of(both) == (
        "resume() would go on with the run in the directory, and overwrite() deletes it; keep one of them"
    )
    assert "both checkpoint(3) and resume() say where to go on from" in one_mistake_of(
        builder_in(run, epochs=5, files=True).resume().checkpoint(3)
    )
    assert "checkpoint('best') would go on" in one_mistake_of(
        builder_in(run, files=True).overwrite().checkpoint("best")
    )
    said = mistakes_of(builder_in(run).resume().num_epochs(0))
    assert said[0].startswith("num_epochs is 0")
    assert said[1].startswith("resume() goes on from a checkpoint, but nothing saves one; add with_file_")


# The learner of before, in the same kernel ------------------------------------------------------------


VERBS = {
    "fit": lambda learner: learner.fit(),
    "start": lambda learner: learner.start(),
    "step": lambda learner: learner.step(),
    "rewind": lambda learner: learner.rewind(2),
    "save": lambda learner: learner.save(),
    "restore": lambda learner: learner.restore(learner.capture()),
    "restore a checkpoint": lambda learner: learner.restore("latest"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_learner_whose_directory_was_taken_cannot_go_on_there(verb, run):
    old = half_way(run)
    built(builder_in(run, epochs=2)).fit()
    new = tree(run)
    with pytest.raises(
        StoreError, match="this learner cannot go on here: a newer learner has begun in"
    ) as told:
        VERBS[verb](old)
    assert f"this one's files are in {str(run) + '-1'!r} now" in str(told.value)
    assert "learner.fork('another directory')" in str(told.value)
    old.tools.note("a line")
    old.stop()
    del old
    assert tree(run) == new


def test_it_can_still_be_looked_at_and_forked(run, tmp_path):
    old = half_way(run)
    old.save()
    built(builder_in(run)).fit()
    assert str(run.with_name("digits-1")) in repr(old)
    assert old.artifacts.directory == run.with_name("digits-1")
    assert [info.label for info in old.checkpoints] == ["1", "2-2"]
    other = old.fork(tmp_path / "fork")
    other.fit()
    straight = a_run_in(tmp_path / "straight", epochs=3)
    assert_same_bits(other.model, straight.model)


def test_what_it_was_still_writing_goes_with_its_run(run):
    old = half_way(run)
    old.save(wait=False)
    built(builder_in(run)).fit()
    moved = Artifacts(run.with_name("digits-1"))
    assert [(info.label, info.damage) for info in moved.checkpoints] == [("1", ""), ("2-2", "")]
    assert moved.series("Loss", "train").value.tolist() == old.history["train", "Loss"].tolist()
    assert not (run / "checkpoint").exists()


def test_its_run_can_be_resumed_where_it_lies_now(run):
    old = half_way(run)
    old.save()
    built(builder_in(run)).fit()
    again = built(builder_in(run.with_name("digits-1"), epochs=3, files=True).resume(), seed=7)
    assert again.position.iteration == 6
    again.fit()
    assert names_in(run.parent) == ["digits", "digits-1"]


def test_whoever_resumes_takes_the_run_over_from_a_learner_that_stands_still(run):
    old = half_way(run)
    old.save()
    new = built(builder_in(run, epochs=3, files=True).resume(), seed=7)
    new.fit()
    written = tree(run)
    with pytest.raises(StoreError, match="a newer learner has gone on with the run"):
        old.fit()
    assert tree(run) == written


def test_a_learner_that_trains_keeps_its_directory(run):
    go_on, reached = threading.Event(), threading.Event()

    def slowly(model, batch):
        reached.set()
        assert go_on.wait(60)
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    builder = builder_in(run)
    builder._settings.loss = None
    old = built(builder.train_step(slowly))
    old.start()
    assert reached.wait(60)
    new = built(builder_in(run))
    with pytest.raises(
        BusyError, match=r"an earlier learner trains in .* right now, in this process; stop it"
    ):
        new.fit()
    with pytest.raises(BusyError):
        new.start()
    assert new.status == "ready"
    go_on.set()
    old.wait()
    new.fit()
    assert names_in(run.parent) == ["digits", "digits-1"]


def test_a_directory_that_was_moved_by_hand_is_not_mistaken_for_the_next_ones(run):
    old = half_way(run, files=False)
    old._premises._storing.background.wait()  # artifacts.h5 is written, to the last byte
    run.rename(run.with_name("aside"))
    shutil.copytree(run.with_name("aside"), run, ignore=shutil.ignore_patterns("*.sock"))
    before = tree(run)
    with pytest.raises(StoreError, match=r"its directory was moved, and .* is another one now"):
        old.fit()
    assert tree(run) == before


def test_an_interrupted_cell_run_again_keeps_what_it_had(run):
    """What happens all day: a pause, an edit, and the whole cell again, under the same name."""
    learner = built(builder_in(run, epochs=3))

    def pause(_):
        learner.pause()
        return False

    with pytest.raises(Paused):
        learner.run_until(pause)
    steps = learner.position.step
    learner = built(builder_in(run, epochs=1))
    learner.fit()
    assert names_in(run.parent) == ["digits", "digits-1"]
    assert len(Artifacts(run.with_name("digits-1")).series("Loss", "train").value) == steps
    assert len(Artifacts(run).series("Loss", "train").value) == 4


def test_a_fork_of_a_run_goes_to_a_directory_of_its_own_and_moves_nothing(run, tmp_path):
    old = half_way(run)
    logs = {name for name in tree(run) if name.endswith("Loss.log")}
    sibling = old.fork(run.parent / "fork")
    sibling.fit()
    old.fit()  # and here the strategy deletes the first checkpoint
    assert names_in(run.parent) == ["digits", "fork"]
    assert logs and logs <= tree(run).keys()


def test_sets_that_were_evaluated_go_with_their_run(run):
    old = built(builder_in(run))
    old.fit()
    old.evaluate(batches(), name="clean")
    old._replica.saving.close()
    before = tree(run)

    a_run_in(run)

    assert without_the_log(tree(run.parent / "digits-1")) == without_the_log(before)
    assert "test/clean/Loss.log" in before and not (run / "test").exists()
    assert names_in(run.parent) == ["digits", "digits-1"], "renamed as a whole"


def test_a_learner_that_evaluates_before_it_trains_begins_its_run_with_that(run):
    a_run_in(run)
    learner = built(builder_in(run))
    learner.evaluate(batches(), name="before training")
    learner.fit()
    learner._replica.saving.close()

    assert (run / "test" / "before training" / "Loss.log").is_file()
    assert "evaluated" in (run / "experiment.log").read_text()
    assert not (run.parent / "digits-1" / "test").exists()


def test_overwrite_deletes_evaluated_sets_too_but_no_file_of_the_user(run):
    old = built(builder_in(run))
    old.fit()
    old.evaluate(batches(), name="clean")
    old._replica.saving.close()
    (run / "test" / "clean" / "notes.txt").write_text("mine")

    built(builder_in(run).overwrite()).fit()

    assert names_in(run / "test" / "clean") == ["notes.txt"]
