"""Ranks that are engines of the user's cluster: the same numbers, and one clear error where one is lost."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import ipyparallel
import psutil
import pytest
import torch
from engines_support import Apart, Engines, may_have_networks
from fleet_support import (
    TWO,
    bits,
    by_hand,
    furthest,
    learner_on,
    train_loader,
    valid_loader,
)
from torch.nn import functional as F

from notebook_learner import cluster
from notebook_learner.errors import ConfigurationError, RankDied, StateError
from notebook_learner.ranks import attached_engines as attached
from notebook_learner.ranks import rank_processes as crews

ROOT = Path(__file__).parents[2]
FOUND = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)])


@pytest.fixture(scope="module", autouse=True)
def modules_are_found():
    """There as here: nothing is installed on a machine of a test but what this one has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", FOUND)
        yield


@pytest.fixture(scope="module")
def engines():
    """Two engines on this machine, which the user has started."""
    found = Engines("test")
    found.start(2)
    yield found
    let_go()
    found.close()


@pytest.fixture
def own_engine():
    """One engine, which a test may end."""
    found = Engines("own")
    found.start(1)
    yield found
    let_go()
    found.close()


@pytest.fixture
def apart():
    """A network of its own."""
    if not may_have_networks():
        pytest.skip("needs root: makes a network of its own")
    found = Apart()
    yield found
    found.close()


@pytest.fixture
def two_networks(apart):
    """One engine next to this process, and one at the other end of a cable."""
    found = Engines("networks", apart.here)
    found.start(1)
    found.start(1, apart.inside)
    yield found
    let_go()
    found.close()


def let_go():
    """Of all processes that no learner uses, as the end of the interpreter does."""
    gc.collect()
    crews._end()
    crews._ending = False


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


