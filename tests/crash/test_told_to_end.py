"""SIGTERM and SIGHUP, to a real process in whatever it does: it stands at the next step, saves, and ends by
that signal; the run then goes on to the bits of one that did not get it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from notebook_learner import Artifacts

HERE = Path(__file__).parent
BOTH = (signal.SIGTERM, signal.SIGHUP)
Played = Callable[[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[str, Path, int], dict[str, Any]]]:
    folder = Path(mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    paths = [str(HERE), str(HERE.parent / "learner"), *(p for p in sys.path if p)]
    ran = subprocess.Popen(
        [sys.executable, str(HERE / "ending_server.py"), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert ran.stdin is not None and ran.stdout is not None
    assert ran.stdout.readline() == "ready\n"

    def play(scene: str, directory: Path, signum: int) -> dict[str, Any]:
        assert ran.stdin is not None and ran.stdout is not None
        ran.stdin.write(json.dumps([scene, str(directory), signum]) + "\n")
        ran.stdin.flush()
        return dict(json.loads(ran.stdout.readline()))

    yield play
    ran.communicate(timeout=60)
    subprocess.run(["rm", "-r", str(folder)], check=True)


@pytest.fixture
def played(server: Any, quick_folder: Path) -> Played:
    return lambda scene, signum: dict(server(scene, quick_folder / "run", signum))


def ended_by(signum: int, ran: dict[str, Any]) -> None:
    """By the signal itself, of which a shell makes 128 + its number; nothing came after."""
    assert ran["code"] == -signum, ran
    assert ran["told"] == []


@pytest.mark.parametrize("scene", ["fit", "background", "waited"])
@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.rounds(4)
def test_training_stands_and_is_saved_where_it_is_told_to_end(played, scene, signum) -> None:
    ran = played(scene, signum)
    ended_by(signum, ran)
    assert (ran["at"], ran["wrong"]) == ([2, "train", 3], [])


@pytest.mark.parametrize("scene", ["validation", "background_validation"])
@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.rounds(2)
def test_a_validation_stands_and_is_saved_where_it_is_told_to_end(played, scene, signum) -> None:
    ran = played(scene, signum)
    ended_by(signum, ran)
    assert (ran["at"], ran["wrong"]) == ([1, "valid", 2], [])


@pytest.mark.parametrize("scene", ["save", "save_behind"])
@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.rounds(2)
def test_a_save_comes_to_its_end_before_the_process_does(played, scene, signum) -> None:
    ran = played(scene, signum)
    ended_by(signum, ran)
    assert (ran["at"], ran["wrong"]) == ([1, "train", 3], [])


@pytest.mark.parametrize("scene", ["terminal fit", "terminal background"])
def test_a_terminal_that_is_closed_leaves_a_saved_run(played, scene) -> None:
    ran = played(scene, signal.SIGHUP)
    ended_by(signal.SIGHUP, ran)
    assert (ran["at"], ran["wrong"]) == ([2, "train", 3], [])


@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.rounds(1)
def test_of_two_trainings_in_one_process_both_are_saved_first(played, quick_folder, signum) -> None:
    ran = played("two_at_once", signum)
    ended_by(signum, ran)
    assert (ran["at"], ran["wrong"]) == ([2, "train", 3], [])
    found = Artifacts(quick_folder / "other").find("latest")
    assert (found.epoch, found.split, found.step) == (1, "train", 3)


def test_an_evaluation_is_left_and_what_was_saved_stays(played) -> None:
    ran = played("evaluation", signal.SIGTERM)
    ended_by(signal.SIGTERM, ran)
    assert (ran["at"], ran["wrong"]) == ([1, "train", 3], [])


def test_a_signal_to_the_whole_group_with_the_loaders_workers_loses_no_step(played) -> None:
    for signum in BOTH:
        ran = played("workers", signum)
        ended_by(signum, ran)
        assert (ran["at"], ran["wrong"]) == ([2, "train", 3], [])


@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.rounds(1)
def test_the_users_own_handler_of_ended_children_is_called_until_the_end(played, signum) -> None:
    ran = played("own_children", signum)
    assert (ran["code"], ran["told"]) == (-signum, ["heard"])
    assert (ran["at"], ran["wrong"]) == ([2, "train", 3], [])


@pytest.mark.parametrize("scene", ["idle", "after_the_background"])
@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.rounds(2)
def test_where_nothing_is_at_work_the_process_ends_at_once(played, scene, signum) -> None:
    ran = played(scene, signum)
    ended_by(signum, ran)
    assert ran["wrong"] == []
    assert scene != "idle" or ran["at"] == [1, "train", 2]


def test_a_second_sigterm_ends_a_step_that_hangs(played) -> None:
    ran = played("hangs", signal.SIGTERM)
    ended_by(signal.SIGTERM, ran)
    assert (ran["at"], ran["wrong"]) == ([2, "train", 1], [])  # what was saved before


def test_a_second_sighup_does_not_end_it_before_it_is_saved(played) -> None:
    ran = played("twice", signal.SIGHUP)
    ended_by(signal.SIGHUP, ran)
    assert (ran["at"], ran["wrong"]) == ([2, "train", 3], [])


def test_a_signal_that_is_ignored_stays_ignored(played) -> None:
    ran = played("ignored", signal.SIGHUP)
    assert (ran["code"], ran["told"], ran["wrong"]) == (0, ["finished"], [])


@pytest.mark.parametrize("signum", BOTH)
@pytest.mark.rounds(1)
def test_a_handler_of_the_users_own_stays(played, signum) -> None:
    ran = played("own_handler", signum)
    assert (ran["code"], ran["told"], ran["wrong"]) == (0, ["finished"], [])


def test_where_no_pause_is_kept_the_process_ends_at_once(played) -> None:
    ran = played("nothing_kept", signal.SIGTERM)
    ended_by(signal.SIGTERM, ran)
    assert (ran["at"], ran["wrong"]) == ([2, "train", 1], [])


def test_the_log_says_why_it_stands(played, quick_folder) -> None:
    played("logged", signal.SIGTERM)
    assert (
        "paused at epoch 2, train, step 3 of 7: told to end by SIGTERM"
        in (quick_folder / "run" / "experiment.log").read_text()
    )
