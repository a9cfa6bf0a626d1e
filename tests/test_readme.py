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


@pytest.mark.parametrize(("name", "place"), [("TUTORIAL_COMMAND", 0), ("TEST_COMMAND", 1)])
def test_ci_finds_each_command_and_nothing_else(commands, name, place):
    (pattern,) = re.findall(rf"^readonly {name}='(.*)'$", CI, re.MULTILINE)
    assert [line for line in README.splitlines() if re.search(pattern, line)] == [commands[place]]


def test_the_commands_name_files_that_exist(commands):
    words = [word for command in commands for word in shlex.split(command)]
    files = [word for word in words if re.fullmatch(r"[\w/]+\.(py|txt|ipynb)", word)]
    assert files == ["constraints.txt", "tutorials/open.py", "constraints.txt", "tests/browser/chromium.py"]
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


@pytest.mark.soak
def test_the_tutorial_learns_digits_and_draws_its_curves(tmp_path):
    script = ROOT / "tutorials" / "digits.py"
    subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL
    )
    run = tmp_path / "runs" / "digits"
    assert read_log(run / "valid" / "epoch-20" / "Accuracy.log").final > 97
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_examples_run_and_do_what_their_comments_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example, rewinding, resuming, verifying, leaving, hunting, reading = blocks("python")
    scope = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        run_block(example, scope)
        learner = scope["learner"]
        assert (learner.status, learner.num_epochs) == ("finished", 10)
        assert learner.history.best("Accuracy", "train").value > 90
        trained = weights(learner)
        run_block(rewinding, scope)
        assert torch.equal(weights(learner), trained)

        run_block(resuming, scope)
    assert (learner.status, learner.position.iteration) == ("paused", 160)
    assert torch.equal(weights(learner), trained)
    assert scope["label"] in {info.label for info in learner.checkpoints}

    run_block(verifying, scope)
    assert learner._verified.exact, learner._verified
    assert torch.equal(weights(learner), trained)

    run_block(hunting, scope)
    assert [str(each.condition) for each in learner.breakpoints] == ["NonFinite()", "LossSpike(z=8)"]
    assert torch.equal(weights(learner), trained)
    run_block(reading, scope)
    assert len(scope["run"].series("Loss", "train").value) == 160

    run_block(leaving, scope)
    assert 160 < learner.position.iteration <= 192
    learner.fit()
    assert (learner.status, learner.position.iteration) == ("finished", 192)


def run_block(block, scope):
    exec(compile(block, "README.md", "exec"), scope)


def weights(learner):
    return torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])


def test_the_pictures_are_small_and_shown_in_both_themes():
    shown = re.findall(r'(?:srcset|src)="([^"]+)"', README)
    assert shown == ["tutorials/pictures/panel_dark.png", "tutorials/pictures/panel_light.png"]
    for name in shown:
        picture = (ROOT / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 150_000


def test_figures_in_the_readme_are_in_the_results():
    results = (ROOT / "tests" / "benchmarks" / "RESULTS.md").read_text("utf-8")
    measured = {float(number) for number in re.findall(r"(?<![\d.])\d+(?:\.\d+)?(?![\d.]*\d)", results)}
    rows = re.findall(r"^\| (.+) \| (.+) \|$", README.partition("| what | figure |")[2], re.MULTILINE)
    figures = [number for _, stated in rows for number in re.findall(r"\d+(?:\.\d+)?", stated)]
    assert len(figures) > 10
    # As rounded there: 230.0 is shown as 230, 0.89 as 0.9.
    rounded = {f"{number:.{places}f}" for number in measured for places in (0, 1, 2)}
    assert [figure for figure in figures if figure not in rounded] == []
