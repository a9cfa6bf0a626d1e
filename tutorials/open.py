"""Open the first tutorial in JupyterLab.

    python tutorials/open.py

A browser opens where there is a display. Where there is none, as on a server or in a container, the address
to open is printed, and JupyterLab waits. More words go to JupyterLab: `--port=9999`, `--no-browser`.
Ctrl-C, twice, ends it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIRST = "01_first_run.ipynb"


def has_display() -> bool:
    """Whether a browser could show itself here."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def is_root() -> bool:
    """Whether Jupyter would ask for a word of its own before it starts."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def options() -> list[str]:
    """What JupyterLab is told, before what the caller adds."""
    told = [
        f"--ServerApp.root_dir={HERE}",
        # Not as a file to open: the address that is printed would lead to an empty page.
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        "--Application.log_level=ERROR",  # of which the address is one
    ]
    if not has_display():
        told.append("--no-browser")
    if is_root():
        told.append("--allow-root")
    return told


def main(arguments: list[str]) -> None:
    """Become JupyterLab."""
    if importlib.util.find_spec("jupyterlab") is None:
        sys.exit("JupyterLab is not installed here: pip install -c constraints.txt -e '.[tutorials]'")
    where = "in your browser" if has_display() else "at the address that follows"
    print(f"JupyterLab opens tutorials/{FIRST} {where}.", flush=True)
    # In this process's place, so that Ctrl-C is JupyterLab's own.
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options(), *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
