"""Trainings as their authors write them, taken back and forth and resumed: each ends like its straight run,
and no line names what does not matter."""

from __future__ import annotations

import copy
import csv
import functools
import logging
import random
import sqlite3
import threading
import time
from argparse import Namespace
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import h5py
import matplotlib.figure
import numpy as np
import pytest
import torch
import torchmetrics
from carried_support import Notices, weights
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tqdm.auto import tqdm

from notebook_learner import Learner, LearnerBuilder

COUNT, SIZE = 48, 8
Step = Callable[[Any, Any], Tensor]
Training = tuple[nn.Module, Any, Step]
"""The model, what its batches come from, and the step."""

TRAININGS: dict[str, Callable[[Path], Training]] = {}
OPENED = ExitStack()
"""The files that they open."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    OPENED.close()


def training(make: Callable[[Path], Training]) -> Callable[[Path], Training]:
    TRAININGS[make.__name__.replace("_", " ")] = make
    return make


def net(width: int = 8, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, outputs))


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(COUNT, 8, generator=draw), torch.randint(0, 3, (COUNT,), generator=draw))


def shuffled(dataset: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset or data(), SIZE, shuffle=True, **options)


def plain(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


# Other networks, memories, schedules of one's own ----------------------------------------------------


@training
def a_gan_with_the_second_optimizer_in_the_step(folder: Path) -> Training:
    critic, samples = net(8, 1), list[Tensor]()
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss, fixed = nn.BCEWithLogitsLoss(), torch.ones(4, 4)

    def step(generator: Any, batch: Any) -> Tensor:
        real = batch[0]
        fake = generator(torch.randn(len(real), 4))
        optimizer.zero_grad()
        yes, no = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        (loss(critic(real), yes) + loss(critic(fake.detach()), no)).backward()
        optimizer.step()
        with torch.no_grad():
            samples.append(generator(fixed))
            del samples[:-2]
        return loss(critic(fake), yes)

    return net(4, 8), shuffled(), step


class BothSides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made, self.judged = net(4, 8), net(8, 1)


@training
def a_gan_in_one_module(folder: Path) -> Training:
    both, loss = BothSides(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(both.judged.parameters(), lr=1e-3)

    def step(both: Any, batch: Any) -> Tensor:
        real, fake = batch[0], both.made(torch.randn(len(batch[0]), 4))
        yes, no = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        optimizer.zero_grad()
        (loss(both.judged(real), yes) + loss(both.judged(fake.detach()), no)).backward()
        optimizer.step()
        return loss(both.judged(fake), yes)

    return both, shuffled(), step


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last, self.hidden = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3), None

    def forward(self, x: Tensor) -> Tensor:
        output, hidden = self.rnn(x[:, None], self.hidden)
        self.hidden = hidden.detach()
        return self.last(output[:, -1])


@training
def a_hidden_state_that_goes_on(folder: Path) -> Training:
    return Recurrent(), DataLoader(data(), SIZE), plain


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = net(8, 8)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.place = 0
        self.register_buffer("queue", F.normalize(torch.randn(8, 32), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        query = F.normalize(self.query(x), dim=1)
        with torch.no_grad():
            for own, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                own.lerp_(other, 0.01)
            key = F.normalize(self.key(x + torch.randn_like(x) / 10), dim=1)
        near, far = (query * key).sum(1, keepdim=True), query @ self.queue.clone()
        self.queue[:, self.place : self.place + len(x)] = key.T
        self.place = (self.place + len(x)) % 32
        return F.cross_entropy(torch.cat([near, far], 1) / 0.07, torch.zeros(len(x), dtype=torch.long))


@training
def a_queue_with_a_pointer(folder: Path) -> Training:
    return Contrast(), shuffled(), lambda model, batch: model(batch[0])


class World:
    """An environment without a state_dict."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.seen = self.random.normal(size=8).astype(np.float32)

    def act(self, action: int) -> tuple[Any, float]:
        self.seen = 0.9 * self.seen + 0.1 * self.random.normal(size=8).astype(np.float32)
        return self.seen, float(self.seen[action])


