"""Ranks in a job of Slurm: the same numbers, however long the queue is, and no job without a learner."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from fleet_support import bits, by_hand, furthest, learner_on, train_loader
from slurm_support import NODES, Slurm, may_start_nodes
from test_hosts import running, seconds_until_it_fails

from notebook_learner import cluster
from notebook_learner.errors import ConfigurationError, Paused, StateError
from notebook_learner.event import Notice
from notebook_learner.fleet.elsewhere import threads_of_one
from notebook_learner.fleet.engines import Waiting
from notebook_learner.fleet.slurm import OnSlurm

ROOT = Path(__file__).parents[2]
EPOCHS = 30
"""Enough for a job to be lost in the midst of them."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if not may_start_nodes():
        pytest.skip("needs root, and a name for each node (unshare --uts): starts Slurm")
    found = Slurm(tmp_path_factory.mktemp("slurm"))
    yield found
    found.close()


@pytest.fixture
def slurm(installed, monkeypatch):
    """With nothing to do, before and after."""
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [ROOT, here.parent, here])))
    yield installed
    gc.collect()
    installed.cancel()
    installed.until(installed.is_empty)


@pytest.fixture
def one_thread():
    """For each rank, wherever it is: with more of them a sum is rounded in another way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Screen:
    """Keeps what a person is told."""

    def __init__(self):
        self.told = []

    def handle(self, event):
        if isinstance(event, Notice):
            self.told.append(event.text)

    def has(self, text):
        return any(text in each for each in self.told)


def one_node(**more):
    return cluster.slurm(devices=1, here="cpu", **more)


def two_nodes(**more):
    return cluster.slurm(nodes=2, devices=1, here="cpu", **more)


def watched(where, directory, screen):
    return learner_on(where, directory, configure=lambda builder: builder.renderer(screen))


def interrupted_once(condition):
    """As by the kernel's interrupt button."""

    def press():
        condition()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def guards(pid=None):
    """The programs of a process, by default this one, that wait for its end."""
    found = []
    for each in psutil.Process(pid).children():
        with suppress(psutil.Error):
            found += [each] if "guard.py" in " ".join(each.cmdline()) else []
    return found


def test_ranks_of_a_job_that_was_waited_for_change_no_number(slurm, one_thread, tmp_path):
    theirs = slurm.occupy()
    screen = Screen()
    learner = watched(two_nodes(), tmp_path / "there", screen)
    torch.manual_seed(5)
    learner.start(train_loader())
    slurm.until(lambda: screen.has("waits in the queue (PENDING, Resources)"))
    assert [each.rank for each in learner.fleet] == [0], "who asks is answered meanwhile"
    slurm.cancel(theirs)
    learner.wait()
    assert screen.has("has begun, and its engines have come")
    assert [each.host for each in learner.fleet][1:] == list(NODES)
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6
    beside = learner_on(["cpu"] * 3, tmp_path / "beside")
    torch.manual_seed(5)
    beside.fit(train_loader())
    assert bits(learner) == bits(beside), "three machines, and three processes of one, do the same"

    del learner
    gc.collect()
    slurm.until(slurm.is_empty)
    assert not guards()


def test_an_interrupt_ends_the_wait_for_a_job_and_cancels_it(slurm, tmp_path):
    screen = Screen()
    learner = watched(one_node(options=["--hold"]), tmp_path, screen)
    press = interrupted_once(lambda: slurm.until(lambda: screen.has("(PENDING, JobHeldUser)")))
    with pytest.raises(Paused):
        learner.fit(train_loader())
    press.join()
    assert screen.has("is cancelled; the next verb that trains asks for a new one")
    assert (learner.status, learner.position.iteration) == ("paused", 0)
    slurm.until(slurm.is_empty)
    assert not guards()


@pytest.mark.parametrize(("verb", "status"), [("pause", "paused"), ("stop", "stopped")])
def test_a_verb_from_another_cell_ends_the_wait_for_a_job(slurm, verb, status, tmp_path):
    learner = learner_on(one_node(options=["--hold"]), tmp_path)
    learner.start(train_loader())
    slurm.until(slurm.jobs)
    getattr(learner, verb)()
    assert learner.status == status
    slurm.until(slurm.is_empty)


def test_a_job_that_is_refused_is_told_of_in_slurm_s_own_words(slurm, tmp_path):
    learner = learner_on(one_node(options=["--partition=nowhere"]), tmp_path)
    with pytest.raises(StateError, match="Invalid partition name specified") as caught:
        learner.fit(train_loader())
    assert "sbatch" in str(caught.value)
    assert "--partition=nowhere" in str(caught.value)
    assert not guards()


def test_a_job_that_ends_before_its_engines_came_is_told_of_with_its_output(slurm, tmp_path):
    output = tmp_path / "job.txt"
    where = one_node(python="/no/python", options=[f"--output={output}"])
    learner = learner_on(where, tmp_path / "run")
    with pytest.raises(StateError, match=r"job \d+ of Slurm was over \(FAILED, NonZeroExitCode\)") as caught:
        learner.fit(train_loader())
    assert f"its output is in {output}" in str(caught.value)
    assert "/no/python: No such file or directory" in str(caught.value)


def test_a_job_that_somebody_cancels_in_the_queue_is_told_of(slurm, tmp_path):
    learner = learner_on(one_node(options=["--hold"]), tmp_path)
    learner.start(train_loader())
    slurm.until(slurm.jobs)
    slurm.cancel()
    with pytest.raises(StateError, match=r"job \d+ of Slurm was over \(CANCELLED, JobHeldUser\)"):
        learner.wait()