WAYS = {
    "a cluster": lambda engines: engines.cluster,
    "a client": lambda engines: engines.client,
    "a view": lambda engines: engines.client[:],
    "an id": lambda engines: engines.cluster.cluster_id,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.rounds(2)
def test_engines_change_no_number_however_they_are_named_and_live_on(engines, tmp_path, way):
    pids = engines.client[:].apply_sync(os.getpid)
    learner = learner_on(WAYS[way](engines), tmp_path / "engines")
    torch.manual_seed(5)
    learner.fit(train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6
    assert [each.rank for each in learner.devices] == [0, 1, 2]
    assert [each.pid for each in learner.devices] == [os.getpid(), *pids]
    del learner
    let_go()
    assert engines.client[:].apply_sync(os.getpid) == pids


@pytest.mark.soak
def test_a_part_of_the_engines_does_what_as_many_processes_of_our_own_do(engines, tmp_path):
    learner = learner_on(engines.client[1:2], tmp_path / "engines")
    torch.manual_seed(5)
    learner.fit(train_loader())
    assert [each.pid for each in learner.devices][1:] == engines.client[1:2].apply_sync(os.getpid)
    ours = learner_on(TWO, tmp_path / "ours")
    torch.manual_seed(5)
    ours.fit(train_loader())
    assert bits(learner) == bits(ours)
    measured = [each.evaluate(valid_loader(), name="other") for each in (learner, ours)]
    assert measured[0]["Loss"] == measured[1]["Loss"]
    asked = [each.predict(valid_loader()) for each in (learner, ours)]
    assert torch.equal(*asked)


@pytest.mark.soak
def test_weights_are_dealt_out_to_engines_and_brought_together_again(engines, tmp_path):
    def in_parts(builder):
        builder.strategy("fsdp")

    learner = learner_on(engines.client[:1], tmp_path / "engines", configure=in_parts)
    torch.manual_seed(5)
    learner.fit(train_loader())
    learner.rewind(3)
    learner.fit()
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6
    ours = learner_on(TWO, tmp_path / "ours", configure=in_parts)
    torch.manual_seed(5)
    ours.fit(train_loader())
    assert bits(learner) == bits(ours)


def test_every_verb_of_a_learner_is_there_with_engines(engines, tmp_path):
    def made(name):
        learner = learner_on(engines.cluster, tmp_path / name, dropout=0.5)
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


def test_a_run_on_engines_is_handed_over_and_taken_back(engines, tmp_path):
    def configure(builder):
        builder._settings.loggers.clear()

    learner = learner_on(engines.client[:1], tmp_path / "away", dropout=0.5, configure=configure)
    torch.manual_seed(5)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(4)
    learner.detach()
    learner.take_back()
    learner.fit()
    straight = learner_on(engines.client[:1], tmp_path / "straight", dropout=0.5)
    torch.manual_seed(5)
    straight.fit(train_loader())
    assert bits(learner) == bits(straight)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.rounds(1)
def test_a_lost_engine_is_one_error_and_restart_goes_on_with_another_to_the_same_bits(
    own_engine, tmp_path, how
):
    learner = running(own_engine.cluster, tmp_path / "lost", epochs=12)
    pid = learner.devices[1].pid
    os.kill(pid, how)
    took, died = seconds_until_it_fails(learner)
    assert (died.rank, died.pid, died.survivors) == (1, pid, (0,))
    assert "died, or its machine cannot be reached any more" in str(died)
    assert took < (5 if how == signal.SIGKILL else 15)
    while own_engine.client.ids:
        time.sleep(0.1)
    with pytest.raises(StateError, match=r"has engines \[\], and the learner trains on 1 of them"):
        learner.devices.restart()
    own_engine.start(1)
    learner.devices.restart()
    learner.fit()
    straight = running(TWO, tmp_path / "straight", epochs=12)
    straight.wait()
    assert bits(learner) == bits(straight)


@pytest.mark.soak
def test_an_engine_that_was_told_to_end_is_used_no_more_while_the_signal_is_on_its_way(
    own_engine, tmp_path, monkeypatch
):
    learner = running(own_engine.cluster, tmp_path / "lost", epochs=12)
    monkeypatch.setattr(attached, "_given_up", set())
    # As where its machine cannot be reached: the controller holds the signal back.
    monkeypatch.setattr(ipyparallel.Client, "send_signal", lambda *_, **__: None)
    pid = learner.devices[1].pid
    os.kill(pid, signal.SIGSTOP)
    while not any(engine == 0 for _, engine in attached._given_up):
        time.sleep(0.1)
    os.kill(pid, signal.SIGCONT)
    seconds_until_it_fails(learner)
    assert own_engine.client.ids == [0]
    with pytest.raises(StateError, match=r"has engines \[\], and the learner trains on 1 of them"):
        learner.devices.restart()
    own_engine.start(1)
    learner.devices.restart()
    learner.fit()
    assert learner.devices[1].pid != pid


def test_two_machines_train_together_and_the_loss_of_one_is_one_clear_error(apart, two_networks, tmp_path):
    learner = running(two_networks.cluster, tmp_path / "lost", epochs=12)
    assert [each.host for each in learner.devices][2] == "host-b"
    apart.pull()
    took, died = seconds_until_it_fails(learner)
    assert (died.rank, died.host, died.survivors) == (2, "host-b", (0, 1))
    assert took < 20
    apart.plug_in()
    try:
        learner.devices.restart()  # the engine has left the lost training, and is there again
    except StateError as error:  # or it was told to end, or could not leave a sum and has ended itself
        assert "has engines [0], and the learner trains on 2 of them" in str(error)
        two_networks.start(1, apart.inside)
        learner.devices.restart()
    learner.fit()
    # On the same machines: a rank that has one for itself computes with more threads, which round otherwise.
    # And on as many engines: one that was told to end may have come back beside the one in its place.
    engines = two_networks.client[two_networks.client.ids[:2]]
    straight = running(engines, tmp_path / "straight", epochs=12)
    straight.wait()
    assert bits(learner) == bits(straight)


def test_pausing_stepping_and_rewinding_across_two_networks(two_networks, tmp_path):
    straight = learner_on(two_networks.cluster, tmp_path / "straight", dropout=0.5)
    torch.manual_seed(5)
    straight.fit(train_loader())
    learner = learner_on(two_networks.cluster, tmp_path / "in pieces", dropout=0.5)
    torch.manual_seed(5)
    learner.start(train_loader())
    learner.pause()
    learner.step(3)
    learner.rewind(2)
    learner.fit()
    assert bits(learner) == bits(straight)
    assert learner.devices[2].memory > 50e6
    assert "host-b" in repr(learner.devices)


@pytest.mark.rounds(1)
@pytest.mark.soak
def test_an_engine_of_a_kernel_that_was_killed_serves_the_next_one(own_engine, tmp_path):
    program = f"""
import sys, time
sys.path[:0] = {[str(ROOT), str(Path(__file__).parent)]!r}
from test_attached_engines import running
learner = running({own_engine.cluster.cluster_id!r}, {str(tmp_path / "run")!r})
print("ready", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout.readline() == "ready\n"
        kernel.kill()
    (pid,) = own_engine.client[:].apply_sync(os.getpid)
    learner = learner_on(own_engine.cluster, tmp_path / "next")
    torch.manual_seed(5)
    learner.fit(train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6
    assert learner.devices[1].pid == pid
    threads = psutil.Process(pid).num_threads()
    assert threads < 40, "nothing of the dead kernel's training goes on in it"


def test_an_engine_that_does_not_answer_is_named(engines, tmp_path, monkeypatch):
    monkeypatch.setattr(attached, "_ANSWER", 1.0)
    learner = learner_on(engines.client[1:2], tmp_path)
    busy = engines.client[1].apply_async(time.sleep, 4)
    with pytest.raises(StateError, match="engine 1 has not answered within 1 s: it hangs, or runs %px"):
        learner.fit(train_loader())
    busy.wait()
    learner.fit(train_loader())


def test_an_engine_that_did_not_hear_the_first_question_is_asked_again(engines, tmp_path, monkeypatch):
    monkeypatch.setattr(attached, "_AGAIN", 0.5)
    asked, ask = [], ipyparallel.DirectView.apply_async

    def deaf_at_first(view, *question):
        asked.append(question)
        return SimpleNamespace(ready=lambda: False) if len(asked) == 1 else ask(view, *question)

    monkeypatch.setattr(ipyparallel.DirectView, "apply_async", deaf_at_first)
    learner = learner_on(engines.client[:1], tmp_path)
    torch.manual_seed(5)
    learner.fit(train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6


def test_an_engine_with_other_versions_is_named(engines, tmp_path, monkeypatch):
    monkeypatch.setattr(attached, "versions", lambda: ("3.9", "2.0.0"))
    monkeypatch.setattr(attached, "_NEEDED", ("torch", "psutil", "no_such_package"))
    learner = learner_on(engines.cluster, tmp_path)
    with pytest.raises(StateError) as caught:
        learner.fit(train_loader())
    own = ".".join(map(str, sys.version_info[:2]))
    there = f"has no no_such_package, runs Python {own} (here 3.9), has torch"
    assert f"engine 0 on {os.uname().nodename} {there}" in str(caught.value)
    assert f"engine 1 on {os.uname().nodename} {there}" in str(caught.value)


@pytest.mark.soak
def test_a_cluster_that_has_ended_is_named(tmp_path):
    theirs = Engines("ended")
    theirs.start(1)
    learner = learner_on(theirs.cluster, tmp_path)
    theirs.close()
    with pytest.raises(StateError, match="the cluster's controller does not answer"):
        learner.fit(train_loader())


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (lambda: "no such one", "or the id of an ipyparallel cluster that runs"),
        (lambda: ipyparallel.Cluster(n=2), "the cluster does not run yet; start it: cluster.start_cluster"),
    ],
    ids=["an id", "not started"],
)
def test_mistakes_in_a_cluster_are_told_before_anything_starts(where, said, tmp_path):
    with pytest.raises(ConfigurationError, match=said):
        learner_on(where(), tmp_path)


def test_a_cluster_without_engines_is_told_with_all_other_mistakes(tmp_path):
    theirs = Engines("empty")
    try:
        with pytest.raises(ConfigurationError) as caught:
            learner_on(theirs.client, tmp_path, epochs=0)
    finally:
        theirs.close()
    assert [each for each in caught.value.mistakes if "the cluster has no engine yet" in each]
    assert [each for each in caught.value.mistakes if "num_epochs" in each]


@pytest.mark.soak
def test_engines_that_have_yet_to_come_are_waited_for_and_missing_ones_are_told(tmp_path, monkeypatch):
    theirs = ipyparallel.Cluster(n=2, cluster_id=f"starting{os.getpid()}", log_level=40)
    theirs.start_cluster_sync()
    try:
        learner = learner_on(theirs, tmp_path / "first")
        torch.manual_seed(5)
        learner.fit(train_loader())
        assert furthest(learner.model, by_hand(train_loader())) < 1e-6
        assert len(learner.devices) == 3
        os.kill(learner.devices[2].pid, signal.SIGKILL)
        del learner
        let_go()
        client = theirs.connect_client_sync()
        while len(client.ids) > 1:
            time.sleep(0.1)
        client.close()
        monkeypatch.setattr(cluster, "_COME", 0.5)
        with pytest.raises(ConfigurationError, match="1 of 2 engines have come, and none in the last 0 s"):
            learner_on(theirs, tmp_path / "second")
    finally:
        theirs.stop_cluster_sync()


def test_a_way_to_start_engines_that_is_gone_names_what_does_it_now():
    with pytest.raises(AttributeError, match="ipyparallel starts engines by ssh, Slurm and more"):
        _ = cluster.ssh
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = cluster.other


def test_an_engine_that_is_gone_before_the_learner_is_built_is_named(engines, tmp_path):
    view = engines.client[:]
    view.targets = [0, 7]
    with pytest.raises(ConfigurationError, match=r"engine 7 is not there; the cluster has \[0, 1\]"):
        learner_on(view, tmp_path)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"here": "gpu"}, "torch knows no such device"),
        ({"here": "meta"}, "all CUDA devices, or all 'cpu'"),
    ],
)
def test_a_device_that_cannot_lead_engines_is_told(engines, tmp_path, more, said):
    with pytest.raises(ConfigurationError, match=said):
        learner_on(None, tmp_path, configure=lambda builder: builder.devices(engines.cluster, **more))


def test_what_goes_with_a_cluster_is_refused_without_one(tmp_path):
    with pytest.raises(ConfigurationError, match="leave out here= and address=, which go with a cluster"):
        learner_on(None, tmp_path, configure=lambda builder: builder.devices("cpu", address="10.0.0.1"))


@pytest.mark.parametrize(
    ("here", "numbers"),
    [("cuda:0", [1, 0, 2, 1]), ("cuda", [1, 0, 2, 1]), ("cuda:1", [0, 0, 2, 1])],
)
def test_engines_of_a_machine_share_its_cuda_devices_with_nobody(here, numbers):
    """Without a GPU: what each engine is told, where two are on this machine and two on another."""
    own = os.uname().nodename
    told, begun = [attached.EngineTold(host, "", "", None, ()) for host in (own, "b", own, "b")], []

    class Client:
        def __getitem__(self, engine):
            return SimpleNamespace(apply_async=lambda _, path, number, *rest: begun.append(number))

    engines = object.__new__(attached.AttachedEngines)
    engines._where = cluster.Attached("", here, None, {}, None, 4)
    engines._told, engines._ids, engines._client, engines._begun = told, [0, 1, 2, 3], Client(), []
    engines.meeting = SimpleNamespace(door=lambda rank: ())
    engines.invite([torch.device("cuda")] * 4, 1)
    assert begun == numbers


def test_a_client_that_another_thread_uses_meanwhile_disturbs_nothing(engines, tmp_path):
    learner = running(engines.client, tmp_path / "run", epochs=3)
    ended = threading.Event()

    def ask():
        while not ended.wait(0.01):
            engines.client.queue_status()

    asking = threading.Thread(target=ask)
    asking.start()
    learner.wait()
    ended.set()
    asking.join()
    assert learner.position.iteration == 21
