"""Other data is measured beside the training, which then goes on as if nothing had happened."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exactness import EPOCHS, STEPS, VALID, Noisy, Setup, differences, disturb, everything, logs, straight
from torch import Tensor, nn
from torch.utils.data import DataLoader

from notebook_learner import (
    Artifacts,
    BusyError,
    ClassificationOutput,
    ConfigurationError,
    DataError,
    Learner,
    LearnerBuilder,
    LoggerError,
    Paused,
    StateError,
    StepError,
)
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import Accuracy, Loss, Metric
from notebook_learner.store import files


class Spread(Metric):
    """The largest output of the whole set minus the least: no mean of the batches'."""

    name = "Spread"
    needs = ("output",)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.low, self.high = float("inf"), -float("inf")

    def update(self, item: Any) -> tuple[float, int]:
        low, high = float(item.output.min()), float(item.output.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        return high - low, len(item.output)

    def compute(self) -> float:
        return self.high - self.low


def batches(sizes: list[int], source: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(source)
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for size in sizes
    ]


TEST = batches([4, 4, 3], source=5)


def a_learner(directory: Path, train: Any = None) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    builder = LearnerBuilder(directory).metrics(Loss(), Accuracy()).renderer("silent").num_epochs(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return builder.loss(F.cross_entropy).build(
        model, optimizer, None, batches([4] * 5) if train is None else train, TEST[:1]
    )


def measured(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> tuple[list[float], float, float]:
    """By hand: the loss of each batch, the mean loss of all samples, and the accuracy."""
    training = model.training
    model.eval()
    with torch.no_grad():
        losses = [float(F.cross_entropy(model(x), y)) for x, y in data]
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in data)
    model.train(training)
    samples = sum(len(y) for _, y in data)
    total = sum(loss * len(y) for loss, (_, y) in zip(losses, data, strict=True))
    return losses, total / samples, 100 * right / samples


# What it measures ------------------------------------------------------------------------------------


def test_the_values_are_those_of_all_samples_in_eval_mode(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.step(3)
    losses, loss, accuracy = measured(learner.model, TEST)

    found = learner.evaluate(TEST)

    assert dict(found) == {"Loss": pytest.approx(loss), "Accuracy": accuracy}
    assert found["Loss"] != pytest.approx(sum(losses) / 3)  # the mean of batches: the last one is shorter
    assert (found.name, found.batches, found.place) == ("test", 3, (1, "train", 3))
    assert learner.history["test/test", "Loss"].tolist() == losses
    assert learner.tools.evaluations == {"test": found}


def test_a_metric_with_state_of_its_own_answers_for_the_whole_set(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    metric = Spread()
    found = learner.evaluate(TEST, metrics=[metric])
    with torch.no_grad():
        outputs = torch.cat([learner.model.eval()(x) for x, _ in TEST])

    assert dict(found) == {"Spread": pytest.approx(float(outputs.max() - outputs.min()))}
    assert found["Spread"] > max(learner.history["test/test", "Spread"])
    assert (metric.low, metric.high) == (float("inf"), -float("inf"))  # a copy measured


def test_the_moving_average_is_measured_where_it_validates(tmp_path: Path) -> None:
    learner = Setup(ema=True).learner(tmp_path)
    learner.step(5)
    assert learner.tools.ema_model is not None
    _, of_the_average, _ = measured(learner.tools.ema_model, TEST)
    _, of_the_model, _ = measured(learner.model, TEST)
    assert learner.evaluate(TEST)["Loss"] == pytest.approx(of_the_average) != of_the_model


def test_several_sets_by_name_are_one_table(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    found = learner.evaluate({"clean": TEST, "first": TEST[:1]}, metrics=iter([Loss()]))
    assert list(found) == ["clean", "first"]
    assert str(found).splitlines()[0].split() == ["set", "Loss", "batches", "weights", "of"]
    assert found._repr_html_().count("<tr>") == 3
    with pytest.raises(ValueError, match="several loaders by name"):
        learner.evaluate({"clean": TEST}, name="clean")


def test_a_dataset_is_loaded_as_the_validation_is(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).with_batch_size(4).renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert learner.evaluate(Noisy(VALID, 2)).batches == 3


# Where it is written ---------------------------------------------------------------------------------


def test_the_logs_are_burns_lines(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    found = learner.evaluate(TEST, "clean")
    lines = (tmp_path / "test/clean/Loss.log").read_text().splitlines()
    values = learner.history["test/clean", "Loss"]
    assert [line.split(",")[1] for line in lines] == ["4", "4", "3", "final"]
    assert [float(line.split(",")[0]) for line in lines] == [*values, found["Loss"]]
    assert "evaluated at epoch 1, train, step 0: clean: Loss" in (tmp_path / "experiment.log").read_text()


def test_the_same_name_replaces_and_another_metric_leaves_no_old_log(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.evaluate(TEST)
    (tmp_path / "test/test/notes.txt").write_text("mine")
    learner.evaluate(TEST[:1], metrics=[Accuracy()])
    assert sorted(os.listdir(tmp_path / "test/test")) == ["Accuracy.log", "notes.txt"]
    assert len((tmp_path / "test/test/Accuracy.log").read_text().splitlines()) == 2
    assert sorted(os.listdir(tmp_path / "test")) == ["test"]
    assert list(learner.tools.evaluations) == ["test"]


def test_a_new_run_removes_the_sets_of_the_run_before_but_not_its_own(tmp_path: Path) -> None:
    a_learner(tmp_path).evaluate({"old": TEST, "both": TEST})
    learner = a_learner(tmp_path)
    learner.evaluate({"baseline": TEST, "both": TEST[:1]})
    learner.step()
    assert sorted(os.listdir(tmp_path / "test")) == ["baseline", "both"]
    assert list(learner.artifacts.evaluations) == ["baseline", "both"]
    assert learner.artifacts.evaluations["both"].batches == 1


def test_going_back_keeps_what_was_evaluated(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.step(4)
    found = learner.evaluate(TEST)
    before = logs(tmp_path / "test")
    learner.rewind(3)
    assert logs(tmp_path / "test") == before
    assert learner.tools.evaluations == {"test": found}
    assert learner.tools.evaluations["test"].place == (1, "train", 4)


def test_a_full_disk_leaves_the_earlier_logs_and_the_next_event_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = a_learner(tmp_path)
    learner.evaluate(TEST[:1])
    before = logs(tmp_path / "test")

    def full(descriptor: int, *rest: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk, pytest.raises(LoggerError, match="No space left"):
        disk.setattr(files, "write_at", full)
        learner.evaluate(TEST)
    assert {name: log for name, log in logs(tmp_path / "test").items() if not name.startswith(".")} == before
    learner.step()
    assert len((tmp_path / "test/test/Loss.log").read_text().splitlines()) == 4
    assert os.listdir(tmp_path / "test") == ["test"]


# It leaves everything as it is -----------------------------------------------------------------------


@lru_cache(maxsize=64)
def straight_run(setup: Setup) -> tuple[dict[str, Any], dict[str, bytes]]:
    directory = Path(mkdtemp())
    try:
        return straight(setup, directory)
    finally:
        shutil.rmtree(directory)


def assert_nothing_came_of_it(learner: Learner, directory: Path, setup: Setup) -> None:
    final, written = straight_run(setup)
    assert list(differences(everything(learner), final)) == []
    trained = {name: log for name, log in logs(directory).items() if not name.startswith("test")}
    assert trained == written


SETUPS = {
    "unseeded": Setup(seed=None, own_generator=True),
    "seeded": Setup(window=2, scheduler="cycle", clip=True),
    "inside a window, with an average": Setup(seed=None, window=3, ema=True),
    "bf16": Setup(seed=None, window=2, precision="bf16", ema=True),
    "fp16": Setup(window=3, precision="fp16", scheduler="function"),
}


LOADERS = ("another", "train", "valid")


def own_loader(learner: Learner, setup: Setup, which: str) -> Any:
    if which == "another":
        return setup.valid_loader()
    return learner._replica.loop.passes[which].cursor.loader  # type: ignore[index]


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_at_any_boundary_a_later_fit_gives_the_bits_of_the_straight_run(setup: Setup, tmp_path: Path) -> None:
    learner = setup.learner(tmp_path)
    for step in range(STEPS):
        learner.evaluate(own_loader(learner, setup, LOADERS[step % 3]))
        if step % 4 == 3:
            learner.predict(own_loader(learner, setup, LOADERS[(step + 1) % 3]))
            disturb()
        learner.step()
    learner.fit()
    learner.evaluate(own_loader(learner, setup, "train"))
    assert_nothing_came_of_it(learner, tmp_path, setup)


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("persistent", [False, True])
def test_with_worker_processes_too(persistent: bool, seed: int | None, tmp_path: Path) -> None:
    setup = Setup(seed=seed, workers=2, persistent=persistent, window=2)
    learner = setup.learner(tmp_path)
    for place, which in [
        ((1, "train", 3), "train"),
        ((1, "valid", 1), "valid"),
        ((2, "train", 5), "another"),
    ]:
        learner.run_until(place)
        learner.evaluate(own_loader(learner, setup, which))
    learner.fit()
    assert_nothing_came_of_it(learner, tmp_path, setup)


def test_a_step_that_writes_where_it_should_not_is_undone(tmp_path: Path) -> None:
    """The negative control: without the way back, this one would be noticed."""

    def spoiling(model: nn.Module, batch: Any) -> Any:
        x, y = batch
        with torch.enable_grad():
            F.cross_entropy(model(x), y).backward()  # into the window's gradients
        for tensor in (*model.parameters(), *model.buffers()):
            tensor += 1
        model.train()
        torch.manual_seed(99)
        return ClassificationOutput(F.cross_entropy(model(x), y), model(x), y)

    setup = SETUPS["inside a window, with an average"]
    learner = setup.learner(tmp_path)
    learner.step(5)
    good = learner._step_in_use("valid")
    assert good is None
    before = everything(learner)
    learner.tools.use_step("valid", spoiling)
    learner.evaluate(TEST)
    assert list(differences({**everything(learner), "rng": 0}, {**before, "rng": 0})) == []
    assert list(differences(everything(learner), before)) == []


def test_what_a_person_looks_at_stays_in_place(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.step(2)
    learner.model[1].eval()
    seen = learner.batch, learner.output, learner.status, learner.position
    gradients = [p.grad for p in learner.model.parameters()]
    modes = [module.training for module in learner.model.modules()]
    drawn = torch.get_rng_state()

    learner.evaluate(TEST)
    learner.predict(TEST)

    now = learner.batch, learner.output, learner.status, learner.position
    assert all(one is other for one, other in zip(now[:3], seen[:3], strict=True))
    assert now[3] == seen[3]
    assert all(p.grad is g for p, g in zip(learner.model.parameters(), gradients, strict=True))
    assert [module.training for module in learner.model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_end_of_a_run_is_a_place_too(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.fit()
    assert learner.evaluate(TEST).place == (EPOCHS, "valid", 1)
    assert learner.status == "finished"


def test_values_that_the_step_logs_by_name_are_the_sets_and_not_the_trainings(tmp_path: Path) -> None:
    def telling(model: nn.Module, batch: Any) -> Any:
        learner.log("largest", batch[0].max())
        return SimpleNamespace(loss=F.cross_entropy(model(batch[0]), batch[1]))

    model = nn.Linear(6, 3)
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).valid_step(telling).renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, TEST, TEST)
    found = learner.evaluate(TEST)
    assert list(found) == ["Loss", "largest"]
    largest = [float(x.max()) for x, _ in TEST]
    assert learner.history["test/test", "largest"].tolist() == largest
    samples = [len(y) for _, y in TEST]
    mean = sum(value * count for value, count in zip(largest, samples, strict=True)) / sum(samples)
    assert found["largest"] == pytest.approx(mean, rel=1e-12)
    assert learner.history.metrics("valid") == ("Loss",)
    learner.fit()
    values = learner.history["valid", "largest"].tolist()
    assert list(learner.evaluate(TEST[:1], metrics=[Loss()])) == ["Loss", "largest"]
    assert learner.history.metrics("valid") == ("Loss", "largest")
    assert learner.history["valid", "largest"].tolist() == values


# Broken off ------------------------------------------------------------------------------------------


def at_batch(number: int, act: Any) -> Any:
    """A validation step that does something at one batch."""
    seen = [0]

    def step(model: nn.Module, batch: Any) -> Any:
        seen[0] += 1
        if seen[0] == number:
            act()
        x, y = batch
        return ClassificationOutput(F.cross_entropy(model(x), y), model(x), y)

    return step


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail() -> None:
    raise RuntimeError("no such word")


def test_an_interrupt_breaks_it_off_and_says_that_nothing_changed(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.step(2)
    learner.evaluate(TEST)
    before, logged, said = everything(learner), logs(tmp_path / "test"), learner.status
    learner.tools.use_step("valid", at_batch(2, interrupt))

    with pytest.raises(Paused, match="evaluate test: broken off after batch 2 of 3; nothing was recorded"):
        learner.evaluate(TEST[:2] + TEST[:1])

    assert list(differences(everything(learner), before)) == []
    assert logs(tmp_path / "test") == logged
    assert learner.status == said
    learner.tools.use_step("valid", at_batch(0, interrupt))  # the count in the other step was taken back, too
    learner.fit()


def test_pause_and_stop_of_another_thread_break_it_off(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.tools.use_step("valid", at_batch(1, learner.pause))
    with pytest.raises(Paused, match="after batch 1 of 3"):
        learner.evaluate(TEST)
    assert "test/test" not in [str(path) for path in tmp_path.iterdir()]
    assert learner.tools.evaluations == {}


def test_a_second_interrupt_in_a_step_that_hangs_ends_it_there(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.step(2)
    before = everything(learner)

    def twice() -> None:
        interrupt()
        interrupt()

    learner.tools.use_step("valid", at_batch(2, twice))
    with pytest.raises(KeyboardInterrupt) as stopped:
        learner.evaluate(TEST)
    assert "evaluate test: this happened after batch 1 of 3" in " ".join(stopped.value.__notes__)
    assert list(differences(everything(learner), before)) == []


def test_an_error_tells_where_it_happened_and_nothing_has_changed(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.step(2)
    learner.evaluate(TEST)
    before, logged = everything(learner), logs(tmp_path / "test")
    learner.tools.use_step("valid", at_batch(2, fail))
    with pytest.raises(RuntimeError, match="no such word") as failed:
        learner.evaluate(TEST)
    (note,) = failed.value.__notes__
    assert note.startswith("evaluate test: this happened after batch 1 of 3")
    assert list(differences(everything(learner), before)) == []
    assert logs(tmp_path / "test") == logged
    assert learner.status == "paused"


# Refused ---------------------------------------------------------------------------------------------


def test_while_it_trains_in_the_background_a_pause_comes_first(tmp_path: Path) -> None:
    learner = a_learner(tmp_path, train=batches([4] * 500))
    learner.start()
    try:
        with pytest.raises(BusyError, match=r"learner\.pause\(\)"):
            learner.evaluate(TEST)
        with pytest.raises(BusyError, match=r"learner\.pause\(\)"):
            learner.predict(TEST)
    finally:
        learner.pause()
    assert learner.evaluate(TEST).batches == 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a/b", "contains '/'"),
        ("..", "dot"),
        ("", "empty"),
        (" x", "spaces"),
        ("a\nb", "contains"),
        (7, "string"),
    ],
)
def test_a_name_that_is_no_folder_is_refused_before_any_work(name: Any, why: str, tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    with pytest.raises(ConfigurationError, match=why):
        learner.evaluate(TEST, name)
    assert not (tmp_path / "test").exists()


def test_a_loader_that_gives_nothing_says_so(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    with pytest.raises(DataError, match="yielded no batch"):
        learner.evaluate([])
    with pytest.raises(ConfigurationError, match="give an iterable of batches"):
        learner.evaluate(3)
    with pytest.raises(ConfigurationError, match="is a class; register an instance"):
        learner.evaluate(TEST, metrics=[Loss])  # type: ignore[list-item]


def test_a_loader_of_the_training_that_can_be_walked_only_once_is_left_to_it(tmp_path: Path) -> None:
    once = iter(batches([4] * 5))
    learner = a_learner(tmp_path, train=once)
    learner.step(2)
    with pytest.raises(StateError, match="walked only once"):
        learner.evaluate(once)
    assert learner.step(3).steps == 3
    assert learner.evaluate(iter(TEST)).batches == 3  # one of its own may be


def test_without_a_step_that_measures_it_says_what_to_give(tmp_path: Path) -> None:
    def train(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    model = nn.Linear(6, 3)
    builder = LearnerBuilder(tmp_path).train_step(train).renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, TEST)
    with pytest.raises(ConfigurationError, match=r"valid_step\(fn\)"):
        learner.evaluate(TEST)
    with pytest.raises(StepError):
        learner.tools.use_step("valid", lambda model, batch: SimpleNamespace())
        learner.evaluate(TEST)


# Who hears of it -------------------------------------------------------------------------------------


def test_listeners_hear_how_far_it_came_and_what_was_found(tmp_path: Path) -> None:
    told = InMemoryMetricLogger()
    model = nn.Linear(6, 3)
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).metric_logger(told).renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.evaluate(TEST, "clean")
    kinds = [type(event).__name__ for event in told.events]
    assert kinds[0] == "RunOpened"
    assert kinds[-1] == "Evaluated"
    over = [event.over for event in told.events if type(event).__name__ == "SetProgress"]  # type: ignore[union-attr]
    assert over[-1] is True
    assert not any(over[:-1])
    assert told.history["test/clean", "Loss"].tolist() == learner.history["test/clean", "Loss"].tolist()


def test_the_plain_renderer_writes_a_line_for_a_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).renderer("plain")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.evaluate(TEST, "clean")
    assert "evaluated clean · Loss 1.099 · 3 batches" in capsys.readouterr().out


def test_history_lists_the_sets_where_another_split_is_asked_for(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    learner.evaluate(TEST, "clean")
    history = learner.history
    assert history.metrics("test/clean") == ("Loss", "Accuracy")
    assert history.final("Loss", "test/clean") == learner.tools.evaluations["clean"]["Loss"]
    assert history.weights("Loss", "test/clean").tolist() == [4, 4, 3]
    with pytest.raises(KeyError, match="train, valid, test/clean"):
        history.values("Loss", "test/dirty")


@pytest.fixture
def loader() -> Iterator[DataLoader[Any]]:
    yield DataLoader(Noisy(VALID, 2), batch_size=4, shuffle=True)


def test_evaluating_twice_at_one_place_gives_the_same_bits(tmp_path: Path, loader: DataLoader[Any]) -> None:
    """Also where the set is shuffled and augmented at random, in an unseeded run."""
    learner = Setup(seed=None).learner(tmp_path)
    learner.step(3)
    one, other = learner.evaluate(loader, "one"), learner.evaluate(loader, "other")
    assert dict(one) == dict(other)
    assert learner.history["test/one", "Loss"].tobytes() == learner.history["test/other", "Loss"].tobytes()
    assert Artifacts(tmp_path).epochs("Loss", "test/one").tolist() == [one["Loss"]]
