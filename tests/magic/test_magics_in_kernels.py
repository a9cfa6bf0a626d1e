"""`%%train` in real kernels, old and new: the cell's own lines in tracebacks, debuggers and breakpoints."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from kernels import INSTALLED, PATIENCE, Page, python_of

HERE = Path(__file__).parent
OFFER = "Net changed: learner.tools.reload_code() gives the model in training the new methods\n"
RELEASES = [INSTALLED, pytest.param("6.17.1", marks=pytest.mark.soak)]
"""The one that these tests run with, and the oldest: IPython 7.34, as Colab has it."""

SETUP = f"""
import sys
# Behind the kernel's own packages, of which it has no torch.
sys.path += [{sysconfig.get_path("purelib")!r}, {str(HERE.parents[1])!r}, {str(HERE.parent / "learner")!r}]
import torch, warnings
torch.set_num_threads(1)
import torch.nn.functional as F
from builder_support import adam, batches, net, quiet
%load_ext notebook_learner
"""
LEARNER = """
model = net()
learner = quiet({folder!r}).num_epochs(3).build(model, adam(model), None, batches())
"""
# Line 4 goes wrong at the third step.
FAILING = """%%train learner
x, target = batch
output = model(x)
checked = 1 / (2 - step)
loss = F.cross_entropy(output, target)
"""
SOUND = FAILING.replace("1 / (2 - step)", "step")


@pytest.fixture(scope="module", params=RELEASES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(python_of(str(request.param)), tmp_path_factory.mktemp("kernel"))
    page.run(SETUP)
    yield page
    page.leave()


@pytest.fixture
def page(opened: Page, tmp_path: Path) -> Page:
    opened.heard.clear()
    opened.run(LEARNER.format(folder=str(tmp_path / "run")))
    return opened


def traceback(page: Page, code: str) -> str:
    """What a cell that fails shows, without colours."""
    cell = page.begin(code)
    page.end(cell)
    page.run("pass")  # until the kernel takes cells again: it calls off what comes too soon after this one
    (error,) = page.of(cell, "error")
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))


def test_this_is_the_release_that_is_meant(page: Page, request: pytest.FixtureRequest) -> None:
    version = page.run("import IPython; print(IPython.__version__)")
    assert ("7.34" in version) == ("6.17.1" in request.node.name)


def test_a_cell_trains_to_the_end(page: Page) -> None:
    page.run(SOUND)
    assert page.run("print(learner.status, learner.position)") == "finished epoch 3, train, step 4 of 4\n"


def test_the_traceback_shows_the_line_of_the_cell(page: Page) -> None:
    shown = traceback(page, FAILING)
    assert re.search(r"\n-+> 4 checked = 1 / \(2 - step\)\n", shown), shown
    assert re.search(r"\n +2 x, target = batch\n", shown), shown
    assert "ZeroDivisionError" in shown
    assert page.run("print(learner.position.step, learner.status)") == "2 failed\n"
    page.run(SOUND)
    assert page.run("print(learner.status)") == "finished\n"


def test_debug_afterwards_stands_in_the_frame_of_the_body(page: Page) -> None:
    traceback(page, FAILING)
    cell = page.client.execute("%debug", allow_stdin=True)
    shown = answers(page, cell, ["p ('here', step, tuple(x.shape), tuple(output.shape))", "q"])
    assert "('here', 2, (8, 6), (8, 3))" in shown
    assert re.search(r"----> 4 checked", shown), shown


def test_pdb_opens_there_by_itself(page: Page) -> None:
    page.run("%pdb on")
    cell = page.client.execute(FAILING, allow_stdin=True)
    shown = answers(page, cell, ["p ('here', step, tuple(output.shape))", "q"])
    page.run("%pdb off")
    assert "('here', 2, (8, 3))" in shown


def test_breakpoint_stops_in_the_body_and_training_goes_on(page: Page) -> None:
    code = SOUND.replace("checked = step", "if step == 1: breakpoint()")
    cell = page.client.execute(code.replace("learner\n", "learner --steps 3\n", 1), allow_stdin=True)
    shown = answers(page, cell, ["p ('here', step, tuple(output.shape))", "c"])
    assert "('here', 1, (8, 3))" in shown
    assert page.run("print(learner.position.step)") == "3\n"


def answers(page: Page, cell: str, lines: list[str]) -> str:
    """Give a debugger its lines, one for each time that it asks; all that it printed."""
    for line in lines:
        try:
            asked = page.client.get_stdin_msg(timeout=PATIENCE)
        except Empty:
            pytest.fail(f"the debugger did not ask; {page.text(cell)}")
        assert asked["msg_type"] == "input_request"
        page.client.input(line)
    page.end(cell)
    return re.sub(r"\x1b\[[0-9;]*m", "", page.text(cell))


def test_steps_that_run_again_show_nothing_a_second_time(page: Page) -> None:
    page.run(
        "import logging, pdb, sys, tqdm, matplotlib.pyplot as plt\n"
        "from IPython.display import clear_output, display"
    )
    page.run("%matplotlib inline\nbar = tqdm.tqdm(total=100)")
    shows = """%%train learner --steps 3
