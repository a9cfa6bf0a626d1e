"""No module but `store/files.py`, and the one that finds its way, opens a path of a run or changes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import notebook_learner

PACKAGE = Path(notebook_learner.__file__).parent
THE_DOOR = {"store/files.py", "store/run_folder.py"}
"""Where paths are walked without following a link, and opened."""

OF_THE_SYSTEM = {
    *("open", "rename", "renames", "replace", "unlink", "remove", "mkdir", "makedirs", "rmdir", "removedirs"),
    *("truncate", "link", "symlink", "mkfifo", "mknod", "chmod", "chown", "utime"),
}
OF_A_PATH = {
    *("write_text", "write_bytes", "touch", "mkdir", "rmdir", "unlink", "rename", "symlink_to", "chmod"),
    *("hardlink_to", "lchmod"),
}
OF_WHOLE_TREES = {"rmtree", "move", "copy", "copy2", "copyfile", "copytree", "chown"}
BY_LIBRARIES = {("torch", "save"), ("np", "save"), ("np", "savez"), ("np", "savetxt"), ("io", "open")}

ELSEWHERE = {
    ("command/__init__.py", "os.open"): "the null device, where a pipe was closed",
    ("learner/asking_elsewhere.py", "Path(folder, name).write_bytes"): "a temporary folder of two processes",
    ("ranks/channel.py", "shutil.rmtree"): "a temporary folder of the ranks, not in a run's directory",
    ("remote/socket_place.py", "os.open"): "the run's directory itself, wherever it moves; then by dir_fd:",
    ("remote/owner.py", "open"): "/proc/locks, to read which process has locked a directory",
    ("recipe/own_text.py", "os.open"): "the user's key, in IPython's folder, before it has its name:",
    ("recipe/own_text.py", "os.link"): "its name",
    ("recipe/own_text.py", "own.unlink"): "its first name",
    ("recipe/environment.py", "open"): "/proc/cpuinfo, and what installed packages say of themselves",
    ("remote/socket_place.py", "os.unlink"): "control.sock, a name without a path",
    ("remote/socket_place.py", "os.rename"): "the same name",
    ("remote/socket_place.py", "os.mkdir"): "the folder of the user's sockets, in the system's temporary one",
    ("remote/socket_place.py", "os.chmod"): "a name in it, where a socket has no mode before it is bound",
}


def openers(source: str) -> Iterator[str]:
    """What a module calls to open, make, move, cut or delete by a path."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil", "io"):
            names = OF_WHOLE_TREES if node.module == "shutil" else OF_THE_SYSTEM
            yield from (f"from {node.module} import {each.name}" for each in node.names if each.name in names)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if _opens(node, called):
                yield called


def _opens(call: ast.Call, called: str) -> bool:
    if called == "open":
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    owner, verb = ast.unparse(call.func.value), call.func.attr
    if owner == "files":
        return False
    if owner == "os":
        return verb in OF_THE_SYSTEM
    if owner == "shutil":
        return verb in OF_WHOLE_TREES
    if (owner, verb) in BY_LIBRARIES:
        return True
    if verb == "open":  # `path.open("w")`; a learner's parts are opened without a mode
        modes = (isinstance(each, ast.Constant) and isinstance(each.value, str) for each in call.args)
        named = (each.arg in ("mode", "encoding", "errors", "newline", "buffering") for each in call.keywords)
        return any(modes) or any(named)
    if verb == "replace":  # `path.replace(target)`: a text's takes two
        return len(call.args) == 1 and not call.keywords
    return verb in OF_A_PATH


def found_in_the_package() -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("widget/js/") or name in THE_DOOR:
            continue
        for called in openers(path.read_text("utf-8")):
            found[name, called] = found.get((name, called), 0) + 1
    return found


def test_nothing_else_opens_a_path_of_a_run() -> None:
    strangers = {
        f"{name}: {called}" for name, called in found_in_the_package() if (name, called) not in ELSEWHERE
    }
    assert strangers == set(), "call store/files.py, which follows no link, with a path of RunLayout"


def test_what_is_let_pass_is_there() -> None:
    assert ELSEWHERE.keys() <= found_in_the_package().keys()


def test_the_door_itself_is_seen() -> None:
    for name in THE_DOOR:
        assert list(openers((PACKAGE / name).read_text("utf-8")))


@pytest.mark.parametrize(
    "planted",
    [
        "open(path, 'w')",
        "path.open('a')",
        "Path(directory, 'experiment.log').open(mode, encoding='utf-8')",
        "os.open(path, os.O_WRONLY)",
        "os.truncate(path, 3)",
        "os.replace(draft, path)",
        "draft.replace(path)",
        "draft.rename(path)",
        "(directory / 'note').write_text('x')",
        "path.unlink(missing_ok=True)",
        "path.parent.mkdir(parents=True)",
        "shutil.rmtree(directory)",
        "torch.save(state, path)",
        "from os import replace",
        "from shutil import rmtree as gone",
    ],
)
def test_a_planted_opener_is_found(planted: str) -> None:
    assert list(openers(f"def planted(path, draft, directory, mode, state):\n    {planted}\n"))


@pytest.mark.parametrize(
    "harmless",
    ["files.unlink(path)", "text.replace('a', 'b')", "dataclasses.replace(info, a=1)", "keeper.open()"],
)
def test_what_opens_nothing_is_not_found(harmless: str) -> None:
    assert not list(openers(harmless))
