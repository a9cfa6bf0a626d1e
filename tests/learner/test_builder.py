"""Every option of the LearnerBuilder, by what it does to a training."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builder_support import (
    SIZES,
    Tape,
    assert_other_weights,
    assert_same_bits,
    batches,
    by_hand,
    classifier,
    files_in,
    net,
    quiet,
    sgd,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import (
    ClassificationOutput,
    LearnerBuilder,
    MultiLabelClassificationOutput,
    RegressionOutput,
    StepError,
)
from notebook_learner.event import MetricBlock, RunOpened, SplitEnded
from notebook_learner.learner.wiring.make_optimizer import move_state
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import (
    Accuracy,
    CudaMetric,
    LearningRate,
    Loss,
)

# Where it goes ---------------------------------------------------------------------------------------


def test_metric_loggers_of_ones_own_take_the_place_of_the_log_files(tmp_path):
    one, other = InMemoryMetricLogger(), Tape()
    model = net()
    learner = classifier(tmp_path).metric_logger(one).metric_logger(other).build(model, sgd(model))
    learner.fit(batches())
    assert files_in(tmp_path) == []
    assert one.history["train", "Loss"].tolist() == learner.history["train", "Loss"].tolist()
    assert sum(block.count for block in other.of(MetricBlock)) == len(SIZES)


def test_a_renderer_of_ones_own_sees_the_run(tmp_path):
    screen = Tape()
    model = net()
    learner = classifier(tmp_path).renderer(screen).num_epochs(2).build(model, sgd(model))
    learner.fit(batches(), batches())
    assert isinstance(screen.events[0], RunOpened)
    passes = [(event.epoch, event.split) for event in screen.of(SplitEnded)]
    assert passes == [(1, "train"), (1, "valid"), (2, "train"), (2, "valid")]


def test_the_silent_renderer_prints_nothing_and_the_plain_one_does(tmp_path, capsys):
    for renderer, shows in (("silent", False), ("plain", True)):
        model = net()
        learner = classifier(tmp_path / renderer).renderer(renderer).build(model, sgd(model))
        learner.fit(batches())
        assert bool(capsys.readouterr().out) == shows


def loud(directory):
    return LearnerBuilder(directory).renderer("silent").loss(F.cross_entropy)


def test_the_application_log_is_kept_by_default(tmp_path):
    model = net()
    loud(tmp_path).build(model, sgd(model)).fit(batches())
    log = (tmp_path / "experiment.log").read_text()
    assert "epoch 1, train: started, 4 batches" in log
    assert "finished" in log


def test_the_application_log_can_be_left_out(tmp_path):
    model = net()
    loud(tmp_path).with_application_logger(False).build(model, sgd(model)).fit(batches())
    assert not (tmp_path / "experiment.log").exists()


def test_the_application_log_can_go_to_another_file(tmp_path):
    model = net()
    loud(tmp_path / "run").with_application_logger(tmp_path / "all.log").build(model, sgd(model)).fit(
        batches()
    )
    assert "finished" in (tmp_path / "all.log").read_text()
    assert not (tmp_path / "run" / "experiment.log").exists()


def test_the_application_log_can_go_to_a_logger(tmp_path, caplog):
    model = net()
    with caplog.at_level(logging.INFO, "my.training"):
        loud(tmp_path).with_application_logger(logging.getLogger("my.training")).build(model, sgd(model)).fit(
            batches()
        )
    assert any("epoch 1, train: ended" in record.getMessage() for record in caplog.records)
    assert not (tmp_path / "experiment.log").exists()


def test_two_runs_in_one_process_write_two_application_logs(tmp_path):
    learners = {}
    for name in ("a", "b"):
        model = net()
        learners[name] = loud(tmp_path / name).num_epochs(2).build(model, sgd(model), None, batches())
    learners["a"].step(1)
    learners["b"].step(2)
    learners["a"].fit()
    for name, paused_at in (("a", "step 1 of 4"), ("b", "step 2 of 4")):
        log = (tmp_path / name / "experiment.log").read_text()
        assert f"paused at epoch 1, train, {paused_at}" in log
        assert ("finished" in log) == (name == "a")


def test_building_writes_nothing(tmp_path):
    model = net()
    loud(tmp_path / "run").build(model, sgd(model), 0.1, batches(), batches())
    assert not (tmp_path / "run").exists()


# How long, and on what -------------------------------------------------------------------------------


def test_one_epoch_is_trained_unless_more_are_asked_for(tmp_path):
    for asked, epochs in ((None, 1), (3, 3), (np.int64(2), 2)):
        model = net()
        builder = classifier(tmp_path / str(epochs))
        if asked is not None:
            builder.num_epochs(asked)
        learner = builder.build(model, sgd(model))
        learner.fit(batches())
        assert learner.history.epoch_numbers("train").tolist() == list(range(1, epochs + 1))


@pytest.mark.parametrize("device", ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("wrap", [list, lambda devices: devices[0], lambda d: [torch.device(d[0])]])
def test_the_model_and_its_batches_are_brought_to_the_device(device, wrap, tmp_path):
    class Batch:
        """What a graph library gives: an object that knows how to move."""

        def __init__(self, x, y):
            self.x, self.y = x, y

        def to(self, device):
            moved.append(str(device))
            return Batch(self.x.to(device), self.y.to(device))

    moved, trained_on = [], []

    def step(model, batch):
        trained_on.append((batch.x.device.type, next(model.parameters()).device.type))
        return ClassificationOutput(F.cross_entropy(model(batch.x), batch.y), model(batch.x), batch.y)

    model = net()
    data = [Batch(x, y) for x, y in batches()]
    builder = quiet(tmp_path).train_step(step).devices(wrap([device]))
    builder.build(model, sgd(model)).fit(data)
    kind = torch.device(device).type
    assert moved == [device] * len(SIZES)
    assert trained_on == [(kind, kind)] * len(SIZES)


def test_without_devices_training_happens_where_the_model_is(tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, sgd(model))
    learner.fit(batches())
    assert learner.summary().settings["device"] == str(model[0].weight.device)


def test_without_devices_the_model_is_not_moved(tmp_path):
    """It may lie on several."""

    class Rooted(nn.Linear):
        def to(self, *args, **kwargs):
            raise AssertionError("moved")

    model = Rooted(2, 2)
    data = [(torch.ones(3, 2), torch.ones(3, 2))]
    assert quiet(tmp_path).loss(F.mse_loss).build(model, sgd(model)).fit(data) is model


def test_an_optimizers_state_follows_its_parameters_and_its_counters_stay():
    """Adagrad makes its state at once: on the host, where the model was then."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    move_state(optimizer, torch.device("meta"))
    places = {name: value.device.type for name, value in optimizer.state[model.weight].items()}
    assert places == {"sum": "meta", "step": "cpu"}


