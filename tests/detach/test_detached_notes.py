"""What is around a detached run: the surroundings that it takes along, and the note in its directory."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from builder_support import batches, classifier, net, sgd
from detach_support import until_it_ends, waits_for

from notebook_learner import Artifacts
from notebook_learner.artifacts.earlier_run import own_files
from notebook_learner.remote import detached
from notebook_learner.remote.detached import LOG, NOTE, detached_in, noted_in, process_of

ODD = """
import sys, torch, pickle
sys.setrecursionlimit(1234)
torch.set_num_threads(2)
torch.set_num_interop_threads(1)
torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
torch.set_float32_matmul_precision("high")
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.set_flush_denormal(True)
torch.backends.cudnn.benchmark = True
torch.backends.cuda.enable_flash_sdp(False)
torch.autograd.set_detect_anomaly(True)
torch.multiprocessing.set_sharing_strategy("file_system")
"""
PRINT = """
import sys, pickle
from notebook_learner.ranks.process_settings import ambient, surround
given = sys.stdin.buffer.read()
if given:
    surround(pickle.loads(given))
sys.stdout.buffer.write(pickle.dumps(ambient()))
"""


def ambient_of(code: str, given: bytes = b"") -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code + PRINT], input=given, capture_output=True, env=environment, check=True
    )
    found: dict[str, Any] = pickle.loads(done.stdout)
    return found


def test_a_process_computes_as_the_one_that_it_comes_from() -> None:
    odd = ambient_of(ODD)
    assert len(odd) > 15 and odd["denormals"]
    assert ambient_of("") != odd, "else it would say nothing"
    assert ambient_of("", pickle.dumps(odd)) == odd


def test_the_files_of_a_detached_run_are_its_own(tmp_path: Path) -> None:
    """They are set aside, or deleted, with the others, and do not disturb a reader of the run."""
    run, model = tmp_path / "run", net()
    classifier(run).num_epochs(2).build(model, sgd(model), None, batches()).detach()
    until_it_ends(run)
    assert {NOTE, LOG} <= {path.name for path in own_files(run)}
    found = Artifacts(run)
    assert found.status == "finished" and found.verify() and found.repair()
    assert len(found.series("Loss", "train").value) == 8
    model = net()
    classifier(run).build(model, sgd(model), None, batches()).fit()
    assert (tmp_path / "run-1" / LOG).exists() and not (run / LOG).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        '{"pid": 1}',
        "[" * 100_000,
        json.dumps({"pid": True, "since": 0.0, "host": "", "ended": "", "error": "", "num_epochs": 0}),
        json.dumps({"pid": 1, "since": 0.0, "host": "", "ended": "", "error": "", "num_epochs": 0}),
    ],
)
def test_a_note_that_is_none_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text(text)
    assert noted_in(tmp_path) is None and detached_in(tmp_path) is None


def test_a_note_names_no_process_but_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come from anywhere, and the process that it names gets a signal to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        process_of(stranger.pid).note_in(tmp_path)
        assert detached_in(tmp_path) is None
        detached.end_detached(tmp_path)
        assert stranger.poll() is None
        monkeypatch.setattr(detached, "MODULE", "input()")
        found = detached_in(tmp_path)
        assert found is not None and found.pid == stranger.pid
        monkeypatch.setattr(detached.socket, "gethostname", lambda: "elsewhere")
        assert detached_in(tmp_path) is None
        stranger.communicate(b"\n")


@pytest.mark.parametrize("dying", ["its memory is gone", "its first thread is over"])
def test_a_process_that_is_dying_still_has_its_files(
    dying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket can be reached for a moment after it was killed, so no other process begins there before."""

    def cmdline(process: psutil.Process) -> list[str]:
        if dying == "its memory is gone":
            return []
        raise psutil.ZombieProcess(process.pid)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            note = process_of(process.pid)
            waits_for(lambda: not note.is_alive())  # it does something else, once it has begun
            monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
            assert note.is_alive()
        finally:
            process.kill()
    assert not note.is_alive()
