"""Who begins where another process trains, or where one was killed while it made room."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rerun_support import a_run_in, builder_in, built, names_in, tree, users_files_in, without_the_log

from notebook_learner import BusyError
from notebook_learner.artifacts import earlier_run


@pytest.fixture
def run(tmp_path):
    """Where the run of a test goes; a folder with other runs beside it."""
    return tmp_path / "runs" / "digits"


PREPARE = """
    import os, signal, sys, shutil
    from pathlib import Path
    sys.path.insert(0, {here!r})
    import torch
    torch.set_num_threads(1)
    from rerun_support import *
"""


def script(text, **values):
    head = textwrap.dedent(PREPARE).format(here=str(Path(__file__).parent))
    return head + textwrap.dedent(text).format(**values)


def test_another_process_that_has_the_run_open_keeps_it_until_it_is_gone(run):
    text = script(
        """
        learner = half_way(Path({run!r}))
        learner.save()  # nothing is being written any more
        print("stands", flush=True)
        sys.stdin.read()
        """,
        run=str(run),
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"stands\n"
        before = tree(run)
        learner = built(builder_in(run))
        with pytest.raises(BusyError, match=rf"another process, of .*\(pid {process.pid}\), has the run in"):
            learner.fit()
        with pytest.raises(BusyError):
            built(builder_in(run, epochs=3, files=True).checkpoint("latest"))
        assert without_the_log(tree(run)) == without_the_log(before)
        process.kill()
        process.wait()
    learner.fit()
    assert without_the_log(tree(run.with_name("digits-1"))) == without_the_log(before)


KILLED = """
    def killed_at(call, directory):
        '''Train anew in the directory, and die at that call to the file system of making room.'''
        from notebook_learner.artifacts import earlier_run
        from notebook_learner.learner.wiring import directory_tenancy
        room = directory_tenancy.keep_beside
        def counted(name):
            real = getattr(earlier_run.files, name)
            def count(*given, **named):
                global left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return real(*given, **named)
            return count
        def keep(directory):
            for name in ("rename", "make_directory", "remove_directory", "sync_directory", "unlink"):
                setattr(earlier_run.files, name, counted(name))
            place = room(directory)
            if left == 0:  # between the rename and the new directory
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        global left
        left, directory_tenancy.keep_beside = call, keep
        built(builder_in(directory)).fit()

    root = Path({root!r})
    for call in range(1000):
        directory = root / str(call) / "digits"
        shutil.copytree(root / "template", directory)
        child = os.fork()
        if not child:
            killed_at(call, directory)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0
            break
    print(call)
"""


@pytest.mark.parametrize("beside", ["nothing else", "the user's files"])
@pytest.mark.parametrize("then", ["a new run", "a resumed one"])
@pytest.mark.rounds(1)
def test_a_process_killed_while_it_makes_room_loses_nothing(then, beside, tmp_path):
    a_run_in(tmp_path / "template", files=True)
    own = tree(tmp_path / "template")
    mine = users_files_in(tmp_path / "template") if beside == "the user's files" else []
    (tmp_path / "template" / "control.sock").unlink(missing_ok=True)
    text = script(KILLED, root=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    calls = int(done.stdout)
    assert calls >= (2 if beside == "nothing else" else 10)
    for call in range(calls):
        directory = tmp_path / str(call) / "digits"
        if then == "a new run":
            built(builder_in(directory)).fit()
            kept = [each for each in names_in(directory.parent) if each != "digits"]
            assert kept == ["digits-1"], call
            assert tree(directory.with_name("digits-1")) == own, call
        else:
            learner = built(builder_in(directory, files=True).resume(), seed=3)
            is_there = not directory.with_name("digits-1").exists()
            assert learner.status == ("finished" if is_there else "ready"), call
            found = tree(directory if is_there else directory.with_name("digits-1"))
            assert without_the_log({name: found[name] for name in own}) == without_the_log(own), call
            learner.fit()
        assert all(tree(directory)[name] == b"mine" for name in mine), call
        assert not (directory / earlier_run.GATHERED).exists(), call
