"""A `%%train` cell is the training step: the same bits as any other way to write it, and it can be edited."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from builder_support import adam, assert_same_bits, batches, by_hand, net, quiet
from exactness import differences, everything, logs
from notebook_support import BODY, LEARNER, VALID
from torch.nn import functional as F

from notebook_learner import ClassificationOutput
from notebook_learner.event import Marked
from notebook_learner.metric import Accuracy, Loss

TRAIN = f"%%train\n{BODY}"


def by_function(directory):
    """The same learner with `.train_step(fn)`."""

    def step(model, batch):
        x, target = batch
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, target), output, target)

    torch.manual_seed(0)
    model = net(dropout=0.3)
    builder = (
        quiet(directory).num_epochs(2).seed(5).metrics(Loss(), Accuracy()).train_step(step).valid_step(step)
    )
    return builder.build(model, adam(model), None, batches(), batches()[:2])


def assert_like_functions(notebook, tmp_path):
    """What the cells have trained is what the same learner gives with functions: state and logs."""
    other = by_function(tmp_path / "other")
    other.fit()
    assert list(differences(everything(notebook.learner), everything(other))) == []
    assert logs(tmp_path / "run") == logs(tmp_path / "other")


def marks(notebook):
    """The marks that the learner's history gets from here on."""
    found = []

    class Sink:
        def handle(self, event):
            if isinstance(event, Marked):
                found.append((event.kind, event.epoch, event.split, event.step, event.text))

    notebook.learner._replica.sinks.add(Sink())
    return found


# ------------------------------------------------------------------------------------------- the same bits


def test_a_cell_trains_as_a_loop_written_by_hand(notebook):
    notebook.run(
        "model = net(); learner = quiet(folder / 'plain').num_epochs(3).build("
        "model, adam(model), None, batches())"
    )
    notebook.run(TRAIN)
    theirs = net()
    by_hand(theirs, adam(theirs), batches(), epochs=3)
    assert_same_bits(notebook.names["model"], theirs)
    assert notebook.learner.status == "finished"


def test_cells_give_the_state_and_the_logs_of_functions(notebook, tmp_path):
    notebook.run(VALID)
    notebook.run(TRAIN)
    assert_like_functions(notebook, tmp_path)


def test_a_validation_cell_is_used_for_data_that_waited_for_it(notebook):
    notebook.run(TRAIN.replace("%%train", "%%train --epochs 1"))
    assert ("valid", "Loss") not in {(i.split, i.name) for i in notebook.learner.history.infos} or (
        len(notebook.learner.history["valid", "Loss"]) == 0
    )
    notebook.run(VALID)
    notebook.run("%train --epochs 1")
    assert len(notebook.learner.history["valid", "Loss", 2]) == 2


def test_the_body_is_told_where_it_stands(notebook):
    notebook.run("seen = []")
    notebook.run(f"%%valid\n{BODY}\nseen.append((epoch, 'valid', step, learner.position.step))")
    notebook.run(f"%%train --epochs 1\n{BODY}\nseen.append((epoch, 'train', step, learner.position.step))")
    assert notebook.names["seen"] == [
        *((1, "train", i, i) for i in range(4)),
        *((1, "valid", i, i) for i in range(2)),
    ]


# ------------------------------------------------------------------------------------- edit and continue


def test_an_edited_cell_goes_on_from_the_same_step(notebook, tmp_path):
    notebook.run(TRAIN.replace("%%train", "%%train --steps 3"))
    found = marks(notebook)
    notebook.run(f"%%train --steps 5\n{BODY} * 2")
    assert found == [("edited", 1, "train", 3, "cell edited")]

    calls = []

    def step(model, batch):
        calls.append(1)
        x, target = batch
        output = model(x)
        factor = 1 if len(calls) <= 3 else 2
        return ClassificationOutput(F.cross_entropy(output, target) * factor, output, target)

    torch.manual_seed(0)
    model = net(dropout=0.3)
    other = quiet(tmp_path / "other").num_epochs(2).seed(5).metrics(Loss(), Accuracy()).train_step(step)
    other = other.build(model, adam(model), None, batches())
    other.step(8)
    assert_same_bits(notebook.names["model"], model)


def test_a_cell_that_was_merely_run_again_is_no_edit_and_neither_is_a_comment(notebook):
    notebook.run(TRAIN.replace("%%train", "%%train --steps 1"))
    step = notebook.learner._step_in_use("train")
    found = marks(notebook)
    notebook.run(TRAIN.replace("%%train", "%%train --steps 1"))
    notebook.run(f"%%train --steps 1\n\n# with a comment\n{BODY}")
    assert found == []
    assert notebook.learner._step_in_use("train") is step
    assert notebook.learner.position.iteration == 3


