"""One process writes in a run's directory: who else begins there is told who has it, whatever lies there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

import pytest
from rerun_support import a_run_in, builder_in, built, half_way, names_in, tree, without_the_log
from two_kernels import Kernel

from notebook_learner import Artifacts, BusyError
from notebook_learner.event import Notice
from notebook_learner.remote.owner import DirectoryLock, locker_of, owner_in

NOTEBOOK = "/home/ada/digits.ipynb"

BEGINS = {
    "a new run": "built(builder_in(run, files=True)).fit()",
    "overwrite": "built(builder_in(run, files=True).overwrite()).fit()",
    "resume": "built(builder_in(run, epochs=3, files=True).resume())",
    "checkpoint": "built(builder_in(run, epochs=3, files=True).checkpoint(1))",
    "a save": "built(builder_in(run)).save()",
    "a step": "built(builder_in(run)).step()",
    "a restore": "built(builder_in(run, epochs=3, files=True)).restore(1)",
    "evaluate": "built(builder_in(run)).evaluate(batches(), name='other')",
    "detach": "built(builder_in(run, files=True)).detach()",
    "start": "built(builder_in(run)).start()",
    "repair": "Artifacts(run).repair()",
}


@pytest.fixture
def run(tmp_path):
    """Where the run of a test goes; a folder with other runs beside it."""
    return tmp_path / "runs" / "digits"


@pytest.fixture
def kernels():
    """Makes kernels, which end with the test."""
    made = []

    def kernel(notebook=""):
        made.append(Kernel(notebook))
        return made[-1]

    yield kernel
    for each in made:
        each.close()


@pytest.fixture
def mounted(tmp_path):
    """The same directory by another path."""
    place = tmp_path / "elsewhere"

    def mount(directory, how):
        if how == "a bind mount":
            place.mkdir()
            subprocess.run(["mount", "--bind", str(directory), str(place)], check=True)
        elif how == "a link":
            place.symlink_to(directory)
        return place if how != "its own path" else directory

    yield mount
    # `os.path.ismount` sees no mount of a folder of the same file system.
    with open("/proc/mounts") as mounts:
        is_there = any(line.split()[1] == str(place) for line in mounts)
    if is_there:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _may_mount():
    """Whether this user may mount here; in a container root may not."""
    if os.geteuid() != 0:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "--bind", "/tmp", "/tmp"], capture_output=True)
    return done.returncode == 0


WAYS = ["its own path", "a link", *(["a bind mount"] if _may_mount() else [])]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sock", ["there", "removed", "off in one", "off in both"])
@pytest.mark.rounds(4)
def test_nobody_begins_where_another_process_has_a_run_open(sock, way, run, kernels, mounted):
    first, second = kernels(NOTEBOOK), kernels()
    first(
        """
run = Path(run)
builder = builder_in(run, epochs=3, files=True)
learner = built(builder.remote_control(not off))
learner.step(6)
learner.save()
""",
        run=str(run),
        off=sock.startswith("off"),
    )
    (run / "control.sock").unlink(missing_ok=True) if sock == "removed" else None
    before = without_the_log(tree(run))
    if sock == "off in both":
        second("really = builder_in\ndef builder_in(*a, **k): return really(*a, **k).remote_control(False)")
    there = mounted(run, way)
    said = second(
        "run = Path(run)\n_ = {name: told(lambda: exec(code, globals())) for name, code in begins.items()}",
        run=str(there),
        begins=BEGINS,
    )
    for name, text in said.items():
        if name == "repair":
            assert text.startswith("StoreError: ") and "written to by a running process" in text
            continue
        assert text.startswith("BusyError: another process, of "), (name, text)
        assert f"(pid {first.pid}), has the run in {str(there)!r} open" in text, name
        assert f"in the notebook {NOTEBOOK!r}; it is paused. In that notebook press Stop or run" in text, name
    assert without_the_log(tree(run)) == before and names_in(run.parent) == ["digits"]

    first("learner.fit(); learner._replica.saving.close()")
    assert second("_ = told(lambda: exec(cell, globals()))", cell=BEGINS["resume"]) == "done"


@pytest.mark.parametrize("sock", ["there", "removed", "off"])
def test_a_refusal_names_ctl_only_where_ctl_finds_the_run(sock, run, kernels):
    first = kernels()
    first(
        "learner = built(builder_in(Path(run)).remote_control(on)); learner.step()",
        run=str(run),
        on=sock != "off",
    )
    if sock == "removed":
        (run / "control.sock").unlink()
    with pytest.raises(BusyError) as refused:
        built(builder_in(run)).step()
    assert ("notebook-learner ctl" in str(refused.value)) == (sock == "there")
    assert (f"`kill {first.pid}`" in str(refused.value)) == (sock != "there")


def test_a_run_that_is_running_says_so_and_one_that_is_over_is_free(run, kernels):
    first = kernels()
    first(
        """
