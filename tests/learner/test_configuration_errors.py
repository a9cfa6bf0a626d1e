"""What can be wrong with a configuration: each mistake has a line that says what to write instead."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builder_support import adam, batches, classifier, mistakes_of, net, one_mistake_of, quiet, sgd
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR

from notebook_learner import ConfigurationError, LearnerBuilder, MemoryCheckpointer
from notebook_learner.checkpoint import Hdf5Recorder, KeepBest, KeepLast
from notebook_learner.metric import Accuracy, CpuMemory, CudaMetric, Loss, Metric


class NoDirection(Metric):
    name = "Spread"

    def update(self, item):
        return item.loss, 1


class Bad(Metric):
    name = "up/../there"

    def update(self, item):
        return item.loss, 1


OPTIONS = {
    "epochs: none": (
        lambda b: b.num_epochs(0),
        "num_epochs is 0; give a whole number from 1",
    ),
    "epochs: half": (
        lambda b: b.num_epochs(1.5),
        "num_epochs is 1.5; give a whole number from 1",
    ),
    "epochs: a truth": (
        lambda b: b.num_epochs(True),
        "num_epochs is True; give a whole number from 1",
    ),
    "accumulation": (
        lambda b: b.grads_accumulation(0),
        "grads_accumulation is 0; give a whole number from 1",
    ),
    "batch size": (
        lambda b: b.with_batch_size("32"),
        "with_batch_size is '32'; give a whole number from 1",
    ),
    "keyframes": (
        lambda b: b.keyframes(every=-1),
        "keyframes(every=...) is -1; give a whole number from 1",
    ),
    "keyframes' memory": (
        lambda b: b.keyframes(memory=0.5),
        "keyframes(memory=...) is 0.5; give a whole number from 1",
    ),
    "clipping without a limit": (
        lambda b: b.clip_gradients(),
        "clip_gradients() needs a limit: clip_gradients(norm=1.0) or clip_gradients(value=0.5)",
    ),
    "clipping to nothing": (
        lambda b: b.clip_gradients(norm=0),
        "clip_gradients(norm=0): give a limit above 0, such as 1.0",
    ),
    "clipping by a word": (
        lambda b: b.clip_gradients(value="little"),
        "clip_gradients(value='little'): give a limit above 0, such as 1.0",
    ),
    "a decay that never forgets": (
        lambda b: b.ema(1.0),
        "ema(1.0): the decay must lie between 0 and 1, such as 0.999",
    ),
    "a decay that is none": (
        lambda b: b.ema("slow"),
        "ema('slow'): the decay must lie between 0 and 1, such as 0.999",
    ),
    "seed": (
        lambda b: b.seed(0.5),
        "seed(0.5): give a whole number from 0",
    ),
    "precision": (
        lambda b: b.precision("fp8"),
        """precision('fp8'): choose "fp32", "bf16" or "fp16\"""",
    ),
    "precision of no kind": (
        lambda b: b.precision(["bf16"]),
        """precision(['bf16']): choose "fp32", "bf16" or "fp16\"""",
    ),
    "scheduler's pace": (
        lambda b: b.step_scheduler("batch"),
        """step_scheduler('batch'): choose "step" or "epoch\"""",
    ),
    "device unknown": (
        lambda b: b.devices(["gpu"]),
        "devices(['gpu']): torch knows no such device; try 'cpu' or 'cuda:0'",
    ),
    "device absent": (
        lambda b: b.devices(["cuda:99"]),
        "devices(['cuda:99']): there is no such CUDA device; ",
    ),
    "device without values": (
        lambda b: b.devices("meta"),
        "devices(['meta']): tensors have no values there, so nothing can be trained; try 'cpu'",
    ),
    "no device": (
        lambda b: b.devices([]),
        "devices([]): give at least one device",
    ),
    "a number for a device": (
        lambda b: b.devices(0),
        "devices(0): give a list with one device, such as ['cuda:0']",
    ),
    "the metric's class": (
        lambda b: b.metric_train(Accuracy),
        "Accuracy is a class; register an instance: Accuracy()",
    ),
    "no metric": (
        lambda b: b.metric_train("Accuracy"),
        "'Accuracy' is no metric; give one of notebook_learner.metric, such as Accuracy(), or subclass",
    ),
    "a metric's name": (
        lambda b: b.metric_train(Bad()),
        "Bad: the metric name 'up/../there' contains '/'",
    ),
    "the curve of a text, training": (
        lambda b: b.metric_train_numeric(CudaMetric()),
        "Cuda is a text metric and has no curve; register it with metric_train(...)",
    ),
    "the curve of a text, validation": (
        lambda b: b.metric_valid_numeric(CudaMetric()),
        "Cuda is a text metric and has no curve; register it with metric_valid(...)",
    ),
    "metrics of one split by their names": (
        lambda b: b.metrics(train=[Loss()]),
        "metrics(..., train=[<notebook_learner.metric",
    ),
    "metrics of no split": (
        lambda b: b.metrics(Loss(), train=False, valid=False),
        "metrics(..., train=False, valid=False): give True or False; valid=False measures in training alone",
    ),
    "a metric twice": (
        lambda b: b.metric_train(Loss()).metrics(Loss()),
        "two train metrics would write the log of 'Loss'; register it once",
    ),
    "metric logger": (
        lambda b: b.metric_logger("metrics.csv"),
        "metric_logger('metrics.csv'): give an object with a handle(event) method",
    ),
    "renderer": (
        lambda b: b.renderer("fancy"),
        "there is no renderer 'fancy'; use one of ",
    ),
    "application log": (
        lambda b: b.with_application_logger(None),
        "with_application_logger(None): give True, False, a path for the file, or a logging.Logger",
    ),
    "checkpoint without a checkpointer": (
        lambda b: b.checkpoint(3),
        "checkpoint(3) needs somewhere to load from: add with_file_checkpointer() or with_checkpointer(...); "
        "without one training would start over with fresh weights",
    ),
    "a checkpoint of no epoch": (
        lambda b: b.checkpoint(0).with_checkpointer(MemoryCheckpointer()),
        """checkpoint(0): give an epoch's number from 1, a label such as "3-117", "latest" or "best\"""",
    ),
    "two ways to keep the epochs": (
        lambda b: b.with_file_checkpointer().with_checkpointer(MemoryCheckpointer()),
        "with_checkpointer(...) and with_file_checkpointer() both keep the epochs; keep one of them",
    ),
    "the class of a recorder": (
        lambda b: b.with_file_checkpointer(Hdf5Recorder),
        "with_file_checkpointer(Hdf5Recorder) is a class; give an instance: Hdf5Recorder()",
    ),
    "no recorder": (
        lambda b: b.with_file_checkpointer("h5"),
        "with_file_checkpointer('h5'): give a recorder, such as Hdf5Recorder()",
    ),
    "the class of a strategy": (
        lambda b: b.with_file_checkpointer().with_checkpointing_strategy(KeepLast),
        "with_checkpointing_strategy(KeepLast) is a class; give an instance, such as KeepLast(2)",
    ),
    "no strategy": (
        lambda b: b.with_file_checkpointer().with_checkpointing_strategy(2),
        "with_checkpointing_strategy(2): give a strategy, such as KeepLast(2)",
    ),
    "a strategy for no checkpoints": (
        lambda b: b.with_checkpointing_strategy(KeepLast(2)),
        "with_checkpointing_strategy(...) needs checkpoints to keep; add with_file_checkpointer()",
    ),
    "the best by what is not measured": (
        lambda b: b.with_file_checkpointer().with_checkpointing_strategy(KeepBest("AUROC")),
        "KeepBest(metric='AUROC', split='valid', mode=None, n=1): no valid metric of that name; registered "
        "are: Loss",
    ),
    "an autosave of no time": (
        lambda b: b.autosave("soon"),
        "autosave('soon'): 'soon' is not a time; write '30 s', '10 min' or '2 h'",
    ),
    "an autosave of no steps": (
        lambda b: b.autosave(0),
        "autosave(0): give a number of training steps from 1, or a time such as '10 min'",
    ),
    "an autosave at once": (
        lambda b: b.autosave(timedelta(0)),
        "autosave(datetime.timedelta(0)): give a time above zero",
    ),
    "a checkpoint after the end": (
        lambda b: b.checkpoint(5).num_epochs(3).with_checkpointer(MemoryCheckpointer()),
        "checkpoint(5) is past num_epochs(3), which counts from the run's beginning; to train two epochs "
        "more, say num_epochs(7)",
    ),
    "checkpointer": (
        lambda b: b.with_checkpointer("checkpoints"),
        "with_checkpointer('checkpoints'): give an object with save(epoch, state) and load(which)",
    ),
    "compilation": (
        lambda b: b.compile(mode="fastest"),
        "compile(mode='fastest'): torch refuses it: Unrecognized mode=fastest",
    ),
    "early stopping without its metric": (
        lambda b: b.metrics(Loss()).early_stopping("Accuracy", patience=3),
        "early_stopping('Accuracy'): no valid metric of that name; registered are: Loss",
    ),
    "early stopping by a reading": (
        lambda b: b.metrics(CpuMemory()).early_stopping("CPU Memory", patience=3),
        "early_stopping('CPU Memory'): it has no value per epoch",
    ),
    "early stopping without a direction": (
        lambda b: b.metrics(NoDirection()).early_stopping("Spread", patience=3),
        "early_stopping('Spread'): the metric does not say which way is better; give mode=",
    ),
    "early stopping at once": (
        lambda b: b.early_stopping("Loss", patience=0),
        "early_stopping(patience=0): give a whole number of epochs from 1",
    ),
    "early stopping's direction": (
        lambda b: b.early_stopping("Loss", patience=1, mode="low"),
        "early_stopping(mode='low'): choose 'min' or 'max'",
    ),
    "early stopping's split": (
        lambda b: b.early_stopping("Loss", patience=1, split="test"),
        "early_stopping(split='test'): choose 'train' or 'valid'",
    ),
    "early stopping's margin": (
        lambda b: b.early_stopping("Loss", patience=1, min_delta=-0.1),
        "early_stopping(min_delta=-0.1): give a number from 0",
    ),
    "early stopping's warm-up": (
        lambda b: b.early_stopping("Loss", patience=1, warmup=0.5),
        "early_stopping(warmup=0.5): give a whole number of epochs from 0",
    ),
    "two ways to train": (
        lambda b: b.train_step(lambda model, batch: None),
        "both loss(...) and train_step(...) say how to train; keep one of them",
    ),
    "the loss's class": (
        lambda b: b.loss(nn.CrossEntropyLoss),
        "loss(CrossEntropyLoss) is a class; give an instance: loss(nn.CrossEntropyLoss())",
    ),
    "the loss's name": (
        lambda b: b.loss("mse"),
        "loss('mse'): give a function of output and targets, such as F.cross_entropy",
    ),
    "the loss's output": (
        lambda b: b.loss(F.cross_entropy, output="classes"),
        "loss(output='classes'): give an output class, such as ClassificationOutput",
    ),
    "validation step": (
        lambda b: b.valid_step("valid"),
        "valid_step('valid'): give a function fn(model, batch) that returns the output",
    ),
    "a metric for no scheduler": (
        lambda b: b.step_scheduler("epoch", metric="Loss"),
        "step_scheduler(metric=...) is for ReduceLROnPlateau, but a constant rate takes no metric",
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_wrong_option_is_told_with_what_to_write_instead(option, tmp_path):
    configure, said = OPTIONS[option]
    assert one_mistake_of(configure(classifier(tmp_path))).startswith(said)


def test_a_step_that_is_no_function_is_told(tmp_path):
    assert one_mistake_of(quiet(tmp_path).train_step("train")).startswith(
        "train_step('train'): give a function fn(model, batch)"
    )


@pytest.mark.parametrize("directory", ["", None, 3])
def test_a_directory_that_is_no_path_is_told(directory):
    builder = LearnerBuilder(directory).loss(F.cross_entropy).renderer("silent")
    assert one_mistake_of(builder) == (
        f"the directory is {directory!r}; give a path, such as LearnerBuilder('runs/digits')"
    )


def test_a_directory_that_is_a_file_is_told(tmp_path):
    (tmp_path / "run").write_text("")
    said = one_mistake_of(classifier(tmp_path / "run"))
    assert said == f"the directory '{tmp_path / 'run'}' is a file; give a folder, or a new name"


# The model -------------------------------------------------------------------------------------------


class Frozen(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)
        self.requires_grad_(False)


MODELS = {
    "a function": (lambda: F.relu, "the model is of type function; give a torch.nn.Module"),
    "a class": (lambda: Frozen, "the model is the class Frozen; give an instance: Frozen(...)"),
    "frozen": (Frozen, "the model has no parameter that trains; look at requires_grad"),
    "lazy": (
        lambda: nn.LazyLinear(3),
        "the model has lazy parameters without a shape yet; run one batch through it first",
    ),
    "meta": (
        lambda: nn.Linear(6, 3, device="meta"),
        "the model is on the meta device, where parameters have no values; bring it to a real one",
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_cannot_be_trained_is_told(kind, tmp_path):
    make, said = MODELS[kind]
    model = make()
    optimizer = torch.optim.SGD if isinstance(model, nn.Module) else sgd(net())
    assert one_mistake_of(classifier(tmp_path), model, optimizer).startswith(said)


def test_a_model_that_does_not_say_how_it_trains_is_told(tmp_path):
    assert one_mistake_of(quiet(tmp_path)) == (
        "Sequential does not say how it trains: define train_step(self, batch) on it, or add "
        "loss(F.cross_entropy) for (x, y) batches, or train_step(fn) with fn(model, batch)"
    )


# The optimizer ---------------------------------------------------------------------------------------


def failing(parameters):
    raise ValueError("no such rate")


OPTIMIZERS = {
    "a word": (
        lambda model: "adam",
        "the optimizer is of type str; give an optimizer such as ",
    ),
    "nothing": (lambda model: None, "the optimizer is of type NoneType; give an optimizer such as "),
    "a strange class": (
        lambda model: StepLR,
        "the optimizer is the class StepLR; give an optimizer such as ",
    ),
    "a factory of nothing": (
        lambda model: lambda parameters: None,
        "what the optimizer factory returned is of type NoneType; give an optimizer such as ",
    ),
    "a factory that fails": (
        lambda model: failing,
        "the optimizer factory failed (ValueError: no such rate)",
    ),
    "another model's": (
        lambda model: adam(net()),
        "4 of the optimizer's 4 parameters are not the model's; was it made for another model, or before the "
        "model was copied or a layer of it replaced? make it from model.parameters()",
    ),
    "one that walks the batch": (
        lambda model: torch.optim.LBFGS(model.parameters()),
        "LBFGS evaluates a batch several times per step: write the step yourself, train_step(fn), and call",
    ),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_that_cannot_be_used_is_told(kind, tmp_path):
    make, said = OPTIMIZERS[kind]
    model = net()
    with pytest.raises(ConfigurationError) as caught:
        classifier(tmp_path).build(model, make(model))
    (mistake,) = caught.value.mistakes
    assert mistake.startswith(said)


# The schedule ----------------------------------------------------------------------------------------


def ill(step):
    return [][step]


PLATEAU = {
    "by steps": (
        lambda b: b.step_scheduler("step"),
        """ReduceLROnPlateau needs an epoch's value; leave out step_scheduler("step")""",
    ),
    "by a metric that is not there": (
        lambda b: b.step_scheduler("epoch", metric="Accuracy"),
        "ReduceLROnPlateau goes by the valid Accuracy, but no such metric is registered (there are: Loss); "
        "register it, or choose one with step_scheduler('epoch', metric=('valid', ...))",
    ),
    "by the loss, which is not measured": (
        lambda b: b.metric_train(Loss()),
        "ReduceLROnPlateau goes by the valid Loss, but no such metric is registered (there are: none)",
    ),
    "by a reading": (
        lambda b: b.metrics(CpuMemory()).step_scheduler("epoch", metric="CPU Memory"),
        "ReduceLROnPlateau goes by the valid CPU Memory, which has no value per epoch; choose another",
    ),
    "the wrong way up": (
        lambda b: b.metrics(Accuracy()).step_scheduler("epoch", metric="Accuracy"),
        "ReduceLROnPlateau(mode='min') goes by the valid Accuracy, for which higher is better; make it with "
        "mode='max'",
    ),
    "by no metric's name": (
        lambda b: b.step_scheduler("epoch", metric=("test", "Loss")),
        "step_scheduler(metric=('test', 'Loss')): give a metric's name, or a pair such as ('train', 'Loss')",
    ),
}


@pytest.mark.parametrize("kind", PLATEAU)
def test_a_plateau_scheduler_that_cannot_be_stepped_is_told(kind, tmp_path):
    configure, said = PLATEAU[kind]
    model = net()
    optimizer = sgd(model)
    said_of = one_mistake_of(configure(classifier(tmp_path)), model, optimizer, ReduceLROnPlateau(optimizer))
    assert said_of.startswith(said)


SCHEDULES = {
    "a word": ("cosine", "the scheduler is of type str; give a number for a constant rate, a scheduler of "),
    "a negative rate": (-0.1, "the learning rate is -0.1; give a number from 0, such as 1e-3"),
    "no number": (float("nan"), "the learning rate is nan; give a number from 0, such as 1e-3"),
    "a function without a rate": (
        lambda step: "fast",
        "the scheduler function gave 'fast' for step 0; it must give a rate, a number from 0",
    ),
    "a factory of nothing": (
        lambda optimizer: optimizer.zero_grad(),
        "what the scheduler factory returned is of type NoneType; give a number for a constant rate",
    ),
    "neither function nor factory": (
        ill,
        "the scheduler callable is no function from step to rate (IndexError: list index out of range) and "
        "no factory that takes the optimizer (TypeError: list indices must be integers",
    ),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_that_is_none_is_told(kind, tmp_path):
    scheduler, said = SCHEDULES[kind]
    model = net()
    assert one_mistake_of(classifier(tmp_path), model, sgd(model), scheduler).startswith(said)


def test_a_scheduler_of_another_optimizer_is_told(tmp_path):
    model = net()
    assert one_mistake_of(classifier(tmp_path), model, sgd(model), StepLR(sgd(model), 10)) == (
        "the scheduler (StepLR) drives another optimizer than the one given; make it from this optimizer, or "
        "give a factory: lambda optimizer: StepLR(optimizer, 10)"
    )


def test_a_metric_for_a_scheduler_that_takes_none_is_told(tmp_path):
    model = net()
    builder = classifier(tmp_path).step_scheduler("step", metric="Loss")
    said = one_mistake_of(builder, model, sgd(model), lambda o: OneCycleLR(o, 0.1, total_steps=9))
    assert said.startswith(
        "step_scheduler(metric=...) is for ReduceLROnPlateau, but OneCycleLR takes no metric"
    )


# All of them -----------------------------------------------------------------------------------------


def test_all_mistakes_are_told_together(tmp_path):
    model = net()
    builder = (
        LearnerBuilder(tmp_path)
        .num_epochs(0)
        .grads_accumulation(-2)
        .devices(["gpu"])
        .precision("half")
        .metric_train_numeric(CudaMetric())
        .metrics(Accuracy)
        .metric_logger(print)
        .renderer("fancy")
        .clip_gradients()
        .ema(2)
        .early_stopping("F1", patience=0)
        .checkpoint(3)
        .compile(mode="fastest")
    )
    mistakes = mistakes_of(builder, model, adam(net()), StepLR(sgd(model), 1), 3, batches())
    wanted = [
        "num_epochs is 0",
        "grads_accumulation is -2",
        "devices(['gpu'])",
        "precision('half')",
        "Cuda is a text metric",
        "Accuracy is a class",
        "metric_logger(",
        "there is no renderer 'fancy'",
        "clip_gradients() needs a limit",
        "ema(2)",
        "early_stopping(patience=0)",
        "early_stopping('F1'): no valid metric",
        "checkpoint(3) needs somewhere",
        "compile(mode='fastest')",
        "Sequential does not say how it trains",
        "of the optimizer's 4 parameters are not the model's",
        "the scheduler (StepLR) drives another optimizer",
        "the train data is of type int",
        "there is a validation loader, but Sequential has no valid_step",
    ]
    assert [start for start in wanted if not any(start in line for line in mistakes)] == []
    assert len(mistakes) == len(wanted) + 1, "the class Accuracy is registered for both splits"


def test_the_message_counts_its_mistakes(tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot be built, for 2 reasons:\n  - .*\n  - .*"):
        classifier(tmp_path).num_epochs(0).seed("x").build(net(), torch.optim.SGD)
    with pytest.raises(ConfigurationError, match=r"cannot be built:\n  - num_epochs is 0"):
        classifier(tmp_path).num_epochs(0).build(net(), torch.optim.SGD)


def test_a_configuration_error_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="num_epochs"):
        classifier(tmp_path).num_epochs(0).build(net(), torch.optim.SGD)


def test_numpys_whole_numbers_are_no_mistake(tmp_path):
    two = np.int64(2)
    builder = classifier(tmp_path).num_epochs(two).grads_accumulation(two).with_batch_size(two).seed(two)
    learner = builder.early_stopping("Loss", patience=two, split="train").build(net(), torch.optim.SGD)
    learner.fit(batches())
    assert learner.history.epoch_numbers("train").tolist() == [1, 2]


def test_a_corrected_builder_builds(tmp_path):
    builder = classifier(tmp_path).num_epochs(0).clip_gradients()
    assert len(mistakes_of(builder)) == 2
    learner = builder.num_epochs(1).clip_gradients(norm=1).build(net(), torch.optim.SGD)
    learner.fit(batches())
    assert learner.status == "finished"
