"""The README's first command ends in `tutorials/open.py`: a JupyterLab with the first tutorial in front."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from lab import wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tutorials" / "open.py"
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/lab/tree/(\S+)\?token=(\w+)")


@pytest.fixture
def server(tmp_path):
    """The script on a machine without a display, with nothing of this user's Jupyter."""
    surroundings = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "JPY_")) and name not in ("DISPLAY", "WAYLAND_DISPLAY")
    }
    surroundings |= {
        f"JUPYTER_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")
    }
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--LabApp.extension_manager=readonly"],
        cwd=tmp_path,  # it is the same from wherever it is called
        env=surroundings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    process.terminate()
    process.communicate(timeout=60)


def address_in(lines):
    """What comes before the address, and the address."""
    said = []
    for line in lines:
        said.append(line)
        if found := ADDRESS.search(line):
            return said, found
    pytest.fail(f"JupyterLab ended without an address:\n{''.join(said)}")


def fetch(url):
    # No proxy of the environment in between: the server is on this machine.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
        return answer.read().decode()


def page_at(url):
    """The page, or nothing yet: the address is told a moment before the server listens."""
    try:
        return fetch(url)
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return ""
        raise


def test_without_a_display_it_says_which_address_to_open_and_answers_there(server):
    said, found = address_in(server.stdout)
    assert said[0] == "JupyterLab opens tutorials/01_first_run.ipynb at the address that follows.\n"
    assert [line for line in said[1:] if line.startswith(("[W", "[E"))] == []
    assert "jupyter-config-data" in wait_for(lambda: page_at(found[0]), "JupyterLab answers")
    api = found[0].replace(f"lab/tree/{found[1]}", "api/contents")
    names = {entry["name"] for entry in json.loads(fetch(api))["content"]}
    assert {path.name for path in (ROOT / "tutorials").glob("*.ipynb")} <= names
    assert found[1] == "01_first_run.ipynb"
    assert (ROOT / "tutorials" / found[1]).is_file()


def test_without_jupyterlab_it_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-S", SCRIPT], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("JupyterLab is not installed here: pip install")
