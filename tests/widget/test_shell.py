"""Buttons act while a cell trains: seen from the page, with real kernels of several releases."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import EACH, WITH_SUBSHELLS, Page, python_of

WIDGET = Path(__file__).parents[2] / "notebook_learner" / "widget"

# The module is loaded without the package around it: the kernels of other releases have no torch.
SETUP = f"""
import logging, os, signal, sys, threading, time, types
package = types.ModuleType("under_test")
package.__path__ = [{str(WIDGET)!r}]
sys.modules["under_test"] = package
from under_test import shell
servicing = shell.servicing()
seen, order, comms, files = [], [], {{}}, []

def opened(comm, message):
    comms[comm.comm_id] = comm
    comm.on_msg(lambda message: exec(message["content"]["data"]["code"], globals()))

get_ipython().kernel.comm_manager.register_target("page", opened)

def steps(over):
    "Steps of a training, until something is so; a test that fails does not go on for ever."
    end = time.monotonic() + 30
    while not over() and time.monotonic() < end:
        yield time.sleep(0.001)

def train(over):
    with servicing.during():
        for _ in steps(over):
            servicing.serve()
    return over()

def told(what):
    return lambda: what in seen
"""
names = itertools.count()


@pytest.fixture(scope="module", params=EACH)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def opened(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(python_of(release), tmp_path_factory.mktemp("kernel"))
    page.run(SETUP)
    page.end(page.open_comm("main"))
    yield page
    page.leave()


@pytest.fixture
def page(opened: Page) -> Page:
    opened.run("servicing = shell.servicing(); seen.clear(); order.clear()")
    opened.heard.clear()
    return opened


def begin(page: Page, code: str) -> str:
    """A cell that has begun to run."""
    cell = page.begin(f"print('begun', flush=True)\n{code}")
    page.shows(cell, "begun")
    return cell


def do(page: Page, code: str, comm: str = "main", **header: str) -> str:
    """A click: its handler runs this code."""
    return page.tell(comm, {"code": code}, **header)


def lines(page: Page, message: str) -> list[str]:
    return [line for line in page.text(message).splitlines() if line != "begun"]


# -------------------------------------------------------------------------------------- while it trains


def test_this_kernel_is_served_at_step_boundaries(page: Page) -> None:
    assert page.run("print(repr(servicing.problem), servicing.mode)") == "'' boundary\n"


def test_a_click_acts_while_the_cell_trains(page: Page) -> None:
    cell = begin(page, "print(train(told('click')))")
    do(page, "seen.append('click')")
    page.end(cell)
    assert lines(page, cell) == ["True"]


def test_many_clicks_act_in_their_order(page: Page) -> None:
    cell = begin(page, "print(train(told(199)) and seen == list(range(200)))")
    for number in range(200):
        do(page, f"seen.append({number})")
    page.end(cell)
    assert lines(page, cell) == ["True"]


def test_what_came_before_the_training_began_is_handled_at_its_first_step(page: Page, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    cell = begin(page, f"for _ in steps(lambda: os.path.exists({str(sent)!r})): pass\nprint(train(told(1)))")
    do(page, "seen.append(1)")
    page.client.kernel_info()
    sent.touch()
    page.end(cell)
    assert lines(page, cell) == ["True"]


def test_a_page_that_is_loaded_again_gets_its_answers_and_opens_its_comms(page: Page) -> None:
    cell = begin(page, "print(train(told('opened')))")
    info = page.reply(page.ask("kernel_info_request", {}))
    open_comms = page.reply(page.ask("comm_info_request", {"target_name": "page"}))
    page.open_comm("again")
    do(page, "seen.append('opened')", comm="again")
    page.end(cell)
    assert info["implementation"] == "ipython"
    assert open_comms["comms"]["main"] == {"target_name": "page"}
    assert lines(page, cell) == ["True"]


def test_names_are_completed_and_explained_while_the_cell_trains(page: Page) -> None:
    cell = begin(page, "print(train(told('over')))")
    completed = page.reply(page.ask("complete_request", {"code": "servici", "cursor_pos": 7}))
    explained = page.reply(page.ask("inspect_request", {"code": "len", "cursor_pos": 3, "detail_level": 0}))
    tail = {"hist_access_type": "tail", "n": 1, "output": False, "raw": True}
    remembered = page.reply(page.ask("history_request", tail))
    do(page, "seen.append('over')")
    page.end(cell)
    assert "servicing" in completed["matches"]
    assert explained["found"]
    assert remembered["status"] == "ok"
    assert lines(page, cell) == ["True"]


def test_a_button_of_ipywidgets_works_too(page: Page) -> None:
    model = page.run(
        "import ipywidgets\nbutton = ipywidgets.Button()\n"
        "button.on_click(lambda button: seen.append('click'))\nprint(button.model_id)"
    ).strip()
    cell = begin(page, "print(train(told('click')))")
    page.tell(model, {"method": "custom", "content": {"event": "click"}})
    page.end(cell)
    assert lines(page, cell) == ["True"]


def test_an_error_in_a_handler_stops_neither_the_training_nor_the_next_click(page: Page) -> None:
    cell = begin(page, "print(train(told('next')), servicing.mode)")
    do(page, "seen.append('first'); 1 / 0")
    do(page, "seen.append('next')")
    page.end(cell)
    assert lines(page, cell) == ["True boundary"]


def test_a_handler_that_serves_or_trains_itself_finds_nothing_to_serve(page: Page) -> None:
    cell = begin(page, "print(train(told('outer')), seen)")
    do(page, "servicing.serve()\nwith servicing.during(): servicing.serve()\nseen.append('inner')")
    do(page, "seen.append('outer')")
    page.end(cell)
    assert lines(page, cell) == ["True ['inner', 'outer']"]


def test_another_thread_serves_nothing(page: Page, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    cell = begin(
        page,
        f"""
