"""An edited `%%train` cell: earlier steps are taken again by the cell of then, and the run goes on by the
one that the notebook shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from notebook_support import Notebook

from notebook_learner import Artifacts
from notebook_learner.errors import ConfigurationError
from notebook_learner.recipe import own_text

BUILD = """
from notebook_learner import LearnerBuilder
torch.manual_seed(0)
model = net(dropout=0.3)
builder = LearnerBuilder(folder / {!r}).num_epochs(3).seed(5).renderer("silent").with_file_checkpointer()
learner = builder.build(model, adam(model), None, batches())
total = 0.0
"""
FIRST = """
x, target = batch
output = model(x)
loss = F.cross_entropy(output, target)
""".strip()
SECOND = FIRST.replace("(output, target)", "(output * 0.5, target)")
COUNTING = """
x, target = batch
total = total + float(x.sum())
loss = F.cross_entropy(model(x), target) * (1 + 0.01 * total % 1)
""".strip()


def weights(notebook: Notebook) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in notebook.learner.model.parameters()])


def built(empty: Notebook, name: str) -> None:
    empty.run(BUILD.format(name))


def walked(notebook: Notebook, cells: dict[int, str], steps: int) -> dict[int, torch.Tensor]:
    """Take steps one by one; from each of these steps on by that cell."""
    learner = notebook.learner
    seen = {learner.position.iteration: weights(notebook)}
    while learner.position.iteration < steps:
        body = cells.get(learner.position.iteration)
        notebook.run(f"%%train --steps 1\n{body}" if body else "learner.step()")
        seen[learner.position.iteration] = weights(notebook)
    return seen


EDITS = {"a loss": SECOND, "values that go from step to step": COUNTING}
edited_in_each_way = pytest.mark.parametrize("edited", EDITS.values(), ids=EDITS)


@edited_in_each_way
@pytest.mark.parametrize("target", [2, 5])
def test_a_rewind_to_a_step_before_the_edit_gives_its_bits(edited: str, target: int, empty: Notebook) -> None:
    built(empty, "run")
    seen = walked(empty, {0: FIRST, 7: edited}, 12)
    report = empty.learner.rewind(to=target)
    assert report.exact, report
    assert torch.equal(weights(empty), seen[target])


@edited_in_each_way
def test_the_run_goes_on_by_the_cell_that_the_notebook_shows(
    edited: str, empty: Notebook, tmp_path: Path
) -> None:
    built(empty, "other")
    ways = walked(empty, {0: FIRST, 3: SECOND}, 9)
    built(empty, "run")
    walked(empty, {0: FIRST, 7: edited}, 9)
    empty.run(f"%%train --steps 1\n{SECOND}")
    empty.learner.rewind(to=3)
    assert torch.equal(walked(empty, {}, 9)[9], ways[9])
    assert empty.learner.rewind(to=2).exact, "the steps since the way back were taken by that cell"
    assert empty.learner.go_to("1").exact
    empty.run("learner.artifacts  # waits for the file")
    told = Artifacts(tmp_path / "run").recipe["changes"]
    [kept] = [each for each in told if each["text"] == "goes on with the present train_step"]
    assert kept["iteration"] == 3
    before, after = kept["changed"]["source.train_step"]
    assert "output * 0.5" in after and "output * 0.5" not in before


@edited_in_each_way
def test_the_past_is_asked_over_the_edits(edited: str, empty: Notebook) -> None:
    built(empty, "run")
    seen = walked(empty, {0: FIRST, 4: edited, 9: FIRST}, 12)
    empty.names["weights"] = lambda learner: weights(empty)
    answer: Any = empty.run("learner.ask(weights, steps=(2, 11))")
    assert answer.exact, answer.differs
    assert all(torch.equal(value, seen[number]) for number, value in enumerate(answer.value, 2))
    assert empty.learner.verify(replay=True).exact
    assert torch.equal(weights(empty), seen[12])


@edited_in_each_way
def test_each_branch_is_entered_by_its_own_cell(edited: str, empty: Notebook) -> None:
    built(empty, "run")
    first = walked(empty, {0: FIRST}, 10)
    empty.learner.rewind(to=5)
    second = walked(empty, {5: edited}, 9)
    assert empty.learner.go_to("1").exact and torch.equal(weights(empty), first[10])
    assert empty.learner.go_to("2").exact and torch.equal(weights(empty), second[9])


# In a new kernel -----------------------------------------------------------------------------------------


def resumed(empty: Notebook, cell: str, name: str = "run") -> None:
    empty.run("learner.save()\nlearner.artifacts  # waits for the files")
    empty.run(BUILD.format(name).replace(".with_file_checkpointer()", ".with_file_checkpointer().resume()"))
    empty.run(f"%%train --steps 1\n{cell}")


@pytest.mark.parametrize("target", [2, 6, 10])
def test_a_new_kernel_goes_back_by_its_cell_over_the_steps_of_the_former_one(
    target: int, empty: Notebook
) -> None:
    built(empty, "run")
    seen = walked(empty, {0: FIRST}, 10)
    resumed(empty, FIRST)
    walked(empty, {}, 12)
    answer: Any = empty.learner.ask(lambda learner: weights(empty), steps=(1, 10))
    assert answer.exact and all(torch.equal(each, seen[at]) for at, each in enumerate(answer.value, 1))
    report = empty.learner.rewind(to=target)
    assert report.exact, report
    assert torch.equal(weights(empty), seen[target])


def test_in_a_new_kernel_too_the_cell_before_an_edit_takes_the_steps_before_it(empty: Notebook) -> None:
    built(empty, "run")
    seen = walked(empty, {0: FIRST}, 6)
    resumed(empty, FIRST)
    seen |= walked(empty, {9: SECOND}, 11)
    for target in (10, 8, 3):
        assert empty.learner.rewind(to=target).exact
        assert torch.equal(weights(empty), seen[target])


def test_a_new_kernel_with_another_cell_takes_the_steps_before_by_the_cell_in_the_record(
    empty: Notebook,
) -> None:
    built(empty, "run")
    seen = walked(empty, {0: FIRST, 4: COUNTING}, 10)
    resumed(empty, SECOND)
    for target in (6, 3):
        assert empty.learner.rewind(to=target).exact
        assert torch.equal(weights(empty), seen[target])
    assert empty.learner._step_in_use("train").cell_text == SECOND, "what the notebook shows"


def resuming(arguments: str = "") -> str:
    """The cell that goes on with the run in a new kernel."""
    verbs = f".with_file_checkpointer().resume({arguments})"
    return BUILD.format("run").replace(".with_file_checkpointer()", verbs)


def resumed_at(empty: Notebook, place: int) -> None:
    """Go to a step in a new kernel that has run no cell."""
    empty.run("learner.save()\nlearner.artifacts  # waits for the files")
    empty.run(resuming(f"at={place}"))


@edited_in_each_way
@pytest.mark.parametrize("target", [3, 4, 8])
def test_a_new_kernel_resumes_at_a_step_by_the_cells_in_the_record(
    target: int, edited: str, empty: Notebook
) -> None:
    built(empty, "run")
    seen = walked(empty, {0: FIRST, 5: edited}, 10)
    resumed_at(empty, target)
    assert torch.equal(weights(empty), seen[target])


def test_from_there_the_run_goes_on_by_the_cell_of_then_until_another_one_is_run(empty: Notebook) -> None:
    built(empty, "other")
    ways = walked(empty, {0: FIRST, 4: SECOND}, 6)
    built(empty, "run")
    walked(empty, {0: FIRST, 5: COUNTING}, 8)
    resumed_at(empty, 3)
    walked(empty, {4: SECOND}, 6)
    assert torch.equal(weights(empty), ways[6])
    assert empty.learner.rewind(to=3).exact
    assert empty.learner.go_to("2").exact and torch.equal(weights(empty), ways[6])


def test_a_cell_that_is_run_as_it_is_in_the_record_is_no_edit(empty: Notebook) -> None:
    built(empty, "run")
    walked(empty, {0: FIRST}, 6)
    resumed_at(empty, 3)
    before = len(empty.learner.timeline)
    walked(empty, {3: FIRST}, 4)
    assert [each.text for each in empty.learner.timeline[before:] if each.kind == "edited"] == []


def test_the_kind_of_output_that_a_cell_was_given_is_in_the_record(empty: Notebook) -> None:
    built(empty, "run")
    empty.run(f"%%train --steps 3 --output sequence\n{FIRST}\nignore_index = -1")
    resumed_at(empty, 2)
    assert empty.learner._step_in_use("train").kind == "sequence"


# Of another user -----------------------------------------------------------------------------------------


@pytest.fixture
def as_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Call it to have the key of another user from then on."""

    def become() -> None:
        (tmp_path / "ipython of another").mkdir()
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython of another"))
        own_text._key.cache_clear()

    yield become
    own_text._key.cache_clear()


