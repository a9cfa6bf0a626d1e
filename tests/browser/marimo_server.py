"""A real server of marimo with one notebook, and that notebook in pages of Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psutil
from lab import PATIENCE, descendants, free_port, kill, wait_for
from playwright.sync_api import Locator, Page

# Linux ends the server when the thread that started it ends, also if pytest was killed.
LAUNCHER = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from marimo._cli.cli import main
main(prog_name="marimo")
"""


class MarimoServer:
    """`marimo edit` or `marimo run` of these cells, by their names. A page runs them all when it opens."""

    def __init__(
        self, home: Path, mode: Literal["edit", "run"], cells: Mapping[str, str], theme: str = "light"
    ) -> None:
        self.home = home
        (home / "notebook.py").write_text(_notebook(cells))
        # The project's own settings: they go before those of a user.
        (home / "pyproject.toml").write_text(
            f'[tool.marimo.runtime]\nauto_instantiate = true\n[tool.marimo.display]\ntheme = "{theme}"\n'
        )
        self._log = home / "server.log"
        self._port = free_port()
        options = ["--headless", "--no-token", "--host", "127.0.0.1", "--port"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, "-y", mode, *options, str(self._port), "notebook.py"],
                cwd=home,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(self._answers, "marimo starts", self.log)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def log(self) -> str:
        """What the server said."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """End the server and its kernels."""
        family = descendants(self._process.pid)
        self._process.terminate()
        psutil.wait_procs(family, timeout=5)
        for process in family:
            kill(process)
        self._process.kill()
        self._process.wait(PATIENCE)

    def _answers(self) -> bool:
        assert self._process.poll() is None, f"marimo ended\n{self.log()}"
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.address, timeout=30):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def _environment(self) -> dict[str, str]:
        own = {
            name: str(self.home / name) for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")
        }
        return os.environ | own | {"MARIMO_SKIP_UPDATE_CHECK": "1"}


class MarimoPage:
    """The notebook in one page; a PanelPage finds the panel of a cell in it, by the cell's name."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def outputs(self, cell: str) -> Locator:
        """A cell with all that it shows."""
        return self.page.locator(f'[data-cell-name="{cell}"]')


def _notebook(cells: Mapping[str, str]) -> str:
    """marimo finds out itself what each cell needs and gives."""
    told = [
        f"@app.cell\ndef {name}():\n{textwrap.indent(code.strip(), '    ')}\n" for name, code in cells.items()
    ]
    return "\n\n".join(["import marimo\n\napp = marimo.App()", *told])
