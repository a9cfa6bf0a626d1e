"""Which renderer a learner gets, and what importing costs."""

from __future__ import annotations

import io
import subprocess
import sys
import types

import pytest

from notebook_learner.event import Sink
from notebook_learner.renderer import PlainRenderer, SilentRenderer, default_renderer, resolve
from notebook_learner.renderer.terminal import TerminalRenderer
from notebook_learner.widget.notebook_renderer import NotebookRenderer


class Terminal(io.StringIO):
    def isatty(self):
        return True


def in_terminal(monkeypatch, stdout=None, term="xterm-256color"):
    monkeypatch.setattr(sys, "stdout", stdout or Terminal())
    monkeypatch.setenv("TERM", term)


def test_each_name_gives_its_renderer():
    assert isinstance(resolve("plain"), PlainRenderer)
    assert isinstance(resolve("silent"), SilentRenderer)
    assert isinstance(resolve("terminal"), TerminalRenderer)


def test_every_renderer_is_a_sink():
    assert all(isinstance(resolve(name), Sink) for name in ("plain", "silent", "terminal", "auto", None))


def test_an_object_that_handles_events_is_taken_as_it_is():
    class Mine:
        def handle(self, event):
            pass

    mine = Mine()
    assert resolve(mine) is mine


@pytest.mark.parametrize("wrong", ["tui", 3, [], True])
def test_anything_else_is_told_what_exists(wrong):
    with pytest.raises(
        ValueError, match='use one of "auto", "panel", "terminal", "plain", "silent", or an object'
    ):
        resolve(wrong)


def test_a_class_instead_of_an_instance_is_told_so():
    with pytest.raises(ValueError, match=r"pass an instance: PlainRenderer\(\)"):
        resolve(PlainRenderer)


def test_a_pipe_gets_plain_lines():
    assert isinstance(default_renderer(), PlainRenderer)


def test_a_terminal_gets_the_live_display(monkeypatch):
    in_terminal(monkeypatch)
    assert isinstance(default_renderer(), TerminalRenderer)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch):
    in_terminal(monkeypatch, term="dumb")
    assert isinstance(default_renderer(), PlainRenderer)


def test_a_notebook_kernel_gets_the_panel(monkeypatch):
    in_terminal(monkeypatch)
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert isinstance(default_renderer(), NotebookRenderer)


def test_the_panel_can_be_asked_for():
    assert isinstance(resolve("panel"), NotebookRenderer)


@pytest.mark.parametrize("stdout", [None, object()])
def test_no_standard_output_at_all_is_no_terminal(monkeypatch, stdout):
    monkeypatch.setattr(sys, "stdout", stdout)
    assert isinstance(default_renderer(), PlainRenderer)


def test_importing_the_renderers_loads_neither_rich_nor_matplotlib():
    script = (
        "import sys; import notebook_learner.renderer\n"
        "print([name for name in ('rich', 'matplotlib', 'IPython') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
