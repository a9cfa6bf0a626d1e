"""A real JupyterLab server of its own: it touches nothing of the user's Jupyter, and nothing outlives it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 60.0  # seconds until a condition that does not come true is a failure

# Linux sends SIGTERM to the server when the thread that started it ends, also if pytest was killed.
# Asked for in the child itself: a preexec_fn is deprecated where threads run.
LAUNCHER = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from jupyterlab.labapp import main
main()
"""

# No question about news or updates in front of the notebook.
SETTINGS = {"@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}


def wait_for(condition: Callable[[], Any], what: str, detail: Callable[[], str] = str) -> Any:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {PATIENCE:.0f} s\n{detail()}")
        time.sleep(0.02)  # between two questions to another process; there is nothing to be woken by
    return answer


class Lab:
    """A server with one kernelspec, "bench": the Python that runs the tests."""

    def __init__(self, home: Path) -> None:
        self.home, self.token = home, secrets.token_hex(16)
        self.root = home / "notebooks"
        self.settings = home / "settings"
        for folder in ("config", "data", "runtime", "workspaces", "ipython", "notebooks", "settings"):
            (home / folder).mkdir(parents=True)
        for plugin, values in SETTINGS.items():
            self.set_settings(plugin, values)
        self.add_kernel("bench", [sys.executable])
        self._log = home / "server.log"
        self._address = ""
        self._endings: list[threading.Thread] = []
        self._process = self._start()

    # -- what lies in the temporary folders ------------------------------------------------------------

    def set_settings(self, plugin: str, values: Mapping[str, object] | None) -> None:
        """What the user chose for a JupyterLab plugin; None: nothing."""
        file = self.settings / f"{plugin}.jupyterlab-settings"
        file.unlink(missing_ok=True)
        if values is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))

    def add_kernel(self, name: str, python: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """A kernelspec by that name: another Python, or other variables in its environment."""
        folder = self.home / "data" / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        spec = {
            # -Xfrozen_modules=off is what ipykernel writes: debuggers want it.
            "argv": [*python, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": name,
            "language": "python",
            "env": dict(env or {}),
            "metadata": {"debugger": True},
        }
        (folder / "kernel.json").write_text(json.dumps(spec))

    def write(self, cells: Sequence[str], kernel: str = "bench") -> str:
        """A notebook of code cells in a folder of its own; its path as JupyterLab knows it."""
        notebook = {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{number}",
                    "source": cell.strip("\n"),
                    "metadata": {},
                    "outputs": [],
                    "execution_count": None,
                }
                for number, cell in enumerate(cells)
            ],
        }
        folder = self.root / str(len(list(self.root.iterdir())) + 1)
        folder.mkdir()
        (folder / "notebook.ipynb").write_text(json.dumps(notebook))
        return f"{folder.name}/notebook.ipynb"

    # -- the server ------------------------------------------------------------------------------------

    def wait_until_up(self) -> None:
        """Until it answers."""
        wait_for(self._answers, "JupyterLab starts", self.log_tail)

    @property
    def server(self) -> str:
        """Where the server's own pages begin."""
        return self._address

    def address(self, path: str = "") -> str:
        """Where a page shows the notebook of that path, with nothing of another page around it."""
        return f"{self._address}lab/tree/{path}?reset&token={self.token}"

    def api(self, method: str, path: str) -> Any:
        """An answer of the server's REST interface; None where it has no body."""
        request = urllib.request.Request(f"{self._address}api/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        # No proxy of the environment in between: the server is on this machine.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def shut_down_kernels(self, path: str, wait: bool = True) -> None:
        """End the kernels of one notebook; each takes seconds to end."""
        for session in self.api("GET", "sessions"):
            if session["path"] == path:
                ending = threading.Thread(target=self.api, args=("DELETE", f"sessions/{session['id']}"))
                ending.start()
                self._endings.append(ending)
                if wait:
                    ending.join()

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the server and the kernels wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """End the server, its kernels, and whatever those started."""
        for ending in self._endings:
            ending.join()
        family = descendants(self._process.pid)
        self._process.terminate()  # asks the kernels to end
        psutil.wait_procs(family, timeout=5)
        for process in family:  # in order not to depend on their answer
            kill(process)
        self._process.kill()
        self._process.wait(PATIENCE)

    def _start(self) -> subprocess.Popen[bytes]:
        options = [
            f"--ServerApp.port={free_port()}",
            "--ServerApp.ip=127.0.0.1",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.root}",
            "--ServerApp.open_browser=False",
            "--ServerApp.allow_root=True",  # as in a container of CI
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",  # asks no package index
        ]
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, *options],
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process

    def _answers(self) -> bool:
        ended = self._process.poll()
        assert ended is None, f"JupyterLab ended with {ended}\n{self.log_tail()}"
        # Written with the port that the server really got, a moment before it listens.
        files = list((self.home / "runtime").glob("jpserver-*.json"))
        if not files or not (text := files[0].read_text()).rstrip().endswith("}"):
            return False
        self._address = json.loads(text)["url"]
        try:
            return "started" in self.api("GET", "status")
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return False
            raise

    def _environment(self) -> dict[str, str]:
        # Not what a server or a kernel around this process set for itself.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_"))}
        return kept | {
            "JUPYTER_CONFIG_DIR": str(self.home / "config"),
            "JUPYTER_DATA_DIR": str(self.home / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.home / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(self.settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.home / "workspaces"),
            "JUPYTER_NO_CONFIG": "",
            "IPYTHONDIR": str(self.home / "ipython"),
            "PYTHONUNBUFFERED": "1",
        }


def free_port() -> int:
    """A port that nothing listens on."""
    # The server tries the next ones if another process takes it in between.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[psutil.Process]:
    """The processes that it has started, and theirs."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(process: psutil.Process) -> None:
    """End it, if it still runs."""
    with suppress(psutil.NoSuchProcess):  # also raised if another process has the number by now
        process.kill()
