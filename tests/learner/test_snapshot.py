"""Copies made while training goes on: the bits of the boundary, or none at all."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from builder_support import Tape, quiet
from exactness import differences
from torch import nn
from torch.optim import optimizer as optimizers

from notebook_learner.carried.part import CarriedPart
from notebook_learner.checkpoint import KeepAll
from notebook_learner.event import Notice
from notebook_learner.state import snapshot
from notebook_learner.state.checkpoint_files import FileCheckpointer
from notebook_learner.state.snapshot import Snapshots


class Tied(nn.Module):
    """Buffers that a forward pass changes, a channels-last weight, and a weight with two names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.first.weight
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.last(self.again(self.first(x)))


def images(count=6):
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 3, 6, 6, generator=source), torch.randint(0, 3, (4,), generator=source))
        for _ in range(count)
    ]


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(snapshot, "LARGE", 1)


def learner_in(directory, *, step=None, renderer="silent", epochs=3):
    model = Tied()
    builder = quiet(directory).num_epochs(epochs).seed(3).renderer(renderer)
    builder = builder.train_step(step) if step else builder.loss(F.cross_entropy)
    builder.with_file_checkpointer().with_checkpointing_strategy(KeepAll()).keyframes(every=1)
    return builder.build(model, torch.optim.Adam(model.parameters(), lr=0.01), None, images())


def plain_step(model, batch):
    from notebook_learner import ClassificationOutput

    x, y = batch
    output = model(x)
    return ClassificationOutput(F.cross_entropy(output, y), output, y)


def test_every_keyframe_is_the_state_that_a_capture_at_once_gives(tmp_path):
    learner = learner_in(tmp_path / "a")
    captured = []
    for _ in range(8):
        captured.append(learner.capture())
        learner.step()
    frames = {state.position.key: state for state in learner._replica.timeline.keyframes}
    compared = 0
    for state in captured:
        if (frame := frames.get(state.position.key)) is not None:
            assert list(differences(dict(frame.parts), dict(state.parts))) == []
            compared += 1
    assert compared >= 7


def test_what_it_copies_keeps_its_layout_and_its_ties(tmp_path):
    learner = learner_in(tmp_path)
    learner.step()
    frame = learner._replica.timeline.keyframes[-1].parts["model"]["tensors"]
    assert frame["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert frame["again.weight"] is frame["first.weight"]


def test_a_checkpoint_copied_during_a_step_ends_like_one_copied_at_once(tmp_path, monkeypatch):
    learner = learner_in(tmp_path / "soon")
    learner.fit()
    assert learner._replica.snapshots.deferring, "or nothing was tested"
    monkeypatch.setattr(snapshot, "LARGE", 1 << 60)
    at_once = learner_in(tmp_path / "at once")
    at_once.fit()
    for epoch in (1, 2, 3):
        learner.restore(epoch)
        at_once.restore(epoch)
        one, other = learner.capture(), at_once.capture()
        assert list(differences(dict(one.parts), dict(other.parts))) == []


@pytest.mark.parametrize("kind", ["in place", "through .data"])
def test_a_step_that_writes_to_its_parameters_is_found_out_and_waited_for(kind, tmp_path, monkeypatch):
    """Weight clipping in the step itself. The copy is slowed down, so that it cannot be done before."""
    slowly(monkeypatch)
    monkeypatch.setattr(CarriedPart, "writes_unseen", False)  # as if the code did not name `.data`

    def clipping(model, batch):
        with torch.no_grad():
            for parameter in model.parameters():
                (parameter if kind == "in place" else parameter.data).clamp_(-0.05, 0.05)
        return plain_step(model, batch)

    told = Tape()
    learner = learner_in(tmp_path, step=clipping, renderer=told)
    learner.step(3)
    assert not learner._replica.snapshots.deferring
    assert any("writes to parameters outside the optimizer" in notice.text for notice in told.of(Notice))

    before = learner.capture()
    learner.step(2)
    assert learner.rewind(2).exact
    assert list(differences(dict(learner.capture().parts), dict(before.parts))) == []
    learner.fit()
    assert [info.label for info in learner.checkpoints] == ["1", "2", "3"]


@pytest.mark.parametrize("count", [1, 8, 9, 16, 17, 300])
def test_large_and_small_tensors_are_watched_and_no_more_than_a_few(count):
    lives = [torch.zeros(size) for size in range(1, count + 1)]
    watched = [len(live) for _, live in snapshot._watched([(live, live) for live in lives])]
    assert len(watched) == len(set(watched)) <= 16
    assert set(watched) >= set(range(max(1, count - 7), count + 1))
    assert count < 100 or min(watched) < 40


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 100_000])
def test_a_sample_sees_what_is_done_to_every_value_and_takes_a_nan_for_itself(size):
    live = torch.full((size,), float("nan"))

    def sample():
        (values,) = snapshot._samples([live])
        return values

    before = sample()
    assert before.numel() <= 64 and snapshot._same_bytes(before, sample())
    live.data.fill_(1.0)
    assert not snapshot._same_bytes(before, sample())


