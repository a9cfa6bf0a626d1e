"""What a newcomer does wrong, one by one, and what they read: what it is, why, and the line to write."""

from __future__ import annotations

import os
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from builder_support import Tape, batches, classifier, mistakes_of, net, one_mistake_of, sgd
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import BusyError, ConfigurationError, DataError, LearnerBuilder
from notebook_learner.errors import LossError, OutputError, StepError
from notebook_learner.event import Notice, StatusChanged
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import Accuracy, Loss

X, Y = batches()[0]
"""Eight samples of six numbers, and a class from 0 to 2 each."""


@pytest.fixture
def builder():
    """Of a training that writes nothing, on (x, class) batches."""
    return classifier("nowhere").metric_logger(InMemoryMetricLogger()).with_application_logger(False)


def plain(builder, loss=None):
    """The same with another loss, or none."""
    builder._settings.loss = loss
    return builder


def fitted(builder, train=None, valid=None, *, model=None, scheduler=None):
    model = net() if model is None else model
    learner = builder.build(model, sgd(model), scheduler)
    learner.fit(batches() if train is None else train, valid)
    return learner


def told_of(caught):
    """The error and what is said below its traceback."""
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def error_of(builder, *data, kind=Exception, **more):
    with pytest.raises(kind) as caught:
        fitted(builder, *data, **more)
    return told_of(caught)


def notices_of(builder, *data):
    screen = Tape()
    fitted(builder.renderer(screen), *data)
    return [notice.text for notice in screen.of(Notice)]


# The batch does not fit the model ---------------------------------------------------------------------


def test_more_numbers_a_sample_than_the_first_layer_takes(builder):
    said = error_of(builder, [(torch.randn(8, 7), Y)], kind=RuntimeError)
    assert "What the step was given: a batch of (shape (8, 7) float32, shape (8,) int64)." in said
    assert "Linear(in_features=6, ...) was given shape (8, 7); the last number has to be 6: write in_" in said
    assert "The learner stands before this step, at epoch 1, train, step 0 of 1" in said


