"""What a learner looks like in a notebook, and where: on a page, under a program, once per cell, and no more
once it is gone."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import pytest
from IPython.core.formatters import DisplayFormatter
from ipywidgets.widgets import widget
from jupyter_client.session import Session
from page_of_messages import learner_in
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.renderer.text import number
from notebook_learner.widget import notebook, notebook_renderer, still_panel
from notebook_learner.widget.notebook_renderer import NotebookRenderer
from notebook_learner.widget.panel_view import MIME, View

ON_A_PAGE = {"cellId": "5e1a", "deletedCells": []}


class Cells:
    """A kernel, as far as a display asks it: which cell runs, and what was published."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = dict(ON_A_PAGE)
        self.header: dict[str, Any] = {}
        self.content: dict[str, Any] = {"allow_stdin": False}
        self.published: list[dict[str, Any]] = []
        self.replaced: list[tuple[str, dict[str, Any]]] = []
        self.names: list[str] = []
        self.stills: list[tuple[str, bool, dict[str, Any]]] = []
        self.kernel = SimpleNamespace(get_parent=self._parent)
        self.begin("1")

    def begin(self, cell: str) -> None:
        self.header = {"msg_id": cell, "msg_type": "execute_request"}

    def end(self) -> None:
        self.header = {"msg_id": "click", "msg_type": "comm_msg"}

    def _parent(self, channel: str) -> dict[str, Any]:
        assert channel == "shell"
        return {"header": self.header, "metadata": self.metadata, "content": self.content}

    def publish(self, data: dict[str, Any], name: str, *, update: bool = False) -> None:
        if update:
            self.replaced.append((name, data))
        else:
            self.published.append(data)
            self.names.append(name)

    def panels(self) -> int:
        """How many panels were published."""
        return sum(MIME in data for data in self.published)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    here = Cells()
    monkeypatch.delenv(notebook.CHOICE, raising=False)
    monkeypatch.setattr(IPython, "get_ipython", lambda: here)
    monkeypatch.setattr(notebook, "publish", here.publish)

    def keep(data: dict[str, Any], metadata: dict[str, Any], name: str, update: bool) -> None:
        here.stills.append((name, update, data))

    monkeypatch.setattr(still_panel, "display", keep)
    return here


def shown(directory: Path) -> tuple[Learner, NotebookRenderer]:
    learner, renderer = learner_in(directory), NotebookRenderer()
    learner._shown_on(renderer)
    return learner, renderer


# ----------------------------------------------------------------------------------- who is at the other end


