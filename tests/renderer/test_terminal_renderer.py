"""The live display, on a console that records what it is told to draw."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest
from renderer_run import METRICS, block, one_epoch, one_pass, opened, play, status, whole_run
from renderer_screen import Screen
from rich.console import Console

from notebook_learner.event import MetricInfo, Notice, SplitStarted, StatusChanged
from notebook_learner.renderer import terminal as module
from notebook_learner.renderer.frame import frame
from notebook_learner.renderer.tally import Tally
from notebook_learner.renderer.terminal import TerminalRenderer


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=40, legacy_windows=False)


ROWS = """\
                  Loss                Accuracy %
  epoch       train      valid       train      valid         time
    1/3       1.000      1.500       90.00      85.00       500 ms
    2/3      0.5000     0.7500       95.00      92.50       500 ms
    3/3      0.3333     0.5000       96.67      95.00       500 ms"""


@pytest.fixture
def at_once(monkeypatch):
    """Draw at every event: time does not count."""
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setattr(module, "IDLE_PER_COST", 0.0)


@pytest.fixture
def renderer(console):
    renderer = TerminalRenderer(console)
    yield renderer
    renderer.close()


def screen(console):
    return Screen(console.file.getvalue())


def shown(events, width=100, height=40, encoding="utf-8"):
    """The display after these events."""
    tally = Tally()
    play(tally, events)
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(frame(tally, width, height, encoding), crop=False)
    return console.file.getvalue().rstrip("\n")


MIDDLE = [opened(), status("running"), *one_epoch(1), *one_epoch(2), *one_pass(3, "train")[:3]]


def test_the_display_tells_where_the_run_stands_and_what_it_measures():
    picture = [line.rstrip() for line in shown([*MIDDLE, Notice("checkpoint 2 saved")]).splitlines()]
    assert picture[0].startswith("Net · 1,234,567 parameters · runs/digits ")
    assert picture[0].endswith(" running")
    assert picture[1].startswith("epoch   3/3  ━")
    assert picture[1].endswith("─   83 %   < 1 s left")
    assert picture[2].startswith("train 20/40  ━")
    assert picture[2].endswith("─   50 %   < 1 s left · 100 steps/s · 3.2k samples/s")
    assert picture[3:] == [
        "",
        "metric            last batch  train so far  valid avg        best valid",
        "Loss                  0.3333        0.3333     0.7500  0.7500 (epoch 2)",
        "Accuracy       %       96.67         96.67      92.50   92.50 (epoch 2)",
        "Learning Rate           1e-3          1e-3",
        "",
        "Cuda  3.2 GB, 71 %",
        "checkpoint 2 saved",
    ]


def test_validation_has_its_own_bar_and_the_values_so_far():
    events = [opened(), status("running"), *one_pass(1, "train"), SplitStarted(1, "valid", 10, 3)]
    picture = shown([*events, block(1, "valid", count=5)])
    assert "valid 5/10  ━" in picture
    assert "1.500" in picture


def test_a_heading_says_whether_the_epoch_is_over():
    assert "last batch  train avg  valid so far" in shown(
        [opened(), status("running"), *one_pass(1, "train"), *one_pass(1, "valid")[:2]]
    )
    assert "last batch  train avg  valid avg" in shown([opened(), status("running"), *one_epoch(1)])


def test_a_loader_of_unknown_length_has_no_bar():
    picture = shown([opened(), status("running", total=None), SplitStarted(1, "train", None, 3), block(1)])
    assert picture.splitlines()[2].strip() == "train  10     100 steps/s · 3.2k samples/s"


def test_a_text_column_stays_empty_before_the_first_value():
    assert "NaN" not in shown([opened(), status("running")])


@pytest.mark.parametrize("width", [1, 2, 5, 10, 20, 39, 40, 41, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 40])
def test_the_display_never_leaves_the_terminal(width, height):
    names = (*METRICS, MetricInfo("数値 " * 30, "train"), MetricInfo("x" * 300, "valid", "furlongs", True))
    lines = shown(
        [opened(metrics=names, model="M" * 300), *MIDDLE[1:], Notice("n" * 300)], width, height
    ).splitlines()
    assert len(lines) <= height
    console = Console(width=width, file=io.StringIO())
    assert all(console.measure(line).maximum <= max(width, 1) for line in lines)


def test_at_forty_columns_the_averages_remain():
    picture = shown(MIDDLE, width=40)
    assert "metric         train so far  valid avg" in picture
    assert "Loss                 0.3333     0.7500" in picture


def test_metrics_that_do_not_fit_are_counted():
    infos = tuple(MetricInfo(f"metric {i}", "train") for i in range(50))
    assert "… and 41 more" in shown([opened(metrics=infos), status("running")], height=16)


def test_an_ascii_terminal_gets_ascii():
    picture = shown([*MIDDLE, Notice("β → ∞")], encoding="ascii")
    assert picture.isascii()
    assert "##" in picture
    assert "Net | 1,234,567 parameters" in picture


@pytest.mark.usefixtures("at_once")
def test_the_display_makes_room_for_the_summary(console, renderer):
    play(renderer, whole_run())
    assert screen(console).text == (
        f"{ROWS}\n"
        "finished after 1.5 s\n"
        "\n"
        "Net · 1,234,567 parameters\n"
        "  optimizer  Adam\n"
        "  epochs     3 of 3\n"
        "\n"
        "Split  Metric       Min.  Epoch     Max.  Epoch\n"
        "train  Accuracy  90.00 %      1  96.67 %      3\n"
        "train  Loss       0.3333      3    1.000      1\n"
        "valid  Accuracy  85.00 %      1  95.00 %      3\n"
        "valid  Loss       0.5000      3    1.500      1"
    )
    assert not screen(console).cursor_hidden


@pytest.mark.usefixtures("at_once")
def test_a_pause_leaves_one_line_and_running_on_brings_the_display_back(console, renderer):
    play(
        renderer,
        [opened(), status("running"), *one_pass(1, "train")[:2], status("paused", step=10, reason="■")],
    )
    line = "paused at epoch 1, train, step 10 of 40: ■ · last batch: Loss 1.000 · Accuracy 90.00 %"
    assert screen(console).text == line
    assert not screen(console).cursor_hidden
    play(renderer, [status("running", step=10), block(1, first=11)])
    text = screen(console).text
    assert text.startswith(line + "\nNet · ")
    assert "train 20/40" in text


def test_a_failure_says_why(console, renderer):
    play(
        renderer,
        [opened(), status("running"), status("failed", step=3, reason="RuntimeError: [/b] no\nmemory")],
    )
    assert screen(console).text == "failed at epoch 1, train, step 3 of 40: RuntimeError: [/b] no memory"


@pytest.mark.usefixtures("at_once")
def test_warnings_stay_in_the_scrollback(console, renderer):
    play(
        renderer,
        [Notice("[b]early[/b]"), opened(), status("running"), Notice("no [gpu]", "warning"), block(1)],
    )
    play(renderer, [Notice("soon gone"), status("stopped", step=10)])
    assert screen(console).text.splitlines() == [
        "[b]early[/b]",
        "warning: no [gpu]",
        "stopped at epoch 1, train, step 10 of 40",
    ]


@pytest.mark.usefixtures("at_once")
def test_each_epoch_leaves_a_line_above_the_display_in_the_width_of_the_terminal(console, renderer):
    console.width = 40
    play(
        renderer,
        [event for event in whole_run() if not isinstance(event, StatusChanged) or event.status == "running"],
    )
    lines = screen(console).text.splitlines()
    rows = [line for line in lines if line.lstrip().startswith(("1/3", "2/3", "3/3"))]
    assert len(rows) == 3 and all(len(line) <= 40 for line in rows)
    assert lines.index(rows[-1]) < next(at for at, line in enumerate(lines) if line.startswith("Net ")), (
        "the display"
    )


@pytest.mark.parametrize("prompt", [True, False])
def test_in_the_background_of_a_prompt_there_are_lines_and_nothing_moves(
    console, renderer, monkeypatch, prompt
):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    if not prompt:
        monkeypatch.delattr(sys, "ps1")
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    training = threading.Thread(target=play, args=(renderer, whole_run()))
    training.start()
    training.join()
    written = console.file.getvalue()
    assert "finished" in written and "3/3" in written
    assert ("\x1b[?25l" in written) == (not prompt), "a live display hides the cursor"


def test_names_with_markup_stay_text():
    name = "[red]x[/red]"
    picture = shown([opened(metrics=(MetricInfo(name, "train"),), model="[/]"), block(1, names=[name])])
    assert "[red]x[/red]" in picture
    assert picture.startswith("[/] · ")


def test_it_is_drawn_four_times_a_second_at_most(console, renderer):
    play(renderer, [opened(), status("running")])
    before = console.file.tell()
    for first in range(1, 2000):
        renderer.handle(block(1, first=first, count=1))
        if time.monotonic() > renderer._next:
            break
    drawn = console.file.getvalue()[before:].count("Net · ")
    assert drawn <= 1


def test_a_slow_terminal_is_drawn_less_often(renderer, console, monkeypatch):
    play(renderer, [opened(), status("running")])
    clock = iter([100.0, 100.05])  # drawing takes 50 ms
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    renderer._next = 0.0
    renderer.handle(block(1))
    assert renderer._next == pytest.approx(100.05 + 200 * 0.05)


def test_nothing_is_drawn_by_a_thread(renderer):
    import threading

    before = threading.active_count()
    play(renderer, [opened(), status("running")])
    assert threading.active_count() == before


def test_streams_are_restored_even_when_nobody_says_that_the_run_ended(renderer):
    out, err = sys.stdout, sys.stderr
    play(renderer, [opened(), status("running")])
    renderer.close()
    renderer.close()
    assert (sys.stdout, sys.stderr) == (out, err)


def test_another_learner_on_the_same_renderer_starts_afresh(console, renderer):
    play(renderer, whole_run())
    play(renderer, whole_run(model="Other"))
    assert screen(console).text.count("finished after 1.5 s") == 2


def test_a_console_that_is_no_terminal_gets_only_the_lines_that_stay():
    console = Console(file=io.StringIO(), width=100)
    play(TerminalRenderer(console), whole_run())
    text = console.file.getvalue()
    assert "\x1b" not in text
    assert text.startswith(f"{ROWS}\nfinished after 1.5 s\n")


def test_an_ascii_console_does_not_stop_the_training():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    console = Console(file=file, force_terminal=True, width=100, legacy_windows=False)
    play(TerminalRenderer(console), [Notice("β"), *whole_run(model="β · net")])
    assert "? | net | 1,234,567 parameters" in file.buffer.getvalue().decode("ascii")
    file.close()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), ValueError("I/O operation on closed file"), BrokenPipeError()]
)
def test_a_terminal_that_is_gone_does_not_stop_the_training(error, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    out = sys.stdout
    console = Console(file=Gone(), force_terminal=True, width=100, legacy_windows=False)
    monkeypatch.setattr(console, "on_broken_pipe", lambda: sys.exit(1))  # rich's own also closes our stdout
    play(TerminalRenderer(console), whole_run())
    assert sys.stdout is out
