"""What axe-core, the checker behind most accessibility tools, has to say about a part of a page.

It comes from npm as it is there, one pinned version, and is kept in the user's cache.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from node import find_npm
from playwright.sync_api import Page

VERSION = "4.14.1"
# As npm's registry states it.
INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="

RUN = """
    ([selector]) => axe.run(selector, { resultTypes: ["violations"] }).then((result) => result.violations)
"""


def axe(page: Page, selector: str) -> list[str]:
    """The violations of any impact inside the element: rule, what is wrong, where."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(RUN, [selector])
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {node['html']}"
        for one in found
        for node in one["nodes"]
    ]


def _script() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "notebook_learner"
    archive = cache / f"axe-core-{VERSION}.tgz"
    if not archive.exists():
        _fetch(archive)
    assert _integrity(archive) == INTEGRITY, f"{archive} is not axe-core {VERSION}: delete it"
    with tarfile.open(archive) as files:
        script = files.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def _fetch(archive: Path) -> None:
    npm, environment = find_npm()
    archive.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place and then renamed: workers of one test run may come here at the same time.
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        command = [*npm, "pack", "--silent", f"axe-core@{VERSION}"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"npm pack axe-core failed: {done.stderr}"
        (Path(folder) / archive.name).rename(archive)


def _integrity(archive: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