@training
def q_learning_with_a_replay_buffer_and_a_target(folder: Path) -> Training:
    world, target, chance = World(), net(), random.Random(0)
    buffer: deque[Any] = deque(maxlen=100)
    steps, boldness = 0, 1.0

    def step(model: Any, batch: Any) -> Tensor:
        nonlocal steps, boldness
        steps, boldness = steps + 1, max(0.05, boldness * 0.9)
        if steps % 5 == 1:
            target.load_state_dict(model.state_dict())
        seen = world.seen
        bold = chance.random() < boldness
        action = chance.randrange(3) if bold else int(model(torch.from_numpy(seen)[None]).argmax())
        buffer.append((seen, action, *world.act(action)))
        drawn = [buffer[chance.randrange(len(buffer))] for _ in range(8)]
        before, after = (torch.from_numpy(np.stack([each[place] for each in drawn])) for place in (0, 2))
        actions = torch.tensor([each[1] for each in drawn])
        with torch.no_grad():
            wanted = torch.tensor([each[3] for each in drawn]) + 0.9 * target(after).max(1).values
        return F.smooth_l1_loss(model(before).gather(1, actions[:, None])[:, 0], wanted)

    return net(), [0] * 6, step


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)
        self.weight, self.seen = 0.0, {"divergence": list[float]()}

    def forward(self, x: Tensor) -> Tensor:
        mean, log = self.encoder(x).chunk(2, 1)
        self.weight = min(1.0, self.weight + 0.1)
        divergence = -0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()
        self.seen["divergence"].append(float(divergence.detach()))
        drawn = mean + torch.randn_like(mean) * (log / 2).exp()
        return F.mse_loss(self.decoder(drawn), x) + self.weight * divergence


@training
def an_annealed_autoencoder(folder: Path) -> Training:
    return Annealed(), shuffled(), lambda model, batch: model(batch[0])


@training
def distillation(folder: Path) -> Training:
    teacher, loss = net().eval().requires_grad_(False), nn.KLDivLoss(reduction="batchmean")

    def step(model: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch[0]).softmax(1)
        return loss(model(batch[0]).log_softmax(1), wanted)

    return net(), shuffled(), step


@training
def preferences_against_a_reference(folder: Path) -> Training:
    model = net()
    reference = copy.deepcopy(model).requires_grad_(False)

    def likely(network: Any, x: Tensor, y: Tensor) -> Tensor:
        return network(x).log_softmax(1).gather(1, y[:, None])[:, 0]

    def step(model: Any, batch: Any) -> Tensor:
        x, better = batch
        worse = (better + 1) % 3
        gain = likely(model, x, better) - likely(reference, x, better)
        return -F.logsigmoid(gain - likely(model, x, worse) + likely(reference, x, worse)).mean()

    return model, shuffled(), step


@training
def learning_to_learn(folder: Path) -> Training:
    def step(model: Any, batch: Any) -> Tensor:
        (x, y), half = batch, SIZE // 2
        own = dict(model.named_parameters())
        loss = F.cross_entropy(functional_call(model, own, (x[:half],)), y[:half])
        moved = torch.autograd.grad(loss, list(own.values()), create_graph=True)
        fast = {name: value - 0.1 * by for (name, value), by in zip(own.items(), moved, strict=True)}
        return F.cross_entropy(functional_call(model, fast, (x[half:],)), y[half:])

    return net(), shuffled(), step


@training
def an_average_of_the_weights_in_the_step(folder: Path) -> Training:
    model = net()
    average, best = AveragedModel(model), [float("inf")]

    def step(model: Any, batch: Any) -> Tensor:
        average.update_parameters(model)
        loss = plain(model, batch)
        best[0] = min(best[0], float(loss.detach()))
        return loss

    return model, shuffled(), step


@training
def hooks_on_gradients(folder: Path) -> Training:
    model, norms = net(), list[float]()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: norms.append(float(grad.norm())) or grad.clamp(-0.1, 0.1))
    return model, shuffled(), plain


@training
def parametrized_layers(folder: Path) -> Training:
    first = parametrizations.spectral_norm(nn.Linear(8, 16))
    return nn.Sequential(first, nn.ReLU(), parametrizations.weight_norm(nn.Linear(16, 3))), shuffled(), plain


@training
def a_scripted_layer(folder: Path) -> Training:
    return nn.Sequential(torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 3)), shuffled(), plain


