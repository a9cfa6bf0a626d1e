"""The magics of one line, which learner they mean, and how they come and go."""

from __future__ import annotations

import sys
import types

import pytest
from notebook_support import BODY, LEARNER

from notebook_learner.learner.wiring.cells import cells_may_come

STEP = f"%%train --steps 4\n{BODY}"
MAGICS = {
    "cell": {"train", "valid"},
    "line": {"train", "step", "rewind", "pause", "resume", "stop", "inspect", "fork"},
}


# ------------------------------------------------------------------------------------------ which learner


@pytest.mark.parametrize(
    "magic",
    [
        "%%train\nloss = 1",
        "%%valid\nloss = 1",
        *(
            f"%{name}"
            for name in ("train", "step", "rewind", "pause", "resume", "stop", "inspect", "fork runs/b")
        ),
    ],
)
def test_without_a_learner_every_magic_says_what_to_write(empty, magic):
    line = empty.fails(magic)
    assert line.startswith(
        "UsageError: the notebook has no learner yet; build one: learner = LearnerBuilder("
    )


def test_two_learners_are_named_and_one_is_asked_for(notebook):
    notebook.run(LEARNER.replace("learner =", "other =").replace("run", "other"))
    told = "UsageError: the notebook's learners are learner and other; say which one: %%train learner"
    assert notebook.fails("%step") == told
    assert notebook.fails("%%train --epochs 1\nloss = 1") == told
    notebook.run(STEP.replace("%%train", "%%train other"))
    assert (notebook.learner.position.step, notebook.names["other"].position.step) == (0, 4)
    notebook.run("%rewind 2 other")
    notebook.run("%rewind other")
    assert notebook.names["other"].position.step == 1
    notebook.run("%step other 2")
    assert notebook.names["other"].position.step == 3
    assert notebook.try_("%pause other").shown == "other: paused at epoch 1, train, step 3 of 4\n"


def test_a_second_name_and_the_history_of_results_are_no_second_learner(notebook):
    notebook.run("also = learner")
    notebook.run("learner")
    notebook.run(STEP)
    assert notebook.learner.position.step == 4


def test_a_name_that_is_no_learner_is_told(notebook):
    assert (
        notebook.fails("%step lerner")
        == "UsageError: there is no `lerner`; the notebook's learner is learner"
    )
    assert notebook.fails("%train model") == (
        "UsageError: `model` is a Sequential, no learner; the notebook's learner is learner"
    )


# ------------------------------------------------------------------------------------------ what they do


def test_step_and_rewind_go_both_ways(notebook):
    notebook.run(STEP)
    assert str(notebook.run("%rewind 3")).startswith("rewound to epoch 1, train, step 1 of 4 (")
    assert notebook.run("%step 2").steps == 2
    assert notebook.run("%step").position.step == 4
    assert notebook.run("%rewind 1:2").position.step == 2
    assert notebook.run("%rewind 1:train:1").position.step == 1
    report = notebook.run("there = %rewind\nthere")
    assert report.position.step == 0


def test_rewind_goes_into_a_validation(notebook):
    notebook.run(f"%%valid\n{BODY}")
    notebook.run(f"%%train --epochs 1\n{BODY}")
    assert str(notebook.run("%rewind 1:valid:1").position) == "epoch 1, valid, step 1 of 2"


def test_pause_resume_and_stop_steer_the_background(notebook):
    notebook.run("import threading\nsteps = threading.Semaphore(0)\nlearner.num_epochs = 1000")
    notebook.run(f"%%train --background\n{BODY}\nsteps.release()")
    assert notebook.names["steps"].acquire(timeout=60)
    paused = notebook.try_("%pause").shown
    assert paused == f"paused at {notebook.learner.position}\n"
    while notebook.names["steps"].acquire(blocking=False):
        pass
    notebook.run("%resume")
    assert notebook.names["steps"].acquire(timeout=60)
    assert notebook.try_("%stop").shown == f"stopped at {notebook.learner.position}\n"