class Summed(nn.Module):
    """It gives a layer one number."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x.sum())


def test_one_number_without_a_dimension(builder):
    model = Summed()
    with pytest.raises(RuntimeError) as raised:
        builder.build(model, sgd(model)).fit([(X, Y)])
    said = told_of(raised)
    assert "was given shape (): one number without a dimension; give it a row, x.reshape(1, -1)" in said


def test_pictures_that_were_not_flattened(builder):
    said = error_of(builder, [(torch.randn(8, 2, 3), Y)], kind=RuntimeError)
    assert "which has 6 numbers a sample: put nn.Flatten() before it" in said


REGRESSION = [(X, torch.randn(8))] * 2 + [(X[:3], torch.randn(3))]
"""Six numbers a sample, and one number to be told: the last batch is shorter."""


def warnings_of(builder, loss, train, features=1):
    """What is said of a training on numbers, as warnings that are not errors."""
    model = nn.Linear(6, features)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain(builder, loss).build(model, sgd(model)).fit(train)
    return [str(each.message) for each in caught]


@pytest.fixture
def numbers():
    """The same of one that has nothing to do with classes."""
    quiet = LearnerBuilder("nowhere").renderer("silent").with_application_logger(False)
    return quiet.metric_logger(InMemoryMetricLogger())


def test_a_target_without_the_outputs_last_dimension_is_told_of_once_with_the_line_to_write(numbers):
    (said,) = warnings_of(numbers.num_epochs(2), F.mse_loss, REGRESSION)
    assert "mse_loss was given an output of shape (8, 1) and targets of shape (8,)" in said
    assert "compares every output with every target: 64 pairs." in said
    assert "TensorDataset(x, y.unsqueeze(-1))" in said
    assert ".loss(lambda output, y: F.mse_loss(output.squeeze(-1), y))" in said


@pytest.mark.parametrize(
    "mended",
    [[(x, y.unsqueeze(-1)) for x, y in REGRESSION], lambda out, y: F.mse_loss(out.squeeze(-1), y)],
)
def test_with_either_line_written_nothing_is_said(numbers, mended):
    train, loss = (REGRESSION, mended) if callable(mended) else (mended, F.mse_loss)
    assert warnings_of(numbers, loss, train) == []


def test_a_target_with_a_dimension_too_many_and_a_loss_that_is_a_layer(numbers):
    torchs_own, ours = [], []
    for said in warnings_of(numbers, nn.L1Loss(), [(X, torch.randn(8, 1, 1))]):
        (torchs_own if said.startswith("Using a target size") else ours).append(said)
    (said,) = ours
    assert "L1Loss was given an output of shape (8, 1) and targets of shape (8, 1, 1)" in said
    assert "TensorDataset(x, y.squeeze(-1))" in said
    assert len(torchs_own) == 1  # of torch's own line, where it is torch's to say


def test_another_loss_may_take_what_shapes_it_likes(numbers):
    assert warnings_of(numbers, lambda output, y: (output.mean(1) - y).square().mean(), REGRESSION, 4) == []


def test_numpys_float64(builder):
    said = error_of(builder, [(X.double(), Y)], kind=RuntimeError)
    assert "The model computes in float32 and was given float64 (NumPy's floats are float64)" in said
    assert "write x.to(torch.float32)" in said


def test_whole_numbers_as_input(builder):
    assert "was given int64" in error_of(builder, [(X.long(), Y)], kind=RuntimeError)


def test_numpy_arrays_in_place_of_tensors(builder):
    said = error_of(builder, [(X.numpy(), Y.numpy())], kind=TypeError)
    assert "(ndarray of shape (8, 6) float32, ndarray of shape (8,) int64)" in said
    assert "A model takes tensors, not NumPy arrays: write torch.from_numpy(x)" in said


def test_samples_in_place_of_batches(builder):
    said = error_of(builder, list(zip(X, Y, strict=True)), kind=IndexError)
    assert "load the data in batches, DataLoader(dataset, batch_size=32)" in said


def test_data_are_moved_to_the_models_device_by_themselves(builder):
    """No mistake here: the step does without x.to(device). On the CPU "meta" stands for another device."""
    seen = []

    def step(model, batch):
        seen.append([part.device.type for part in batch])
        return F.cross_entropy(model(batch[0]), batch[1])

    fitted(plain(builder).train_step(step).devices("cpu"))
    assert seen == [["cpu", "cpu"]] * 4


def test_a_tensor_made_in_the_step_on_another_device_than_the_model(builder):
    def step(model, batch):
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")

    said = error_of(plain(builder).train_step(step), kind=RuntimeError)
    assert "The learner moves every batch to the model's device. Other tensors" in said
    assert "torch.zeros(..., device=x.device)" in said


# The targets do not fit the loss ----------------------------------------------------------------------

TARGETS = {
    "a column": (Y[:, None], "of shape (8,): write y.squeeze(-1)"),
    "floats": (Y.float(), "whole numbers of shape (8,): write y.long()"),
    "int32": (Y.int(), "whole numbers of shape (8,): write y.long()"),
    "one-hot": (F.one_hot(Y, 3), "these look one-hot: write y.argmax(1)"),
    "from 1": (
        Y * 0 + 3,
        "The targets run from 3 to 3, but an output with 3 scores per sample has the classes 0 to 2",
    ),
    "of other samples": (Y[:4], "The output has 8 samples and the targets have 4"),
}


@pytest.mark.parametrize("what", TARGETS)
def test_targets_that_cross_entropy_does_not_take(what, builder):
    targets, expected = TARGETS[what]
    said = error_of(builder, [(X, targets)])
    kind = str(targets.dtype).removeprefix("torch.")
    assert (
        f"cross_entropy an output of shape (8, 3) float32 and targets of shape {tuple(targets.shape)} {kind}"
        in said
    )
    assert expected in said


def test_the_same_in_a_step_of_ones_own(builder):
    def step(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1][:, None])

    assert "write y.squeeze(-1)" in error_of(plain(builder).train_step(step), kind=RuntimeError)


def test_a_binary_loss_with_whole_numbers(builder):
    said = error_of(
        plain(builder, F.binary_cross_entropy_with_logits), [(X, torch.ones(8, 3).long())], kind=RuntimeError
    )
    assert "not with whole numbers: write y.float()" in said


def test_a_binary_loss_with_one_dimension_too_many(builder):
    model = nn.Linear(6, 1)
    builder = plain(builder, nn.BCEWithLogitsLoss())
    said = error_of(builder, [(X, Y.float())], model=model, kind=ValueError)
    assert "The output has one dimension more than the targets: write output.squeeze(-1)" in said


def test_no_advice_where_nothing_is_sure(builder):
    said = error_of(plain(builder, F.multi_margin_loss), [(X, Y.float())], kind=RuntimeError)
    assert "multi_margin_loss an output of shape (8, 3) float32 and targets of shape (8,) float32.\n" in said


def test_what_the_users_own_code_raises_is_left_as_it_is(builder):
    def odd(output, targets):
        raise RuntimeError("something else")

    assert "What the step was given" not in error_of(plain(builder, odd), kind=RuntimeError)


def test_an_error_that_is_met_twice_is_explained_once(builder):
    failure = RuntimeError("the sizes do not fit")

    def step(model, batch):
        raise failure

    model = net()
    learner = plain(builder).train_step(step).build(model, sgd(model), None, batches())
    for _ in range(2):
        with pytest.raises(RuntimeError):
            learner.fit()
    assert len(failure.__notes__) == 2


# The loss, and what a step returns --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            lambda loss: None,
            "train_step returned None; end it with `return ClassificationOutput(loss, output, t",
        ),
        (
            lambda loss: (1, loss),
            "train_step returned a tuple without a `.loss`; return ClassificationOutput(",
        ),
        (
            lambda loss: {"cost": loss},
            "train_step returned a dict without the key 'loss'; return {'loss': loss",
        ),
        (lambda loss: loss.item(), "train_step returned a float without a `.loss`"),
        (
            lambda loss: loss.detach(),
            "the loss does not require a gradient: no parameter that trains took part",
        ),
        (
            lambda loss: loss.expand(8),
            "the loss has shape (8,), but backward needs a scalar; reduce it with `.mea",
        ),
    ],
    ids=["None", "a tuple", "a dict", "a number", "detached", "no scalar"],
)
def test_a_step_that_returns_no_loss(step, expected, builder):
    def wrapped(model, batch):
        return step(F.cross_entropy(model(batch[0]), batch[1]))

    assert expected in error_of(plain(builder).train_step(wrapped), kind=LossError)


def test_a_model_that_says_not_how_it_trains(builder):
    said = one_mistake_of(plain(builder))
    assert (
        "Sequential does not say how it trains: define train_step(self, batch) on it, or add loss(F." in said
    )


def test_the_class_of_a_loss(builder):
    assert one_mistake_of(plain(builder, nn.CrossEntropyLoss)).endswith("loss(nn.CrossEntropyLoss())")


def test_fit_is_given_x_and_y(builder):
    said = error_of(builder, X, kind=StepError)
    assert "this batch is one tensor of shape (6,)" in said
    assert "fit(DataLoader(TensorDataset(x, y), batch_size=32))" in said


def test_fit_within_a_step(builder):
    def step(model, batch):
        learner.fit()

    model = net()
    learner = plain(builder).train_step(step).build(model, sgd(model), None, batches())
    with pytest.raises(BusyError, match="a step or metric cannot start it again"):
        learner.fit()


# The optimizer and the schedule -----------------------------------------------------------------------


def test_the_optimizer_of_another_model(builder):
    said = one_mistake_of(builder, net(), sgd(net()))
    assert said.startswith(
        "4 of the optimizer's 4 parameters are not the model's; was it made for another model"
    )
    assert said.endswith("make it from model.parameters()")


def test_a_layer_replaced_after_the_optimizer_was_made(builder):
    model = net()
    optimizer = sgd(model)
    model[3] = nn.Linear(8, 3)
    assert "or a layer of it replaced?" in one_mistake_of(builder, model, optimizer)


def test_a_layer_replaced_after_build(builder):
    model = net()
    learner = builder.build(model, sgd(model), None, batches())
    model[3] = nn.Linear(8, 3)
    with pytest.raises(
        ConfigurationError, match="2 of the model's parameters are not the optimizer's"
    ) as told:
        learner.fit()
    assert "make the optimizer from model.parameters() and build" in str(told.value)


def test_a_learning_rate_in_the_optimizers_place(builder):
    assert (
        "the optimizer is of type float; give an optimizer such as torch.optim.Adam(model.parameters())"
        in (one_mistake_of(builder, net(), 0.1))
    )


def test_the_scheduler_of_another_optimizer(builder):
    model = net()
    said = one_mistake_of(builder, model, sgd(model), StepLR(sgd(model), 10))
    assert (
        "drives another optimizer than the one given; make it from this optimizer, or give a factory" in said
    )


def test_a_one_cycle_schedule_that_is_too_short(builder):
    def short(optimizer):
        return OneCycleLR(optimizer, max_lr=0.1, total_steps=4)

    said = error_of(builder.num_epochs(2), scheduler=short, kind=ValueError)
    assert (
        "OneCycleLR was made for 4 optimizer steps, and training takes more: make it with total_steps" in said
    )
    assert "total_steps = epochs * len(train_loader)" in said


# The data ---------------------------------------------------------------------------------------------


def test_no_data_at_all(builder):
    model = net()
    learner = builder.build(model, sgd(model))
    with pytest.raises(ConfigurationError, match=r"nothing to train on: fit\(train_loader, valid_loader\)"):
        learner.fit()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (DataLoader, "the train data is the class DataLoader; give an instance"),
        (TensorDataset(X, Y), "a dataset; say with_batch_size(32) to have it loaded, or give a DataLoader"),
        (nn.Sequential(nn.Linear(6, 3)), "the train data is of type Sequential, a model; give a DataLoader"),
        (42, "give an iterable of batches, such as a DataLoader or a list of them, or a dataset"),
    ],
    ids=["a class", "a dataset", "a model", "a number"],
)
def test_what_is_no_loader(given, expected, builder):
    assert expected in error_of(builder, given, kind=ConfigurationError)


def test_an_empty_loader(builder):
    said = error_of(builder, DataLoader(TensorDataset(X, Y), batch_size=32, drop_last=True), kind=DataError)
    assert "the train loader, a DataLoader, yielded no batch; look at the dataset's length" in said


def test_a_generator_in_the_second_epoch(builder):
    said = error_of(builder.num_epochs(2), (batch for batch in batches()), kind=DataError)
    assert (
        "a generator, yielded nothing in epoch 2: it can be walked only once; give a list, a DataLoader"
        in said
    )


def test_samples_of_different_sizes_are_no_matter_of_the_batch_before(builder):
    class Ragged(TensorDataset):
        def __getitem__(self, index):
            return torch.zeros(6 if index < 4 else index), self.tensors[0][index]

    said = error_of(builder, DataLoader(Ragged(Y), batch_size=4), kind=RuntimeError)
    assert "stack expects each tensor to be equal size" in said and "What the step was given" not in said
    assert "before the batch that could not be loaded" in said


def test_the_training_data_for_validation(builder):
    data = batches()
    (said,) = notices_of(builder, data, data)
    assert said.startswith("training and validation have the very same data")


def test_a_batch_size_beside_a_loader_that_has_one(builder):
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    (said,) = notices_of(builder.with_batch_size(32), loader)
    assert said == (
        "with_batch_size(32) is for datasets; the train data is a DataLoader with a batch size of its own, "
        "4, which holds"
    )


# Metrics, and what goes by them -----------------------------------------------------------------------


def test_accuracy_of_numbers(builder):
    builder = plain(builder, F.mse_loss).metrics(Loss(), Accuracy())
    said = error_of(builder, [(X, torch.randn(8, 3))], kind=OutputError)
    assert "Accuracy got `output` of shape [8, 3] and `targets` of [8, 3]: one score per target" in said


def test_accuracy_where_the_step_returns_only_a_loss(builder):
    def step(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    said = error_of(plain(builder).train_step(step).metrics(Accuracy()), kind=OutputError)
    assert "Accuracy needs `output` and `targets`; but the step returned a LossOutput with `loss`" in said


def test_a_metric_by_its_name_or_class(builder):
    said = mistakes_of(builder.metrics("accuracy").metric_train(Loss))
    assert "'accuracy' is no metric; give one of notebook_learner.metric, such as Accuracy()" in said[0]
    assert "Loss is a class; register an instance: Loss()" in said


def test_a_metric_registered_twice(builder):
    said = one_mistake_of(builder.metric_train(Loss()).metric_train(Loss()))
    assert said == "two train metrics would write the log of 'Loss'; register it once"


def test_a_metric_of_validation_without_validation(builder):
    (said,) = notices_of(builder.metric_train(Loss()).metric_valid(Accuracy()))
    assert said.startswith("Accuracy of the validation split is never measured, as there is no valid")


def test_early_stopping_on_validation_without_validation(builder):
    said = error_of(builder.early_stopping("Loss", patience=2), kind=ConfigurationError)
    assert (
        "early_stopping('Loss') goes by the valid Loss, but there is no valid loader; give one, fit(" in said
    )


def test_early_stopping_on_a_metric_spelt_otherwise(builder):
    said = one_mistake_of(builder.early_stopping("loss", patience=2))
    assert "no valid metric of that name; registered are: Loss; register it, or name one of these" in said


def test_early_stopping_on_a_split_spelt_otherwise(builder):
    said = one_mistake_of(builder.early_stopping("Loss", patience=2, split="val"))
    assert said == "early_stopping(split='val'): choose 'train' or 'valid'"


def test_a_loss_that_is_nan_ends_early_and_says_why(builder):
    screen = Tape()
    builder = plain(builder, lambda output, y: F.cross_entropy(output, y) * float("nan"))
    fitted(builder.num_epochs(9).early_stopping("Loss", patience=2, split="train").renderer(screen))
    last = screen.of(StatusChanged)[-1]
    assert (last.status, last.epoch) == ("finished", 2)
    assert last.reason.startswith("early stopping, as the train Loss is nan; break_on(NonFinite()) on the bu")


def test_history_by_names_spelt_otherwise(builder):
    learner = fitted(builder)
    with pytest.raises(KeyError, match="no split 'val'; there are: train"):
        learner.history["val", "Loss"]
    with pytest.raises(KeyError, match="no metric 'loss' in train; there are: Loss"):
        learner.history["train", "loss"]


# The builder ------------------------------------------------------------------------------------------


def test_build_is_forgotten(builder):
    with pytest.raises(AttributeError, match=re.escape("has no attribute 'fit'; a Learner has it")) as told:
        builder.fit(batches())
    assert "learner = builder.build(...), then learner.fit" in str(told.value)
    with pytest.raises(AttributeError, match=r"no attribute 'metric_val'$"):
        builder.metric_val(Loss())


def test_the_builder_in_the_models_place(builder):
    assert (
        "the model is of type LearnerBuilder; give a torch.nn.Module"
        in mistakes_of(builder, builder, sgd(net()))[0]
    )


def test_no_epoch_at_all(builder):
    assert one_mistake_of(builder.num_epochs(0)) == "num_epochs is 0; give a whole number from 1"


def test_a_precision_by_its_dtypes_name(builder):
    assert one_mistake_of(builder.precision("float16")) == (
        'precision(\'float16\'): choose "fp32", "bf16" or "fp16"'
    )


def test_a_device_that_torch_does_not_know(builder):
    assert one_mistake_of(builder.devices("gpu")) == (
        "devices(['gpu']): torch knows no such device; try 'cpu' or 'cuda:0', or the id of an ipyparallel "
        "cluster that runs (`ipcluster list`)"
    )


def test_cuda_where_there_is_none(builder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert one_mistake_of(builder.devices("cuda")) == (
        "devices(['cuda']): there is no such CUDA device; torch sees none here; try 'cpu'"
    )


def test_a_directory_that_is_a_file_or_below_one(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("")
    assert one_mistake_of(classifier(path)).endswith("is a file; give a folder, or a new name")
    assert one_mistake_of(classifier(path / "run")).endswith(f"{str(path)!r} is a file; give another name")


def test_a_directory_without_permission(tmp_path, monkeypatch):
    """As root every directory can be written to, so the answer is given here."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(path))
    said = one_mistake_of(classifier(tmp_path / "deep" / "run"))
    assert "cannot be written to (Permission denied); give one in your home directory, or in /tmp" in said
    assert asked == [str(tmp_path)]


def test_the_latest_checkpoint_where_there_is_none(tmp_path):
    said = one_mistake_of(classifier(tmp_path / "run").with_file_checkpointer().checkpoint("latest"))
    assert said == (
        "checkpoint('latest'): there is no checkpoint latest; there is none yet; use resume() instead, "
        "which then starts from the beginning"
    )


def test_a_checkpoint_without_anything_that_saves_one(tmp_path):
    assert "add with_file_checkpointer()" in one_mistake_of(classifier(tmp_path / "run").checkpoint("latest"))


def test_several_mistakes_are_told_together(tmp_path):
    builder = LearnerBuilder(tmp_path / "run").num_epochs(0).precision("half").devices("gpu")
    assert len(mistakes_of(builder.loss(F.cross_entropy))) == 3