gate, reached = threading.Event(), threading.Event()
def slowly(model, batch):
    reached.set()
    gate.wait(60)
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
builder = builder_in(Path(run), files=True)
builder._settings.loss = None
learner = built(builder.train_step(slowly))
learner.start()
reached.wait(60)
""",
        run=str(run),
    )
    learner = built(builder_in(run))
    with pytest.raises(
        BusyError, match=rf"\(pid {first.pid}\).*; it is running\. End it: learner\.stop\(\) there"
    ):
        learner.fit()
    first("gate.set(); learner.wait()")
    learner.fit()
    assert names_in(run.parent) == ["digits", "digits-1"]
    assert Artifacts(run.with_name("digits-1")).verify()


@pytest.mark.parametrize("how", ["finished", "stopped", "stopped after a pause", "restored at its end"])
def test_a_training_that_is_over_lets_others_go_on_while_its_kernel_lives(how, run, kernels):
    first, second = kernels(NOTEBOOK), kernels("/home/ada/second.ipynb")
    first("run = Path(run)\nlearner = built(builder_in(run, epochs=2, files=True))", run=str(run))
    if how == "stopped":
        first("stop = lambda l: (l.stop(), False)[1]\nlearner.run_until(stop)")
    elif how == "stopped after a pause":
        first("learner.step(2); learner.save(); learner.stop()")
    else:
        first("learner.fit(); learner.save()")
        if how == "restored at its end":
            first("learner.restore('latest')")
    at = first("_ = (learner.status, str(learner.position))")
    assert at[0] in ("finished", "stopped")
    assert first("_ = learner._elsewhere") == ""
    second(
        "other = built(builder_in(Path(run), epochs=4, files=True).resume())\nother.step(); other.save()",
        run=str(run),
    )

    away = first("_ = learner._elsewhere")
    assert f"process {second.pid} (notebook '/home/ada/second.ipynb') goes on with this run" == away
    written = without_the_log(tree(run))
    refused = first(
        """
_ = {name: told(call) for name, call in {
    "fit": lambda: learner.fit(epochs=1), "start": lambda: learner.start(epochs=1), "step": learner.step,
    "save": learner.save, "rewind": learner.rewind, "restore": lambda: learner.restore("latest"),
    "evaluate": lambda: learner.evaluate(batches()), "epochs": lambda: setattr(learner, "num_epochs", 9),
    "detach": lambda: learner.detach(epochs=1),
}.items()}
learner.tools.note("not into the other's log")
"""
    )
    for name, text in refused.items():
        assert text.startswith("BusyError: the training is over here, and another process, of "), (name, text)
        assert f"(pid {second.pid})" in text and "second.ipynb" in text
    assert first("_ = (learner.status, str(learner.position))") == at
    assert without_the_log(tree(run)) == written
    assert "not into the other" not in (run / "experiment.log").read_text()

    second("other.fit()")
    written = without_the_log(tree(run))
    assert first("_ = learner._elsewhere") == "another process has gone on with this run"
    text = first("_ = told(lambda: learner.fit(epochs=1))")
    assert text.startswith(
        "StoreError: this learner cannot go on here: another process has gone on with the run"
    )
    assert ".resume() goes on from the newest checkpoint there" in text
    assert without_the_log(tree(run)) == written
    first("_ = str(learner.fork(run.with_name('fork')).fit() is not None)")


VERBS_OF_ONE_THAT_IS_OVER = """
learner.fit(epochs=1)
assert learner.status == "finished"
learner.save()
learner.tools.note("a line")
learner.evaluate(batches(), name="clean")
learner.rewind(2)
learner.step(); learner.stop()
learner.restore(3)
learner.fit()
learner.num_epochs = 5
learner.start(); learner.wait()
_ = learner.artifacts.verify().problems
"""


def test_where_nobody_else_went_on_everything_works_as_before(run, kernels):
    first = kernels()
    first(
        """
class Tape:
    def __init__(self): self.texts = []
    def handle(self, event):
        if type(event).__name__ == "Notice": self.texts.append(event.text)