def test_a_module_given_as_the_loss_goes_to_the_device_with_the_model(tmp_path):
    class Weighted(nn.CrossEntropyLoss):
        def to(self, *args, **kwargs):
            moves.append(args)
            return super().to(*args, **kwargs)

    moves = []
    model = net()
    weights = torch.tensor([1.0, 2.0, 3.0])
    quiet(tmp_path).loss(Weighted(weights)).devices("cpu").build(model, sgd(model)).fit(batches())
    assert moves == [(torch.device("cpu"),)]


def test_a_seeded_run_is_a_function_of_its_seed_alone(tmp_path):
    def final(seed, disturbance):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)
        random.seed(disturbance)
        model = net(dropout=0.5)
        torch.manual_seed(disturbance)
        x, y = batches((40,))[0]
        loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
        directory = tmp_path / f"{seed}-{disturbance}"
        classifier(directory).seed(seed).num_epochs(2).build(model, sgd(model)).fit(loader)
        return model

    assert_same_bits(final(7, 1), final(7, 2))
    assert_other_weights(final(7, 3), final(8, 3))


def test_a_seeded_run_leaves_the_users_generators_alone(tmp_path):
    model = net(dropout=0.5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    classifier(tmp_path).seed(7).build(model, sgd(model))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


# Steps -----------------------------------------------------------------------------------------------


class WithSteps(nn.Module):
    """A model that says itself how it trains."""

    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, x):
        return self.body(x)

    def train_step(self, batch):
        assert self.training and torch.is_grad_enabled()
        return self.output(batch)

    def valid_step(self, batch):
        assert not self.training and not torch.is_grad_enabled()
        return self.output(batch)

    def output(self, batch):
        x, y = batch
        scores = self(x)
        return ClassificationOutput(F.cross_entropy(scores, y), scores, y)


