"""What the body of a cell may do, what it may not, and what stays its own."""

from __future__ import annotations

import re
import traceback
import types

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from notebook_support import BODY

STEP = "%%train --steps 1\n"


def own_names(notebook):
    """What the notebook holds, without what IPython itself keeps of every cell."""
    return {
        name: id(value)
        for name, value in notebook.names.items()
        if not name.startswith("_") and name not in ("In", "Out")
    }


# ------------------------------------------------------------------------------------------ its own names

LINES = [
    "{a} = 1",
    "{a}, *{b} = 1, 2, 3",
    "for {a} in range(2): {b} = {a}",
    "with torch.no_grad() as {a}: {b} = 2",
    "import math as {a}",
    "import os.path",
    "from math import pi as {a}, tau",
    "def {a}(x): return x",
    "class {a}:\n    {b} = 1",
    "try: 1 / 0\nexcept ZeroDivisionError as {a}: {b} = 3",
    "{a}: int = 4",
    "if ({a} := 5) > 4: {b} = 6",
    "{a} = [({b} := i) for i in range(3)]",
    "{a} = [i for i in range(3)]; {a}[0] = 7",
    "match (1, 2):\n    case ({a}, {b}): pass",
    "{a} = 1\ndel {a}",
    "{a} = {b} = lambda {a}: {a}",
    "{a} = 1\n{a} += 1",
    "def {a}():\n    yield 1\n{b} = list({a}())",
]
NAMES = [
    "fresh",
    "scale",
    "model",
    "F",
    "len",
    "made",
    "make",
    "train_step",
    "output",
    "x",
    "batch",
    "helper",
]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(st.lists(st.tuples(st.sampled_from(LINES), *[st.sampled_from(NAMES)] * 2), min_size=1, max_size=4))
def test_no_statement_adds_to_the_notebook_or_changes_what_is_there(notebook, drawn):
    notebook.run("scale, x, output, made = 2.0, 'x', 'output', 'made'\ndef helper(): return scale")
    notebook.run("learner = quiet(folder / 'l').num_epochs(99).build(model, adam(model), None, batches())")
    notebook.shell.InteractiveTB.set_mode("Minimal")  # the others take a tenth of a second
    before = own_names(notebook)
    lines = "\n".join(line.format(a=a, b=b) for line, a, b in drawn)
    alone = STEP.replace("\n", " --no-export\n", 1)
    cell = notebook.try_(f"{alone}loss = model(batch[0]).sum()\n{lines}")
    assert own_names(notebook) == before
    # Lines that do not go together (a name is deleted, and then added to) fail as any code does.
    assert type(cell.error).__name__ in ("NoneType", "UnboundLocalError", "SyntaxError", "TypeError")
    assert "make" not in notebook.names and "__left__" not in notebook.names


def test_functions_of_other_cells_are_looked_up_when_they_are_called(notebook):
    notebook.run("scale = 1.0\ndef factor(): return scale")
    notebook.run(f"{STEP}{BODY}\nused = factor(), scale")
    notebook.run("scale = 3.0")
    notebook.run("%step")
    assert notebook.learner.locals["used"] == (3.0, 3.0)
    notebook.run("def factor(): return 'new'")
    notebook.run("%step")
    assert notebook.learner.locals["used"] == ("new", 3.0)


def test_scopes_inside_of_the_body_see_its_names(notebook):
    notebook.run(
        f"{STEP}x, y = batch\n"
        "total = 0\n"
        "def loss_of(scores):\n"
        "    nonlocal total\n"
        "    total += 1\n"
        "    return F.cross_entropy(scores, y)\n"
        "class Held:\n"
        "    rows = len(x)\n"
        "parts = [loss_of(model(x)) for _ in range(3)]\n"
        "pick = lambda i: parts[i]\n"
        "async def later(): return await x\n"
        "def numbers(): yield total\n"
        "output, target = model(x), y\n"
        "loss = pick(0) + sum(parts) / len({part for part in range(len(x))})\n"
    )
    values = notebook.learner.locals
    assert values["total"] == 3 and values["Held"].rows == 8 and len(values["parts"]) == 3
    assert isinstance(values["later"], types.FunctionType)


def test_builtins_that_the_notebook_overwrote_do_not_matter(notebook):
    notebook.run("locals = globals = vars = 3")
    notebook.run(f"{STEP}{BODY}")
    assert notebook.learner.position.step == 1
    notebook.run("del locals, globals, vars")


def test_line_magics_and_commands_work_in_the_body(notebook):
    cell = notebook.try_(f"{STEP}{BODY}\nlines = !echo two words\n!echo shown\n%time 1 + 1\n")
    assert cell.error is None
    assert list(notebook.learner.locals["lines"]) == ["two words"]
    assert "CPU times" in cell.shown


def test_futures_of_other_cells_hold_in_the_body(notebook):
    notebook.run("from __future__ import annotations")
    notebook.run(f"{STEP}{BODY}\ndef late(a: Missing): pass")
    assert notebook.learner.locals["late"].__annotations__ == {"a": "Missing"}


# -------------------------------------------------------------------------------------------- in one line