tape = Tape()
learner = built(builder_in(Path(run), epochs=2, files=True).renderer(tape))
learner.fit()
""",
        run=str(run),
    )
    (run / "checkpoint" / "state-1.h5").exists()
    import torch
    from builder_support import batches, net

    from notebook_learner import Evaluator

    Evaluator(run, net(), loss=torch.nn.functional.cross_entropy, renderer="silent").evaluate(
        batches(), "mine"
    )
    (run / "notes.txt").write_text("a user's file")
    assert first("_ = learner._elsewhere") == ""
    assert first(VERBS_OF_ONE_THAT_IS_OVER) == ()
    assert first("_ = [text for text in tape.texts if 'nothing was left' not in text]") == ["a line"]
    assert "a line" in (run / "experiment.log").read_text()
    assert names_in(run.parent) == ["digits"]


def test_a_forked_child_keeps_nothing_locked_once_its_parent_is_killed(run, kernels):
    first = kernels()
    child = first(
        """
learner = built(builder_in(Path(run), epochs=3, files=True))
learner.step(6); learner.save()
_ = os.fork()
if not _:
    signal.pause()
""",
        run=str(run),
    )
    try:
        first.kill()
        lock = DirectoryLock(run)
        # The child lets go before it does anything else, but the parent may die before the child has run.
        until = time.monotonic() + 60
        while not lock.take():
            assert time.monotonic() < until, "the child that lives on has no part in it"
            time.sleep(0.02)
        lock.close()
        os.kill(child, 0)
        resumed = built(builder_in(run, epochs=3, files=True).resume(), seed=7)
        assert resumed.position.iteration == 6
        resumed.fit()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_parent_that_lets_go_does_so_for_its_children_too(run):
    lock, other = DirectoryLock(_made(run)), DirectoryLock(run)
    assert lock.take() and not other.take()
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        lock.free()
        assert other.take()
        other.close()
        assert lock.take()
        lock.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _made(directory):
    directory.mkdir(parents=True)
    return directory


IN_A_CHILD = """
learner = built(builder_in(Path(run), epochs=3, files=True))
learner.step(2)
gate, reached = threading.Event(), threading.Event()
if busy:
    real = learner._replica.loop.current.step
    def hook(module, given):
        reached.set(); gate.wait(60)
    handle = learner.model.register_forward_pre_hook(hook)
    learner.start(); reached.wait(60)
CALLS = {
    "status": lambda: learner.status, "pause": learner.pause, "save": learner.save, "step": learner.step,
    "fit": learner.fit, "start": learner.start, "wait": learner.wait, "stop": learner.stop,
    "resume": learner.resume, "rewind": learner.rewind, "restore": lambda: learner.restore("latest"),
    "capture": learner.capture, "evaluate": lambda: learner.evaluate(batches()),
    "predict": lambda: learner.predict(batches()), "inspect": learner.inspect,
    "step_epoch": learner.step_epoch,
    "run_until": lambda: learner.run_until((3, 1)), "what_if": learner.what_if,
    "lr_find": learner.tools.lr_find,
    "fork": lambda: learner.fork(run + "-fork"), "detach": learner.detach, "take_back": learner.take_back,
    "note": lambda: learner.tools.note("a line"), "paused": lambda: learner.paused().__enter__(),
    "epochs": lambda: setattr(learner, "num_epochs", 9), "checkpoints": lambda: learner.checkpoints,
    "artifacts": lambda: learner.artifacts, "try_step": learner.tools.try_step,
    "look": learner._look_for_checkpoints,
}
reads, writes = os.pipe()
child = os.fork()
if not child:
    said = {name: told(call) for name, call in CALLS.items()}
    said["begin"] = told(lambda: built(builder_in(Path(run), files=True).overwrite()).fit())
    os.write(writes, repr((said, repr(learner))).encode())
    os._exit(0)
os.close(writes)
data = b""
while more := os.read(reads, 1 << 16):
    data += more
os.waitpid(child, 0)
gate.set()
if busy:
    learner.pause(); handle.remove()