def test_another_rank_is_looked_at_by_its_number(notebook):
    notebook.run(STEP)
    assert str(notebook.try_("%inspect --rank 1").error) == "there is no rank 1; there is one device, rank 0"
    assert notebook.run("%inspect --rank 0").loss is not None


def test_inspecting_and_trying_leave_the_values_of_the_last_step(notebook):
    notebook.run(STEP)
    values = notebook.learner.locals
    assert notebook.run("%inspect").loss is not None
    notebook.run("learner.what_if(2, lr=0.5); learner.tools.lr_find(steps=10);")
    assert notebook.learner.locals is values


def test_a_fork_has_the_cell_for_itself(notebook):
    notebook.run(f"%%valid\n{BODY}\nwho = learner")
    notebook.run(f"%%train --steps 4\n{BODY}\nwho = learner")
    mine = notebook.learner._step_in_use("train")
    notebook.run(f"other = %fork '{notebook.names['folder']}/b'")
    other = notebook.names["other"]
    theirs = other._step_in_use("train")
    assert theirs.is_like(mine) and theirs.body.function is not mine.body.function
    notebook.run("%step other")
    assert other.locals["who"] is other and other.locals["loss"] is other.output.loss
    notebook.run("%train other")
    assert notebook.learner.locals["who"] is notebook.learner
    assert (other.status, notebook.learner.position.step) == ("finished", 4)


# --------------------------------------------------------------------------------- mistakes are one line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%train --steps many", "argument --steps: invalid int value: 'many'"),
        ("%train --steps 0", "--steps 0: give a whole number from 1"),
        ("%train --epochs -2", "--epochs -2: give a whole number from 1"),
        ("%train --steps 2 --epochs 1", "--epochs and --steps exclude each other; keep one"),
        ("%train --dry --until loss", "--until and --dry exclude each other; keep one"),
        (
            "%train --background --steps 3",
            "--background trains to the end, or for --epochs N; leave out --steps",
        ),
        ("%train --background --export", "--export brings values when the cell ends"),
        ("%train --colour", "unrecognized arguments: --colour"),
        ("%train --until 'loss <'", "--until 'loss <' is no expression: invalid syntax"),
        (
            "%train --until 'los < 1'",
            "--until 'los < 1': there is no `los`; a step has batch, epoch, learner, logits, loss, model,",
        ),
        ("%%train --output shapes\nloss = 1", "argument --output: invalid choice: 'shapes'"),
        ("%step 0", "%step 0: give a whole number from 1"),
        ("%step 2.5", "%step 2.5: give a whole number from 1"),
        ("%step 1 2", "%step takes one number and one learner's name, not 1 2"),
        ("%rewind 0", "%rewind 0: give a whole number from 1"),
        ("%rewind 1:2:3", "%rewind 1:2:3: give a number of steps, EPOCH:STEP as in 2:117, or 2:valid:0"),
        ("%rewind 2:2:3", "%rewind 2:2:3: give a number of steps, EPOCH:STEP as in 2:117, or 2:valid:0"),
        ("%rewind 0:2", "%rewind 0:2: epochs count from 1"),
        ("%rewind 1:2:3:4", "%rewind 1:2:3:4: give a number of steps"),
        ("%fork", "the following arguments are required: DIR"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_happens(notebook, line, message):
    assert notebook.fails(line).startswith(f"UsageError: {message}")
    assert notebook.learner.status == "ready"


def test_quotes_of_both_kinds_and_none_are_an_expression(notebook):
    for written in ("'step >= 0'", '"step >= 0"', "step>=0"):
        notebook.run(f"%%train --until {written}\n{BODY}")
    assert notebook.learner.position.step == 3


# --------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize(
    ("code", "offered", "not_offered"),
    [
        ("%%train --", {"--epochs", "--until", "--dry", "--export"}, {"learner", "print"}),
        ("%%train --epochs 1 --", {"--steps"}, {"--epochs"}),
        ("%%train --output ", {"classification", "none"}, {"--epochs", "print"}),
        ("%%train ", {"learner", "--epochs"}, {"print"}),
        ("%%train learner ", {"--epochs"}, {"learner"}),
        ("%%valid ", {"learner", "--output"}, {"--epochs"}),
        ("there = %step le", {"learner"}, set()),
        ("%fork r", set(), {"learner"}),
        ("%%train\n%step le", {"learner"}, set()),
        ("%%train learner\nlearner.re", {"rewind", "resume"}, set()),
        ("%%train learner\nx, y = batch\nloss = F.cross_ent", {"cross_entropy"}, {"--epochs"}),
    ],
)
@pytest.mark.parametrize("jedi", [True, False])
def test_tab(notebook, code, offered, not_offered, jedi):
    completer = notebook.shell.Completer
    completer.use_jedi = jedi
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        found = {each.text.lstrip(".") for each in completer.completions(code, len(code))}
    assert offered <= found and not found & not_offered


