"""Ranks on other machines: the same numbers, and one clear error where a machine or a process is lost."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from fleet_support import (
    TWO,
    bits,
    by_hand,
    comes_to_an_end,
    furthest,
    learner_on,
    train_loader,
    valid_loader,
)
from hosts_support import Apart, Machine, may_have_networks
from torch.nn import functional as F

from notebook_learner import cluster
from notebook_learner.errors import ConfigurationError, RankDied, StateError
from notebook_learner.fleet import crew as crews

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def modules_are_found(monkeypatch):
    """There as here: nothing is installed on a machine of a test but what this one has."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)])
    )


@pytest.fixture(scope="module")
def ssh_machine(tmp_path_factory):
    found = Machine(tmp_path_factory.mktemp("machine") / "ssh")
    yield found
    let_go()
    found.close()


@pytest.fixture
def apart(tmp_path):
    """A machine behind a cable."""
    if not may_have_networks():
        pytest.skip("needs root: makes a network of its own")
    found = Apart(tmp_path / "ssh")
    yield found
    let_go()
    found.close()


def let_go():
    """Of all processes that no learner uses, as the end of the interpreter does."""
    gc.collect()
    crews._end()
    crews._ending = False


def with_one_there(ssh_machine, **more):
    return cluster.ssh({ssh_machine.name: 1}, here="cpu", options=ssh_machine.options, **more)


def slow(model, batch):
    x, y = batch
    time.sleep(0.01)
    return F.cross_entropy(model(x), y)


def running(devices, directory, epochs=200):
    """A learner in training, with dropout, in the background."""

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(slow).metrics()
        builder._settings.metrics = []

    learner = learner_on(devices, directory, dropout=0.5, epochs=epochs, configure=configure)
    torch.manual_seed(5)
    learner.start(train_loader())
    while learner.position.iteration < 10:
        if learner.status == "failed":
            learner.wait()  # it says why
        time.sleep(0.01)
    return learner


def seconds_until_it_fails(learner):
    began = time.monotonic()
    with pytest.raises(RankDied) as caught:
        learner.wait()
    return time.monotonic() - began, caught.value


