"""Several optimizers, and steps that call `optimizer.step()` themselves: compared with a loop by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LinearLR, StepLR

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.breakpoint import LossSpike, NonFinite, UpdateRatio
from notebook_learner.errors import ConfigurationError, LossError, Paused, StateError, StepError
from notebook_learner.metric import GradNorm, LearningRate

BATCHES = [(torch.randn(8, 4, generator=torch.Generator().manual_seed(n)),) for n in range(7)]
PAIRS = [(x, x.sum(1, keepdim=True).sin()) for (x,) in BATCHES]
EPOCHS = 2


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


class SAM(Optimizer):
    """The two passes of sharpness-aware minimisation, as its public code has them."""

    def __init__(self, params: Any, base: type[Optimizer], rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        scale = 0.05 / (torch.stack([grad.norm() for grad in grads]).norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()


@dataclass
class Program:
    """What a person would write: a model, its optimizers, and one step of their loop."""

    model: nn.Module
    optimizers: Any
    step: Callable[[Any, Any], Any]
    batches: list[Any]
    schedules: Any = None
    per_epoch: Callable[[], None] = lambda: None
    """What the loop by hand does at an epoch's end."""


def gan() -> Program:
    model = Gan()
    g = Adam(model.generator.parameters(), lr=0.01, betas=(0.5, 0.9))
    d = SGD(model.critic.parameters(), lr=0.05, momentum=0.9)
    schedule = StepLR(d, 1, 0.5)

    def step(model: Any, batch: Any) -> Any:
        (real,) = batch
        fake = model.generator(torch.randn(len(real), 3))
        d.zero_grad()
        loss_d = F.softplus(model.critic(fake.detach())).mean() + F.softplus(-model.critic(real)).mean()
        loss_d.backward()
        d.step()
        g.zero_grad()
        loss_g = F.softplus(-model.critic(fake)).mean()
        loss_g.backward()
        g.step()
        return {"loss": loss_g, "critic": loss_d}

    return Program(model, {"g": g, "d": d}, step, BATCHES, {"d": schedule}, schedule.step)


def critic_first() -> Program:
    """Three steps of the critic for one of the generator; the first step steps the critic alone."""
    program = gan()
    model, (g, d) = program.model, program.optimizers.values()
    count = [0]

    def step(model: Any, batch: Any) -> Any:
        (real,) = batch
        count[0] += 1
        d.zero_grad()
        loss = (
            model.critic(model.generator(torch.randn(len(real), 3)).detach()).mean()
            - model.critic(real).mean()
        )
        loss.backward()
        d.step()
        if count[0] % 3 == 0:
            g.zero_grad()
            (-model.critic(model.generator(torch.randn(len(real), 3))).mean()).backward()
            g.step()
        return loss

    return Program(model, program.optimizers, step, BATCHES)


def lbfgs() -> Program:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=5)

    def step(model: Any, batch: Any) -> Any:
        x, y = batch

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Program(model, optimizer, step, PAIRS)


def sam() -> Program:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = SAM(model.parameters(), SGD, lr=0.1, momentum=0.9)

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.first_step()
        F.mse_loss(model(x), y).backward()
        optimizer.second_step()
        return loss

    return Program(model, optimizer, step, PAIRS)