def test_a_models_own_steps_train_and_validate_it(tmp_path):
    model = WithSteps()
    learner = quiet(tmp_path).metrics(Loss(), Accuracy()).build(model, sgd(model))
    learner.fit(batches(), batches())
    expected = net()
    assert_same_bits(model.body, by_hand(expected, sgd(expected), batches()))
    assert learner.history.final("Loss", "valid") == pytest.approx(mean_loss(expected), rel=1e-6)


def mean_loss(model):
    x, y = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    with torch.no_grad():
        return F.cross_entropy(model.eval()(x), y).item()


def test_step_functions_serve_models_that_cannot_be_edited(tmp_path):
    def train(model, batch):
        x, y = batch
        return ClassificationOutput(F.cross_entropy(model(x), y), model(x), y)

    def valid(model, batch):
        splits.append(model.training)
        return train(model, batch)

    splits = []
    model, expected = net(), net()
    quiet(tmp_path).train_step(train).valid_step(valid).build(model, sgd(model)).fit(
        batches(), batches((4, 4))
    )
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))
    assert splits == [False, False]


def test_a_loss_function_is_enough_for_a_plain_module_and_pairs(tmp_path):
    model, expected = net(), net()
    learner = classifier(tmp_path).metrics(Loss(), Accuracy()).build(model, sgd(model))
    learner.fit(batches(), batches())
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))
    assert learner.history.final("Loss", "valid") == pytest.approx(mean_loss(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("y", "loss", "asked", "made"),
    [
        (torch.tensor([0, 2, 1, 1]), F.cross_entropy, None, ClassificationOutput),
        (torch.randn(4, 3), F.mse_loss, None, RegressionOutput),
        (torch.rand(4, 3).softmax(1), F.cross_entropy, None, RegressionOutput),
        (torch.ones(4, 3, dtype=torch.long), lambda x, y: (x - y).square().mean(), None, RegressionOutput),
        (
            torch.ones(4, 3),
            F.binary_cross_entropy_with_logits,
            MultiLabelClassificationOutput,
            MultiLabelClassificationOutput,
        ),
    ],
    ids=["class numbers", "numbers", "class probabilities", "whole numbers", "as asked"],
)
def test_the_output_of_a_loss_function_follows_the_targets(y, loss, asked, made, tmp_path):
    model = net()
    learner = quiet(tmp_path).loss(loss, output=asked).build(model, sgd(model))
    learner.fit([(torch.randn(4, 6), y)])
    assert type(learner.output) is made
    assert learner.output.targets is y


def test_a_loss_function_may_take_outputs_and_targets_of_several_parts(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x):
            return {"a": self.body(x), "b": self.body(-x)}

    def loss(outputs, targets):
        return sum(F.cross_entropy(outputs[name], targets[name]) for name in outputs)

    model = Two()
    learner = quiet(tmp_path).loss(loss).build(model, sgd(model))
    learner.fit([(x, {"a": y, "b": y}) for x, y in batches()])
    assert learner.output.output.keys() == learner.output.targets.keys() == {"a", "b"}
    weights = learner.history.weights("Loss", "train").tolist()
    assert weights == list(SIZES), "the samples are counted in the batch"


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((torch.zeros(2, 6), None, None), "this batch is of type tuple with 3 parts"),
        (torch.zeros(2, 6), r"this batch is one tensor of shape \(2, 6\)"),
    ],
)
def test_a_loss_function_says_so_when_a_batch_is_no_pair(batch, said, tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, sgd(model))
    with pytest.raises(StepError, match=f"{said}.*train_step") as caught:
        learner.fit([batch])
    assert caught.value.args[0].startswith("loss(fn) is for (x, y) batches")


def test_a_builders_step_goes_before_the_models_own(tmp_path):
    model, expected = WithSteps(), net()
    model.train_step = None
    quiet(tmp_path).loss(F.cross_entropy).build(model, sgd(model)).fit(batches())
    assert_same_bits(model.body, by_hand(expected, sgd(expected), batches()))


# Optimizers ------------------------------------------------------------------------------------------