# ------------------------------------------------------------------------------------------ come and go


def registered(shell):
    return {kind: {*names} for kind, names in shell.magics_manager.magics.items()}


def test_loading_and_unloading_leave_no_trace(shell):
    magics, matchers = registered(shell), list(shell.Completer.custom_matchers)
    callbacks, hook = list(shell.events.callbacks["post_run_cell"]), sys.breakpointhook
    shell.run_line_magic("load_ext", "notebook_learner")
    added = {kind: names - magics[kind] for kind, names in registered(shell).items()}
    assert added == MAGICS and cells_may_come()
    assert len(shell.events.callbacks["post_run_cell"]) == len(callbacks) + 1
    shell.run_line_magic("unload_ext", "notebook_learner")
    assert registered(shell) == magics and not cells_may_come()
    assert list(shell.Completer.custom_matchers) == matchers
    assert list(shell.events.callbacks["post_run_cell"]) == callbacks
    assert sys.breakpointhook is hook


def test_reloading_does_not_double_anything(shell):
    shell.run_line_magic("load_ext", "notebook_learner")
    callbacks = len(shell.events.callbacks["post_run_cell"])
    shell.run_line_magic("reload_ext", "notebook_learner")
    assert len(shell.events.callbacks["post_run_cell"]) == callbacks
    assert len(shell.Completer.custom_matchers) == 1


def test_a_magic_that_somebody_else_put_there_since_stays(shell):
    shell.run_line_magic("load_ext", "notebook_learner")
    shell.register_magic_function(lambda line: "mine", "line", "step")
    shell.run_line_magic("unload_ext", "notebook_learner")
    assert shell.run_line_magic("step", "") == "mine"


@pytest.mark.parametrize("connected", [True, False])
def test_breakpoint_asks_the_debugger_where_one_is_connected(shell, monkeypatch, connected):
    called = []

    def debugpy_breakpointhook():
        called.append("debugpy")

    debugpy_breakpointhook.__module__ = "debugpy.server.api"
    monkeypatch.setattr(sys, "breakpointhook", debugpy_breakpointhook)
    monkeypatch.setitem(sys.modules, "debugpy", types.SimpleNamespace(is_client_connected=lambda: connected))
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.setattr("IPython.core.debugger.set_trace", lambda frame: called.append(frame.f_code.co_name))
    shell.run_line_magic("load_ext", "notebook_learner")
    breakpoint()
    shell.run_line_magic("unload_ext", "notebook_learner")
    here = "test_breakpoint_asks_the_debugger_where_one_is_connected"
    assert called == ["debugpy" if connected else here]
    assert sys.breakpointhook is debugpy_breakpointhook


def test_without_the_magics_a_model_needs_a_step_when_it_is_built(notebook):
    notebook.run("%unload_ext notebook_learner")
    cell = notebook.try_(LEARNER)
    assert "ConfigurationError" in cell.shown and "train_step" in cell.shown
