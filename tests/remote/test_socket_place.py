"""The socket lies outside of the run's directory, so that this can be copied while it trains."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from remote_support import (
    SOON,
    STEPS,
    Brake,
    file_in,
    learner_in,
    log_of,
    same_bits,
    straight_weights,
    weights,
)

from notebook_learner import Artifacts, LearnerBuilder, RemoteError
from notebook_learner.remote import control
from notebook_learner.remote.owner import other_process_in
from notebook_learner.remote.protocol import line_of
from notebook_learner.steering.command import Answer


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sockets of this test lie."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"notebook_learner-{os.geteuid()}"


def with_copytree(run: Path, copy: Path) -> None:
    shutil.copytree(run, copy)


def with_cp(run: Path, copy: Path) -> None:
    subprocess.run(["cp", "-r", str(run), str(copy)], check=True)


@pytest.mark.parametrize("copied", [with_copytree, with_cp])
def test_the_directory_of_a_run_that_trains_is_copied_and_the_copy_goes_on(
    copied: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    learner = learner_in(run, configure=LearnerBuilder.with_file_checkpointer)
    learner.step(11)
    learner.save()
    assert learner.artifacts is not None  # all is on the disk: a file that is just replaced has another name
    copied(run, copy)
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in run.rglob("*") if not path.is_dir())

    artifacts = Artifacts(copy)
    assert artifacts.verify() and [each.label for each in artifacts.checkpoints] == ["1", "2-3"]
    with pytest.raises(RemoteError, match="no run is alive in"):
        control(copy, "status")
    resumed = learner_in(
        copy,
        configure=lambda builder: builder.with_file_checkpointer().resume(),  # type: ignore[arg-type]
    )
    assert resumed.position == learner.position
    straight = straight_weights(tmp_path / "straight")
    assert same_bits(weights(resumed.fit()), straight) and same_bits(weights(learner.fit()), straight)
    assert control(copy, "status").facts["pid"] == control(run, "status").facts["pid"] == os.getpid()


def test_a_run_is_copied_in_the_middle_of_a_step(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    brake = Brake(at=STEPS + 3)
    learner = learner_in(run, each_step=brake.step, configure=LearnerBuilder.with_file_checkpointer)
    learner.start()
    assert brake.reached.wait(SOON)
    assert learner.artifacts is not None  # all is on the disk
    shutil.copytree(run, copy)
    assert control(run, "status").facts["status"] == "running"
    brake.free.set()
    assert Artifacts(copy).verify()
    learner.wait()


def test_a_folder_that_lets_others_in_takes_no_socket(tmp_path: Path, sockets: Path) -> None:
    sockets.mkdir(mode=0o755)
    learner = learner_in(tmp_path / "run")
    learner.fit()
    (told,) = [line for line in log_of(tmp_path / "run") if "no remote control" in line]
    assert "is another user's or lets others in; remove that folder" in told.replace("\\", "")
    assert not file_in(tmp_path / "run").exists() and not list(sockets.iterdir())


def test_a_socket_that_others_may_have_put_there_is_not_asked(tmp_path: Path, sockets: Path) -> None:
    learner = learner_in(tmp_path / "run")
    learner.step()
    sockets.chmod(0o777)
    with pytest.raises(RemoteError, match=r"control\.sock in .* leads to .*, where another user may listen"):
        control(tmp_path / "run", "status")
    assert other_process_in(tmp_path / "run") == "a process of another user"
    sockets.chmod(0o700)
    assert control(tmp_path / "run", "status")


def test_who_writes_the_file_names_no_other_socket_of_the_readers(tmp_path: Path, sockets: Path) -> None:
    sockets.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(sockets / "agent"))
        agent.listen()
        agent.setblocking(False)
        run = tmp_path / "run"
        run.mkdir()
        for name in (str(sockets / "agent"), "agent", "/dev/null", "x" * 9000, 7, None, "a\0b"):
            file_in(run).write_text(json.dumps({"socket": name}))
            with pytest.raises(RemoteError, match="no run is alive"):
                control(run, "status")
        with pytest.raises(BlockingIOError):
            agent.accept()


def test_a_run_of_an_earlier_release_is_steered_and_what_it_left_is_replaced(tmp_path: Path) -> None:
    """Those listen in the directory itself."""

    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as guest:
            guest.recv(4096)
            guest.sendall(line_of(Answer(True, "paused at its first step")))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(file_in(tmp_path)))
        listener.listen()
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        assert str(control(tmp_path, "status")) == "paused at its first step"
        thread.join()
    learner = learner_in(tmp_path)
    learner.step()
    assert file_in(tmp_path).is_file() and control(tmp_path, "status")