def test_the_optimizer_may_be_an_instance_a_factory_or_a_class(tmp_path):
    expected = net()
    by_hand(expected, torch.optim.Adam(expected.parameters()), batches())
    made = {
        "instance": lambda model: torch.optim.Adam(model.parameters()),
        "factory": lambda model: lambda parameters: torch.optim.Adam(parameters),
        "class": lambda model: torch.optim.Adam,
    }
    for kind, optimizer in made.items():
        model = net()
        learner = classifier(tmp_path / kind).build(model, optimizer(model))
        learner.fit(batches())
        assert_same_bits(model, expected)
        assert isinstance(learner.optimizer, torch.optim.Adam)


def test_a_factory_is_called_once_the_model_is_on_its_device(tmp_path):
    class Moving(nn.Sequential):
        def to(self, *args, **kwargs):
            order.append("model moved")
            return super().to(*args, **kwargs)

    def factory(parameters):
        order.append("optimizer made")
        return torch.optim.Adagrad(parameters)  # makes its state at once, where the parameters are

    order = []
    quiet(tmp_path).loss(F.mse_loss).devices("cpu").build(Moving(nn.Linear(2, 2)), factory)
    assert order == ["model moved", "optimizer made"]


# The builder itself ----------------------------------------------------------------------------------


def test_one_builder_builds_several_learners_that_know_nothing_of_each_other(tmp_path):
    builder = classifier(tmp_path).metrics(Loss(), LearningRate()).num_epochs(1)
    first, second = net(), net()
    one = builder.build(first, sgd(first))
    other = builder.num_epochs(2).with_batch_size(3).build(second, sgd(second, lr=0.5))
    one.fit(batches())
    other.fit(batches())
    assert (one.num_epochs, other.num_epochs) == (1, 2)
    assert set(one.history["train", "Learning Rate"]) == {0.1}
    assert set(other.history["train", "Learning Rate"]) == {0.5}


def test_what_the_builder_is_told_later_does_not_reach_a_learner_it_built(tmp_path):
    model = net()
    builder = classifier(tmp_path).with_batch_size(4)
    learner = builder.build(model, sgd(model))
    builder.with_batch_size(2).metric_train(LearningRate())
    learner.fit(TensorDataset(*batches((8,))[0]))
    assert learner.history.weights("Loss", "train").tolist() == [4, 4]
    assert learner.history.metrics("train") == ("Loss",)


def test_the_settings_are_told_in_words_when_the_run_opens(tmp_path):
    screen = Tape()
    model = net()
    builder = classifier(tmp_path).renderer(screen).precision("bf16").grads_accumulation(4).seed(5)
    builder.clip_gradients(norm=1.0, value=0.5).ema(0.99).early_stopping("Loss", patience=3).num_epochs(7)
    builder.build(model, sgd(model), 0.25, batches((4,)), batches((4,))).step(1)
    opened = screen.events[0]
    assert (opened.model, opened.parameters, opened.num_epochs) == ("Sequential", 83, 7)
    assert opened.settings == {
        "device": "cpu",
        "precision": "bf16",
        "optimizer": "SGD",
        "learning rate": "constant 0.25",
        "accumulation": "4 batches",
        "clipping": "norm 1, value 0.5",
        "average": "EMA 0.99",
        "early stopping": "valid Loss, patience 3",
        "seed": "5",
    }


def test_what_was_not_asked_for_is_not_told(tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, sgd(model), None, batches())
    assert learner.summary().settings == {
        "device": "cpu",
        "precision": "fp32",
        "optimizer": "SGD",
        "learning rate": "as the optimizer has it",
        "epochs": "0 of 1",
    }


def test_metrics_are_announced_with_their_splits_and_kinds(tmp_path):
    screen = Tape()
    model = net()
    builder = classifier(tmp_path).renderer(screen).metric_train(CudaMetric()).metric_train(Loss())
    builder.metric_valid_numeric(Accuracy()).build(model, sgd(model), None, batches()).step(1)
    (opened,) = (event for event in screen.events if isinstance(event, RunOpened))
    told = [(info.name, info.split, info.kind, info.plotted) for info in opened.metrics]
    assert told == [
        ("Cuda", "train", "text", False),
        ("Loss", "train", "numeric", False),
        ("Accuracy", "valid", "numeric", True),
    ]