def test_another_kind_of_output_is_an_edit(notebook):
    notebook.run(TRAIN.replace("%%train", "%%train --steps 1"))
    found = marks(notebook)
    notebook.run(f"%%train --steps 1 --output none\n{BODY}\ntargets = target")
    notebook.run(f"%%train --steps 1 --output classification\n{BODY}\ntargets = target")
    assert [text for *_, text in found] == ["cell edited"] * 2


def test_metrics_say_what_an_edited_cell_leaves_no_more(notebook):
    notebook.run(f"%%train --steps 1 --output none\n{BODY}\ntargets = target")
    cell = notebook.try_(f"%%train\n{BODY.replace('output', 'scores')}")
    assert cell.lines[-2].startswith(
        "OutputError: Accuracy needs `output` and `targets`; but the step returned a CellOutput with `x`, "
        "`target`, `scores` and `loss`. Let the cell leave `output` and `target` (or `targets`)"
    )


def test_a_cell_takes_over_from_a_function(notebook, tmp_path):
    notebook.names["learner"] = by_function(tmp_path / "other")
    notebook.learner.step(2)
    found = marks(notebook)
    notebook.run(f"%%train --steps 1\n{BODY}")
    assert [text for *_, text in found] == ["a %%train cell takes over"]
    notebook.learner.tools.use_step("train", lambda model, batch: model(batch[0]).sum())
    notebook.run(f"%%train --steps 1\n{BODY}")
    assert notebook.learner.locals["loss"] is notebook.learner.output.loss


def test_after_an_error_the_mended_cell_goes_on(notebook, tmp_path):
    cell = notebook.try_(f"%%train\n{BODY}\nif step == 2: missing()")
    assert type(cell.error) is NameError
    assert (notebook.learner.status, notebook.learner.position.step) == ("failed", 2)
    notebook.run(VALID)
    notebook.run(TRAIN)
    other = by_function(tmp_path / "other")
    other.fit()
    assert_same_bits(notebook.names["model"], other.model)


# ------------------------------------------------------------------------------------------- what it leaves


@pytest.mark.parametrize("options", ["", "--steps 2", "--until 'loss < 0'", "--dry"])
def test_a_traceback_shows_the_cell_and_nothing_of_what_ran_it(notebook, options):
    shown = notebook.try_(f"%%train {options}\n{BODY}\nnowhere.max()").shown
    assert "nowhere.max()" in shown and "NameError" in shown
    assert "notebook_learner/" not in shown


def test_a_traceback_of_a_step_taken_by_hand_shows_the_cell_alone(notebook):
    notebook.run(f"%%train --steps 1\n{BODY}\nassert step < 1")
    for verb in ("step()", "run_until((1, 3))", "step_epoch()", "fit()"):
        shown = notebook.try_(f"learner.{verb}").shown
        assert "assert step < 1" in shown and f"learner.{verb}" in shown
        assert "notebook_learner/" not in shown, verb


def test_the_values_of_the_last_step_are_at_hand_and_those_of_no_other(notebook):
    assert notebook.learner.locals == {}
    notebook.run("kept = []")
    notebook.run(f"%%train --steps 2\nkept.append(dict(learner.locals))\n{BODY}\nrows = len(x)")
    values = notebook.learner.locals
    assert list(values) == ["x", "target", "output", "loss", "rows"]
    assert values["output"] is notebook.learner.output.output and values["loss"].grad_fn is not None
    assert notebook.names["kept"] == [{}, {}]


def test_rewound_values_are_those_of_the_step_before(notebook):
    notebook.run(f"%%train --steps 3\n{BODY}\nplace = epoch, step")
    notebook.run("%rewind")
    assert notebook.learner.locals["place"] == (1, 1)
    notebook.run("%rewind 2")
    assert notebook.learner.locals == {}


def test_a_learner_that_nobody_holds_goes_with_its_cells(notebook):
    notebook.run(VALID)
    notebook.run(TRAIN)
    learner = weakref.ref(notebook.learner)
    notebook.run("del learner")
    gc.collect()
    assert learner() is None


def test_logged_values_become_metrics(notebook):
    notebook.run(f"%%train --steps 2\n{BODY}\nlearner.log('Margin', output.max())")
    assert len(notebook.learner.history["train", "Margin"]) == 2


