"""The record of a run that a cell trains has the cell, its edit with the step, and the cells around it."""

from __future__ import annotations

import json
from pathlib import Path

from notebook_support import Notebook

from notebook_learner import Artifacts

BUILD = """
builder = LearnerBuilder(folder / "recorded").num_epochs(2).renderer("silent").with_file_checkpointer(){}
learner = builder.build(net(), sgd(net()), None, batches())
"""
FIRST = """
%%train --steps 2
x, target = batch  # as it was at first
output = model(x)
loss = F.cross_entropy(output, target)
""".strip()
EDITED = FIRST.replace("as it was at first", "edited").replace("(output, target)", "(output * 0.5, target)")


def trained(empty: Notebook, record: str = "") -> None:
    empty.run("earlier = 'before the builder'")
    empty.run("from notebook_learner import LearnerBuilder\nmodel = net()")
    empty.run(BUILD.format(record).replace("build(net(), sgd(net())", "build(model, sgd(model)"))
    empty.run(FIRST)
    empty.run("print('an output that nobody records')")
    empty.run(EDITED)
    empty.run("label = learner.save()")
    empty.run("learner.artifacts  # waits for the file")


def test_the_cell_its_edit_and_the_step_of_the_edit_are_recorded(empty: Notebook, tmp_path: Path) -> None:
    trained(empty)
    told = Artifacts(tmp_path / "recorded").recipe
    [edit] = told["changes"]
    assert (edit["iteration"], edit["text"]) == (2, "cell edited")
    before, after = edit["changed"]["source.train_step"]
    assert (
        before == told["source"]["train_step"]
        and "as it was at first" in before
        and "# edited" in after
        and "output * 0.5" in after
    )
    assert not before.startswith("#") and "%%train" not in before  # the body, and nothing else


def test_the_cells_since_the_builder_are_recorded_without_outputs(empty: Notebook, tmp_path: Path) -> None:
    trained(empty)
    told = Artifacts(tmp_path / "recorded").recipe
    assert told["cells"][4] == "label = learner.save()"  # the cell that ran when it was recorded
    assert told["cells"][0].strip().startswith("builder = ") and told["cells"][1] == FIRST
    assert "before the builder" not in json.dumps(told)
    assert "an output" in told["cells"][2]  # as it was typed


def test_no_cell_is_recorded_where_source_is_left_out(empty: Notebook, tmp_path: Path) -> None:
    trained(empty, ".record(source=False)")
    told = json.dumps(Artifacts(tmp_path / "recorded").recipe)
    assert "as it was at first" not in told and "output * 0.5" not in told
