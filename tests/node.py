"""Node and npm for tests: the machine's own, or the ones that the test requirements bring."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from types import ModuleType

HOOK = Path(__file__).parents[1] / "hatch_build.py"


def build_hook() -> ModuleType:
    """The module that builds the front end; it knows where Node is."""
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_npm() -> tuple[list[str], dict[str, str]]:
    """How to call npm, and the environment in which it finds its Node."""
    npm, folders = build_hook().node()
    return npm, {**os.environ, "PATH": os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])}


def find_node() -> str:
    """The program itself."""
    found = shutil.which("node", path=find_npm()[1]["PATH"])
    assert found is not None
    return found
