"""The live display in a process of its own, on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from renderer_screen import Screen

HERE = Path(__file__).parent
START = f"""
import sys, time
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]
from renderer_run import *
from notebook_learner.event import Notice
from notebook_learner.renderer import default_renderer, terminal
terminal.INTERVAL = terminal.IDLE_PER_COST = 0.0
renderer = default_renderer()
assert type(renderer).__name__ == "TerminalRenderer"
"""


def run(script, *, width=100, height=30, stderr_to_file=None, code=0):
    """What the script wrote to its terminal."""
    controller, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", "COLUMNS": "", "LINES": ""}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", START + script],
        stdin=end,
        stdout=end,
        stderr=end if stderr_to_file is None else stderr_to_file,
        env=environment,
        close_fds=True,
    )
    os.close(end)
    output = b"".join(_chunks(controller))
    os.close(controller)
    assert process.wait() == code, output.decode()
    return output.decode()


def _chunks(descriptor):
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the other end is closed
            return
        if not chunk:
            return
        yield chunk


def clean(output):
    """The final screen, of which nothing of the display may be left."""
    assert "\x1b[?25l" in output, "the display was never up"
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    screen = Screen(output)
    assert not screen.cursor_hidden
    assert "━" not in screen.text
    assert "─" not in screen.text
    return screen.text


def test_a_run_leaves_a_line_per_epoch_and_its_summary_and_nothing_else():
    text = clean(run("play(renderer, whole_run())"))
    rows, finished, summary = text.partition("finished after 1.5 s\n\n")
    assert [row.split()[0] for row in rows.splitlines()] == ["Loss", "epoch", "1/3", "2/3", "3/3"]
    assert finished and summary.startswith("Net · 1,234,567 parameters\n")
    assert text.endswith("valid  Loss       0.5000      3    1.500      1")


@pytest.mark.parametrize("width", [40, 20, 7])
def test_a_narrow_terminal_is_left_clean_as_well(width):
    text = clean(run("play(renderer, whole_run())", width=width))
    lines = text.splitlines()
    assert lines[5].startswith("finished after 1.5 s"[:width]), "two headings and three epochs, each one line"


def test_a_low_terminal_is_left_clean_as_well():
    clean(run("play(renderer, whole_run())", height=4))


def test_prints_appear_above_the_display_in_order():
    script = """
play(renderer, [opened(), status("running")])
for step in range(1, 4):
    print("user", step)
    print("half", end=" ", flush=True)
    renderer.handle(block(1, first=step, count=1))
    print("[/b] and the other half")
print("to stderr", file=sys.stderr)
print("x" * 250)
assert sys.stdout.encoding == "utf-8" and sys.stdout.isatty() and sys.stdout.fileno() == 1
sys.stdout.buffer
renderer.handle(status("paused", step=3))
print("after")
"""
    lines = clean(run(script)).splitlines()
    expected = [line for step in (1, 2, 3) for line in (f"user {step}", "half [/b] and the other half")]
    assert lines[:8] == [*expected, "to stderr", "x" * 250]
    assert lines[8].startswith("paused at epoch 1, train, step 3 of 40")
    assert lines[9:] == ["after"]


def test_rich_prints_appear_above_the_display_too():
    script = """
import rich
play(renderer, [opened(), status("running"), block(1)])
rich.print("[b]bold[/b] news")
renderer.handle(status("stopped", step=10))
"""
    assert clean(run(script)).splitlines() == ["bold news", "stopped at epoch 1, train, step 10 of 40"]


def test_a_crash_that_nobody_announced_leaves_the_traceback_and_a_clean_terminal():
    script = """
play(renderer, [opened(), status("running"), block(1)])
raise RuntimeError("[red]out of memory[/red]")
"""
    text = clean(run(script, code=1))
    assert text.splitlines()[0] == "Traceback (most recent call last):"
    assert text.splitlines()[-1] == "RuntimeError: [red]out of memory[/red]"


def test_a_failure_that_was_announced_leaves_the_reason_and_the_traceback():
    script = """
play(renderer, [opened(), status("running"), block(1), status("failed", step=10, reason="no memory")])
raise RuntimeError("no memory")
"""
    text = clean(run(script, code=1))
    assert text.splitlines()[0] == "failed at epoch 1, train, step 10 of 40: no memory"
    assert text.splitlines()[-1] == "RuntimeError: no memory"


def test_ctrl_c_leaves_a_clean_terminal():
    script = """
import os, signal
play(renderer, [opened(), status("running"), block(1)])
os.kill(os.getpid(), signal.SIGINT)
time.sleep(5)
"""
    assert clean(run(script, code=-2)).splitlines()[-1] == "KeyboardInterrupt"


def test_sys_exit_leaves_a_clean_terminal():
    script = 'play(renderer, [opened(), status("running"), block(1)])\nprint("half", end="")\nsys.exit(3)'
    assert clean(run(script, code=3)) == "half"


def test_a_forked_worker_that_ends_does_not_clear_the_screen_of_its_parent():
    script = """
import os
play(renderer, [opened(), status("running"), block(1)])
sys.stdout.flush()
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
renderer.handle(block(1, first=11))
renderer.handle(status("stopped", step=20))
"""
    output = run(script)
    assert output.count("\x1b[?25h") == 1
    assert clean(output) == "stopped at epoch 1, train, step 20 of 40"


def test_a_redirected_stderr_keeps_its_file(tmp_path):
    script = """
play(renderer, [opened(), status("running")])
print("to the file", file=sys.stderr)
renderer.handle(status("stopped"))
"""
    with open(tmp_path / "err", "w") as file:
        assert "to the file" not in clean(run(script, stderr_to_file=file))
    assert (tmp_path / "err").read_text() == "to the file\n"


def test_pausing_and_running_again_many_times_leaves_one_line_each():
    script = """
renderer.handle(opened())
for step in range(1, 6):
    play(renderer, [status("running", step=step - 1), block(1, first=step, count=1)])
    renderer.handle(status("paused", step=step))
"""
    lines = clean(run(script)).splitlines()
    assert [line.split(" of ")[0] for line in lines] == [
        f"paused at epoch 1, train, step {n}" for n in range(1, 6)
    ]