def serve():
    for _ in steps(lambda: os.path.exists({str(sent)!r})): servicing.serve()
    for _ in range(100): servicing._next = 0.0; servicing.serve()
with servicing.during():
    thread = threading.Thread(target=serve); thread.start(); thread.join()
    print(seen)
    for _ in steps(told(1)): servicing.serve()
print(seen)
""",
    )
    do(page, "seen.append(1)")
    page.client.kernel_info()
    sent.touch()
    page.end(cell)
    assert lines(page, cell) == ["[]", "[1]"]


# ------------------------------------------------------------------------------------- prints, busy


def test_prints_stay_with_their_cell_and_those_of_a_handler_with_its_message(page: Page) -> None:
    cell = begin(
        page,
        """
for _ in steps(lambda: len(seen) == 3):
    print("step before", len(seen)); print("to stderr", file=sys.stderr)
    with servicing.during():
        servicing.serve()
    print("step after")
display("shown")
""",
    )
    clicks = [do(page, f"print('handler {n}'); seen.append({n})") for n in range(3)]
    page.end(cell, *clicks)
    assert {line.rstrip("0123 ") for line in lines(page, cell)} == {"step before", "to stderr", "step after"}
    assert [page.text(click) for click in clicks] == ["handler 0\n", "handler 1\n", "handler 2\n"]
    assert [content["data"]["text/plain"] for content in page.of(cell, "display_data")] == ["'shown'"]


def test_the_kernel_is_busy_with_the_cell_after_each_message(page: Page) -> None:
    cell = begin(page, "print(train(told(1)))\ntime.sleep(0)")
    click = do(page, "seen.append(1)")
    page.end(cell)
    states = [
        (message["parent_header"]["msg_id"], message["content"]["execution_state"])
        for message in page.heard
        if message["msg_type"] == "status"
    ]
    served = states.index((click, "idle"))
    assert states[served - 1] == (click, "busy")
    assert states[served + 1 :] == [(cell, "busy"), (cell, "idle")]


# -------------------------------------------------------------------------------------- cells in line


def test_cells_sent_meanwhile_run_afterwards_in_their_order(page: Page, tmp_path: Path) -> None:
    last = tmp_path / "last"
    cells = [
        begin(
            page,
            f"train(told('over'))\n"
            f"for _ in steps(lambda: os.path.exists({str(last)!r})): pass\n"
            "train(told('again')); order.append('A')",
        )
    ]
    cells.append(page.begin("order.append('B')"))
    do(page, "order.append('click 1')")
    cells.append(page.begin("order.append('C')"))
    page.end(do(page, "order.append('click 2'); seen.append('over')"))
    cells.append(page.begin("order.append('D')"))  # while the same cell goes on without being served
    last.touch()
    cells.append(page.begin("order.append('E')"))
    page.end(do(page, "seen.append('again')"), *cells)
    assert page.run("print(*order)") == "click 1 click 2 A B C D E\n"


def test_what_comes_after_the_training_does_not_overtake_a_cell_that_waits(
    page: Page, tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    first = begin(
        page,
        "train(told('over'))\nprint('trained', flush=True)\n"
        f"for _ in steps(lambda: os.path.exists({str(sent)!r})): pass",
    )
    second = page.begin("order.append('B')")
    do(page, "seen.append('over')")
    page.shows(first, "trained")  # what comes while it still trains may act at once
    click = do(page, "order.append('click')")
    third = page.begin("order.append('C')")
    sent.touch()
    page.end(first, second, click, third)
    assert page.run("print(*order)") == "B click C\n"


def test_cells_that_waited_before_the_training_began_are_not_overtaken_either(
    page: Page, tmp_path: Path
) -> None:
    sent, late = tmp_path / "sent", tmp_path / "late"
    cells = [begin(page, f"for _ in steps(lambda: os.path.exists({str(sent)!r})): pass")]
    trains = page.begin(
        "print('training', flush=True)\ntrain(told('over'))\n"
        f"for _ in steps(lambda: os.path.exists({str(late)!r})): pass\n"
        "time.sleep(0.05)  # as above"
    )
    cells += [trains, *(page.begin(f"order.append({name!r})") for name in "BCDE")]
    sent.touch()
    page.shows(trains, "training")
    page.end(do(page, "seen.append('over')"))
    cells.append(page.begin("order.append('F')"))
    late.touch()
    page.end(*cells)
    assert page.run("print(*order)") == "B C D E F\n"


def test_after_the_training_nothing_is_left_behind(page: Page) -> None:
    look = """