learner.fit()
_ = eval(data), learner.status, learner.artifacts.verify().problems
"""


@pytest.mark.parametrize("busy", [False, True], ids=["it stands", "it trains"])
def test_in_a_forked_child_every_verb_says_that_the_learner_is_the_parents(busy, run, kernels):
    first = kernels()
    (said, shown), status, problems = first(IN_A_CHILD, run=str(run), busy=busy)
    begun = said.pop("begin")
    assert f"(pid {first.pid}), has the run in" in begun
    for name, text in said.items():
        assert text.startswith(
            f"BusyError: this learner belongs to process {first.pid}, of which this one"
        ), (
            name,
            text,
        )
    assert f"process {first.pid}" in shown
    assert status == "finished" and problems == ()
    assert names_in(run.parent) == ["digits"]


def test_a_run_is_handed_over_without_a_moment_in_which_another_could_begin(run, kernels):
    first = kernels()
    first("learner = built(builder_in(Path(run), epochs=2, files=True))\nlearner.step(2)", run=str(run))
    lock, tried, over = DirectoryLock(run), [], threading.Event()

    def tries():
        while not over.is_set():
            if lock.take():
                if (noted := Artifacts(run).status) != "finished":
                    tried.append(noted)
                lock.free()
                return

    thread = threading.Thread(target=tries)
    thread.start()
    first("report = learner.detach()\n_ = report.pid")
    text = first("_ = told(lambda: built(builder_in(Path(run), files=True).overwrite()).fit())")
    assert "goes on in process" in text or text == "done", "it may be over by now"
    thread.join(60)
    over.set()
    lock.close()
    assert tried == []


def test_a_detached_run_that_has_ended_is_no_owner_at_once(run, kernels):
    first = kernels()
    first(
        "learner = built(builder_in(Path(run), epochs=2, files=True))\nlearner.step(2)\nlearner.detach()",
        run=str(run),
    )
    from notebook_learner.remote.detached import detached_in, noted_in

    while not (noted := noted_in(run)).ended:
        time.sleep(0.005)
    assert detached_in(run) is None
    again = built(builder_in(run, epochs=2, files=True).resume(), seed=3)
    assert again.status == "finished" and noted.ended == "finished"
    first("report = learner.take_back()")
    assert first("_ = learner.status") == "finished"


@pytest.mark.parametrize("refusal", ["ENOLCK", "EOPNOTSUPP", "EINVAL", "ENOSYS"])
def test_a_file_system_without_locks_is_told_of_and_training_goes_on(refusal, run, monkeypatch):
    import errno
    import fcntl

    from builder_support import Tape

    number = getattr(errno, refusal)

    def no_locks(descriptor, kind):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    tape = Tape()
    learner = built(builder_in(run, files=True).renderer(tape))
    learner.fit()
    assert learner.status == "finished"
    (told,) = [notice for notice in tape.of(Notice) if "locks" in notice.text]
    assert told.level == "warning"
    assert f"file system of {str(run)!r} knows no locks ({os.strerror(number)})" in told.text
    assert "knows no locks" in (run / "experiment.log").read_text()
    learner.fit(epochs=1)
    assert len([notice for notice in tape.of(Notice) if "locks" in notice.text]) == 1


def test_who_has_a_directory_is_known_without_a_note_too(run):
    lock = DirectoryLock(_made(run))
    lock.take()
    assert owner_in(run) is None
    found = locker_of(lock.identity)
    assert found is not None and found.pid == os.getpid()
    lock.close()
    assert locker_of(lock.identity) is None


@pytest.mark.parametrize("text", [b"", b"[", b"{}", b'{"pid": 1}', b"[" * 3000, b"\xff"])
def test_a_note_that_is_none_names_nobody(text, run):
    os.setxattr(_made(run), "user.notebook_learner.owner", text)
    assert owner_in(run) is None
    a_run_in(run)


def test_the_traceback_of_a_refusal_ends_at_the_error(run, kernels):
    """IPython leaves out the frames that say so themselves."""
    first = kernels()
    first("learner = built(builder_in(Path(run), files=True))\nlearner.step()", run=str(run))
    for verb in ("fit", "start", "step"):
        learner = built(builder_in(run))
        with pytest.raises(BusyError) as told:
            getattr(learner, verb)()
        ours = [each for each in told.traceback if "notebook_learner/" in str(each.path)]
        shown = [each.name for each in ours if not each.frame.f_locals.get("__tracebackhide__")]
        assert shown == []
        assert re.search(r"has the run in .* open; it is paused", str(told.value))


def test_a_learner_that_is_let_go_leaves_the_directory_free(run):
    learner = half_way(run)
    lock = DirectoryLock(run)
    assert not lock.take()
    del learner
    import gc

    gc.collect()
    assert lock.take()
    assert owner_in(run) is None
    lock.close()