def test_samples_of_all_shapes_and_dtypes_are_of_each_of_the_tensors():
    lives = [
        torch.zeros(shape, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool)
        for shape in ((), (0,), (3, 5), (40, 50), (2, 3, 400))
    ]
    before = snapshot._samples(lives)
    assert all(map(snapshot._same_bytes, snapshot._samples(lives), before))
    for live in lives:
        changed = live.clone()
        live.view(torch.uint8).fill_(1) if live.dim() else live.fill_(1)
        same = [snapshot._same_bytes(*each) for each in zip(snapshot._samples(lives), before, strict=True)]
        assert same.count(False) == (live.numel() > 0)
        live.copy_(changed)


def test_a_checkpoint_whose_copy_was_spoilt_is_made_again(tmp_path, monkeypatch):
    def clipping_later(model, batch):
        if learner.position.epoch == 2:
            with torch.no_grad():
                model.last.weight.add_(1.0)
        return plain_step(model, batch)

    told = Tape()
    learner = learner_in(tmp_path, step=clipping_later, renderer=told)
    learner.run_until((1, 4))
    slowly(monkeypatch)
    learner.run_until((2, 3))
    here, weights = learner.position, weights_of(learner.model)
    assert any("writes to parameters outside the optimizer" in notice.text for notice in told.of(Notice))
    learner.fit()
    assert [info.label for info in learner.checkpoints if info.ends_epoch] == ["1", "2", "3"]
    learner.restore(1)
    twin = learner_in(tmp_path / "twin", step=plain_step, epochs=1)
    twin.fit()
    assert_same(weights_of(learner.model), weights_of(twin.model))
    learner.run_until(here)
    assert_same(weights_of(learner.model), weights)


def test_where_no_step_can_be_taken_again_a_void_checkpoint_is_told_of_and_training_goes_on(
    tmp_path, monkeypatch
):
    def clipping_later(model, batch):
        if learner.position.epoch == 2:
            with torch.no_grad():
                model.last.weight.add_(1.0)
        return plain_step(model, batch)

    told = Tape()
    learner = learner_in(tmp_path, step=clipping_later, renderer=told)
    learner.run_until((1, 4))
    slowly(monkeypatch)
    monkeypatch.setattr(learner._replica.timeline, "nearest", lambda position: None)
    learner.fit()
    assert any("no checkpoint of epoch 2, train, step 0" in notice.text for notice in told.of(Notice))
    assert [info.label for info in learner.checkpoints if info.ends_epoch] == ["2", "3"]