kernel = get_ipython().kernel
stream = getattr(getattr(servicing._inbox, "_stream"), "_recv_callback")
print(signal.getsignal(signal.SIGINT), sorted(set(vars(kernel)) & {"pre_handler_hook", "post_handler_hook"}),
      stream, kernel.saved_sigint_handler, servicing.is_open)
"""
    before = page.run(look)
    cell = begin(page, "train(told(1))")
    waiting = page.begin("pass")
    do(page, "seen.append(1)")
    page.end(cell, waiting)
    assert page.run(look) == before
    page.end(do(page, "seen.append(2)"))
    assert page.reply(page.ask("kernel_info_request", {}))["status"] == "ok"
    assert page.run("print(seen)") == "[1, 2]\n"


# ----------------------------------------------------------------------------------------- interrupts


def test_an_interrupt_ends_the_cell_and_the_cells_behind_it_are_called_off(page: Page) -> None:
    cell = begin(page, "train(told('never'))")
    behind = page.begin("order.append('behind')")
    page.end(do(page, "seen.append(1)"))  # the cell behind was kept on the way to this
    page.manager.interrupt_kernel()
    page.end(cell)
    assert page.error(cell) is not None and page.error(cell).startswith("KeyboardInterrupt")
    assert page.reply(behind)["status"] == "aborted"
    page.end(do(page, "seen.append(2)"))
    assert page.run("print(seen, order, servicing.is_open)") == "[1, 2] [] False\n"


def test_an_interrupt_during_a_handler_is_raised_in_the_training_when_the_handler_is_done(page: Page) -> None:
    cell = begin(page, "train(told('never'))")
    do(page, "signal.raise_signal(signal.SIGINT); seen.append('handler done')")
    page.end(cell)
    assert page.error(cell) is not None and page.error(cell).startswith("KeyboardInterrupt")
    assert page.run("print(seen)") == "['handler done']\n"


def test_a_second_interrupt_breaks_off_a_handler_that_hangs(page: Page) -> None:
    cell = begin(page, "train(told('never'))")
    do(page, "for _ in range(2): signal.raise_signal(signal.SIGINT)\nseen.append('never')")
    page.end(cell)
    assert page.error(cell) is not None and page.error(cell).startswith("KeyboardInterrupt")
    assert page.run("print(seen, servicing.problem)") == "[] \n"


def test_the_training_keeps_its_own_interrupt_handler(page: Page) -> None:
    cell = begin(
        page,
        """