def collecting(steps_at: int = 1) -> Program:
    """Accumulation by hand: of three steps one, here the first, steps the optimizer and clears."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = Adam(model.parameters(), lr=0.02)
    count = [0]

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        loss = F.mse_loss(model(x), y) / 3
        loss.backward()
        count[0] += 1
        if count[0] % 3 == steps_at:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return Program(model, optimizer, step, PAIRS)


def collecting_first() -> Program:
    """The same, but the first two steps only collect."""
    return collecting(steps_at=0)


def warming_up() -> Program:
    """Steps that only remember what came, until there is enough to train on."""
    program = collecting()
    model, optimizer, seen = program.model, program.optimizers, list[Any]()

    def step(model: Any, batch: Any) -> Any:
        seen.append(batch)
        if len(seen) < 3:
            return None
        x, y = seen[int(torch.randint(len(seen), ()))]
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, optimizer, step, PAIRS)


def in_the_backward() -> Program:
    """An optimizer for each parameter, which steps as soon as its gradient is there."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    each = {p: Adam([p], lr=0.02) for p in model.parameters()}

    def hook(parameter: Any) -> None:
        each[parameter].step()
        each[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        loss = F.mse_loss(model(x), y)
        return loss

    return Program(model, list(each.values()), step, PAIRS)


def weights_by_hand() -> Program:
    """No optimizer takes part: the step moves the weights itself."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1))

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        return loss.detach()

    return Program(model, SGD(model.parameters(), lr=1.0), step, PAIRS)


DRIVEN = [gan, critic_first, lbfgs, sam, collecting, collecting_first, warming_up, weights_by_hand]
ALL = [*DRIVEN, in_the_backward]


def made(program: Callable[[], Program], directory: Path, **more: Any) -> tuple[Learner, Program]:
    torch.manual_seed(3)
    mine = program()
    builder = LearnerBuilder(directory).num_epochs(EPOCHS).renderer("silent").metrics().train_step(mine.step)
    builder.with_file_checkpointer()
    for verb, value in more.items():
        getattr(builder, verb)(*value)
    return builder.build(mine.model, mine.optimizers, mine.schedules, mine.batches), mine


def by_hand(program: Callable[[], Program], epochs: int = EPOCHS) -> nn.Module:
    torch.manual_seed(3)
    mine = program()
    mine.model.train()
    for _ in range(epochs):
        for batch in mine.batches:
            output = mine.step(mine.model, batch)
            if program is in_the_backward:
                output.backward()
        mine.per_epoch()
    return mine.model


def bits(model: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("program", ALL)
def test_it_is_the_loop_by_hand(program: Callable[[], Program], tmp_path: Path) -> None:
    learner, _ = made(program, tmp_path)
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(program)))


@pytest.mark.parametrize("program", ALL)
def test_a_rewind_in_its_midst_changes_nothing(program: Callable[[], Program], tmp_path: Path) -> None:
    learner, _ = made(program, tmp_path)
    learner.step(5)
    learner.rewind(3)
    learner.step(6)
    learner.rewind(2)
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(program)))


@pytest.mark.parametrize("program", ALL)
@pytest.mark.parametrize("steps", [3, 8])
def test_a_resumed_run_goes_on_exactly(program: Callable[[], Program], steps: int, tmp_path: Path) -> None:
    first, _ = made(program, tmp_path)
    first.step(steps)
    first.save()
    del first
    learner, _ = made(program, tmp_path, resume=())
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(program)))


@pytest.mark.parametrize("program", ALL)
def test_a_what_if_and_a_look_leave_nothing(program: Callable[[], Program], tmp_path: Path) -> None:
    learner, _ = made(program, tmp_path)
    learner.step(4)
    learner.what_if(2, lr=0.5)
    learner.inspect()
    learner.step(1)
    learner.tools.try_step()
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(program)))


def test_a_what_if_changes_an_option_of_one_optimizer(tmp_path: Path) -> None:
    def learner_in(name: str) -> Learner:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        each = {str(layer): torch.optim.SGD(model[layer].parameters(), lr=0.01) for layer in (0, 2)}
        data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(8)]
        builder = LearnerBuilder(tmp_path / name).loss(F.mse_loss).renderer("silent")
        learner = builder.build(model, each, None, data)
        learner.step(2)
        return learner

    learner = learner_in("named")
    found = learner.what_if(3, lr={"2": 0.5})
    expected = learner_in("listed").what_if(3, lr=[0.01, 0.5])
    for one, other in zip(found.courses, expected.courses, strict=True):
        assert one.values["loss"].tolist() == other.values["loss"].tolist()
    assert found.courses[0].values["loss"].tolist() != found.courses[1].values["loss"].tolist()
    assert "lr = 2: 0.5" in str(found)
    with pytest.raises(ValueError, match="there is no optimizer 'x'; there are: 0, 2"):
        learner.what_if(3, lr={"x": 0.5})
    with pytest.raises(ValueError, match="it can change"):
        learner.what_if(3, speed={"2": 0.5})


@pytest.mark.parametrize("program", ALL)
def test_it_is_verified_as_exact(program: Callable[[], Program], tmp_path: Path) -> None:
    learner, _ = made(program, tmp_path)
    learner.step(2)
    found = learner.verify(3)
    assert found.exact, found


@pytest.mark.parametrize("program", DRIVEN)
def test_a_fork_goes_the_same_way_and_shares_nothing(program: Callable[[], Program], tmp_path: Path) -> None:
    learner, _ = made(program, tmp_path / "one")
    learner.step(4)
    child = learner.fork(tmp_path / "two")
    child.fit()
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(program)))
    assert same(bits(child.model), bits(learner.model))


def test_the_learner_gives_the_optimizers_and_schedules_by_name(tmp_path: Path) -> None:
    learner, mine = made(gan, tmp_path)
    assert learner.optimizer == mine.optimizers
    assert learner.scheduler["d"] is mine.schedules["d"]


@pytest.mark.parametrize("given", [dict, list])
def test_the_learner_steps_all_of_them_if_the_step_steps_none(given: Any, tmp_path: Path) -> None:
    def loop() -> tuple[nn.Module, list[Optimizer]]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
        return model, [SGD(model[0].parameters(), lr=0.1), Adam(model[2].parameters(), lr=0.01)]

    hand, optimizers = loop()
    for x, y in PAIRS:
        for each in optimizers:
            each.zero_grad()
        F.mse_loss(hand(x), y).backward()
        for each in optimizers:
            each.step()
    model, optimizers = loop()
    named = optimizers if given is list else {"first": optimizers[0], "last": optimizers[1]}
    builder = LearnerBuilder(tmp_path).num_epochs(1).renderer("silent").metrics().loss(F.mse_loss)
    builder.build(model, named, None, PAIRS).fit()
    assert same(bits(model), bits(hand))


class Boom(Exception):
    pass


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_what_raises_between_the_steps_takes_the_first_ones_step_back(error: Any, tmp_path: Path) -> None:
    armed = tmp_path / "armed"  # a file: what a variable says would be taken back, too

    def program() -> Program:
        mine = gan()
        g = mine.optimizers["g"]
        inner = g.zero_grad

        def zero_grad(set_to_none: bool = True) -> None:
            if armed.exists():
                armed.unlink()
                raise error
            inner(set_to_none)

        g.zero_grad = zero_grad
        return mine

    learner, _ = made(program, tmp_path / "run")
    learner.step(3)
    before = bits(learner.model)
    armed.touch()
    with suppress(Boom, KeyboardInterrupt):
        learner.step(1)
    assert same(bits(learner.model), before)
    assert learner.position.step == 3
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(gan)))


@pytest.mark.parametrize(
    ("verb", "value"),
    [("clip_gradients", {"norm": 1.0}), ("grads_accumulation", 2), ("precision", "fp16")],
)
def test_what_only_the_loops_own_update_can_do_is_refused_by_name(
    verb: str, value: Any, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    mine = gan()
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics().train_step(mine.step)
    getattr(builder, verb)(**value) if isinstance(value, dict) else getattr(builder, verb)(value)
    learner = builder.build(mine.model, mine.optimizers, None, mine.batches)
    before = bits(mine.model)
    with pytest.raises(StepError, match=verb):
        learner.step()
    assert same(bits(mine.model), before)


def test_lbfgs_without_a_closure_is_refused_with_the_way_to_write_it(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics()
    with pytest.raises(ConfigurationError, match=r"step\(closure\)"):
        builder.loss(F.mse_loss).build(model, LBFGS(model.parameters()), None, PAIRS)
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics()
    builder.train_step(lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    learner = builder.build(model, LBFGS(model.parameters()), None, PAIRS)
    with pytest.raises(StepError, match="closure"):
        learner.step()


def test_a_step_that_runs_backward_and_moves_nothing_is_an_error(tmp_path: Path) -> None:
    def step(model: Any, batch: Any) -> Any:
        loss = F.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        return loss.detach()

    model = nn.Linear(4, 1)
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics().train_step(step)
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, PAIRS)
    before = bits(model)
    with pytest.raises(LossError, match="does not require a gradient"):
        learner.step()
    assert same(bits(model), before)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no optimizer"),
        ({"g": Adam}, "'g' is the class Adam"),
        ({1: None}, "name 1"),
    ],
)
def test_mistakes_in_a_mapping_are_named(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        LearnerBuilder(tmp_path).loss(F.mse_loss).build(nn.Linear(4, 1), given)


def test_a_schedule_for_no_optimizer_is_named(tmp_path: Path) -> None:
    mine = gan()
    with pytest.raises(ConfigurationError, match="'x', and no optimizer of that name; there are: g, d"):
        LearnerBuilder(tmp_path).train_step(mine.step).build(mine.model, mine.optimizers, {"x": 0.1})


def test_a_schedule_moves_with_the_steps_of_its_own_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(3)
    mine = critic_first()
    g, d = mine.optimizers.values()
    named = {"g": LinearLR(g, 1.0, 0.0, 10), "d": LinearLR(d, 1.0, 0.0, 10)}
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics().train_step(mine.step)
    learner = builder.step_scheduler("step").build(mine.model, mine.optimizers, named, mine.batches)
    learner.step(6)
    assert [named["g"].last_epoch, named["d"].last_epoch] == [2, 6]


def test_a_state_of_other_optimizers_is_refused_by_name(tmp_path: Path) -> None:
    learner, _ = made(gan, tmp_path)
    learner.step(2)
    learner.save()
    other = gan()
    builder = (
        LearnerBuilder(tmp_path)
        .renderer("silent")
        .metrics()
        .train_step(other.step)
        .with_file_checkpointer()
        .resume()
    )
    with pytest.raises((ConfigurationError, StateError), match="optimizers"):
        named = {"a": other.optimizers["g"], "b": other.optimizers["d"]}
        builder.build(other.model, named, None, other.batches)


def test_rates_and_norms_are_told_apart_by_name(tmp_path: Path) -> None:
    torch.manual_seed(3)
    mine = critic_first()
    builder = LearnerBuilder(tmp_path).renderer("silent").train_step(mine.step)
    builder.metrics(GradNorm(), GradNorm("g"), GradNorm("d"), *LearningRate.per_group(mine.optimizers))
    learner = builder.build(mine.model, mine.optimizers, None, mine.batches)
    learner.step(3)
    history = learner.history
    norms = {name: history.values(f"Gradient Norm{name}", "train") for name in ("", " g", " d")}
    assert [bool(value > 0) for value in norms[" d"]] == [True] * 3
    assert [bool(value == value) for value in norms[" g"]] == [False, False, True]
    assert norms[""][2] == pytest.approx((norms[" g"][2] ** 2 + norms[" d"][2] ** 2) ** 0.5, rel=1e-6)
    assert history.values("Learning Rate g", "train")[0] == 0.01
    assert history.values("Learning Rate d", "train")[0] == 0.05


def test_inspect_names_the_optimizer_of_each_group(tmp_path: Path) -> None:
    learner, _ = made(gan, tmp_path)
    learner.step(1)
    assert [group.label for group in learner.inspect().optimizer] == ["g 0", "d 0"]


@pytest.mark.parametrize("condition", [NonFinite(), UpdateRatio(above=1e9), LossSpike(1e9)])
def test_breakpoints_watch_a_step_that_drives_itself(condition: Any, tmp_path: Path) -> None:
    learner, _ = made(gan, tmp_path, break_on=(condition,))
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(gan)))


def test_a_breakpoint_stops_before_the_first_write_of_the_step(tmp_path: Path) -> None:
    def program() -> Program:
        mine = gan()
        batches = [(x.clone(),) for (x,) in BATCHES]
        batches[4][0][0, 0] = float("nan")
        return replace(mine, batches=batches)

    learner, _ = made(program, tmp_path / "one", break_on=(NonFinite(),))
    with pytest.raises(Paused, match="not finite"):
        learner.fit()
    assert learner.position.step == 4
    plain, _ = made(gan, tmp_path / "plain")
    plain.step(4)
    assert same(bits(learner.model), bits(plain.model))


def plain(model: Any, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def test_a_plain_step_may_take_the_place_of_one_that_drives_itself(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, hand = nn.Linear(4, 1), nn.Linear(4, 1)
    hand.load_state_dict(model.state_dict())
    optimizers = [SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, hand)]

    def driving(optimizer: Any) -> Callable[[Any, Any], Any]:
        def step(model: Any, batch: Any) -> Any:
            optimizer.zero_grad()
            loss = plain(model, batch)
            loss.backward()
            optimizer.step()
            return loss

        return step

    builder = LearnerBuilder(tmp_path).num_epochs(1).renderer("silent").metrics()
    learner = builder.train_step(driving(optimizers[0])).build(model, optimizers[0], None, PAIRS)
    learner.step(2)
    learner.what_if(2, train_step=plain)
    learner.step(1)
    learner.train_step = plain  # type: ignore[attr-defined]
    learner.step(2)
    learner.train_step = driving(optimizers[0])  # type: ignore[attr-defined]
    learner.fit()
    by_itself = driving(optimizers[1])
    for batch in PAIRS:
        by_itself(hand, batch)
    assert same(bits(model), bits(hand))
