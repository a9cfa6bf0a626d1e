"""A notebook without a page: IPython's shell in this process."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import IPython
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

# Helpers, of other folders too, by their bare names: tests are no packages.
sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("magic", "learner", "widget")]

from notebook_support import IMPORTS, LEARNER, Notebook


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    main, hook = sys.modules["__main__"], sys.displayhook
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor" if IPython.version_info >= (9,) else "NoColor"
    made = InteractiveShell.instance(config=config)  # tracebacks ask it for the names of cells
    yield made
    made.run_line_magic("unload_ext", "notebook_learner") if loaded(made) else None
    made.restore_sys_module_state()
    made.history_manager.end_session()
    atexit.unregister(made.atexit_operations)
    made.history_manager.db.close()
    InteractiveShell.clear_instance()
    sys.modules["__main__"], sys.displayhook = main, hook


def loaded(shell: InteractiveShell) -> bool:
    return "notebook_learner" in shell.extension_manager.loaded


@pytest.fixture
def empty(shell: InteractiveShell, tmp_path: Path, capsys: Any) -> Notebook:
    """The magics, and no learner yet."""
    notebook = Notebook(shell, capsys)
    notebook.names["folder"] = tmp_path
    notebook.run(f"{IMPORTS}\n%load_ext notebook_learner")
    return notebook


@pytest.fixture
def notebook(empty: Notebook) -> Notebook:
    """The magics, and a learner whose model does not say how it trains."""
    empty.run(LEARNER)
    return empty