def test_the_notebook_gets_the_values_of_the_last_step_without_graphs(notebook):
    notebook.run("rows = 'mine'")
    notebook.run(f"%%train --steps 2 --no-export\n{BODY}\nrows = len(x)")
    assert notebook.names["rows"] == "mine" and "output" not in notebook.names
    notebook.run(f"%%train --steps 1\n{BODY}\nrows = len(x)\nkept = {{'all': [loss, (output, 1)]}}")
    assert notebook.names["rows"] == 8
    output, loss = (notebook.names[name] for name in ("output", "loss"))
    assert torch.equal(output, notebook.learner.output.output)
    kept_loss, (kept_output, one) = notebook.names["kept"]["all"]
    assert all(each.grad_fn is None for each in (output, loss, kept_loss, kept_output)) and one == 1
    assert notebook.learner.locals["loss"].grad_fn is not None  # it still has its own
    assert notebook.names["learner"] is notebook.learner and "batch" not in notebook.names


@pytest.mark.parametrize("line", ["%train --steps 1", "%train --until 'step == 3'", "%train"])
def test_the_line_that_goes_on_brings_them_too(line, notebook):
    notebook.run(f"%%train --steps 1 --no-export\n{BODY}\nplace = epoch, step")
    notebook.run(line)
    assert notebook.names["place"] == notebook.learner.locals["place"] != (1, 0)


def test_they_are_brought_at_an_error_too(notebook):
    notebook.try_(f"%%train\n{BODY}\nrows = step\nif step == 2: 1 / 0")
    assert notebook.names["rows"] == 1


def test_a_run_in_the_background_changes_no_name(notebook):
    notebook.run(f"%%train --background\n{BODY}\nrows = step")
    notebook.learner.wait()
    assert "rows" not in notebook.names


KINDS = [
    ("", "out = 1", "CellOutput"),
    ("", "output, target = model(x), y", "ClassificationOutput"),
    ("", "output, targets = model(x), y", "ClassificationOutput"),
    ("", "output, target = model(x), F.one_hot(y, 3).float()", "RegressionOutput"),
    ("", "output, target = [model(x)], y", "SupervisedOutput"),
    ("--output regression", "output, target = model(x), y", "RegressionOutput"),
    ("--output multilabel", "output, target = model(x), y", "MultiLabelClassificationOutput"),
    ("--output sequence", "logits, target = model(x), y", "SequenceOutput"),
    ("--output sequence", "output, target = model(x), y", "SequenceOutput"),
    ("--output none", "output, target = model(x), y", "CellOutput"),
]


@pytest.mark.parametrize(("option", "line", "kind"), KINDS)
def test_metrics_are_given_the_output_that_fits(notebook, option, line, kind):
    notebook.run("learner = quiet(folder / 'k').metrics(Loss()).build(model, adam(model), None, batches())")
    notebook.run(f"%%train --steps 1 {option}\nx, y = batch\n{line}\nloss = F.cross_entropy(model(x), y)")
    assert type(notebook.learner.output).__name__ == kind
    assert notebook.learner.output.loss is notebook.learner.locals["loss"]


def test_a_local_called_weight_is_not_taken_for_a_number_of_samples(notebook):
    notebook.run(
        "learner = (quiet(folder / 'k').metrics(Loss()).grads_accumulation(2)"
        ".build(model, adam(model), None, batches()))"
    )
    notebook.run(
        "%%train --steps 4\nx, y = batch\nweight = torch.ones(3)\nloss = F.cross_entropy(model(x), y, weight)"
    )
    assert notebook.learner.locals["weight"].tolist() == [1, 1, 1]


# ------------------------------------------------------------------------------------------- how far it goes


def test_steps_gives_a_report(notebook):
    report = notebook.run(f"%%train --steps 3\n{BODY}")
    assert (report.steps, report.position.step) == (3, 3)


def test_epochs_trains_so_many_more(notebook):
    notebook.run(f"%%train --epochs 1\n{BODY}")
    assert notebook.learner.history["train", "Loss"].size == 4
    notebook.run("%train --epochs 2")
    assert notebook.learner.history["train", "Loss"].size == 12


def test_until_is_asked_after_each_training_step(notebook):
    notebook.run(VALID)
    notebook.run("asked = []\ndef note(value):\n    asked.append(value); return value == (2, 1)")
    report = notebook.run(f"%%train --until 'note(place) and loss > 0'\n{BODY}\nplace = epoch, step")
    assert notebook.names["asked"] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
    assert (report.position.epoch, report.position.step) == (2, 2)


