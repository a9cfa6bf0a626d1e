"""Real kernels of several releases, and a page that talks to them.

Each release lives in a virtual environment of its own, made when it is needed for the first time and kept in
a folder of the user's cache, or in the one that NOTEBOOK_LEARNER_KERNELS names.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from queue import Empty
from tempfile import mkdtemp
from typing import Any, NoReturn

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

PATIENCE = 40.0
# When it is asked to, the kernel writes what its threads are at.
# To a copy of stderr, which ipykernel replaces by a pipe.
LAUNCH = """
import faulthandler, os, runpy, signal
faulthandler.register(signal.SIGUSR1, file=os.dup(2), all_threads=True)
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""
INSTALLED = "installed"
"""Not a release: the ipykernel that these tests run with."""

# What pip is told, call by call. The oldest is the set that Colab runs; its ipywidgets would bring half of
# Jupyter along, of which a kernel needs nothing.
RELEASES: dict[str, list[list[str]]] = {
    "6.17.1": [
        ["ipykernel==6.17.1", "ipython==7.34.0", "ipython_genutils"],
        ["--no-deps", "ipywidgets==7.7.1", "anywidget==0.9.21"],
        ["psygnal", "typing_extensions"],
    ],
    "6.31.0": [["ipykernel==6.31.0", "ipywidgets>=8"]],
    "7.0.1": [["ipykernel==7.0.1", "ipywidgets>=8", "anywidget"]],
    "7.3.0": [["ipykernel==7.3.0", "ipywidgets>=8", "anywidget"]],
    "7.4.0": [["ipykernel==7.4.0", "ipywidgets>=8", "anywidget"]],
}
if sys.version_info < (3, 11):
    del RELEASES["7.4.0"]  # it needs Python 3.11


def _in_the_soak(names: Iterable[str]) -> Iterator[Any]:
    return (pytest.param(name, marks=pytest.mark.soak) for name in names)


EACH = [INSTALLED, *_in_the_soak(RELEASES)]
"""Parameters: the default run has the installed release, the soak all others."""
WITH_SUBSHELLS = [
    *([INSTALLED] if sys.version_info >= (3, 11) else []),
    *_in_the_soak(name for name in RELEASES if name.startswith("7")),
]


def python_of(release: str) -> str:
    """An interpreter that has this ipykernel, and ipywidgets to go with it."""
    if release == INSTALLED:
        return sys.executable
    calls = sha256(repr(RELEASES[release]).encode()).hexdigest()[:8]  # other packages are another folder
    home = _folder() / f"ipykernel-{release}-{calls}-python-{sys.version_info.major}.{sys.version_info.minor}"
    if not (home / "bin" / "python").exists():
        _make(home, RELEASES[release])
    return str(home / "bin" / "python")


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NOTEBOOK_LEARNER_KERNELS") or Path(cache) / "notebook_learner" / "kernels")


