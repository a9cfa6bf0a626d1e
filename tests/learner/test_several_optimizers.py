"""Several optimizers, and steps that call `optimizer.step()` themselves: compared with a loop by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from driving_support import (
    ALL,
    BATCHES,
    DRIVEN,
    PAIRS,
    Program,
    by_hand,
    critic_first,
    gan,
    made,
    weights_by_hand,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LinearLR

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.breakpoint import LossSpike, NonFinite, UpdateRatio
from notebook_learner.errors import ConfigurationError, LossError, Paused, StateError, StepError
from notebook_learner.metric import GradNorm, LearningRate, Loss


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


@pytest.mark.parametrize("program", [gan, weights_by_hand])
def test_inspect_tells_how_far_a_step_that_drives_itself_moves_the_weights(
    program: Callable[[], Program], tmp_path: Path
) -> None:
    learner, mine = made(program, tmp_path)
    learner.step(2)
    before = {name: each.detach().clone() for name, each in mine.model.named_parameters()}
    found = learner.inspect("next")
    learner.step(1)
    for name, each in mine.model.named_parameters():
        (row,) = [row for row in found.parameters if row.name == name]
        assert row.weight_norm == pytest.approx(float(before[name].norm()), rel=1e-5)
        assert row.update_norm == pytest.approx(
            float((each.detach() - before[name]).norm()), rel=1e-4, abs=1e-9
        )
    assert {group.steps for group in found.optimizer} <= {2, None}, "as it was before the step"


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


def without_a_loss() -> Program:
    mine = gan()

    def step(model: Any, batch: Any) -> None:
        mine.step(model, batch)

    return replace(mine, step=step)


def test_a_what_if_of_steps_without_a_loss_compares_the_weights(tmp_path: Path) -> None:
    learner, _ = made(without_a_loss, tmp_path)
    learner.step(2)
    changed = learner.what_if(3, lr={"g": 0.5})
    said = "the weights differ after 3 steps; the steps return no loss and log no value"
    assert said in repr(changed) and "NaN" not in repr(changed)
    assert changed.first_difference is None
    unchanged = learner.what_if(3, lr={"g": 0.01})  # as it is
    assert "every bit is the same" in repr(unchanged)
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(without_a_loss)))


def test_a_rewind_of_steps_without_a_value_does_not_say_that_it_was_exact(tmp_path: Path) -> None:
    learner, _ = made(without_a_loss, tmp_path)
    learner.step(5)
    learner.save()
    replayed = learner.rewind(3)
    assert str(replayed).endswith("no value was measured to compare by)") and not replayed.compared
    learner.fit()
    assert same(bits(learner.model), bits(by_hand(without_a_loss)))
    measured, _ = made(gan, tmp_path / "measured", metrics=(Loss(),))
    measured.step(5)
    assert str(measured.rewind(3)).endswith("replayed, exact)")


def test_a_step_may_go_on_with_an_optimizer_that_is_no_longer_the_learners(tmp_path: Path) -> None:
    learner, mine = made(gan, tmp_path)
    learner.step(2)
    learner.optimizer = Adam(mine.model.parameters(), lr=0.5)
    learner.step(2)
    theirs = made(gan, tmp_path / "other")[0]
    theirs.step(4)
    assert same(bits(learner.model), bits(theirs.model)), "its own optimizers have stepped"
