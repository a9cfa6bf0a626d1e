"""binder/ gives what the README's first command gives; `python tests/rehearse_binder.py` tries it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BINDER = ROOT / "binder"


def lines_of(name):
    text = (BINDER / name).read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_it_installs_what_the_readmes_first_command_installs_with_the_same_pins():
    readme = (ROOT / "README.md").read_text("utf-8")
    (installed,) = re.findall(
        r"pip install (-c constraints\.txt) (-e '[^']+') && \S+ tutorials/open\.py", readme
    )
    constraints, package = [each.replace("'", "") for each in installed]
    index, *rest = lines_of("requirements.txt")
    assert index == "--extra-index-url https://download.pytorch.org/whl/cpu"
    # A path behind -c is relative to the file it stands in; that of -e to where pip runs, the root.
    assert [line.replace("../", "") for line in rest] == [constraints, package]
    assert (BINDER / rest[0].split()[1]).resolve() == (ROOT / "constraints.txt").resolve()


def test_nothing_is_pinned_a_second_time():
    assert "==" not in "".join(lines_of("requirements.txt"))
    assert sorted(path.name for path in BINDER.iterdir()) == [
        "postBuild",
        "requirements.txt",
        "runtime.txt",
        "start",
    ]


def test_its_python_is_one_that_the_package_takes_and_the_constraints_know():
    (runtime,) = lines_of("runtime.txt")
    version = tuple(map(int, re.fullmatch(r"python-(\d+)\.(\d+)", runtime).groups()))
    assert version >= (3, 10)


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_its_scripts_can_be_run(name):
    assert os.access(BINDER / name, os.X_OK)
    subprocess.run(["bash", "-n", BINDER / name], check=True)


def test_start_runs_what_it_is_given_with_as_many_threads_as_there_are_cores_to_use():
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [BINDER / "start", "sh", "-c", 'echo "$OMP_NUM_THREADS $0 $1"', "one word", "two"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "2 one word two\n"