# Data ------------------------------------------------------------------------------------------------


def mixed(items: Any) -> Any:
    x, y = (torch.stack(list(each)) for each in zip(*items, strict=True))
    share, order = np.random.beta(0.2, 0.2), torch.randperm(len(x))
    told = F.one_hot(y, 3).float()
    return share * x + (1 - share) * x[order], share * told + (1 - share) * told[order]


@training
def mixup(folder: Path) -> Training:
    return net(), shuffled(collate_fn=mixed), plain


class FromHdf5(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        x, y = data().tensors
        if not path.exists():
            with h5py.File(path, "w") as file:
                file["x"], file["y"] = x.numpy(), y.numpy()
        self.file = OPENED.enter_context(h5py.File(path))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.file["x"][index]), int(self.file["y"][index])


@training
def data_in_hdf5(folder: Path) -> Training:
    return net(), shuffled(FromHdf5(folder / "data.h5")), plain


class FromDatabase(Dataset[Any]):
    def __init__(self) -> None:
        self.base = OPENED.enter_context(closing(sqlite3.connect(":memory:")))
        self.base.execute("create table kinds (number integer, kind integer)")
        rows = [(index, index % 3) for index in range(COUNT)]
        self.base.executemany("insert into kinds values (?, ?)", rows)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        (kind,) = self.base.execute("select kind from kinds where number = ?", (index,)).fetchone()
        return data()[index][0], kind


@training
def data_in_a_database(folder: Path) -> Training:
    return net(), shuffled(FromDatabase()), plain


# What only shows, logs or measures -------------------------------------------------------------------


@training
def logs_of_every_kind(folder: Path) -> Training:
    table = OPENED.enter_context((folder / "log.csv").open("w", newline=""))
    text = OPENED.enter_context((folder / "log.txt").open("a"))
    rows, bar, log = csv.writer(table), tqdm(total=12, disable=True), logging.getLogger("a training")
    figure = matplotlib.figure.Figure()
    (line,) = figure.add_subplot().plot([], [])
    lock, settings = threading.Lock(), Namespace(weight=1.0)
    accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
    history, began = defaultdict(list), time.perf_counter()

    @functools.lru_cache(None)
    def scale(width: int) -> Tensor:
        return torch.ones(width)

    def step(model: Any, batch: Any) -> Tensor:
        output = model(batch[0])
        loss = F.cross_entropy(output, batch[1]) * settings.weight * scale(1).sum()
        accuracy.update(output, batch[1])
        with lock:
            history["loss"].append(float(loss.detach()))
            history["seconds"].append(time.perf_counter() - began)
        rows.writerow(history["loss"][-1:])
        print(history["loss"][-1], file=text)
        log.info("a step")
        bar.update(1)
        line.set_data(range(len(history["loss"])), history["loss"])
        return loss

    return net(), shuffled(), step


# ------------------------------------------------------------------------------------------------------


def learner_of(name: str, folder: Path, shown: Notices, resume: bool = False) -> Learner:
    torch.manual_seed(0)
    np.random.seed(0)
    (folder / "own").mkdir(parents=True, exist_ok=True)
    model, batches, step = TRAININGS[name](folder / "own")
    torch.manual_seed(1)
    builder = LearnerBuilder(folder / "run").train_step(step).num_epochs(2).metrics().renderer(shown)
    builder.with_file_checkpointer()
    if resume:
        builder.resume()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return builder.build(model, torch.optim.Adam(trained), None, batches)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_exact_and_names_nothing(name: str, tmp_path: Path) -> None:
    straight = learner_of(name, tmp_path / "straight", Notices())
    straight.fit()

    shown = Notices()
    learner = learner_of(name, tmp_path / "interrupted", shown)
    learner.step(3)
    learner.rewind(2)
    learner.what_if(1, lr=0.1)
    learner.step(1)
    learner.inspect()
    learner.save()
    resumed = learner_of(name, tmp_path / "interrupted", shown, resume=True)
    resumed.fit()
    assert torch.equal(weights(resumed), weights(straight))
    starts = ("not in the state", "the checkpoint holds", "not what the log holds")
    assert [text for text in shown.texts if text.startswith(starts)] == []
