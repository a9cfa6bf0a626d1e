"""Steps that run backward and the optimizers themselves, on two ranks: as on one device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from fleet_support import TWO
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.breakpoint import NonFinite
from notebook_learner.errors import StepError

NOISE, WIDTH = 3, 4
Step = Callable[[Any, Any], Any]


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.critic = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(sizes: tuple[int, ...] = (8, 7, 8, 1, 5)) -> list[tuple[Tensor, Tensor]]:
    """Real samples and the noise for as many others. Of the batch of one sample, the second rank has none."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, WIDTH, generator=generator), torch.randn(n, NOISE, generator=generator))
        for n in sizes
    ]


def scored(scores: Tensor, real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def as_in_a_loop(g: Any, d: Any) -> Step:
    """The body of a GAN's loop as people write it. The generator's half leaves gradients at the critic."""

    def step(model: Any, batch: Any) -> Any:
        real, noise = batch
        d.zero_grad()
        fake = model.generator(noise)
        critic_loss = scored(model.critic(real), True) + scored(model.critic(fake.detach()), False)
        critic_loss.backward()
        nn.utils.clip_grad_norm_(model.critic.parameters(), 0.1)
        d.step()
        g.zero_grad()
        loss = scored(model.critic(fake), True)
        loss.backward()
        g.step()
        return {"loss": loss, "critic": critic_loss}

    return step


def optimizers_of(model: Any) -> dict[str, Any]:
    return {
        "g": Adam(model.generator.parameters(), lr=0.01),
        "d": SGD(model.critic.parameters(), lr=0.1, momentum=0.9),
    }


def made() -> Any:
    torch.manual_seed(1)
    return Gan().double()


def doubled(data: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(real.double(), noise.double()) for real, noise in data]


def learner_in(
    directory: Path,
    devices: list[str] | None = TWO,
    step: Callable[..., Step] = as_in_a_loop,
    data: Any = None,
    configure: Callable[[LearnerBuilder], Any] = lambda builder: None,
    optimizers: Callable[[Any], Any] = optimizers_of,
) -> Any:
    model = made()
    named = optimizers(model)
    function = step(**named) if isinstance(named, dict) else step(named)
    builder = LearnerBuilder(directory).num_epochs(3).renderer("silent").with_file_checkpointer()
    if devices:
        builder.devices(devices)
    configure(builder)
    return builder.train_step(function).build(
        model, named, None, doubled(batches()) if data is None else data
    )


def weights(model: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def require_close(learner: Learner, model: Any) -> None:
    """In double precision, sums in another order differ by their last digits."""
    torch.testing.assert_close(weights(learner.model), weights(model), rtol=1e-9, atol=1e-12)


def same(one: Learner, other: Learner) -> bool:
    mine, theirs = weights(one.model), weights(other.model)
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def by_hand() -> Any:
    model = made()
    step = as_in_a_loop(**optimizers_of(model))
    for _ in range(3):
        for batch in doubled(batches()):
            step(model, batch)
    return model


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    learner = learner_in(tmp_path_factory.mktemp("straight"))
    learner.fit()
    return learner


def test_a_gan_trains_as_in_a_loop_by_hand(straight: Any, by_hand: Any) -> None:
    require_close(straight, by_hand)
    assert straight.devices[1].alive


def rewound(learner: Any) -> None:
    learner.step(9)
    learner.rewind(6)


def asked(learner: Any) -> None:
    learner.step(7)
    learner.what_if(steps=3, lr={"d": 1.0})


def inspected(learner: Any) -> None:
    learner.step(3)
    learner.inspect("next")
    learner.inspect(rank=1)


def evaluated(learner: Any) -> None:
    learner.step(4)
    learner.predict([batches()[0][1].double()], step=lambda model, noise: model.generator(noise))


@pytest.mark.parametrize("act", [rewound, asked, inspected, evaluated], ids=lambda act: act.__name__)
def test_to_the_bit_after_any_verb_in_its_midst(act: Any, straight: Any, tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    act(learner)
    learner.fit()
    assert same(learner, straight)


def test_to_the_bit_after_a_resume_in_mid_epoch(straight: Any, tmp_path: Path) -> None:
    first = learner_in(tmp_path)
    first.step(8)
    first.save()
    second = learner_in(tmp_path, configure=lambda builder: builder.resume())
    assert second.position.iteration == 8
    second.fit()
    assert same(second, straight)


def test_one_device_goes_on_with_what_two_began(by_hand: Any, tmp_path: Path) -> None:
    first = learner_in(tmp_path)
    first.step(8)
    first.save()
    second = learner_in(tmp_path, None, configure=lambda builder: builder.resume())
    second.fit()
    require_close(second, by_hand)


# Other steps -----------------------------------------------------------------------------------------


def with_closure(optimizer: Any) -> Step:
    def step(model: Any, batch: Any) -> Any:
        real, noise = batch

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model.generator(noise), real)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step


def of_lbfgs(model: Any) -> Any:
    return LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe")


def accumulating(optimizer: Any) -> Step:
    calls = [0]

    def step(model: Any, batch: Any) -> Any:
        real, noise = batch
        loss = F.mse_loss(model.generator(noise), real)
        loss.backward()
        calls[0] += 1
        if calls[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


def of_sgd(model: Any) -> Any:
    return SGD(model.parameters(), lr=0.1, momentum=0.5)


def sharpness_aware(optimizer: Any) -> Step:
    """Two backward passes, between which the weights climb by the gradients."""

    def step(model: Any, batch: Any) -> Any:
        real, noise = batch
        loss = F.mse_loss(model.generator(noise), real)
        loss.backward()
        moved = []
        with torch.no_grad():
            for parameter in model.generator.parameters():
                moved.append((parameter, 0.05 * parameter.grad))
                parameter.add_(moved[-1][1])
        optimizer.zero_grad()
        F.mse_loss(model.generator(noise), real).backward()
        with torch.no_grad():
            for parameter, climb in moved:
                parameter.sub_(climb)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def taking_turns(g: Any, d: Any) -> Step:
    """Each half lets only its own network train, and the next step begins with a critic that does not."""

    def turns(model: Any, batch: Any) -> Any:
        real, noise = batch
        model.critic.requires_grad_(True)
        d.zero_grad()
        critic_loss = scored(model.critic(real), True) - model.critic(-real).mean()
        critic_loss.backward()
        d.step()
        model.critic.requires_grad_(False)
        g.zero_grad()
        loss = scored(model.critic(model.generator(noise)), True)
        loss.backward()
        g.step()
        return loss

    return turns


@pytest.mark.parametrize(
    ("step", "optimizer"),
    [
        (with_closure, of_lbfgs),
        (accumulating, of_sgd),
        (sharpness_aware, of_sgd),
        (taking_turns, optimizers_of),
    ],
    ids=lambda each: each.__name__,
)
def test_other_steps_train_as_in_a_loop_by_hand(step: Any, optimizer: Any, tmp_path: Path) -> None:
    learner = learner_in(tmp_path, step=step, optimizers=optimizer)
    learner.step(6)
    learner.rewind(5)
    learner.step(5)
    model = made()
    given = optimizer(model)
    function = step(**given) if isinstance(given, dict) else step(given)
    for batch in (doubled(batches()) * 2)[:6]:
        function(model, batch)
    require_close(learner, model)


# What a rank without a sample does counts for nothing ------------------------------------------------


def test_values_of_a_rank_without_a_sample_do_not_count(tmp_path: Path) -> None:
    holder: list[Any] = []

    def logging(g: Any, d: Any) -> Step:
        step = as_in_a_loop(g, d)

        def logged(model: Any, batch: Any) -> Any:
            output = step(model, batch)
            model.mean(batch[0].sum(1))
            holder[0].log("mean", model.mean)
            holder[0].log("real", batch[0].sum(1).mean())
            return output

        return logged

    learner = learner_in(tmp_path, step=logging, data=doubled(batches((1, 4, 1))))
    learner.model.mean = torchmetrics.MeanMetric().set_dtype(torch.float64)
    holder.append(learner)
    learner.fit()
    sums = torch.cat([real.sum(1) for real, _ in doubled(batches((1, 4, 1)))])
    assert learner.history.final("mean", "train", 2) == pytest.approx(float(sums.mean()), rel=1e-6)
    assert learner.history.final("real", "train", 2) == pytest.approx(float(sums.mean()), rel=1e-6)


# What cannot be done is said -------------------------------------------------------------------------


def require_refused(learner: Any, text: str) -> None:
    before = weights(learner.model)
    with pytest.raises(StepError, match=text):
        learner.fit()
    after = weights(learner.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert learner.position.iteration == 0


def test_ranks_that_do_not_do_the_same_are_told(tmp_path: Path) -> None:
    def by_value(g: Any, d: Any) -> Step:
        step = as_in_a_loop(g, d)

        def sometimes(model: Any, batch: Any) -> Any:
            output = step(model, batch)
            if float(batch[0][0, 0]) == float(batches()[0][0][0, 0]):  # rank 0's first sample
                g.step()
            return output

        return sometimes

    require_refused(learner_in(tmp_path, step=by_value), "did not do the same on all devices.*position")


def test_ranks_that_run_backward_another_number_of_times_are_told(tmp_path: Path) -> None:
    def by_value(g: Any, d: Any) -> Step:
        def sometimes(model: Any, batch: Any) -> Any:
            loss = scored(model.critic(batch[0]), True)
            loss.backward(retain_graph=True)
            if float(batch[0][0, 0]) == float(batches()[0][0][0, 0]):
                loss.backward()
            d.step()
            return loss

        return sometimes

    require_refused(learner_in(tmp_path, step=by_value), "did not do the same on all devices")


def test_optimizers_that_a_module_makes_again_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gan_of_mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "layer = nn.Linear(4, 1).double()\n"
        "optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "def step(model, batch):\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(batch[0]).square().mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    return loss\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import gan_of_mine  # type: ignore[import-not-found]

    builder = LearnerBuilder(tmp_path / "run").renderer("silent").devices(TWO).train_step(gan_of_mine.step)
    learner = builder.build(gan_of_mine.layer, gan_of_mine.optimizer, None, doubled(batches()))
    require_refused(learner, r"not the learner's optimizers.*learner\.optimizer")
    del sys.modules["gan_of_mine"]


def test_an_optimizer_that_steps_inside_backward_is_refused(tmp_path: Path) -> None:
    def hooked(optimizer: Any) -> Step:
        def step(model: Any, batch: Any) -> Any:
            parameter = next(model.generator.parameters())
            handle = parameter.register_post_accumulate_grad_hook(lambda _: optimizer.step())
            loss = F.mse_loss(model.generator(batch[1]), batch[0])
            loss.backward()
            handle.remove()
            return loss

        return step

    learner = learner_in(tmp_path, step=hooked, optimizers=of_sgd)
    require_refused(learner, "while backward still runs")


def test_gradients_with_a_graph_are_refused(tmp_path: Path) -> None:
    def graphed(optimizer: Any) -> Step:
        def step(model: Any, batch: Any) -> Any:
            loss = F.mse_loss(model.generator(batch[1]), batch[0])
            loss.backward(create_graph=True)
            optimizer.step()
            return loss.detach()

        return step

    learner = learner_in(tmp_path, step=graphed, optimizers=of_sgd)
    with pytest.warns(UserWarning, match="create_graph"):
        require_refused(learner, "create_graph=True")


def test_parts_of_the_weights_are_refused(tmp_path: Path) -> None:
    learner = learner_in(
        tmp_path, step=sharpness_aware, optimizers=of_sgd, configure=lambda builder: builder.strategy("fsdp")
    )
    with pytest.raises(StepError, match=r'strategy\("fsdp"\)'):
        learner.fit()


def test_an_error_between_two_optimizers_takes_the_first_step_back(straight: Any, tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    fails.touch()

    def failing(g: Any, d: Any) -> Step:
        step = as_in_a_loop(g, d)

        def broken(model: Any, batch: Any) -> Any:
            output = step(model, batch)
            if fails.exists() and len(batch[0]) == 3:  # rank 1's part of seven samples
                raise RuntimeError("broken on one rank")
            return output

        return broken

    learner = learner_in(tmp_path / "run", step=failing)
    with pytest.raises(RuntimeError, match="broken on one rank"):
        learner.fit()
    assert learner.position.iteration == 1
    fails.unlink()
    learner.fit()
    assert same(learner, straight)


def test_a_breakpoint_stops_before_the_first_write(tmp_path: Path) -> None:
    data = doubled(batches())
    data[2][0][5, 0] = float("nan")  # in the second rank's part
    learner = learner_in(tmp_path, data=data, configure=lambda builder: builder.break_on(NonFinite()))
    learner.step(2)
    before = weights(learner.model)
    learner.step()
    assert learner.hit is not None and learner.position.iteration == 2
    assert all(torch.equal(value, before[name]) for name, value in weights(learner.model).items())