own = lambda number, frame: seen.append("own handler")
usual = signal.signal(signal.SIGINT, own)
print(train(told("own handler")), signal.getsignal(signal.SIGINT) is own)
signal.signal(signal.SIGINT, usual)
""",
    )
    page.end(do(page, "seen.append(1)"))
    page.manager.interrupt_kernel()
    page.end(cell)
    assert lines(page, cell) == ["True True"]


# ------------------------------------------------------------------------------------ off, or failing

UNTIL_SENT = """
with servicing.during():
    for _ in steps(lambda: os.path.exists({sent!r})): servicing.serve()
    for _ in range(50): time.sleep(0.002); servicing.serve()
print(seen, servicing.mode)
"""


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ("os.environ[shell.SWITCH] = 'off'", "del os.environ[shell.SWITCH]"),
        ("shell.disable()", "shell._disabled = False"),
    ],
    ids=["environment", "disable"],
)
def test_switched_off_a_click_acts_when_the_cell_is_over(
    page: Page, tmp_path: Path, release: str, off: str, on: str
) -> None:
    sent = tmp_path / "sent"
    page.run(off)
    cell = begin(page, UNTIL_SENT.format(sent=str(sent)))
    click = do(page, "seen.append('click')")
    sent.touch()
    page.end(cell, click)
    mode = "interrupt" if release.startswith("6") else "subshell"
    assert lines(page, cell) == [f"[] {mode}"]
    assert page.run(f"{on}\nprint(seen, servicing.mode)") == "['click'] boundary\n"


def test_switching_off_in_the_middle_of_a_training_ends_the_serving(page: Page) -> None:
    cell = begin(page, "print(train(lambda: not servicing.is_open), seen)")
    do(page, "shell.disable(); seen.append('off')")
    page.end(cell)
    assert lines(page, cell) == ["True ['off']"]
    page.run("shell._disabled = False")


@pytest.mark.parametrize(
    "part", ["servicing._inbox.next", "servicing._inbox.has_news", "shell.shell_streams._flush_prints"]
)
def test_when_serving_fails_the_training_goes_on_and_it_is_said_once(
    page: Page, tmp_path: Path, part: str
) -> None:
    sent = tmp_path / "sent"
    setup = f"""
reports = []
class Keep(logging.Handler):
    def emit(self, record): reports.append(record.getMessage())