def test_the_cells_of_another_user_are_not_run(empty: Notebook, as_another_user: Callable[[], None]) -> None:
    built(empty, "run")
    empty.names["runs"] = []
    walked(empty, {0: f"runs.append(1)\n{FIRST}"} | {4: SECOND}, 6)
    empty.run("learner.save()\nlearner.artifacts  # waits for the files\ndel learner")
    as_another_user()
    empty.names["runs"] = []
    refused = empty.try_(resuming("at=2"))
    assert isinstance(refused.error, ConfigurationError)
    assert "were not run by you on this machine, so they are not run for you" in str(refused.error)
    assert "run a %%train cell" in str(refused.error) and empty.names["runs"] == []
    empty.run(resuming())
    empty.run(f"%%train --steps 1\n{SECOND}")
    report = empty.learner.rewind(to=2)
    assert not report.exact and "source.train_step" in str(report)


def test_the_key_lies_in_the_users_own_folder_and_only_the_user_can_read_it(
    as_another_user: Callable[[], None], tmp_path: Path
) -> None:
    mine = own_text.signature("loss = 0")
    as_another_user()
    other = own_text.signature("loss = 0")
    file = tmp_path / "ipython of another" / own_text.KEY
    assert mine is not None and other is not None and mine != other
    assert file.stat().st_mode & 0o777 == 0o600 and [*file.parent.iterdir()] == [file]
    own_text._key.cache_clear()
    assert own_text.signature("loss = 0") == other, "it is kept"


def test_without_a_key_no_text_is_the_users_own(as_another_user: Callable[[], None], tmp_path: Path) -> None:
    as_another_user()
    (tmp_path / "ipython of another" / own_text.KEY).write_bytes(b"cut off")
    assert own_text.signature("loss = 0") is None


def test_a_cell_that_takes_over_from_a_loss_at_the_beginning_again_is_a_change_there(empty: Notebook) -> None:
    built(empty, "run")
    first = walked(empty, {0: FIRST}, 7)
    empty.learner.rewind(to=0)
    second = walked(empty, {0: SECOND}, 5)
    assert empty.learner.go_to("1").exact and torch.equal(weights(empty), first[7])
    assert empty.learner.go_to("2").exact and torch.equal(weights(empty), second[5])