def test_outside_of_a_kernel_there_is_no_front_end_and_nothing_is_published(
    tmp_path: Path, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert notebook.front_end() == "none"
    assert notebook_renderer.display_of_page() is None
    learner, _ = shown(tmp_path)
    learner.fit()
    assert cells.published == cells.stills == []


# As cells of Notebook 6.5.7 and Voila 0.5.13 arrived at a kernel; the programs send by Session.
def test_classic_notebook_is_a_page_by_the_ids_of_its_messages(cells: Cells) -> None:
    cells.metadata = {}
    cells.begin("9e8432820323465b9d495998e540fdde")
    assert notebook.front_end() == "page"
    cells.begin(Session().msg("execute_request")["header"]["msg_id"])
    assert notebook.front_end() == "lines"


def test_voila_is_a_page_by_what_it_tells_its_kernels(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    cells.metadata = {}
    cells.begin("13e8adc1-d043bd36603edcf8521f5e0b_4267_3")
    assert notebook.front_end() == "lines"
    monkeypatch.setenv("VOILA_REQUEST_URL", "http://127.0.0.1:34193/")
    assert notebook.front_end() == "page"


@pytest.mark.parametrize("told", [{"cellId": "a"}, {"cell_id": "a"}, {"deletedCells": []}, {"colab": {}}])
def test_a_front_end_that_names_its_cells_is_a_page(cells: Cells, told: dict[str, Any]) -> None:
    cells.metadata = told
    assert notebook.front_end() == "page"
    assert isinstance(notebook_renderer.display_of_page(), NotebookRenderer)


@pytest.mark.parametrize("told", [{}, {"trusted": True}, None])
def test_a_program_that_only_runs_cells_is_none(cells: Cells, told: dict[str, Any]) -> None:
    cells.metadata = told
    assert notebook.front_end() == "lines"
    assert notebook_renderer.display_of_page() is None


@pytest.mark.parametrize(
    ("told", "chosen", "expected"),
    [({}, "page", "page"), (ON_A_PAGE, "lines", "lines"), (ON_A_PAGE, "neither", "page"), ({}, "", "lines")],
)
def test_a_variable_of_the_environment_overrules_it(
    cells: Cells, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], chosen: str, expected: str
) -> None:
    cells.metadata = told
    monkeypatch.setenv(notebook.CHOICE, chosen)
    assert notebook.front_end() == expected


def test_a_kernel_without_get_parent_is_asked_as_ipykernel_5_was(cells: Cells) -> None:
    cells.kernel = SimpleNamespace(_parent_header={"header": cells.header, "metadata": ON_A_PAGE})
    assert (notebook.front_end(), notebook.cell()) == ("page", "1")


# ------------------------------------------------------------------------------------------- what it shows


def test_what_became_of_an_earlier_run_stays_below_the_cell(
    tmp_path: Path, cells: Cells, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(tmp_path / "run")[0].fit(epochs=1)
    assert capsys.readouterr().out == ""
    learner, _ = shown(tmp_path / "run")
    learner.fit(epochs=1)
    said = capsys.readouterr().out
    assert (
        f"held a run, which is now in {str(tmp_path / 'run-1')!r}; .resume() on the builder goes on" in said
    )
    learner.inspect()  # is told in the panel's log, as all that comes later
    learner.fit(epochs=1)
    assert capsys.readouterr().out == ""


def test_on_a_page_a_fit_shows_one_panel_a_cell_and_one_picture_below_it(
    tmp_path: Path, cells: Cells, capsys: pytest.CaptureFixture[str]
) -> None:
    learner, renderer = shown(tmp_path)
    learner.fit(epochs=1)
    learner.fit(epochs=1)
    assert cells.panels() == 1
    first, table = cells.published
    assert "nl-saved" in table["text/html"] and table["text/plain"] == ""
    assert first[MIME]["model_id"] == renderer.bundle()[MIME]["model_id"]
    assert first["text/plain"] == ""
    assert len({name for name, *_ in cells.stills}) == 1
    cells.begin("2")
    learner.fit(epochs=1)
    assert cells.panels() == 2
    assert len({name for name, *_ in cells.stills}) == 2
    last = cells.stills[-1][2]
    assert last["image/png"].startswith(b"\x89PNG")
    assert last["text/plain"].startswith(f"{tmp_path.name} · finished at epoch 3")
    assert capsys.readouterr().out == ""


def test_training_that_a_button_began_appears_in_no_cell(tmp_path: Path, cells: Cells) -> None:
    learner, _ = shown(tmp_path)
    cells.end()
    learner.fit()
    assert cells.published == cells.stills == []


def test_under_a_program_there_are_lines_and_a_picture_and_no_panel(
    tmp_path: Path, cells: Cells, capsys: pytest.CaptureFixture[str]
) -> None:
    cells.metadata = {}
    learner, renderer = shown(tmp_path)
    learner.fit()
    assert cells.panels() == 0 and renderer.bundle() == {}
    said = capsys.readouterr().out
    assert "finished" in said and "Loss" in said
    assert cells.stills[-1][2]["image/png"].startswith(b"\x89PNG")


def test_the_picture_does_not_stand_between_the_lines_of_the_epochs(tmp_path: Path, cells: Cells) -> None:
    cells.metadata = {}
    learner, _ = shown(tmp_path)
    learner.fit()
    assert learner.num_epochs > 1
    assert len([data for *_, data in cells.stills if "image/png" in data]) == 1


def test_a_console_gets_no_picture_as_it_hands_each_to_a_viewer(tmp_path: Path, cells: Cells) -> None:
    cells.metadata, cells.content = {}, {"allow_stdin": True}  # nbclient says False
    learner, _ = shown(tmp_path)
    learner.fit()
    assert cells.stills == []


def test_a_front_end_that_was_never_built_is_told_once_and_lines_take_its_place(
    tmp_path: Path, cells: Cells, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unbuilt(monkeypatch, tmp_path / "nowhere")
    learner, renderer = shown(tmp_path / "run")
    learner.fit()
    assert renderer.bundle() == {} and cells.panels() == 0
    told = capsys.readouterr()
    said = told.out + told.err
    assert said.count("the front end of the panel is not there") == 1
    assert "npm run build" in said and "finished" in said


def unbuilt(monkeypatch: pytest.MonkeyPatch, static: Path) -> None:
    """As in a checkout without a built front end."""
    monkeypatch.setattr(notebook, "STATIC", static)
    notebook.script.cache_clear()
    notebook.style.cache_clear()
    monkeypatch.delitem(__import__("sys").modules, "notebook_learner.widget.panel_view")


@pytest.fixture(autouse=True)
def built_again() -> Iterator[None]:
    yield
    notebook.script.cache_clear()
    notebook.style.cache_clear()


def test_a_frozen_learner_leaves_its_picture_and_shows_no_panel_any_more(
    tmp_path: Path, cells: Cells
) -> None:
    learner, renderer = shown(tmp_path)
    learner.fit(epochs=2)
    drawn = len(cells.stills)
    learner.tools.freeze()
    assert len(cells.stills) == drawn + 1
    panels = [data for name, data in cells.replaced if name == cells.names[0]]
    assert panels == [{"text/plain": ""}]
    assert renderer.bundle() == {}
    assert MIME not in learner._repr_mimebundle_()
    learner.tools.freeze()
    cells.begin("2")
    learner.fit()
    assert cells.panels() == 1 and len(cells.stills) == drawn + 1
    assert panels == [data for name, data in cells.replaced if name == cells.names[0]]


def test_freezing_what_was_trained_in_no_cell_draws_it_there(tmp_path: Path, cells: Cells) -> None:
    learner = learner_in(tmp_path)
    learner.step(3)
    learner._shown_on(NotebookRenderer())
    learner.tools.freeze()
    ((_, update, data),) = cells.stills
    assert not update and data["image/png"].startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------- what it keeps


def test_learners_that_are_gone_take_their_panels_along(tmp_path: Path, cells: Cells) -> None:
    def trained(name: str) -> weakref.ref[NotebookRenderer]:
        learner, renderer = shown(tmp_path / name)
        learner.fit(epochs=1)
        return weakref.ref(renderer)

    trained("before")  # what the first one loads stays
    gc.collect()
    before = set(widget._instances)
    renderers = [trained(str(number)) for number in range(3)]
    gc.collect()
    assert set(widget._instances) == before
    assert [each() for each in renderers] == [None] * 3


def test_a_learner_that_is_gone_says_so_to_its_pages_before_the_panel_closes(
    tmp_path: Path, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(View, "send", lambda self, message: told.append(message.content))
    monkeypatch.setattr(View, "close", lambda self: told.append("closed"))
    learner, renderer = shown(tmp_path)
    del learner, renderer
    gc.collect()
    assert told == [{"type": "over"}, "closed"]


def test_at_the_end_of_the_process_a_panel_says_nothing(
    tmp_path: Path, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages would take it for a learner that was replaced, and take away how to go on."""
    made: list[Any] = []
    true = weakref.finalize

    def finalize(*given: Any) -> Any:
        made.append(true(*given))
        return made[-1]

    monkeypatch.setattr(notebook_renderer.weakref, "finalize", finalize)
    _kept = shown(tmp_path)
    assert [each.atexit for each in made] == [False]


def test_a_view_that_is_closed_leaves_nothing_behind() -> None:
    View(lambda content: None).close()  # what the first one leaves, all others share
    before = set(widget._instances)
    view = View(lambda content: None)
    made = weakref.ref(view._widget)
    assert len(widget._instances) == len(before) + 1
    view.close()
    view.close()
    assert set(widget._instances) == before
    del view
    gc.collect()
    assert made() is None


def test_a_view_can_be_made_after_all_widgets_were_closed() -> None:
    View(lambda content: None)
    widget.Widget.close_all()
    view = View(lambda content: None)
    assert view._widget.layout.model_id in widget._instances
    view.close()


def test_a_finished_fit_that_is_run_again_says_below_the_cell_what_to_do(
    cells: Cells, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner, _ = shown(tmp_path)
    learner.fit()
    capsys.readouterr()
    cells.begin("2")
    learner.fit()
    said = capsys.readouterr().out
    assert said.startswith("nothing was left to do: all ") and said.count("\n") == 1
    assert "fit(epochs=n)" in said and "learner.num_epochs = " in said
    cells.begin("3")
    learner.start()
    learner.wait()
    assert capsys.readouterr().out == said


def test_a_model_that_has_trained_before_is_told_of_below_the_cell(
    cells: Cells, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner, _ = shown(tmp_path / "one")
    learner.fit()
    model, optimizer, batch = learner.model, learner.optimizer, learner.batch
    assert capsys.readouterr().out == ""
    again = LearnerBuilder(tmp_path / "one").loss(F.cross_entropy).renderer(NotebookRenderer())
    again.build(model, optimizer, None, [batch]).fit()
    assert "warning: this model has been trained before" in capsys.readouterr().out


def test_a_picture_that_is_drawn_while_it_runs_says_what_it_is_of(cells: Cells, tmp_path: Path) -> None:
    """It may stay for long: nothing draws it at each step."""
    learner, _ = shown(tmp_path)
    learner._show()
    learner.run_until((2, 1))
    texts = [data["text/plain"].splitlines()[0] for *_, data in cells.stills if data["text/plain"]]
    assert texts[0].endswith("· as of epoch 2, train, step 0 of 10"), texts
    assert texts[-1].endswith("· paused at epoch 2, train, step 1 of 10")
    assert not [text for text in texts if "running" in text]


def test_a_run_that_a_button_began_ends_with_a_picture_of_its_end(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_renderer, "LONG", 0.0)
    learner, _ = shown(tmp_path)
    learner.run_until((1, 3))
    learner._show()
    learner.step()
    cells.end()
    learner.start()  # as the panel does it: no cell runs
    learner.wait()
    assert (
        cells.stills[-1][2]["text/plain"]
        .splitlines()[0]
        .endswith("· finished at epoch 3, valid, step 2 of 2")
    )


def test_epochs_are_in_a_table_below_the_panel_and_its_style_is_there_from_the_first(
    cells: Cells, tmp_path: Path
) -> None:
    learner, _ = shown(tmp_path)
    learner.fit()
    assert ["image/png" in cells.published[0], "<table>" in cells.published[1]["text/html"]] == [False] * 2
    assert "<style>" in cells.published[1]["text/html"]
    name, last = cells.replaced[-1]
    assert name == cells.names[1]
    rows = re.findall(r"<tr>(<td>.*?)</tr>", last["text/html"])
    assert [row[4:7] for row in rows] == ["1/3", "2/3", "3/3"]
    final = learner.history.epochs("Loss", "valid")[-1]
    assert f"<td>{number(final)}</td>" in rows[-1] and number(final) in last["text/plain"].splitlines()[-1]


def test_what_is_saved_beside_a_run_is_drawn_then_and_once(cells: Cells, tmp_path: Path) -> None:
    learner, renderer = shown(tmp_path)
    learner._show()
    learner.step(3)
    panel = renderer._panel
    assert panel is not None
    assert not panel.before_saving()  # a pause was drawn
    learner.step()
    assert "epoch 1, train, step 3 of 10" in cells.stills[-1][2]["text/plain"]
    assert panel.before_saving() and not panel.before_saving()
    assert "epoch 1, train, step 4 of 10" in cells.stills[-1][2]["text/plain"]


def test_short_runs_that_a_button_began_are_drawn_once_it_is_quiet(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Any] = []

    class LaterTimer:
        def __init__(self, seconds: float, work: Any) -> None:
            self.work = work

        def start(self) -> None:
            waiting.append(self)

        def cancel(self) -> None:
            waiting.remove(self)

    monkeypatch.setattr(notebook_renderer, "Timer", LaterTimer)
    monkeypatch.setattr(notebook_renderer, "LONG", 1e9)
    learner, _ = shown(tmp_path)
    learner.run_until((1, 3))
    learner._show()
    learner.step()
    cells.end()
    drawn = len(cells.stills)
    learner.step(2)
    learner.step(2)
    assert len(cells.stills) == drawn
    (timer,) = waiting
    timer.work()
    assert "epoch 1, train, step 8 of 10" in cells.stills[-1][2]["text/plain"]


def test_a_cell_that_shows_the_learner_has_table_and_picture_as_one_that_trains(
    cells: Cells, tmp_path: Path
) -> None:
    learner = learner_in(tmp_path)
    DisplayFormatter().format(learner)
    panel, table = cells.published
    assert MIME in panel and "nl-saved" in table["text/html"]
    assert cells.stills == [(cells.stills[0][0], False, {"text/plain": repr(learner)})]
    cells.end()
    learner.start()  # as the panel's Run
    learner.wait()
    name, update, picture = cells.stills[-1]
    assert (name, update) == (cells.stills[0][0], True)
    assert picture["image/png"].startswith(b"\x89PNG") and "finished at epoch 3" in picture["text/plain"]
    assert "3/3" in cells.replaced[-1][1]["text/html"]

    cells.begin("2")
    DisplayFormatter().format(learner.panel)
    assert cells.stills[-1] == (name, False, picture)  # another place of the same picture
    assert cells.panels() == 2
    data, _ = DisplayFormatter().format(learner)  # once more in that cell: the panel alone
    assert MIME in data and data["text/plain"] == repr(learner) and cells.panels() == 2


def test_a_fit_below_a_cell_that_shows_the_learner_has_its_picture_and_the_next_fit_another(
    cells: Cells, tmp_path: Path
) -> None:
    learner, _ = shown(tmp_path)
    learner._ipython_display_()
    cells.begin("2")
    learner.fit(epochs=1)
    assert len({name for name, *_ in cells.stills}) == 1
    cells.begin("3")
    learner.fit(epochs=1)
    assert len({name for name, *_ in cells.stills}) == 2


def test_where_no_cell_runs_the_learner_is_shown_by_its_bundle(cells: Cells, tmp_path: Path) -> None:
    learner, _ = shown(tmp_path)
    cells.end()
    data, _ = DisplayFormatter().format(learner)
    assert MIME in data and cells.panels() == 0


def test_a_verb_in_a_later_cell_leaves_the_picture_of_the_fit_as_it_was(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_renderer, "LONG", 0.0)
    learner, _ = shown(tmp_path)
    learner.fit()
    drawn = len(cells.stills)
    assert "· finished at" in cells.stills[-1][2]["text/plain"]
    cells.begin("2")
    learner.rewind(3)
    learner.step(2)
    assert len(cells.stills) == drawn
