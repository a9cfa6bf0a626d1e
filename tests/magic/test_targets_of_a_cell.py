"""Metrics find the targets of a cell: by their name, or as the batch's second part; in doubt they ask."""

from __future__ import annotations

import ast

import pytest

from notebook_learner.magic.cell_body import _outside_of_functions, targets_in

# A cell's lines | what holds its targets | else what may be them
CELLS = [
    # the batch is a pair, whatever the names
    ("x, y = batch", "y", ""),
    ("(x, y) = batch", "y", ""),
    ("[images, labels] = batch", "labels", ""),
    ("x, target = batch", "target", ""),
    ("_, y = batch", "y", ""),
    ("x, y = batch[0], batch[1]", "y", ""),
    ("x = batch[0]\ny = batch[1]", "y", ""),
    ("y: torch.Tensor = batch[1]", "y", ""),
    ("if step:\n    x, y = batch\nelse:\n    x, y = batch", "y", ""),
    ("with torch.no_grad():\n    x, y = batch", "y", ""),
    ("x, y = batch\nx, y = x.to('cpu'), y.to('cpu').long()", "y", ""),
    ("x, y = batch[0].float(), batch[1].float().unsqueeze(1)", "y", ""),
    ("x, y = batch\nlater = [y for y in (1, 2)]\ndef f(y): y = 3", "y", ""),
    # a dict that says which one it is
    ("x, y = batch['image'], batch['label']", "y", ""),
    ("ids, mask, right = batch['ids'], batch['mask'], batch['labels']", "right", ""),
    ("right = batch['labels']", "right", ""),
    ("found = batch['target'].to('cpu')", "found", ""),
    ("a, b = batch['label'], batch['target']", None, "a b"),
    # a name that says it counts more
    ("x, y = batch\ntargets = y[::2]", "targets", ""),
    ("x, y = batch\ntarget = y[::2]", "target", ""),
    ("a, b, target = batch", "target", ""),
    # in doubt none
    ("x, y, z = batch", None, "y z"),
    ("x, y = batch[0], batch[2]", None, "y"),
    ("x, y = batch[0], batch[-1]", None, "y"),
    ("x, *y = batch", None, ""),
    ("x, (y, z) = batch", None, ""),
    ("x, y = batch\nz = batch[1]", None, "y z"),
    ("x, y = batch\ny = F.one_hot(y, 3)", None, "y"),
    ("x, y = batch\ny = y + 1", None, "y"),
    ("x, y = batch\ny += 1", None, "y"),
    ("x, y = batch\nfor y in range(3): pass", None, "y"),
    ("x, y = batch\ndel y", None, "y"),
    ("x, y = prepared(batch)", None, ""),
    ("x, y = other", None, ""),
    ("words = batch['words']", None, "words"),
    ("count = batch[1].shape[0]", None, ""),
    ("x = batch", None, ""),
    ("def f():\n    x, y = batch", None, ""),
]


@pytest.mark.parametrize(("cell", "name", "possible"), CELLS)
def test_a_name_is_taken_where_there_is_no_doubt(cell, name, possible):
    found = targets_in(_outside_of_functions(ast.parse(cell)), "batch")
    assert (found.name, " ".join(found.possible)) == (name, possible)


STEP = "output = model({x})\nloss = F.cross_entropy(output, {y})"
PAIRS = [
    ("x, y = batch", "x", "y"),
    ("images, labels = batch", "images", "labels"),
    ("(x, y) = batch", "x", "y"),
    ("x, y = batch[0], batch[1]", "x", "y"),
]


@pytest.mark.parametrize(("line", "x", "y"), PAIRS)
def test_accuracy_of_a_cell_is_that_of_a_function(notebook, line, x, y):
    cell = f"{line}\n{STEP.format(x=x, y=y)}"
    dry = notebook.run(f"%%train --dry\n{cell}")
    assert y in dry.values
    notebook.run(f"%%valid\n{cell}")
    notebook.run(f"%%train\n{cell}")
    cells = {
        split: notebook.learner.history.epochs("Accuracy", split).tolist() for split in ("train", "valid")
    }
    notebook.run(
        "torch.manual_seed(0)\nmodel = net(dropout=0.3)\n"
        "learner = (quiet(folder / 'other').num_epochs(2).seed(5).metrics(Loss(), Accuracy())"
        ".loss(F.cross_entropy).build(model, adam(model), None, batches(), batches()[:2]))\nlearner.fit()"
    )
    functions = {split: notebook.learner.history.epochs("Accuracy", split).tolist() for split in cells}
    assert cells == functions
    assert len(cells["valid"]) == 2


def test_the_label_of_a_dict_is_found(notebook):
    notebook.run(
        "data = [{'image': x, 'label': y} for x, y in batches()]\n"
        "learner = quiet(folder / 'd').metrics(Loss(), Accuracy()).build(model, adam(model), None, data)"
    )
    cell = "x, y = batch['image'], batch['label']\n" + STEP.format(x="x", y="y")
    notebook.run(f"%%train --steps 1\n{cell}")
    assert notebook.learner.output.targets is notebook.learner.locals["y"]


THREE = "x, index, y = batch\n" + STEP.format(x="x", y="y")


@pytest.mark.parametrize("options", ["", "--dry", "--steps 1"])
def test_in_doubt_the_error_says_which_names_to_set(notebook, options):
    notebook.run(
        "data = [(x, torch.arange(len(x)), y) for x, y in batches()]\n"
        "learner = quiet(folder / 't').metrics(Loss(), Accuracy()).build(model, adam(model), None, data)"
    )
    cell = notebook.try_(f"%%train {options}\n{THREE}")
    assert "OutputError: Accuracy needs `targets`" in cell.shown
    assert "write `target = index` or `target = y` into the cell" in cell.shown
    notebook.run(f"%%train {options}\n{THREE}\ntarget = y")


def test_a_kind_that_is_asked_for_takes_the_second_part(notebook):
    notebook.run(f"%%train --steps 1 --output classification\nx, y = batch\n{STEP.format(x='x', y='y')}")
    assert notebook.learner.output.targets is notebook.learner.locals["y"]
    line = notebook.fails(f"%%train --steps 1 --output classification\n{THREE}")
    assert "never assigns `target`. Which part" in line and "`target = index` or `target = y`" in line


def test_a_lone_number_is_no_target_of_samples(notebook):
    notebook.run(
        "data = [(x, torch.tensor(1.0)) for x, y in batches()]\n"
        "learner = quiet(folder / 'n').metrics(Loss()).build(model, adam(model), None, data)"
    )
    notebook.run("%%train --steps 2\nx, y = batch\noutput = model(x)\nloss = (output.mean() - y) ** 2")
    assert notebook.learner.history.steps("train")["step"].tolist() == [1, 2]
