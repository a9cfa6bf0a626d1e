"""The socket and its thread: where it is, who may come in, and when it goes."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_support import SOON, file_in, learner_in, log_of, other_process, socket_of, waits_for

from notebook_learner import Artifacts, BusyError, LearnerBuilder, RemoteError
from notebook_learner.artifacts.run_status import is_run
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.remote import control, server, socket_place
from notebook_learner.remote.server import RemoteControl, _serving
from notebook_learner.remote.socket_place import Peer, SocketFolder, connected


def in_charge(directory: Path) -> int:
    """The number of epochs of the learner that answers: what these tests tell learners by."""
    return control(directory, "status").facts["num_epochs"]


# Anything may come -----------------------------------------------------------------------------------


class Untouched:
    """A learner on which nothing may be called."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was called")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    directory, learner = tmp_path_factory.mktemp("untouched"), Untouched()
    remote = RemoteControl(directory)
    assert remote(learner) == ""
    yield directory
    remote.close()


@given(st.lists(st.binary(max_size=200), max_size=3), st.booleans())
def test_arbitrary_bytes_never_act_and_never_end_the_server(untouched, parts, ends):
    folder = SocketFolder(untouched)
    with connected(folder, SOON) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except BrokenPipeError:  # it has answered already
                break
        if ends:
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.sendall(b"\n") if not any(b"\n" in part for part in parts) else None
        told = connection.recv(1 << 16) if ends or parts else b""
    folder.close()
    assert told == b"" or told.startswith(b'{"ok": false')


def test_a_line_without_end_is_refused(untouched):
    folder = SocketFolder(untouched)
    with connected(folder, SOON) as connection:
        connection.sendall(b"x" * 10_000)
        assert b'"ok": false' in connection.recv(1 << 16)
    folder.close()


# Where it is -----------------------------------------------------------------------------------------


def serving_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "notebook_learner remote control"}