def test_a_lost_job_is_told_of_and_restart_asks_for_another_and_goes_on_to_the_same_bits(slurm, tmp_path):
    learner = running(one_node(), tmp_path / "lost", epochs=EPOCHS)
    (lost,) = slurm.jobs()
    slurm.cancel()
    _, died = seconds_until_it_fails(learner)
    assert (died.rank, died.host, died.survivors) == (1, NODES[0], (0,))
    assert f"cannot be reached any more (job {lost} of Slurm is CANCELLED)" in str(died)
    learner.restart()
    (other,) = slurm.jobs()
    assert other != lost
    learner.fit()
    found = bits(learner)
    learner.rewind(to=(1, "train", 0))
    learner.fit()
    assert bits(learner) == found, "the same training, and nothing was lost in it"


KERNEL = """
import sys, time
from fleet_support import train_loader
from slurm_support import said
from test_hosts import running
from test_slurm import Screen, one_node, watched
how, directory = sys.argv[1:]
if how == "training":
    learner = running(one_node(), directory)
else:
    learner = watched(one_node(), directory, Screen())
    learner.start(train_loader())
    while "PENDING" not in said("squeue", "--noheader", "--format=%T"):
        time.sleep(0.1)
print("ready", flush=True)
time.sleep(600)
"""


def killed(how, directory, and_its_guard=False):
    """A kernel that is killed; gives the processes that it had started."""
    arguments = [sys.executable, "-c", KERNEL, how, str(directory)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as kernel:
        try:
            assert kernel.stdout.readline() == "ready\n"
            kernel.send_signal(signal.SIGSTOP)  # it begins nothing more
            started = psutil.Process(kernel.pid).children(recursive=True)
            for each in guards(kernel.pid) if and_its_guard else []:
                each.kill()
        finally:
            kernel.kill()
    return started


def test_a_kernel_that_is_killed_leaves_no_job_and_no_process(slurm, tmp_path):
    started = killed("training", tmp_path)
    slurm.until(slurm.is_empty, 30.0)
    _, left = psutil.wait_procs(started, timeout=20.0)
    assert not left


def test_a_kernel_that_is_killed_while_it_waits_leaves_nothing_in_the_queue(slurm, tmp_path):
    theirs = slurm.occupy()
    started = killed("waiting", tmp_path)
    slurm.until(lambda: list(slurm.jobs()) == [theirs], 30.0)
    _, left = psutil.wait_procs(started, timeout=20.0)
    assert not left


def test_a_job_that_starts_when_its_kernel_s_machine_is_gone_ends_by_itself(slurm, tmp_path):
    theirs = slurm.occupy()
    started = killed("waiting", tmp_path, and_its_guard=True)
    for each in psutil.wait_procs(started, timeout=0.1)[1]:
        each.kill()
    (ours,) = set(slurm.jobs()) - {theirs}
    slurm.cancel(theirs)
    slurm.until(lambda: slurm.jobs().get(ours, ("",))[0] == "RUNNING")
    slurm.until(slurm.is_empty, 30.0)


def test_each_engine_sees_the_device_of_its_node_that_is_its_own(slurm):
    where = cluster.slurm(
        devices=["cuda:1", "cuda:0"], here="cuda:0"
    )  # that there is none is checked by build
    engines = OnSlurm(where, Waiting(lambda text: None, lambda: None))
    try:
        engines.invite([torch.device(each) for each in where.elsewhere], 1)
        seen = engines._client[engines._ids].apply_sync(_sees)
    finally:
        engines.stop()
    assert seen == ["1", "0"]


def _sees():
    import os

    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_a_rank_computes_with_the_cores_that_slurm_has_given_to_it(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    assert threads_of_one(1) == cores
    assert threads_of_one(10 * cores) == 1
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    assert threads_of_one(1) == 1, "its job has a part of the machine"
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(8 * cores))
    assert threads_of_one(8) == cores, "it is bound to cores of its own"


@pytest.fixture
def no_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


def mistakes_of(where, directory):
    with pytest.raises(ConfigurationError) as caught:
        learner_on(where, directory)
    return caught.value.mistakes


def test_mistakes_in_what_is_asked_of_slurm_are_told_together_before_it_is_asked(no_slurm, tmp_path):
    where = cluster.slurm(nodes=0, devices=[], here="cpu", options=["gpu", "-N4", "--export=NONE"])
    nodes, devices, count, export, job, missing = mistakes_of(where, tmp_path)
    assert "slurm(nodes=0): give how many nodes" in nodes
    assert "give the devices of each node" in devices
    assert "leave -N out; nodes= says that" in count
    assert "leave --export out" in export
    assert "sbatch would take 'gpu' for the job itself" in job
    assert "there is no sbatch here; run the kernel where Slurm's commands are" in missing


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (cluster.slurm(nodes=True, devices=1, here="cpu"), "nodes=True"),
        (cluster.slurm(nodes=2, devices=-1, here="cpu"), "give the devices of each node"),
        (cluster.slurm(devices=1, here=[]), "leaves nothing for this process"),
        (cluster.slurm(devices=["gpu"], here="cpu"), "torch knows no device 'gpu'"),
        (cluster.slurm(devices=["cuda:0"], here="cpu"), "all CUDA devices, or all 'cpu'"),
        (cluster.slurm(devices=["cuda:1", "cuda:1"], here="cuda:0"), "name each CUDA device once"),
    ],
)
def test_mistakes_in_the_devices_of_nodes_are_told(where, said, no_slurm, tmp_path):
    assert any(said in each for each in mistakes_of(where, tmp_path))