x, target = batch
display({"text/plain": "displayed"}, raw=True)
print("printed", step)
print("to stderr", file=sys.stderr)
warnings.warn(f"warned {step}")
logging.getLogger().warning("logged")
bar.update(); bar.refresh()
plt.plot([1, 2])
if "again" in globals(): clear_output(); breakpoint(); pdb.set_trace()
loss = F.cross_entropy(model(x), target)
"""
    cell = page.begin(shows)
    page.end(cell)
    first = page.text(cell)
    for each in ("printed 2", "to stderr", "warned 2", "logged", "3/100"):
        assert each in first, first
    assert len(page.of(cell, "display_data")) == 4, "three times, and the figure"
    page.run("again = True")
    for code in ("print(learner.rewind(1))", "_ = learner.what_if(steps=1, lr=0.1)", "_ = learner.inspect()"):
        cell = page.begin(code)
        page.end(cell)
        assert page.text(cell) == (
            "" if "_" in code else "rewound to epoch 1, train, step 2 of 4 (2 steps replayed, exact)\n"
        )
        assert not page.of(cell, "display_data") and not page.of(cell, "clear_output")
    page.run("del again")


def test_a_mistake_in_the_options_is_one_line(page: Page) -> None:
    cell = page.begin("%%train --steps many\nloss = 1")
    page.end(cell)
    assert page.text(cell) == "UsageError: argument --steps: invalid int value: 'many'\n"


def test_a_mistake_in_the_syntax_shows_the_line_and_nothing_else(page: Page) -> None:
    shown = traceback(page, "%%train\nx, target = batch\nloss = = 3\n")
    assert "line 3" in shown and "SyntaxError: invalid syntax" in shown
    assert "notebook_learner" not in shown


def test_a_pause_is_one_quiet_line(page: Page) -> None:
    shown = traceback(page, SOUND.replace("checked = step", "if step == 1: learner.pause()"))
    assert shown.startswith("paused at epoch 1, train, step 2 of 4;") and "\n" not in shown


def test_tab_offers_options_and_learners_and_in_the_body_names(page: Page) -> None:
    def tab(code: str) -> list[str]:
        page.client.complete(code)
        answer = page.client.get_shell_msg(timeout=PATIENCE)
        return [each.lstrip(".") for each in answer["content"]["matches"]]

    for jedi in ("False", "True"):
        page.run(f"%config Completer.use_jedi = {jedi}")
        assert "--until" in tab("%%train --u")
        assert "classification" in tab("%%train --output c")
        assert "learner" in tab("%%train le")
        found = tab("%%train learner\nx, y = batch\nloss = F.cross_ent")
        assert [name for name in found if "cross_entropy" in name]
        assert [name for name in tab("%%train\nlearner.rewi") if "rewind" in name]


def test_help_tells_of_the_options(page: Page) -> None:
    cell = page.client.execute("%%train?")
    page.end(cell)
    (told,) = page.reply(cell)["payload"]
    assert "--until EXPR" in told["data"]["text/plain"]
    assert "Train with this cell: its body is the training step." in told["data"]["text/plain"]


def test_a_model_whose_class_changed_is_told_in_one_line(page: Page, tmp_path: Path) -> None:
    define = (
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(6, 3)\n"
        "    def forward(self, x): return self.fc(x)\n"
    )
    assert page.run(define) == ""
    page.run("model = Net(); learner = quiet('unused').build(model, adam(model), None, batches())")
    assert page.run(define) == ""
    changed = define.replace("self.fc(x)", "self.fc(x) * 2")
    assert page.run(changed) == OFFER
    assert page.run("1") == ""
    reload = (
        "from notebook_learner.trial.reload_code import reload_code\nprint(reload_code(model, globals()))"
    )
    assert page.run(reload) == "reloaded Net (forward); the weights are as they were\n"
    assert page.run("print(type(model) is Net)") == "True\n"
    assert page.run(define) == OFFER


# -------------------------------------------------------------------------------- the visual debugger


class Debugger:
    """What JupyterLab's debugger says on the control channel."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.number = 0
        started = [
            self.ask("initialize", clientID="test", adapterID="", linesStartAt1=True, pathFormat="path"),
            self.ask("attach"),
        ]
        assert all(answer.get("success") for answer in started), json.dumps(started, indent=1)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.number += 1
        request = {"type": "request", "seq": self.number, "command": command, "arguments": arguments}
        client = self.page.client
        message = client.session.msg("debug_request", request)
        client.control_channel.send(message)
        while True:
            answer = client.get_control_msg(timeout=PATIENCE)
            if answer["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                content: dict[str, Any] = answer["content"]
                return content

    def break_at(self, code: str, line: int) -> None:
        path = self.ask("dumpCell", code=code)["body"]["sourcePath"]
        source = {"path": path}
        answer = self.ask("setBreakpoints", source=source, breakpoints=[{"line": line}], sourceModified=False)
        assert [each["verified"] for each in answer["body"]["breakpoints"]] == [True]
        self.ask("configurationDone")

    def stop(self) -> int:
        """Wait until it stops; the thread."""

        def events() -> list[dict[str, Any]]:
            heard = [m["content"] for m in self.page.heard if m["msg_type"] == "debug_event"]
            return [event for event in heard if event["event"] == "stopped"]

        self.page.until(lambda: bool(events()), "a stop at the breakpoint")
        return int(events()[-1]["body"]["threadId"])


def test_the_visual_debugger_stops_at_a_line_of_the_body(page: Page) -> None:
    debugger = Debugger(page)
    code = SOUND.replace("learner\n", "learner --steps 1\n", 1)
    debugger.break_at(code, line=4)
    cell = page.begin(code)
    thread = debugger.stop()
    frame = debugger.ask("stackTrace", threadId=thread)["body"]["stackFrames"][0]
    assert (frame["name"], frame["line"]) == ("<module>", 4)

    scopes = debugger.ask("scopes", frameId=frame["id"])["body"]["scopes"]
    reference = next(scope["variablesReference"] for scope in scopes if scope["name"] == "Locals")
    names = {
        each["name"] for each in debugger.ask("variables", variablesReference=reference)["body"]["variables"]
    }
    assert {"x", "target", "output", "batch", "step"} <= names and "loss" not in names
    debugger.ask("continue", threadId=thread)
    page.end(cell)
    assert page.run("print(learner.position.step)") == "1\n"

    page.heard.clear()  # breakpoint() is for the connected debugger, too, and not for a prompt
    cell = page.begin(code.replace("checked = step", "if step == 1: breakpoint()"))
    thread = debugger.stop()
    frame = debugger.ask("stackTrace", threadId=thread)["body"]["stackFrames"][0]
    # debugpy stops behind the call, and on it where Python itself reports lines (3.12 and newer).
    assert frame["name"] == "<module>" and frame["line"] in (4, 5)
    debugger.ask("continue", threadId=thread)
    page.end(cell)
    assert page.run("print(learner.position.step)") == "2\n"

    again = code.replace("--steps 1", "--steps 2").replace("checked = step", "if step == 2: breakpoint()")
    debugger.break_at(again, line=3)

    def stops(code: str, times: int) -> str:
        cell = page.begin(code)
        for _ in range(times):
            page.heard.clear()
            debugger.ask("continue", threadId=debugger.stop())
        page.end(cell)
        return page.text(cell)

    stops(again, 3)
    # What stopped the steps does not stop them when they are taken again.
    assert "(1 step replayed, exact)" in stops("print(learner.rewind(1))", 0)
    stops(again, 2)
    debugger.ask("disconnect", restart=False, terminateDebuggee=True)