def test_the_socket_comes_with_the_first_step_and_goes_with_the_learner(tmp_path):
    before = serving_threads()
    learner = learner_in(tmp_path)
    assert not file_in(tmp_path).exists()
    learner.step()
    info, there = socket_of(tmp_path).lstat(), socket_of(tmp_path)
    assert stat.S_ISSOCK(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o600
    assert stat.S_IMODE(there.parent.lstat().st_mode) == 0o700
    (mine,) = serving_threads() - before
    del learner
    gc.collect()
    assert not file_in(tmp_path).exists() and not there.exists()
    waits_for(lambda: not mine.is_alive())
    with pytest.raises(RemoteError, match="no run is alive"):
        control(tmp_path, "status")


def test_a_learner_that_is_let_go_takes_its_weights_along_at_once(tmp_path):
    learner = learner_in(tmp_path)
    learner.step()
    model = weakref.ref(learner.model)
    del learner
    gc.collect()
    assert model() is None


def test_nothing_stays_open(tmp_path):
    """In a process of its own: in this one, what other tests have left opens and closes descriptors."""
    script = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from pathlib import Path
from test_remote_server import looks_for_what_stays_open
looks_for_what_stays_open(Path({str(tmp_path)!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def looks_for_what_stays_open(tmp_path):
    def descriptors():
        return set(os.listdir("/proc/self/fd"))

    learner = learner_in(tmp_path / "first")  # what is opened once a process
    gc.collect()
    serving = serving_threads()
    learner.step()
    del learner
    gc.collect()
    waits_for(lambda: serving_threads() <= serving)
    before = descriptors()
    learner = learner_in(tmp_path / "second")
    learner.step()
    control(tmp_path / "second", "status")
    del learner
    # The question is written down after its answer, by a thread that knows the learner meanwhile.
    waits_for(lambda: gc.collect() >= 0 and descriptors() <= before)


def test_the_mode_does_not_depend_on_the_umask(tmp_path):
    before = os.umask(0)
    try:
        learner = learner_in(tmp_path)
        learner.step()
    finally:
        os.umask(before)
    assert stat.S_IMODE(socket_of(tmp_path).lstat().st_mode) == 0o600
    assert stat.S_IMODE(socket_of(tmp_path).parent.lstat().st_mode) == 0o700


@pytest.mark.parametrize("configure", ["off", "no files"])
def test_there_is_no_socket_where_nobody_wants_one(tmp_path, configure):
    def options(builder: LearnerBuilder) -> None:
        if configure == "off":
            builder.remote_control(False)
        else:
            builder.metric_logger(InMemoryMetricLogger()).with_application_logger(False)

    learner = learner_in(tmp_path / "run", configure=options)
    learner.step()
    assert not file_in(tmp_path / "run").exists()


@pytest.mark.parametrize("length", [120, 300])
def test_a_long_path_is_no_hindrance(tmp_path, length):
    directory = tmp_path
    while len(str(directory)) < length:
        directory = directory / ("d" * 100)
    learner = learner_in(directory)
    learner.step()
    assert control(directory, "status").facts["step"] == 1


def test_a_moved_directory_is_steered_where_it_is_now(tmp_path):
    learner = learner_in(tmp_path / "a")
    learner.step()
    (tmp_path / "a").rename(tmp_path / "b")
    assert in_charge(tmp_path / "b") == 2
    del learner
    gc.collect()
    assert not file_in(tmp_path / "b").exists()


def test_a_directory_that_is_removed_does_no_harm(tmp_path):
    learner = learner_in(tmp_path / "run", configure=lambda b: b.with_application_logger(False))
    learner.step()
    assert learner.artifacts.directory, "asked for, so that nothing is being written any more"
    shutil.rmtree(tmp_path / "run")
    other = learner_in(tmp_path / "run", epochs=7)
    other.step()
    del learner
    gc.collect()
    assert in_charge(tmp_path / "run") == 7, "what lies there now is another's"


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_sockets_is_told_of_and_training_goes_on(tmp_path, monkeypatch, refusal):
    def no_sockets(folder: SocketFolder, name: str) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(socket_place, "_listening", no_sockets)
    learner = learner_in(tmp_path)
    learner.fit()
    assert learner.status == "finished"
    (told,) = [line for line in log_of(tmp_path) if "remote control" in line]
    assert told.startswith("WARN") and os.strerror(refusal) in told


def test_who_asks_the_moment_the_socket_is_there_is_answered(tmp_path, monkeypatch):
    really, told = RemoteControl._open, []

    def opened(server):
        really(server)
        told.append(control(server.directory, "status"))

    monkeypatch.setattr(RemoteControl, "_open", opened)
    learner_in(tmp_path).step()
    assert [answer.ok for answer in told] == [True], told


def test_a_process_without_a_thread_to_spare_trains_without_a_socket(tmp_path, monkeypatch):
    really = threading.Thread.start

    def start(thread):
        if thread.name == "notebook_learner remote control":
            raise RuntimeError("can't start new thread")
        really(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    learner, before = learner_in(tmp_path), socket_place._held.copy()
    learner.step()
    told = f"no remote control (notebook-learner ctl) in {str(tmp_path)!r}: can\\'t start"
    assert told in "".join(log_of(tmp_path))
    assert not file_in(tmp_path).exists() and len(socket_place._held - before) == 1, "the lock"


def test_what_is_no_socket_stays_where_it_is(tmp_path):
    file_in(tmp_path).write_text("mine")
    learner = learner_in(tmp_path)
    learner.step()
    assert file_in(tmp_path).read_text() == "mine"
    assert any("is no socket; remove it" in line for line in log_of(tmp_path))


def test_a_system_without_unix_sockets_says_so_to_who_asks(tmp_path, monkeypatch):
    monkeypatch.delattr(socket, "AF_UNIX")
    learner = learner_in(tmp_path)
    learner.step()
    assert not any("remote" in line for line in log_of(tmp_path))
    with pytest.raises(RemoteError, match="which Python does not have on this system"):
        control(tmp_path, "status")


# Whose it is -----------------------------------------------------------------------------------------


def test_in_one_process_the_learner_that_opened_last_is_steered(tmp_path):
    first, second = learner_in(tmp_path, epochs=3), learner_in(tmp_path, epochs=4)
    first.step()
    second.step()
    assert in_charge(tmp_path) == 4
    del first
    gc.collect()
    assert in_charge(tmp_path) == 4, "the one before took nothing along"
    del second
    waits_for(lambda: gc.collect() >= 0 and not file_in(tmp_path).exists())  # a thread may be at it


_TRAINS = """
import sys, time
sys.path.insert(0, {here!r})
from pathlib import Path
from remote_support import learner_in
learner = learner_in(Path({directory!r}), epochs={epochs})
learner.step()
print("ready", flush=True)
sys.stdin.read()
"""


def training(directory: Path, epochs: int) -> subprocess.Popen[str]:
    """A process that stands after its first step."""
    code = _TRAINS.format(here=str(Path(__file__).parent), directory=str(directory), epochs=epochs)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_a_living_process_keeps_its_socket_and_a_killed_one_is_followed(tmp_path):
    with training(tmp_path, 5) as process:
        learner = learner_in(tmp_path, epochs=6)
        with pytest.raises(BusyError, match=rf"\(pid {process.pid}\), has the run in .* open"):
            learner.step()
        del learner
        gc.collect()
        assert in_charge(tmp_path) == 5

        process.send_signal(signal.SIGKILL)
        process.wait()
    assert file_in(tmp_path).exists(), "a killed process takes nothing away"
    with pytest.raises(RemoteError, match="no run is alive"):
        control(tmp_path, "status")
    learner = learner_in(tmp_path, epochs=6)
    learner.step()
    assert in_charge(tmp_path) == 6


def test_a_process_that_ends_takes_its_socket_away(tmp_path):
    with training(tmp_path, 5) as process:
        assert in_charge(tmp_path) == 5
        process.communicate("")
    assert process.returncode == 0
    assert not file_in(tmp_path).exists()


def numbers(things: set[Any]) -> list[int]:
    return sorted(each.descriptor if isinstance(each, SocketFolder) else each.fileno() for each in things)


def test_a_forked_child_neither_keeps_nor_removes_the_socket(tmp_path):
    before = socket_place._held.copy()
    learner = learner_in(tmp_path)
    learner.step()
    kept = numbers(socket_place._held - before)
    assert len(kept) == 6, "the lock, both directories, the socket, both ends of what wakes the thread"
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            for server in list(_serving.values()):
                server.close()
            there = [number for number in kept if os.path.exists(f"/proc/self/fd/{number}")]
            os.write(writes, repr(there).encode())
        finally:
            os._exit(0)
    os.close(writes)
    assert os.read(reads, 1000) == b"[]"
    os.close(reads)
    os.waitpid(child, 0)
    assert in_charge(tmp_path) == 2


def test_a_worker_that_outlives_its_killed_parent_does_not_answer_for_it(tmp_path):
    code = _TRAINS.replace('print("ready", flush=True)', "import os\nchild = os.fork()\n") + (
        "\nif not child:\n    import time\n    time.sleep(600)\n"
    )
    code = code.replace("sys.stdin.read()\n", "print(child, flush=True) if child else None\n", 1)
    code += "\nsys.stdin.read()\n"
    code = code.format(here=str(Path(__file__).parent), directory=str(tmp_path), epochs=2)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert in_charge(tmp_path) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            with pytest.raises(RemoteError, match="no run is alive"):
                control(tmp_path, "status")
        finally:
            os.kill(child, signal.SIGKILL)


# Who may come in -------------------------------------------------------------------------------------

FOREIGN = 65534
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)


@pytest.fixture
def open_directory(tmp_path):
    """One that everybody may look into."""
    for path in (tmp_path, *tmp_path.parents):
        if path == Path("/tmp"):
            break
        path.chmod(0o755)
    return tmp_path


@as_root
def test_another_user_does_not_come_in(open_directory):
    learner = learner_in(open_directory)
    learner.step()
    with other_process(uid=FOREIGN) as foreigner:
        told = foreigner.asks(open_directory, "pause")
        assert not told.ok and "not permitted" in told.text
    assert learner.position.step == 1
    assert not any("remote control by" in line for line in log_of(open_directory))


def test_the_server_asks_the_system_who_comes(tmp_path, monkeypatch):
    learner = learner_in(tmp_path)
    learner.step()
    monkeypatch.setattr(server, "peer_of", lambda connection: Peer(FOREIGN, 77))
    told = control(tmp_path, "step")
    assert not told and told.text.startswith(
        "not permitted: this run is steered by its own user, and not by "
    )
    assert learner.position.step == 1


# What else lives in the directory ---------------------------------------------------------------------


def test_the_socket_disturbs_no_reader_and_no_copy(tmp_path):
    run = tmp_path / "run"
    learner = learner_in(run, configure=lambda b: b.with_file_checkpointer())
    learner.fit()
    learner.save()
    artifacts = learner.artifacts
    assert artifacts.verify() and artifacts.status == "finished"
    assert artifacts.export(tmp_path / "run.h5").stat().st_size > 0
    subprocess.run(["cp", "-a", str(run), str(tmp_path / "copy")], check=True)
    assert Artifacts(tmp_path / "copy").verify()
    with pytest.raises(RemoteError, match="no run is alive"):
        control(tmp_path / "copy", "status")
    subprocess.run(["tar", "-C", str(run), "-cf", str(tmp_path / "run.tar"), "."], check=True)
    del learner
    gc.collect()
    assert Artifacts(run).repair()


def test_a_socket_alone_is_no_run(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(file_in(tmp_path)))
    assert not is_run(tmp_path)
    with pytest.raises(RemoteError, match="no run is alive"):
        control(tmp_path, "status")