def _make(home: Path, calls: list[list[str]]) -> None:
    # Under another name first: two test processes may be at it, and one may be killed.
    home.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=home.parent, prefix="draft-"))
    _say_what_fails([sys.executable, "-m", "venv", str(draft)])
    for packages in calls:
        pip = [str(draft / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        _say_what_fails([*pip, *packages])
    try:
        draft.rename(home)
    except OSError:  # the other process was quicker
        shutil.rmtree(draft)


def _say_what_fails(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-15:])
        pytest.fail(f"no kernel to test with: {' '.join(command)} failed; can it reach the registry?\n{said}")


class Page:
    """A front end: sends cells and messages without waiting, and keeps all that comes back.

    ipykernel 7.0 to 7.3 may never read a request that comes in the moment in which it sends a reply, and is
    stuck for good (7.4 says why, in subshell_manager.py); a page that only runs `pass` gets there after some
    hundred cells. So the end of a cell is waited for with its reply, and tests send nothing while one comes.
    """

    def __init__(self, python: str, folder: Path) -> None:
        command = [python, "-c", LAUNCH, "-f", "{connection_file}"]
        # Not by TCP: a port that was free when it was chosen may be another kernel's a moment later, and what
        # was sent to the dead kernel that had it before arrives at this one.
        self._sockets = mkdtemp(prefix="nl-")  # a short path: a socket's may have 107 letters
        self.manager = KernelManager(
            connection_file=str(folder / "kernel.json"), transport="ipc", ip=f"{self._sockets}/k"
        )
        self.manager._kernel_spec = KernelSpec(argv=command, display_name="tested", language="python")
        self._said = folder / "stderr.txt"
        self._stderr = self._said.open("w")
        # A cache of its own, too: kernels that begin at once and share jedi's may complete nothing.
        own = {"IPYTHONDIR": str(folder / "ipython"), "XDG_CACHE_HOME": str(folder / "cache")}
        surroundings = {**os.environ, **own}
        surroundings = {key: value for key, value in surroundings.items() if not key.startswith("COV_")}
        self.manager.start_kernel(env=surroundings, stderr=self._stderr)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        self.heard: list[dict[str, Any]] = []
        self._cells: set[str] = set()
        self._replies: dict[str, dict[str, Any]] = {}

    def leave(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self._stderr.close()
        shutil.rmtree(self._sockets)

    def fail(self, what: str) -> NoReturn:
        """The test has failed; why may stand in what the kernel wrote, or in what its threads are at."""
        self.manager.signal_kernel(signal.SIGUSR1)
        time.sleep(1)
        pytest.fail(f"{what}\nthe kernel's stderr:\n{self._said.read_text()}")

    # ----------------------------------------------------------------------------------- what it sends

    def begin(self, code: str) -> str:
        """Send a cell; its id."""
        cell = self.client.execute(code)
        self._cells.add(cell)
        return cell

    def ask(self, kind: str, content: dict[str, Any], **header: str) -> str:
        """Send any message on the shell channel; its id."""
        message = self.client.session.msg(kind, content)
        message["header"].update(header)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def open_comm(self, comm: str) -> str:
        return self.ask("comm_open", {"comm_id": comm, "target_name": "page", "data": {}})

    def new_subshell(self) -> str:
        """Ask for one more thread that runs cells; its name."""
        self.client.control_channel.send(self.client.session.msg("create_subshell_request", {}))
        try:
            return str(self.client.get_control_msg(timeout=PATIENCE)["content"]["subshell_id"])
        except Empty:
            self.fail("no subshell")

    def end_subshell(self, name: str) -> None:
        content = {"subshell_id": name}
        self.client.control_channel.send(self.client.session.msg("delete_subshell_request", content))
        self.client.get_control_msg(timeout=PATIENCE)

    def tell(self, comm: str, data: dict[str, Any], **header: str) -> str:
        return self.ask("comm_msg", {"comm_id": comm, "data": data}, **header)

    # -------------------------------------------------------------------------------- what comes back

    def run(self, code: str) -> str:
        """Run a cell to its end; what it printed. An error in it is one here."""
        status = "aborted"
        while status == "aborted":  # a kernel calls off what comes too soon after a cell that failed
            cell = self.begin(code)
            self.end(cell)
            status = self.reply(cell)["status"]
        assert self.error(cell) is None, self.error(cell)
        return self.text(cell)

    def end(self, *messages: str) -> None:
        """Wait until the kernel is done with these messages."""
        for message in messages:
            self.until(lambda message=message: self.is_over(message), f"the end of {message}")
            if message in self._cells:
                self.reply(message)

    def reply(self, message: str) -> dict[str, Any]:
        """Wait for the answer to a question; its content."""
        while message not in self._replies:
            try:
                answer = self.client.get_shell_msg(timeout=PATIENCE)
            except Empty:
                self.fail(f"no answer to {message}")
            self._replies[answer["parent_header"].get("msg_id", "")] = answer["content"]
        return self._replies[message]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        while not condition():
            try:
                self.heard.append(self.client.get_iopub_msg(timeout=PATIENCE))
            except Empty:
                self.fail(f"waited for {what}; heard {[(m['msg_type'], m['content']) for m in self.heard]}")

    def shows(self, message: str, text: str) -> None:
        """Wait until a text is among what a cell printed."""
        self.until(lambda: text in self.text(message), text)

    def of(self, message: str, kind: str) -> list[dict[str, Any]]:
        """The contents of what came as part of a cell, or because of a message."""
        mine = [m for m in self.heard if m["parent_header"].get("msg_id") == message]
        return [m["content"] for m in mine if m["msg_type"] == kind]

    def text(self, message: str) -> str:
        """What it printed, then what it wrote to stderr: pieces of the two may come in between each other."""
        pieces = self.of(message, "stream")
        return "".join(
            piece["text"] for name in ("stdout", "stderr") for piece in pieces if piece["name"] == name
        )

    def error(self, message: str) -> str | None:
        errors = self.of(message, "error")
        return f"{errors[0]['ename']}: {errors[0]['evalue']}" if errors else None

    def is_over(self, message: str) -> bool:
        states = [content["execution_state"] for content in self.of(message, "status")]
        return states[-1:] == ["idle"]
