"""Random programs, driven by random verbs: each ends like its straight run, or is told, or refused.

A program is made from one number, and can be made again from it, as in a new kernel.
"""

from __future__ import annotations

import inspect
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from carried_support import Notices, weights
from test_data_and_buffers import OwnState
from test_data_hooks_and_schedules import Noisy, Shifting
from test_hooks_of_steps import PLACES as HOOKS
from test_what_steps_reach import KINDS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.carried.heap import Heap
from notebook_learner.errors import ConfigurationError, Paused, StateError
from notebook_learner.trial.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
"""`torch.compile` asks every tensor for it."""

EPOCHS, BATCHES, SIZE = 3, 5, 8
Turn = Callable[[], float]


class Counting(torch.optim.SGD):
    """An optimizer whose rate depends on an attribute of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.taken = 0

    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        self.param_groups[0]["lr"] = 0.1 / (1 + self.taken % 5)
        return super().step(closure)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
    "a subclass": Counting,
}
LOADERS = ("shuffled", "a list", "own sampler", "own state", "noisy data")
PLACES = ("model", "step", "loss", "hook")


@dataclass(frozen=True)
class Program:
    """What is trained, and how."""

    number: int
    kinds: tuple[tuple[str, str], ...]
    """What steps reach: the kinds of values, and where they are."""
    loader: str
    optimizer: str
    window: int
    seed: int | None
    normed: bool
    scheduled: str
    lazy: bool
    """Whether the first batch gives the model its shape."""
    precision: str
    compiled: bool
    hook: tuple[str, int, int] | None
    """Which hook a step registers, and in which calls it comes and goes."""
    devices: int = 1

    @staticmethod
    def of(number: int) -> Program:
        chance = random.Random(number)
        kinds = tuple(
            (chance.choice(list(KINDS)), chance.choice(PLACES)) for _ in range(chance.choice([1, 1, 2, 3]))
        )
        return Program(
            number,
            kinds,
            chance.choice(LOADERS),
            chance.choice(list(OPTIMIZERS)),
            chance.choice([1, 1, 2]),
            chance.choice([None, None, 7]),
            chance.random() < 0.3,
            chance.choice(["", "", "a function", "StepLR"]),
            chance.random() < 0.2,
            chance.choice([*["fp32"] * 6, "bf16", "fp16"]),
            chance.random() < 0.05,
            chance.choice(
                [None, None, (chance.choice(list(HOOKS)), chance.randint(2, 8), chance.randint(4, 20))]
            ),
        )

    def built(self, directory: Path, shown: Notices, resume: bool = False) -> Learner:
        """The learner, with everything anew."""
        torch.manual_seed(self.number)
        np.random.seed(self.number)
        random.seed(self.number)
        turns: dict[str, list[Turn]] = {place: [] for place in PLACES}
        for kind, place in self.kinds:
            turns[place].append(KINDS[kind]())
        model = Net(turns["model"], self.normed, self.lazy)
        for turn in turns["hook"]:
            model.first.register_forward_hook(lambda module, given, made, turn=turn: made * (1 + turn() / 50))
        loss, optimizer = scaled(turns["loss"]), OPTIMIZERS[self.optimizer](model.parameters())
        calls, hook, handles = 0, self.hook, []

        def step(model: Any, batch: Any) -> Tensor:
            nonlocal calls
            calls += 1
            if hook is not None and calls == hook[1]:
                handles.append(HOOKS[hook[0]]([model.first, None, model.last], optimizer))
            if hook is not None and calls == hook[2] and handles:
                handles.pop().remove()
            value = loss(model(batch[0]), batch[1])
            for turn in turns["step"]:
                value = value * (1 + turn() / 50)
            return value

        builder = LearnerBuilder(directory).train_step(step).num_epochs(EPOCHS).metrics().renderer(shown)
        builder.with_file_checkpointer().grads_accumulation(self.window)
        if self.seed is not None:
            builder.seed(self.seed)
        if self.precision != "fp32":
            builder.precision(self.precision)
        if self.compiled:
            builder.compile(backend="eager")
        if self.devices > 1:
            builder.devices(["cpu"] * self.devices)
        if resume:
            builder.resume()
        scheduler: Any = {
            "": None,
            "a function": lambda number: 0.1 / (1 + number),
            "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7),
        }[self.scheduled]
        return builder.build(model, optimizer, scheduler, self._loader())

    def _loader(self) -> Any:
        x = torch.randn(BATCHES * SIZE, 4)
        y = torch.randint(0, 2, (BATCHES * SIZE,))
        if self.loader == "a list":
            return list(zip(x.split(SIZE), y.split(SIZE), strict=True))
        if self.loader == "own sampler":
            return DataLoader(TensorDataset(x, y), SIZE, sampler=Shifting(len(x)))
        if self.loader == "own state":
            return OwnState()
        if self.loader == "noisy data":
            return DataLoader(Noisy(x, y), SIZE, shuffle=True)
        return DataLoader(TensorDataset(x, y), SIZE, shuffle=True)


class Net(nn.Module):
    def __init__(self, turns: list[Turn], normed: bool, lazy: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.LazyLinear(2) if lazy else nn.Linear(6, 2)
        self.last(torch.ones(1, 6))  # a lazy one takes its shape
        self.norm = nn.BatchNorm1d(6) if normed else nn.Identity()
        self.dropout, self.turns = nn.Dropout(0.3), turns

    def forward(self, x: Tensor) -> Tensor:
        output = self.last(self.dropout(self.norm(self.first(x))))
        for turn in self.turns:
            output = output * (1 + turn() / 50)
        return output


def scaled(turns: list[Turn]) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        value = F.cross_entropy(output, y)
        for turn in turns:
            value = value * (1 + turn() / 50)
        return value

    return loss


class Boom(RuntimeError):
    """What a step raises."""


class Driver:
    """Takes a program back and forth."""

    def __init__(self, program: Program, directory: Path, verbs: Sequence[str]) -> None:
        self.program, self.directory, self.verbs = program, directory, verbs
        self.shown = Notices()
        self.learner = program.built(directory / "0", self.shown)
        self.folder = directory / "0"
        self.done: list[str] = []
        self.kept: Any = None
        self.differed: list[str] = []
        """What `verify` found."""

    def go(self) -> Tensor:
        """Do some things, and then train to the end."""
        chance = random.Random(-self.program.number)
        for _ in range(chance.randint(4, 9)):
            if self.learner.status == "finished":
                break
            name = chance.choice(self.verbs)
            self.done.append(name)
            getattr(self, f"_{name}")(chance)
        self.learner.fit()
        return weights(self.learner)

    def _step(self, chance: random.Random) -> None:
        self.learner.step(chance.randint(1, 4))

    def _rewind(self, chance: random.Random) -> None:
        if taken := self.learner.position.iteration:
            with suppress(StateError):  # a resumed run, or a fork, does not reach that far back
                self.learner.rewind(chance.randint(1, taken))

    def _what_if(self, chance: random.Random) -> None:
        self.learner.what_if(chance.randint(1, 3), lr=0.5)

    def _try_step(self, chance: random.Random) -> None:
        self.learner.tools.try_step()

    def _inspect(self, chance: random.Random) -> None:
        self.learner.inspect()

    def _capture(self, chance: random.Random) -> None:
        self.kept = self.learner.capture()

    def _restore(self, chance: random.Random) -> None:
        if self.kept is not None:
            self.learner.restore(self.kept)

    def _resume(self, chance: random.Random) -> None:
        self.learner.save()
        self.learner = self.program.built(self.folder, self.shown, resume=True)
        self.kept = None

    def _fork(self, chance: random.Random) -> None:
        self.folder = self.directory / str(len(self.done))
        self.learner = self.learner.fork(self.folder)
        self.kept = None

    def _error(self, chance: random.Random) -> None:
        def fails() -> None:
            raise Boom

        with self._after_a_step(fails), pytest.raises(Boom):
            self.learner.step(1)

    def _interrupts(self, chance: random.Random) -> None:
        def pressed() -> None:
            for _ in range(2):  # the first one asks for a pause, the second one breaks the step off
                signal.raise_signal(signal.SIGINT)

        with self._after_a_step(pressed), suppress(Paused, KeyboardInterrupt):
            self.learner.step(2)

    @contextmanager
    def _after_a_step(self, happens: Callable[[], None]) -> Iterator[None]:
        """Inside, something happens in each step, when its loss is known."""
        step = self.learner._replica.loop.passes["train"].step
        function = step.function

        def followed(batch: Any) -> Any:
            made = function(batch)
            happens()
            return made

        step.function = followed
        try:
            yield
        finally:
            step.function = function

    def _verify(self, chance: random.Random) -> None:
        _, differs = self.learner._drive(lambda: verify(self.learner._replica, 2))
        if differs is not None:
            self.differed.append(str(differs))

    def _detach(self, chance: random.Random) -> None:
        self.learner.detach()
        self.learner.take_back()
        self.kept = None

    def _reload(self, chance: random.Random) -> None:
        exec(inspect.getsource(Net), globals())
        self.learner.tools.reload_code()

    @property
    def told(self) -> list[str]:
        """What was said to be outside of the state."""
        starts = ("not in the state", "the checkpoint holds")
        return [text for text in self.shown.texts if text.startswith(starts)]

    def _evaluate(self, chance: random.Random) -> None:
        self.learner.tools.use_step("valid", lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
        self.learner.evaluate([(torch.ones(2, 4), torch.tensor([0, 1]))], name="other")


VERBS = (
    *("step", "step", "step", "rewind", "rewind", "what_if", "try_step", "inspect", "capture", "restore"),
    *("resume", "fork", "error", "evaluate", "interrupts", "verify", "reload"),
)
ON_RANKS = tuple(verb for verb in VERBS if verb not in ("fork", "interrupts", "reload"))
"""A fork would start two more processes; interrupts and new code have tests of their own on ranks."""


def outcome(number: int, directory: Path, verbs: Sequence[str] = VERBS, devices: int = 1) -> str:
    """How a program ends: equal, told, refused, or with a description of what differed in silence."""
    program = replace(Program.of(number), devices=devices)
    straight = program.built(directory / "straight", Notices())
    try:
        straight.fit()
    except ConfigurationError as refused:  # by several devices
        return "refused" if "cannot be sent to" in str(refused) else f"{program}: {refused!r}"
    driver = Driver(program, directory, verbs)
    try:
        end = driver.go()
    except (StateError, ConfigurationError) as refused:
        by_name = any(text in str(refused) for text in ("fork()", "be sent to"))
        return "refused" if by_name else f"{program} {driver.done}: {refused!r}"
    if torch.equal(end, weights(straight)) and not driver.differed:
        return "equal"
    return "told" if driver.told else f"{program} differs in silence after {driver.done} {driver.differed}"


def outcomes(numbers: range, directory: Path, verbs: Sequence[str] = VERBS, devices: int = 1) -> Counter[str]:
    found = Counter(outcome(number, directory / str(number), verbs, devices) for number in numbers)
    print(dict(found))
    return found


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "numbers", [range(40), pytest.param(range(40, 1040), marks=pytest.mark.soak)], ids=["40", "1000"]
)
def test_none_differs_in_silence(numbers: range, tmp_path: Path) -> None:
    found = outcomes(numbers, tmp_path)
    assert found.keys() <= {"equal", "told", "refused"}
    assert found["equal"] > 0.8 * len(numbers)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "numbers", [range(2), pytest.param(range(2, 52), marks=pytest.mark.soak)], ids=["2", "50"]
)
def test_none_differs_in_silence_on_two_ranks(numbers: range, tmp_path: Path) -> None:
    assert outcomes(numbers, tmp_path, ON_RANKS, devices=2).keys() <= {"equal", "told", "refused"}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "numbers", [range(2), pytest.param(range(2, 52), marks=pytest.mark.soak)], ids=["2", "50"]
)
def test_none_differs_in_silence_through_a_process_of_its_own(numbers: range, tmp_path: Path) -> None:
    found = outcomes(numbers, tmp_path, ("step", "detach", "rewind", "resume"))
    assert found.keys() <= {"equal", "told", "refused"}


def test_where_the_engine_puts_nothing_back_the_programs_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heap, "give", lambda *_, **__: None)
    found = outcomes(range(12), tmp_path)
    assert sum(count for said, count in found.items() if "differs in silence" in said) >= 6