log = logging.getLogger("notebook_learner")
log.addHandler(keep := Keep()); log.propagate = False
def broken(*args): raise RuntimeError("boom")
kept, {part} = {part}, broken
"""
    page.run(setup)
    cell = begin(page, UNTIL_SENT.format(sent=str(sent)) + "print(len(reports), reports[0])")
    click = do(page, "seen.append('click')")
    behind = page.begin("order.append('behind')")
    sent.touch()
    page.end(cell, behind)
    said, report = lines(page, cell)
    assert said.startswith("[] ") and not said.endswith("boundary")
    assert report.startswith("1 buttons act when the cell is over: ")
    assert report.endswith("RuntimeError: boom")
    if part == "servicing._inbox.has_news":  # nothing was taken out yet
        page.end(click)
        assert page.run("print(seen)") == "['click']\n"
    page.run(
        "shell.shell_streams._flush_prints = kept" if part == "shell.shell_streams._flush_prints" else ""
    )
    page.run("log.removeHandler(keep); log.propagate = True; shell._current = None")
    assert page.run("print(order, shell.servicing().mode)") == "['behind'] boundary\n"


def test_a_handler_that_waits_is_ended_when_the_cell_is_over(page: Page) -> None:
    page.run(
        """
import asyncio
kernel, gate = get_ipython().kernel, []
usual = kernel.shell_handlers["inspect_request"]
async def slow(*args):
    gate.append(asyncio.get_running_loop().create_future())
    await gate[0]
    order.append("went on")
    seen.append("ended")
kernel.shell_handlers["inspect_request"] = slow
"""
    )
    code = "print(train(lambda: bool(gate)), seen)\nawait asyncio.sleep(0)\ngate[0].set_result(1)"
    cell = begin(page, code)
    page.ask("inspect_request", {"code": "len", "cursor_pos": 3, "detail_level": 0})
    page.end(cell)
    assert lines(page, cell) == ["True []"]
    page.run('kernel.shell_handlers["inspect_request"] = usual')
    assert page.run("print(seen, order)") == "['ended'] ['went on']\n"


def test_it_looks_at_most_twenty_times_a_second(page: Page) -> None:
    looks, most = page.run(
        """
inbox, looks = servicing._inbox, 0
usual = inbox.has_news
def counted():
    global looks
    looks += 1
    return usual()
inbox.has_news = counted
begun = time.monotonic()
with servicing.during():
    for _ in range(100_000): servicing.serve()
    most = 1 + (time.monotonic() - begun) / shell.PAUSE
del inbox.has_news
print(looks, most)
"""
    ).split()
    assert 1 <= int(looks) <= float(most)


@pytest.mark.parametrize("release", WITH_SUBSHELLS, indirect=True)
def test_what_is_meant_for_a_subshell_is_handled_there(page: Page, release: str) -> None:
    subshell = page.new_subshell()
    page.open_comm("sub")
    cell = begin(page, "print(train(lambda: len(seen) == 2), sorted(seen))")
    where = "seen.append((NUMBER, threading.current_thread() is threading.main_thread()))"
    do(page, where.replace("NUMBER", "1"), comm="sub", subshell_id=subshell)
    do(page, where.replace("NUMBER", "2"))
    page.end(cell)
    assert lines(page, cell) == ["True [(1, False), (2, True)]"]


# ---------------------------------------------------------------------------------- without a kernel


def in_python(code: str) -> str:
    load = SETUP.partition("servicing =")[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", load + code], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def test_outside_a_kernel_there_is_none_and_nothing_is_loaded_to_find_out() -> None:
    loaded = "{'IPython', 'ipykernel', 'zmq', 'tornado'} & set(sys.modules)"
    assert in_python(f"print(shell.servicing(), {loaded})") == "None set()\n"


def test_in_ipython_without_a_kernel_there_is_none() -> None:
    assert in_python("import IPython; print(shell.servicing())") == "None\n"


def test_an_unknown_kernel_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    code = """
class Kernel: pass
servicing = shell.Servicing(Kernel())
with servicing.during(): servicing.serve()
print(servicing.mode, servicing.is_open, "|", servicing.problem)
"""
    mode, problem = in_python(code).split(" | ")
    assert mode == "interrupt False"
    assert problem == (
        "this kernel is of an unknown make: AttributeError: 'Kernel' object has no attribute 'shell_stream'\n"
    )
