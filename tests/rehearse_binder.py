"""What Binder does with `binder/`, without Docker: `python tests/rehearse_binder.py [--no-tutorials]`.

A clean copy of the checkout, a new environment from exactly those files, `postBuild`, then `start` with
JupyterLab, which has to answer; at last every tutorial runs there. It takes minutes, most of them downloads.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0


def main() -> None:
    """Rehearse; an error is a command that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-tutorials", action="store_true", help="leave out the last act")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone, prefix = Path(folder, "clone"), Path(folder, "env")
        copy_checkout(clone)
        subprocess.run([python_of_runtime(), "-m", "venv", prefix], check=True)
        env = surroundings(prefix, Path(folder, "home"))
        run([prefix / "bin" / "pip", "install", "-q", "-r", "binder/requirements.txt"], clone, env)
        run(["binder/postBuild"], clone, env)
        answer_of_lab(clone, env)
        for notebook in [] if given.no_tutorials else sorted((clone / "tutorials").glob("*.ipynb")):
            run(["jupyter", "execute", notebook], clone, env)
    print("Binder would do.")


def copy_checkout(target: Path) -> None:
    """The files that git knows, and new ones that it does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def python_of_runtime() -> str:
    """The Python that `runtime.txt` names, where this machine has it; else the one that runs this."""
    wanted = (ROOT / "binder" / "runtime.txt").read_text("utf-8").strip().replace("-", "")
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return sys.executable if wanted == own else shutil.which(wanted) or sys.executable


def surroundings(prefix: Path, home: Path) -> dict[str, str]:
    """A user who has nothing yet, with the environment in front."""
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "JPY_", "PYTHON", "VIRTUAL_ENV"))
    }
    return kept | {"HOME": str(home), "PATH": os.pathsep.join([str(prefix / "bin"), kept["PATH"]])}


def run(command: list[str | Path], clone: Path, env: dict[str, str]) -> None:
    """One act, in the repository's root."""
    print("==>", *command, flush=True)
    subprocess.run(command, cwd=clone, env=env, check=True)


def answer_of_lab(clone: Path, env: dict[str, str]) -> None:
    """Start JupyterLab as Binder does, and wait until its page comes."""
    token, port = secrets.token_hex(8), 18_000 + os.getpid() % 1000
    command = ["binder/start", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}"]
    command += [f"--IdentityProvider.token={token}", "--Application.log_level=WARN"]
    print("==>", *command[:3], flush=True)
    server = subprocess.Popen(command, cwd=clone, env=env)
    try:
        page = f"http://127.0.0.1:{port}/lab/tree/tutorials/01_first_run.ipynb?token={token}"
        deadline = time.monotonic() + PATIENCE
        while b"jupyter-config-data" not in fetched(page):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"JupyterLab did not answer within {PATIENCE:.0f} s, or ended")
            time.sleep(0.5)
    finally:
        server.terminate()
        server.wait(PATIENCE)


def fetched(address: str) -> bytes:
    """A page, or nothing while no server listens."""
    try:
        # No proxy of the environment in between: the server is on this machine.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as answer:
            body: bytes = answer.read()
        return body
    except urllib.error.URLError:
        return b""


if __name__ == "__main__":
    main()