def test_until_with_a_comprehension_and_without_a_cell(notebook, tmp_path):
    notebook.names["learner"] = by_function(tmp_path / "other")
    notebook.run('%train --until "all(value < 100 for value in [loss]) and learner.position.step == 3"')
    assert notebook.learner.position.step == 3


def test_until_is_given_what_the_step_was_given(notebook):
    report = notebook.run(f"%%train --until '(epoch, step) == place == (1, 2)'\n{BODY}\nplace = epoch, step")
    assert report.position.step == 3


def test_until_never_reached_trains_to_the_end(notebook):
    report = notebook.run(f"%%train --until 'loss < 0'\n{BODY}")
    assert report.why == "finished"


def test_background_returns_at_once_and_an_edit_goes_on_there(notebook):
    notebook.run("import threading\ngo = threading.Event(); first = threading.Event()")
    waiting = "if step == 1 and epoch == 1:\n    first.set(); go.wait(60)"
    notebook.run(f"%%train --background\n{BODY}\n{waiting}")
    assert notebook.names["first"].wait(60) and notebook.learner.status == "running"
    threading = notebook.names["threading"]
    threading.Timer(0.2, notebook.names["go"].set).start()
    found = marks(notebook)
    notebook.run(f"%%train\n{BODY} * 2")
    notebook.run("_ = learner.wait()")
    assert notebook.learner.status == "finished" and notebook.learner.position.epoch == 2
    assert found == [("edited", 1, "train", 2, "cell edited")]


def test_a_pause_is_one_quiet_line(notebook):
    line = notebook.fails(f"%%train\n{BODY}\nif step == 1: learner.pause()")
    assert line.startswith("paused at epoch 1, train, step 2 of 4;")


# ------------------------------------------------------------------------------------------- a dry run


def test_a_dry_run_shows_the_step_and_changes_nothing(notebook, tmp_path):
    notebook.run(f"%%train --steps 2\n{BODY}")
    before, files = everything(notebook.learner), logs(tmp_path / "run")
    values, found = notebook.learner.locals, marks(notebook)
    report = notebook.run(
        f"%%train --dry\n{BODY} * 0.5\nfactor, name = 0.5, 'half'\nlearner.log('New', loss)"
    )
    assert list(differences(everything(notebook.learner), before)) == []
    assert (logs(tmp_path / "run"), notebook.learner.locals, found) == (files, values, [])
    assert "New" not in {info.name for info in notebook.learner.history.infos}
    lines = repr(report).splitlines()
    assert lines[0].startswith("a dry step to epoch 1, train, step 3 of 4: loss 0.")
    assert lines[0].endswith("; nothing has changed")
    assert [" ".join(line.split()[:4]) for line in lines[1:]] == [
        "x (8, 6) float32",
        "target (8,) int64",
        "output (8, 3) float32",
        f"loss () float32 {report.values['loss']:.6g}",
        "factor 0.5",
        "name 'half'",
    ]


def test_a_dry_run_of_another_body_leaves_the_step_in_use(notebook):
    notebook.run(f"%%train --steps 1\n{BODY}")
    notebook.run(f"%%train --dry\n{BODY}\nother = 1")
    notebook.run("%step")
    assert "other" not in notebook.learner.locals


def test_a_dry_run_before_the_first_step_leaves_the_straight_run(notebook, tmp_path):
    notebook.run(f"%%train --dry --export\n{BODY}")
    assert notebook.names["output"].shape == (8, 3)
    notebook.run(VALID)
    notebook.run(TRAIN)
    assert_like_functions(notebook, tmp_path)


def test_a_dry_run_says_what_is_not_finite(notebook):
    report = notebook.run(f"%%train --dry\n{BODY} / 0")
    assert repr(report).splitlines()[0].startswith("a dry step to epoch 1, train, step 1 of 4: loss inf;")
    assert repr(report).splitlines()[-1] == "not finite: loss"


def test_a_dry_run_that_fails_changes_nothing_either(notebook):
    notebook.run(f"%%train --steps 2\n{BODY}")
    before = everything(notebook.learner)
    cell = notebook.try_(f"%%train --dry\n{BODY}\n1 / 0")
    assert type(cell.error) is ZeroDivisionError
    assert list(differences(everything(notebook.learner), before)) == []
    assert notebook.learner.status == "paused"


def test_the_line_magic_tries_the_step_in_use(notebook, tmp_path):
    notebook.names["learner"] = by_function(tmp_path / "other")
    assert "output   (8, 3) float32" in repr(notebook.run("%train --dry"))
    notebook.run(LEARNER)
    cell = notebook.try_("%train --dry")
    assert "nothing says how to train: run a %%train cell" in cell.shown
