"""A Chromium for the tests of the panel: found, or brought here by `python tests/browser/chromium.py`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Error, Playwright, sync_playwright

ARGUMENTS = [
    "--no-sandbox",  # root in a container has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW_TO_GET_ONE = f"""No Chromium that starts. Do one of these:
    sudo apt-get install chromium
    {sys.executable} -m playwright install --with-deps chromium
    export NOTEBOOK_LEARNER_CHROMIUM=/path/to/chromium"""


def find(playwright: Playwright) -> str | None:
    """The one that NOTEBOOK_LEARNER_CHROMIUM names and no other; else the machine's own, or Playwright's."""
    given = os.environ.get("NOTEBOOK_LEARNER_CHROMIUM")
    candidates = [given] if given else [*map(shutil.which, NAMES), playwright.chromium.executable_path]
    return next((one for one in candidates if one and Path(one).is_file()), None)


def why_there_is_none() -> str:
    """The line that an error shows."""
    given = os.environ.get("NOTEBOOK_LEARNER_CHROMIUM")
    return f"NOTEBOOK_LEARNER_CHROMIUM={given}: no such file" if given else HOW_TO_GET_ONE


def starting() -> str | None:
    """The one that was found, if it starts: Ubuntu's package of that name is a script that asks for snap, and
    Playwright's download wants libraries that a bare machine lacks."""
    with sync_playwright() as playwright:
        found = find(playwright)
        if found is None:
            return None
        try:
            playwright.chromium.launch(executable_path=found, args=ARGUMENTS).close()
        except Error as error:
            print(f"{found} does not start: {error.message.splitlines()[0]}", flush=True)
            return None
        return found


def ways() -> list[list[list[str]]]:
    """What can be run here to get one, the best way first: Debian's package brings its libraries along."""
    root = os.geteuid() == 0
    download = [sys.executable, "-m", "playwright", "install", *(["--with-deps"] if root else []), "chromium"]
    debian = [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]]
    return [*([debian] if root and is_debian() else []), [download]]


def is_debian() -> bool:
    """Debian itself: what Ubuntu calls chromium needs snap, which a container has not."""
    try:
        return platform.freedesktop_os_release().get("ID") == "debian"
    except OSError:  # no such file: some other system
        return False


def provide() -> str | None:
    """Find one, or bring one."""
    found = starting()
    for way in ways() if not os.environ.get("NOTEBOOK_LEARNER_CHROMIUM") else []:
        if found is None and all(succeeds(command) for command in way):
            found = starting()
    return found


def succeeds(command: list[str]) -> bool:
    """Run it, where everybody can see it."""
    print("No Chromium yet:", *command, flush=True)
    return subprocess.run(command, check=False).returncode == 0


def main() -> None:
    """Say which one the tests will use, or how to get one."""
    found = provide()
    if found is None:
        sys.exit(why_there_is_none())
    print(f"The tests of the panel use {found}", flush=True)


if __name__ == "__main__":
    main()