class Two(nn.Module):
    """A generator that the learner moves, and a critic that the step moves."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.critic = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("count", torch.zeros(()))
        self.__dict__["way"] = way
        self.__dict__["optimizer"] = WAYS[way](self.critic) if WAYS[way] else None

    def train_step(self, batch):
        loss = (self.critic(self.body(batch).detach()) - batch).square().mean()
        loss.backward()
        optimizer, way = self.optimizer, self.way
        if way == "made in the step":
            optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)
        if optimizer is not None and way != "closure":
            optimizer.step()
        elif way == "closure":
            optimizer.step(lambda: (self.critic(batch) - batch).square().mean())
        elif way == "a list of tensors":
            with torch.no_grad():
                torch._foreach_add_([p.data for p in self.critic.parameters()], 0.01)
        else:  # no optimizer of torch's
            with torch.no_grad():
                for parameter in self.critic.parameters():
                    parameter.mul_(0.99)
        self.critic.zero_grad()
        if way == "clipped":
            for parameter in self.critic.parameters():
                parameter.data.clamp_(-0.1, 0.1)
        return (self.critic(self.body(batch)) - batch).square().mean()


def scheduled(critic):
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1000)  # which puts a counter around step()
    return optimizer


WAYS = {
    "plain": lambda critic: torch.optim.SGD(critic.parameters(), lr=0.1),
    "scheduled": scheduled,
    "fused": lambda critic: torch.optim.Adam(critic.parameters(), lr=0.1, fused=True),
    "foreach": lambda critic: torch.optim.Adam(critic.parameters(), lr=0.1, foreach=True),
    "closure": lambda critic: torch.optim.SGD(critic.parameters(), lr=0.1),
    "clipped": lambda critic: torch.optim.SGD(critic.parameters(), lr=0.1),
    "made in the step": None,
    "in place": None,
    "a list of tensors": None,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_moves_weights_itself_is_saved_as_a_loop_by_hand_has_them(way, tmp_path, monkeypatch):
    slowly(monkeypatch)
    monkeypatch.setattr(CarriedPart, "writes_unseen", False)  # as if no code named `.data`
    batches = list(torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1)))

    model, by_hand = Two(way), []
    optimizer = torch.optim.Adam(model.body.parameters(), lr=0.01)
    for _ in range(3):
        for batch in batches:
            optimizer.zero_grad()
            model.train_step(batch).backward()
            optimizer.step()
        by_hand.append(weights_of(model))

    trained = Two(way)
    builder = quiet(tmp_path).num_epochs(3).with_file_checkpointer()
    builder = builder.with_checkpointing_strategy(KeepAll()).autosave(2)
    optimizer = torch.optim.Adam(trained.body.parameters(), lr=0.01)
    learner = builder.build(trained, optimizer, None, batches)
    learner.fit()
    assert learner._replica.snapshots.deferring == (way not in ("in place", "a list of tensors"))
    for epoch, weights in enumerate(by_hand, 1):
        learner.restore(epoch)
        assert_same(weights_of(trained), weights)


def test_an_optimizer_of_other_weights_does_not_wait(monkeypatch):
    model, other = nn.Linear(300, 300), nn.Linear(3, 3)
    snapshots, waited = sure(), []
    snapshots.begin()([model.weight])
    snapshots.go()
    monkeypatch.setattr(snapshots._copying, "wait", lambda: waited.append(True))
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert not waited and not snapshots.idle
    torch.optim.SGD([model.weight.view(-1).detach()], lr=1.0).step()  # the same memory, as a flat parameter
    assert waited
    snapshots.tidy()
    assert not optimizers._global_optimizer_pre_hooks


def test_no_optimizer_is_hooked_while_nothing_is_copied(tmp_path):
    seen = []

    def step(model, batch):
        seen.append(len(optimizers._global_optimizer_pre_hooks))
        return plain_step(model, batch)

    learner = learner_in(tmp_path, step=step)
    learner.step()
    before = len(seen)
    learner._replica.timeline.every = None
    learner.step(10)
    assert seen[before] == 1 and 0 in seen[before:]
    assert not optimizers._global_optimizer_pre_hooks


def test_an_optimizer_waits_for_the_copy_and_forgets_the_hook_afterwards(monkeypatch):
    slowly(monkeypatch)
    model = nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    snapshots = sure()
    before = model.weight.detach().clone()
    model(torch.ones(2, 300)).sum().backward()

    (copy,) = snapshots.begin()([model.weight])
    pending = snapshots.go()
    optimizer.step()

    assert pending.wait() and torch.equal(copy, before)
    assert not torch.equal(model.weight, before)
    snapshots.tidy()
    assert not optimizers._global_optimizer_pre_hooks


def test_a_copy_is_of_the_memory_that_a_parameter_had(monkeypatch):
    slowly(monkeypatch)
    model = nn.Linear(300, 300)
    before = model.weight.detach().clone()
    snapshots = sure()
    (copy,) = snapshots.begin()([model.weight])
    pending = snapshots.go()
    changed = before.clone()
    changed[7, 7] += 1  # where no sample is taken
    model.weight.data = changed
    assert pending.wait() and torch.equal(copy, before)


def test_a_copy_that_failed_is_void(monkeypatch):
    """It is not known to come: buffers are made beforehand."""
    monkeypatch.setattr(torch, "_foreach_copy_", lambda copies, lives: 1 / 0)
    model = nn.Linear(300, 300)
    snapshots = sure()
    snapshots.begin()([model.weight])
    pending = snapshots.go()
    snapshots.settle()
    assert not pending.wait()
    assert not snapshots.deferring


def test_a_state_that_was_written_is_let_go_of(tmp_path, monkeypatch):
    """Beside the weights themselves a training holds none but its keyframes."""
    seen, left = [], []
    keep = FileCheckpointer.keep

    def watched(store, state, kind):
        seen.append(weakref.ref(state.parts["model"]["tensors"]["conv.weight"]))
        return keep(store, state, kind)

    def step(model, batch):
        if learner.position.step == 4:
            learner._replica.saving.store.keeper.background.wait()
            left.extend(state() for state in seen)
        return plain_step(model, batch)

    monkeypatch.setattr(FileCheckpointer, "keep", watched)
    model = Tied()
    builder = quiet(tmp_path).num_epochs(1).train_step(step).keyframes(memory=1)
    builder = builder.with_file_checkpointer().autosave(2)
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.01), None, images())
    learner.fit()
    assert left and left == [None] * len(left)


def sure():
    """As after a first step that left the weights to its optimizers."""
    snapshots = Snapshots()
    snapshots._sure = True
    return snapshots


def weights_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def slowly(monkeypatch):
    """The copying thread sleeps before each piece, as behind a slow memory."""
    import time

    real = torch._foreach_copy_

    def late(copies, lives):
        time.sleep(0.05)
        real(copies, lives)

    monkeypatch.setattr(torch, "_foreach_copy_", late)
