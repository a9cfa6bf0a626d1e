"""The README is the first thing people run."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from notebook_learner.store import read_log

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
CI = (ROOT / ".ci" / "run").read_text("utf-8")
VENV = (
    "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[{extra}]' && .venv/bin/python "
)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def commands():
    """The line that runs the main job, and the line that passes the tests."""
    return [block.rstrip("\n") for block in blocks("sh")]


# -------------------------------------------------------------------------------- the two commands


def test_there_are_two_commands_of_one_line_each(commands):
    assert len(commands) == 2
    assert [command for command in commands if "\n" in command] == []


def test_each_makes_its_own_environment_and_installs_into_it(commands):
    job, tests = commands
    assert job.startswith(VENV.format(extra="tutorials"))
    assert tests.startswith(VENV.format(extra="test"))


def test_ci_finds_the_test_command_and_nothing_else(commands):
    (pattern,) = re.findall(r"^readonly TEST_COMMAND='(.*)'$", CI, re.MULTILINE)
    assert [line for line in README.splitlines() if re.search(pattern, line)] == [commands[1]]


def test_the_commands_name_files_that_exist(commands):
    words = [word for command in commands for word in shlex.split(command)]
    files = [word for word in words if re.fullmatch(r"[\w/]+\.(py|txt|ipynb)", word)]
    assert files == ["constraints.txt", "tutorials/digits.py", "constraints.txt"]
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_commands_name_extras_that_exist(commands):
    extras = set(re.findall(r"\.\[(\w+)\]", "\n".join(commands)))
    assert extras == {"tutorials", "test"}
    assert extras <= requirements().keys()


def test_the_constraints_pin_every_direct_dependency():
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    assert requirements().keys() >= {"dependencies", "tutorials", "test", "dev"}
    assert set.union(*requirements().values()) - pinned == set()


def requirements():
    """The names of what the package needs, always ("dependencies") and by extra."""
    project = PYPROJECT[PYPROJECT.index("\ndependencies = ") : PYPROJECT.index("\n[tool.")]
    lists = re.findall(r"^(\w[\w-]*) = (\[.*?\])$", project, re.DOTALL | re.MULTILINE)
    return {name: {re.match(r"[\w-]+", item)[0] for item in ast.literal_eval(items)} for name, items in lists}


# ------------------------------------------------------------------------------- what they promise


def test_the_tutorial_learns_digits_and_draws_its_curves(tmp_path):
    script = ROOT / "tutorials" / "digits.py"
    subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL
    )
    run = tmp_path / "runs" / "digits"
    assert read_log(run / "valid" / "epoch-20" / "Accuracy.log").final > 97
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_example_runs_and_does_what_its_comments_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example, handling = blocks("python")
    scope = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(example, "README.md", "exec"), scope)
        learner = scope["learner"]
        assert (learner.status, learner.num_epochs) == ("finished", 10)
        exec(compile(handling, "README.md", "exec"), scope)
    assert (learner.status, learner.num_epochs) == ("finished", 12)
    assert learner.history.best("Accuracy", "train").value > 90
    assert (tmp_path / "runs" / "circle" / "train" / "epoch-12" / "Loss.log").is_file()
