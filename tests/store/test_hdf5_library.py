"""h5py is loaded by the first thread that needs it, and no other thread waits for that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FORKED_MEANWHILE = """
import os, signal, subprocess, sys, threading

class Meanwhile(subprocess.Popen):
    "A program that tells of its moment of weakness: the pipe is open, and the program not there yet."

    def _execute_child(self, *arguments):
        begun.set()
        pipe = os.pipe  # as long as another thread may need until it forks, and then some
        def opened():
            ends = pipe()
            forked.wait(1.0)
            return ends
        os.pipe = opened
        try:
            super()._execute_child(*arguments)
        finally:
            os.pipe = pipe

subprocess.Popen = Meanwhile
begun, forked = threading.Event(), threading.Event()
from notebook_learner.store import hdf5_library

loading = threading.Thread(target=hdf5_library.load, daemon=True)
loading.start()
assert begun.wait(60), "loading h5py runs no program any more: what holds forks off can go"
child = os.fork()
if not child:
    signal.pause()  # as a worker that lives as long as its loader
forked.set()
loading.join(20)
was_stuck = loading.is_alive()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
sys.exit(was_stuck)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_worker_that_is_forked_while_it_is_loaded_does_not_hold_the_loading_up() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED_MEANWHILE], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


WORKERS = """
import sys
import torch
from notebook_learner.data.loader_walk import walk_for

class Loaded(torch.utils.data.Dataset):
    "A sample that says whether the worker process began with h5py loaded."

    def __len__(self):
        return 8

    def __getitem__(self, at):
        return torch.tensor([float("h5py" in sys.modules)])

assert "h5py" not in sys.modules
loader = torch.utils.data.DataLoader(Loaded(), batch_size=4, num_workers=2, multiprocessing_context="fork")
walk = walk_for(loader, False)
iterator = walk.iterate(0)
print(next(iterator).flatten().tolist())
walk.end(iterator)
"""


def test_a_loader_s_workers_are_forked_when_it_is_loaded_so_that_its_locks_are_whole_in_them(
    tmp_path,
) -> None:
    """One that was forked meanwhile printed 'cannot release un-acquired lock' into the cell, now and then."""
    command = [sys.executable, "-W", "error", "-c", WORKERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("[1.0, 1.0, 1.0, 1.0]\n", "")


INTERRUPTED = """
import sys, h5py
del sys.modules["h5py"]  # as Python does when an interrupt ends the import; its modules stay
from notebook_learner.store import hdf5_library
from notebook_learner.artifacts.hdf5 import file_bytes
print(len(file_bytes(b"", lambda root: root.group("run").texts("recipe", ["{}"]))) > 0)
"""


def test_h5py_is_whole_after_an_interrupt_in_the_midst_of_its_import() -> None:
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr
