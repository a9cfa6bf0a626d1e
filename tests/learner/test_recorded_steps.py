"""`.graph()`: steps that are recorded and played are the steps that were taken one by one, and stop, go back
and go on like those. The recorder here is one for the CPU; tests/gpu has the same with CUDA graphs."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from builder_support import batches
from exactness import differences, everything, logs
from recording_support import Again
from torch import Tensor, nn

from notebook_learner import ClassificationOutput, ConfigurationError, Learner, LearnerBuilder, Paused
from notebook_learner.breakpoint import NonFinite
from notebook_learner.data import to_device
from notebook_learner.event import Notice
from notebook_learner.metric import AUROC, Accuracy, GradNorm, LearningRate, Loss
from notebook_learner.step import graph_step as recorded
from notebook_learner.step.graph_step import RECORDERS, make_recordable

SIZES = (8,) * 30 + (3,)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Again]:
    """Those that learners built here make."""
    made: list[Again] = []

    def make(device: torch.device) -> Again:
        made.append(Again())
        return made[-1]

    monkeypatch.setitem(RECORDERS, "cpu", make)
    return made


class Warnings:
    """What a run warns of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Any) -> None:
        if isinstance(event, Notice) and event.level == "warning":
            self.texts.append(event.text)


def build(directory: Path, data: Any = None, *, step: Any = None, epochs: int = 2, **more: Any) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy())
        .metric_train(LearningRate())
        .metric_train_numeric(GradNorm())
        .clip_gradients(norm=0.5)
        .num_epochs(epochs)
        .renderer("silent")
        .with_application_logger(False)
        .seed(7)
    )
    if step is None:
        builder.loss(F.cross_entropy)
    else:
        builder.train_step(step)
    for name, value in more.items():
        getattr(builder, name)(*value)
    rate = torch.tensor(0.1)  # a tensor from the start, so that both kinds of step have the same rate
    return builder.build(
        model,
        lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9, fused=True),
        lambda step: 0.1 / (1 + step / 50),
        batches(SIZES) if data is None else data,
    )


def graphed(directory: Path, recorders: list[Again], *given: Any, **more: Any) -> Learner:
    """The same with `.graph()`; its recorder knows it once it is made."""
    learner = build(directory, *given, graph=(), **more)
    return known(learner)


def known(learner: Learner) -> Learner:
    """Its recorder knows what it records."""
    step = learner._replica.loop.passes["train"].step
    assert isinstance(step, recorded.RecordedStep)
    recorder: Any = step._make(step.device)
    recorder.learner = learner
    step._recorder = recorder
    return learner


def require_same(one: Learner, other: Learner) -> None:
    ends = [everything(each) for each in (one, other)]
    for end in ends:
        del end["carried"]  # the steps of these tests reach the recorders
    assert list(differences(*ends)) == []


def test_played_steps_end_with_the_bits_and_the_logs_of_steps_one_by_one(
    tmp_path: Path, recorders: list[Again]
) -> None:
    plain = build(tmp_path / "plain", ema=(0.9,))
    plain.fit()
    learner = graphed(tmp_path / "graph", recorders, ema=(0.9,))
    learner.fit()
    (recorder,) = recorders
    assert recorder.recorded == 1, "one recording for the batches of eight, in both epochs"
    assert recorder.played == 2 * 30 - recorded.WARM_UP
    assert recorder.apart_steps == recorded.WARM_UP + 2, "the short last batches are taken one by one"
    require_same(plain, learner)
    assert logs(tmp_path / "plain") == logs(tmp_path / "graph")
    assert len(set(learner.history["train", "Loss"])) > 50, "each step has a value of its own"


def test_they_are_the_steps_of_a_loop_by_hand(tmp_path: Path, recorders: list[Again]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    by_hand = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    by_hand.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=torch.tensor(0.1), fused=True)
    for x, y in batches((8,) * 20):
        optimizer.zero_grad()
        F.cross_entropy(by_hand(x), y).backward()
        optimizer.step()
    learner = (
        LearnerBuilder(tmp_path)
        .loss(F.cross_entropy)
        .graph()
        .renderer("silent")
        .build(model, lambda p: torch.optim.SGD(p, lr=0.1, fused=True), None, batches((8,) * 20))
    )
    known(learner).fit()
    assert recorders[0].played == 20 - recorded.WARM_UP
    assert all(map(torch.equal, model.parameters(), by_hand.parameters()))


def test_pausing_stepping_rewinding_and_trying_out_change_nothing(
    tmp_path: Path, recorders: list[Again]
) -> None:
    plain = build(tmp_path / "plain")
    plain.fit()
    learner = graphed(tmp_path / "graph", recorders)
    learner.step(12)
    state = learner.capture()
    learner.step(9)
    assert learner.rewind(7).exact
    learner.inspect()
    learner.what_if(steps=6, lr=0.5)
    learner.step(1)
    learner.step(20)
    learner.restore(state)
    learner.tools.lr_find(steps=12)
    learner.fit()
    assert recorders[0].recorded > 3, "dropped at every stop, since a person may have changed anything"
    assert recorders[0].played > 60
    require_same(plain, learner)
    assert logs(tmp_path / "plain") == logs(tmp_path / "graph")


def test_a_rate_and_a_setting_changed_between_runs_hold(tmp_path: Path, recorders: list[Again]) -> None:
    def changed(learner: Learner) -> Learner:
        learner.step(15)
        learner.optimizer.param_groups[0]["momentum"] = 0.5
        learner.optimizer.param_groups[0]["lr"] = 0.25
        learner.model[3].p = 0.6
        learner.model[0].weight.requires_grad_(False)
        learner.step(30)
        return learner

    plain = changed(build(tmp_path / "plain"))
    learner = changed(graphed(tmp_path / "graph", recorders))
    assert recorders[0].recorded == 2
    assert all(map(torch.equal, plain.model.parameters(), learner.model.parameters()))


def test_a_breakpoint_stops_at_the_same_step(tmp_path: Path, recorders: list[Again]) -> None:
    data = batches(SIZES)
    data[17][0][3, 4] = float("nan")
    learner = graphed(tmp_path, recorders, data, break_on=(NonFinite(),))
    with pytest.raises(Paused, match="NonFinite"):
        learner.fit()
    assert learner.hit is not None and "NonFinite" in learner.hit.name
    assert (learner.position.epoch, learner.position.step) == (1, 17)
    assert all(bool(parameter.isfinite().all()) for parameter in learner.model.parameters())


def test_batches_of_several_shapes_have_recordings_of_their_own(
    tmp_path: Path, recorders: list[Again]
) -> None:
    sizes = (8, 4, 6, 8, 4, 6) * 8
    plain = build(tmp_path / "plain", batches(sizes))
    plain.fit()
    learner = graphed(tmp_path / "graph", recorders, batches(sizes))
    learner.fit()
    assert recorders[0].recorded == 3
    require_same(plain, learner)


def test_the_gradients_at_a_stop_are_those_of_the_last_step(tmp_path: Path, recorders: list[Again]) -> None:
    sizes = (8, 4) * 20
    plain = build(tmp_path / "plain", batches(sizes))
    learner = graphed(tmp_path / "graph", recorders, batches(sizes))
    for count in (20, 15):  # the last one is of four, then of eight
        plain.step(count)
        learner.step(count)
        for one, other in zip(plain.model.parameters(), learner.model.parameters(), strict=True):
            assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_values_that_a_step_logs_are_logged_at_each_play(tmp_path: Path, recorders: list[Again]) -> None:
    box = SimpleNamespace()

    def step(model: nn.Module, batch: Any) -> Any:
        x, y = batch
        output = model(x)
        loss = F.cross_entropy(output, y)
        box.learner.log("twice", 2 * loss)
        box.learner.log("one", 1.0)
        return ClassificationOutput(loss, output, y)

    learner = box.learner = graphed(tmp_path, recorders, step=step)
    learner.fit()
    assert recorders[0].played > 50
    history = learner.history
    assert [2 * loss for loss in history["train", "Loss"]] == pytest.approx(list(history["train", "twice"]))
    assert set(history["train", "one"]) == {1.0} and len(history["train", "one"]) == 62


def test_a_step_that_logs_a_metric_object_is_not_recorded_and_says_why(
    tmp_path: Path, recorders: list[Again]
) -> None:
    box, told = SimpleNamespace(), Warnings()

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        output = model(x)
        loss = F.cross_entropy(output, y)
        model[0].mean(loss.detach())
        box.learner.log("mean", model[0].mean)
        return ClassificationOutput(loss, output, y)

    learner = box.learner = graphed(tmp_path, recorders, step=step, renderer=(told,))
    learner.model[0].mean = torchmetrics.MeanMetric()
    learner.fit()
    assert [text for text in told.texts if "log('mean', ...)" in text and "TorchMetric(" in text]
    assert recorders[0].played == 0
    means = list(learner.history["train", "mean"])
    assert len(means) == 62 and means == list(learner.history["train", "Loss"])


def test_a_metric_that_keeps_outputs_has_those_of_each_step(tmp_path: Path, recorders: list[Again]) -> None:
    def binary(model: nn.Module, batch: Any) -> Any:
        x, y = batch
        scores = model(x)[:, :2]
        target = (y > 0).long()
        return ClassificationOutput(F.cross_entropy(scores, target), scores, target)

    plain = build(tmp_path / "plain", step=binary, metric_train_numeric=(AUROC(),))
    plain.fit()
    learner = graphed(tmp_path / "graph", recorders, step=binary, metric_train_numeric=(AUROC(),))
    learner.fit()
    assert recorders[0].played > 50
    one, other = (each.history.epochs("AUROC [Macro]", "train") for each in (plain, learner))
    assert len(one) == 2 and list(one) == list(other)


def test_a_new_step_function_is_recorded_anew(tmp_path: Path, recorders: list[Again]) -> None:
    def halved(model: nn.Module, batch: Any) -> Any:
        x, y = batch
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, y) / 2, output, y)

    def edited(learner: Learner) -> Learner:
        learner.step(15)
        learner._supplies.use_step("train", halved)
        learner.step(20)
        return learner

    plain = edited(build(tmp_path / "plain"))
    learner = edited(graphed(tmp_path / "graph", recorders))
    assert recorders[0].recorded == 2
    require_same(plain, learner)


def test_batches_are_moved_to_the_device_at_every_step(
    tmp_path: Path, recorders: list[Again], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a recording was made, whose own batch is there already."""
    moved: list[Any] = []

    def move(batch: Any, device: torch.device) -> Any:
        moved.append(tuple(tensor.clone() for tensor in batch))
        return moved[-1]

    monkeypatch.setattr(to_device, "is_on", lambda batch, device: any(batch is each for each in moved))
    monkeypatch.setattr(to_device, "move", move)
    plain = build(tmp_path / "plain")
    plain.fit()
    assert len(moved) == 62
    learner = graphed(tmp_path / "graph", recorders)
    learner.fit()
    assert recorders[0].played > 50 and len(moved) >= 2 * 62
    require_same(plain, learner)


# What cannot be recorded --------------------------------------------------------------------------------


def drawing(model: nn.Module, batch: Any) -> Any:
    x, y = batch
    output = model(x * (1 + random.random()))
    return ClassificationOutput(F.cross_entropy(output, y), output, y)


@pytest.mark.parametrize("kind", ["draws on the host", "reads from the device", "odd batches", "odd output"])
def test_what_cannot_be_recorded_is_told_once_and_taken_one_by_one(
    kind: str, tmp_path: Path, recorders: list[Again]
) -> None:
    def reading(model: nn.Module, batch: Any) -> Any:
        if recorders and recorders[0].recording:  # as torch refuses it
            try:
                raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel ...")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        x, y = batch
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    class Odd:
        def __init__(self, x: Tensor, y: Tensor) -> None:
            self.x, self.y = x, y

    def of_odd(model: nn.Module, batch: Any) -> Any:
        output = model(batch.x)
        return ClassificationOutput(F.cross_entropy(output, batch.y), output, batch.y)

    class Slotted:
        __slots__ = ("loss", "output", "targets")

    def slotted(model: nn.Module, batch: Any) -> Any:
        made = Slotted()
        made.output, made.targets = model(batch[0]), batch[1]
        made.loss = F.cross_entropy(made.output, made.targets)
        return made

    step, data, reason = {
        "draws on the host": (drawing, batches(SIZES), "draws from a random generator of the host"),
        "reads from the device": (
            reading,
            batches(SIZES),
            "not permitted when stream is capturing",
        ),
        "odd batches": (of_odd, [Odd(*each) for each in batches(SIZES)], "hold a Odd|hold an Odd"),
        "odd output": (slotted, batches(SIZES), "Slotted"),
    }[kind]

    def run(learner: Learner) -> Learner:
        random.seed(5)
        learner.fit()
        return learner

    plain = run(build(tmp_path / "plain", data, step=step))
    warnings = Warnings()
    learner = run(graphed(tmp_path / "graph", recorders, data, step=step, metric_logger=(warnings,)))
    (told,) = warnings.texts
    assert told.startswith("graph(): steps are taken one by one, because ")
    assert any(part in told for part in reason.split("|")), told
    assert "\n" not in told
    assert recorders[0].played == 0
    require_same(plain, learner)


def test_settings_that_move_at_every_step_are_told_of(
    tmp_path: Path, recorders: list[Again], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "LONG", 40)
    warnings = Warnings()
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    learner = (
        LearnerBuilder(tmp_path)
        .loss(F.cross_entropy)
        .graph()
        .metric_logger(warnings)
        .num_epochs(2)
        .renderer("silent")
        .build(
            model, torch.optim.SGD(model.parameters(), lr=0.1), lambda step: 0.1 / (1 + step), batches(SIZES)
        )
    )
    known(learner).fit()
    (told,) = warnings.texts
    assert "fused=True" in told
    assert recorders[0].recorded == 0


def test_an_error_of_the_step_is_raised_as_it_is(tmp_path: Path, recorders: list[Again]) -> None:
    data = batches(SIZES)
    data[recorded.WARM_UP] = (torch.randn(8, 5), data[0][1])  # of another shape, so it is taken by itself
    learner = graphed(tmp_path, recorders, data)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        learner.fit()
    assert learner.position.step == recorded.WARM_UP


def test_what_does_not_go_together_is_said_in_one_go(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigurationError) as error:
        (
            LearnerBuilder(tmp_path)
            .loss(F.mse_loss)
            .graph()
            .grads_accumulation(4)
            .precision("fp16")
            .compile(mode="reduce-overhead")
            .build(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
        )
    told = str(error.value)
    assert "this training is on cpu" in told
    assert "grads_accumulation(4)" in told
    assert "precision('bf16')" in told
    assert "compile(mode='reduce-overhead')" in told
    with pytest.raises(ConfigurationError, match="one device"):
        LearnerBuilder(tmp_path).loss(F.mse_loss).graph().devices(["cpu", "cpu"]).build(
            model, lambda parameters: torch.optim.SGD(parameters, lr=0.1), None
        )


def test_an_optimizer_keeps_on_the_device_what_moves_with_every_step() -> None:
    model = nn.Linear(2, 2).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    adam.step()
    make_recordable(adam)
    (group,) = adam.param_groups
    assert group["capturable"] and torch.equal(group["lr"], torch.tensor(0.5, dtype=torch.float64))
    rate = group["lr"]
    make_recordable(adam)
    assert group["lr"] is rate, "a recording has its address"
    plain = torch.optim.SGD(model.parameters(), lr=0.5)
    make_recordable(plain)
    assert plain.param_groups[0]["lr"] == 0.5


def test_batches_in_parts_are_taken_one_by_one_and_whole_ones_are_played_again(
    tmp_path: Path, recorders: list[Again]
) -> None:
    plain, played = build(tmp_path / "plain"), graphed(tmp_path / "played", recorders)
    for learner in (plain, played):
        learner.step(10)
        learner.split_batch(2)
        learner.step(10)
        learner.split_batch(1)
        learner.fit()
    require_same(plain, played)