def test_a_rank_on_another_machine_changes_no_number(ssh_machine, tmp_path):
    learner = learner_on(with_one_there(ssh_machine), tmp_path / "there")
    torch.manual_seed(5)
    learner.fit(train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6
    beside = learner_on(TWO, tmp_path / "beside")
    torch.manual_seed(5)
    beside.fit(train_loader())
    assert bits(learner) == bits(beside), "two processes of one machine, and of two, do the same"
    measured = [each.evaluate(valid_loader(), name="other") for each in (learner, beside)]
    assert measured[0]["Loss"] == measured[1]["Loss"]
    asked = [each.predict(valid_loader()) for each in (learner, beside)]
    assert torch.equal(*asked)


def test_weights_are_dealt_out_to_another_machine_and_brought_together_again(ssh_machine, tmp_path):
    def in_parts(builder):
        builder.strategy("fsdp")

    learner = learner_on(with_one_there(ssh_machine), tmp_path / "there", configure=in_parts)
    torch.manual_seed(5)
    learner.fit(train_loader())
    learner.rewind(3)
    learner.fit()
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6
    beside = learner_on(TWO, tmp_path / "beside", configure=in_parts)
    torch.manual_seed(5)
    beside.fit(train_loader())
    assert bits(learner) == bits(beside)


def test_every_verb_of_a_learner_is_there_with_another_machine(ssh_machine, tmp_path):
    def made(name):
        learner = learner_on(with_one_there(ssh_machine), tmp_path / name, dropout=0.5)
        torch.manual_seed(5)
        return learner

    straight = made("straight")
    straight.fit(train_loader(), valid_loader())
    learner = made("in pieces")
    learner.start(train_loader(), valid_loader())
    learner.pause()
    learner.step(3)
    learner.rewind(2)
    learner.what_if(steps=2, lr=0.5)
    learner.save()
    learner.fit()
    assert bits(learner) == bits(straight)


def test_devices_here_and_there_are_ranks_in_this_order(ssh_machine, tmp_path):
    where = cluster.ssh({ssh_machine.name: 2}, here=["cpu", "cpu"], options=ssh_machine.options)
    learner = learner_on(where, tmp_path)
    torch.manual_seed(5)
    learner.fit(train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6
    assert [each.rank for each in learner.fleet] == [0, 1, 2, 3]
    assert all(each.alive for each in learner.fleet)
    over_ssh = ["SSH_CONNECTION" in psutil.Process(each.pid).environ() for each in learner.fleet]
    assert over_ssh == [False, False, True, True]


def test_what_a_rank_there_prints_of_itself_is_in_the_table(apart, tmp_path):
    learner = learner_on(with_one_there(apart), tmp_path / "run")
    learner.fit(train_loader())
    assert [each.host for each in learner.fleet][1] == "host-b"
    assert learner.fleet[1].memory > 50e6
    assert "host-b" in repr(learner.fleet)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_there_is_told_of_and_restart_goes_on_to_the_same_bits(ssh_machine, tmp_path, how):
    learner = running(with_one_there(ssh_machine), tmp_path / "lost", epochs=12)
    pid = learner.fleet[1].pid
    os.kill(pid, how)
    took, died = seconds_until_it_fails(learner)
    assert (died.rank, died.pid, died.survivors) == (1, pid, (0,))
    assert "died, or its machine cannot be reached any more" in str(died)
    assert took < (5 if how == signal.SIGKILL else 15)
    learner.restart()
    assert comes_to_an_end(pid)
    learner.fit()
    straight = running(TWO, tmp_path / "straight", epochs=12)
    straight.wait()
    assert bits(learner) == bits(straight)


def test_two_machines_train_together_and_the_loss_of_one_is_one_clear_error(apart, ssh_machine, tmp_path):
    where = cluster.ssh(
        {ssh_machine.name: 1, apart.name: 1},
        here="cpu",
        address=apart.here,
        options=[*ssh_machine.options, "-i", apart.options[1]],
    )
    learner = running(where, tmp_path / "lost", epochs=12)
    apart.pull()
    took, died = seconds_until_it_fails(learner)
    assert (died.rank, died.host, died.survivors) == (2, "host-b", (0, 1))
    assert took < 20
    apart.plug_in()
    learner.restart()
    learner.fit()
    # On the same machines: a rank that has one for itself computes with more threads, which round otherwise.
    straight = running(where, tmp_path / "straight", epochs=12)
    straight.wait()
    assert bits(learner) == bits(straight)


def test_nothing_is_left_on_any_machine_when_the_kernel_is_gone(apart, tmp_path):
    before = set(apart.pids())
    program = f"""
import os, sys, time
sys.path[:0] = {[str(ROOT), str(Path(__file__).parent)]!r}
from test_hosts import running
from notebook_learner import cluster
where = cluster.ssh({{{apart.name!r}: 1}}, here="cpu", options={apart.options!r})
learner = running(where, {str(tmp_path / "run")!r})
print("ready", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout.readline() == "ready\n"
        assert set(apart.pids()) - before
        here = psutil.Process(kernel.pid).children(recursive=True)
        kernel.kill()
    until = time.monotonic() + 30
    while set(apart.pids()) - before and time.monotonic() < until:
        time.sleep(0.2)
    assert not set(apart.pids()) - before
    assert not psutil.wait_procs(here, timeout=20)[1], "nor on this one"


def test_engines_of_somebody_are_used_and_left_running(tmp_path):
    import ipyparallel

    theirs = ipyparallel.Cluster(n=2, cluster_id=f"test{os.getpid()}", log_level=40)
    theirs.start_cluster_sync()
    try:
        client = theirs.connect_client_sync()
        client.wait_for_engines(2, timeout=120, interactive=False)
        pids = client[:].apply_sync(os.getpid)
        for name in ("first", "second"):
            where = cluster.attach(theirs.cluster_id, devices=2, here="cpu")
            learner = learner_on(where, tmp_path / name)
            torch.manual_seed(5)
            learner.fit(train_loader())
            assert furthest(learner.model, by_hand(train_loader())) < 1e-6
            assert [each.pid for each in learner.fleet][1:] == pids
            del learner
            let_go()
        assert client[:].apply_sync(os.getpid) == pids
        client.close()
    finally:
        theirs.stop_cluster_sync()


def test_a_machine_that_lets_nobody_in_is_told_of_with_ssh_s_own_words(ssh_machine, tmp_path):
    where = cluster.ssh({"127.0.0.1:1": 1}, here="cpu", options=ssh_machine.options)
    learner = learner_on(where, tmp_path)
    with pytest.raises(StateError, match="no engine can be started on") as caught:
        learner.fit(train_loader())
    assert "Connection refused" in str(caught.value)
    assert "has to work without a password" in str(caught.value)


def test_a_machine_without_the_interpreter_is_told_of(ssh_machine, tmp_path):
    learner = learner_on(with_one_there(ssh_machine, python="/no/python"), tmp_path)
    with pytest.raises(StateError, match="/no/python"):
        learner.fit(train_loader())


def test_a_cluster_that_is_not_there_is_told_of(tmp_path):
    learner = learner_on(cluster.attach("no such one", devices=1, here="cpu"), tmp_path)
    with pytest.raises(StateError, match="there is no such cluster"):
        learner.fit(train_loader())


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (cluster.ssh({}, here="cpu"), "has no other machine"),
        (cluster.ssh({"b": 1}, here=[]), "leaves nothing for this process"),
        (cluster.ssh({"b": ["gpu"]}, here="cpu"), "torch knows no device 'gpu'"),
        (cluster.ssh({"b": ["cuda:0"]}, here="cpu"), "all CUDA devices, or all 'cpu'"),
        (cluster.attach(devices=[], here="cpu"), "has no other machine"),
    ],
)
def test_mistakes_in_a_cluster_are_told_before_anything_starts(where, said, tmp_path):
    with pytest.raises(ConfigurationError, match=said):
        learner_on(where, tmp_path)


def test_a_cuda_device_of_one_machine_is_named_once_and_of_two_twice():
    from notebook_learner.learner.wiring.checks import _cluster_mistakes

    def found(hosts):
        return [each for each in _cluster_mistakes(cluster.ssh(hosts, here="cuda:0")) if "once" in each]

    assert found({"b": ["cuda:1", "cuda:1"]})
    assert not found({"b": ["cuda:0", "cuda:1"], "c": ["cuda:0"]})
    assert not found({"b": 4, "c": 4})