REFUSED = [
    ("return loss", "line 6: `return` does not end a step: "),
    ("if step: return", "line 6: `return` does not end a step: "),
    ("yield loss", "line 6: a step gives one `loss`, it does not `yield`"),
    ("\n\ny = yield", "line 8: a step gives one"),
    ("y = [(yield from x)]", "line 6: a step gives one"),
    ("await x", "line 6: a step is taken by the training loop, which cannot `await`"),
    ("async for a in x: pass", "line 6: a step is taken by the training loop, which cannot run `async for`"),
    ("async with x: pass", "line 6: a step is taken by the training loop, which cannot run `async with`"),
    (
        "y = [a async for a in x]",
        "line 6: a step is taken by the training loop, which cannot run `async for`",
    ),
    ("global count\ncount = 1", "line 6: `global count` would change the notebook's names from a step;"),
    ("def f():\n    global a, b", "line 7: `global a, b` would change the notebook's names"),
]


@pytest.mark.parametrize(("lines", "message"), REFUSED)
def test_what_has_no_place_in_a_step_is_told_in_one_line(notebook, lines, message):
    line = notebook.fails(f"\n{STEP}{BODY}\n{lines}")
    assert line.startswith(f"UsageError: {message}")
    assert notebook.learner.status == "ready"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%train\nx = 1", "the cell never assigns `loss`; let it leave a scalar tensor there"),
        ("%%train\ndef f():\n    loss = 1", "the cell never assigns `loss`"),
        ("%%train\nprint(loss)", "the cell never assigns `loss`"),
        ("%%valid\nx = 1", "the cell assigns neither `loss` nor `output`"),
        ("%%train\n\n   \n", "the cell has nothing below its %%train; write the step there"),
        ("%%train\n%%time\nloss = 1", "%%time inside of %%train is no part of a step; put it on top"),
        (
            "%%train --output regression\nloss = 1",
            "--output regression is made of `output` and `target`; the "
            "cell never assigns `output` and `target`",
        ),
        (
            "%%train --output sequence\nlogits = loss = 1",
            "--output sequence is made of `logits` and `target`; the cell never assigns `target`",
        ),
    ],
)
def test_a_body_that_cannot_be_a_step_is_told_in_one_line(notebook, cell, message):
    assert notebook.fails(cell).startswith(f"UsageError: {message}")


def test_a_mistake_in_the_syntax_is_shown_as_in_any_cell(notebook):
    cell = notebook.try_(f"%%train\n{BODY}\ny = = 3")
    assert "line 5" in cell.lines[0] and "y = = 3" in cell.lines[1]
    assert cell.lines[-1] == "SyntaxError: invalid syntax"
    assert "notebook_learner" not in cell.shown


def test_a_mistake_found_only_by_the_compiler_is_shown_the_same_way(notebook):
    cell = notebook.try_(f"%%train\n{BODY}\nbreak")
    assert "line 5" in cell.lines[0] and cell.lines[-1] == "SyntaxError: 'break' outside loop"


# -------------------------------------------------------------------------------------------- when it runs


def where(cell):
    """The line of the body that a traceback points at."""
    last = cell.shown.rindex("Cell In[")
    found = re.search(r"^-+> (.*)$", cell.shown[last:], re.MULTILINE)
    return found[1].strip() if found else "nowhere"


@pytest.mark.parametrize("above", ["", "\n\n", "%%time\n"])
@pytest.mark.parametrize("below", ["", "\n  \n\n", "# words\n%time 1\n"])
def test_a_traceback_points_at_the_cell_s_own_line(notebook, above, below):
    code = f"{above}%%train\n{below}{BODY}\n\nmissing()  # here\nlast = 1"
    cell = notebook.try_(code)
    number = [i for i, line in enumerate(code.splitlines(), 1) if "# here" in line]
    assert "NameError" in cell.shown  # `%%time` of IPython 8 shows the error, and the cell has none
    assert where(cell) == f"{number[0]} missing()  # here"


def test_a_loss_that_was_left_on_one_way_only_is_told_with_the_cell(notebook):
    cell = notebook.try_(
        "%%train\nx, y = batch\nif step == 1:\n    loss = F.cross_entropy(model(x), y)\nlast = 1"
    )
    assert where(cell) == "5 last = 1"
    assert "StepError: the cell has left no `loss` in this step" in cell.shown


@pytest.mark.parametrize(
    ("loss", "message"),
    [("3.5", "the loss is a float"), ("model(batch[0])", "the loss has shape (8, 3)"), ("None", "is None")],
)
def test_a_loss_that_is_none_is_told(notebook, loss, message):
    cell = notebook.try_(f"%%train\nloss = {loss}")
    assert type(cell.error).__name__ == "LossError" and message in cell.shown


def test_a_name_of_the_notebook_that_the_body_assigns_too_is_explained(notebook):
    notebook.run("scale = 2.0")
    cell = notebook.try_(f"%%train\n{BODY}\nfor _ in ():\n    scale = 1\nprint(scale)")
    assert "the cell assigns 'scale', so it is the step's own name all through the cell" in str(cell.error)
    cell = notebook.try_(f"%%train\n{BODY}\nprint(unknown)\nunknown = 1")
    assert "step's own name" not in str(cell.error)


def test_a_form_feed_is_no_line(notebook):
    cell = notebook.try_(f"%%train --export\n{BODY}\ntext = '\x0c'\nif step == 1:\n    missing()")
    *_, last = traceback.extract_tb(cell.error.__traceback__)
    assert (last.lineno, notebook.names["text"]) == (7, "\x0c")


def test_called_by_code_it_works_with_lines_of_its_own(notebook):
    notebook.run("ip = get_ipython()")
    notebook.run(f"ip.run_cell_magic('train', '--steps 1', {BODY!r})")
    assert notebook.learner.position.step == 1
    cell = notebook.try_("ip.run_cell_magic('train', '', 'loss = 1\\nmissing()')")
    assert where(cell) == "3 missing()"
