"""Plausible wrong arguments of public verbs: said at once, in words, by an error of ours."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import pytest
import torch
from builder_support import Tape, adam, batches, classifier, net
from torch import nn
from torch.nn import functional as F

from notebook_learner import ConfigurationError, Evaluator, Learner, LearnerBuilder, StepError
from notebook_learner import metric as metrics
from notebook_learner.errors import NotebookLearnerError, wrong_arguments
from notebook_learner.metric import Accuracy, ConfusionMatrix, Loss, TopKAccuracy

WRONG: tuple[Any, ...] = (
    *(None, 5, -1, 2.5, float("nan"), True, "x", b"x", [], [1], ["a", 3], {}, (1, 2), set(), object(), len),
    *(lambda: 0, lambda a, b, c, d: 0, int, nn.Linear, torch.zeros(2), nn.Linear(2, 2), range(3)),
)


def built(directory: Any, model: Any = None, **wrong: Any) -> Learner:
    builder = classifier(directory).num_epochs(2)
    for verb, given in wrong.items():
        getattr(builder, verb)(given)
    model = model or net()
    return builder.build(model, adam(model), None, batches(), batches()[:1])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A wrong argument may be the name of a file."""
    monkeypatch.chdir(tmp_path)


def is_meant(error: BaseException) -> bool:
    """Raised by one of our own `raise`, in words, and not by what a wrong value met on its way."""
    if isinstance(error, NotebookLearnerError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    raised = any((line or "").strip().startswith("raise") for line in _above(last.filename, last.lineno or 1))
    return "notebook_learner" in last.filename and raised and len(str(error).split()) > 4


def _above(path: str, line: int) -> list[str]:
    import linecache

    return [linecache.getline(path, number) for number in range(max(1, line - 6), line + 1)]


# Functions of another arity ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "function", "said"),
    [
        ("loss", lambda: 0, "called with two arguments, the model's output and the targets, and takes none"),
        ("loss", lambda output: 0, r"takes \(output\); write def loss\(output, targets\)"),
        ("loss", nn.CTCLoss(), r"loss\(CTCLoss\(...\)\): .*takes \(log_probs, targets, input_lengths"),
        (
            "train_step",
            lambda batch: 0,
            r"train_step\(lambda ...\): .*the model and the batch, and takes \(batch\)",
        ),
        ("valid_step", lambda a, b, c: 0, r"write def valid_step\(model, batch\)"),
        ("break_on", lambda: True, r"break_on\(lambda ...\): it is called with one argument, the moment"),
    ],
)
def test_a_function_that_takes_other_arguments_is_named_by_build(tmp_path, verb, function, said):
    with pytest.raises(ConfigurationError, match=said):
        built(tmp_path, **{verb: function})


def test_losses_and_functions_that_fit_are_let_pass(tmp_path):
    def with_more(output, targets, weight=None):
        return F.cross_entropy(output, targets)

    for number, loss in enumerate(
        [F.cross_entropy, nn.CrossEntropyLoss(), with_more, lambda *both: F.cross_entropy(*both)]
    ):
        built(tmp_path / str(number), loss=loss).step()
    assert wrong_arguments(max, "one", "two") == "", "what a function in C takes is not known"


def test_a_models_own_step_with_more_than_the_batch_is_named(tmp_path):
    class Numbered(nn.Linear):
        def train_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch[0]), batch[1])

    model = Numbered(6, 3)
    with pytest.raises(ConfigurationError, match=r"Numbered.train_step: .*takes \(batch, batch_idx\)"):
        LearnerBuilder(tmp_path).build(model, adam(model))


@pytest.mark.parametrize("condition", [lambda: True, lambda learner, other: True])
def test_run_until_refuses_a_condition_that_takes_no_learner(tmp_path, condition):
    learner = built(tmp_path)
    with pytest.raises(ConfigurationError, match=r"one argument, the learner, .*write lambda learner: "):
        learner.run_until(condition)
    assert learner.position.step == 0
    learner.run_until(lambda learner, more=1: learner.position.step == 2)


def test_run_until_names_an_answer_that_is_neither_true_nor_false(tmp_path):
    with pytest.raises(StepError, match=r"gave a Tensor that is neither true nor false .*make one of it"):
        built(tmp_path).run_until(lambda learner: torch.zeros(2))


def test_predict_refuses_functions_that_take_other_arguments(tmp_path):
    learner = built(tmp_path)
    for wrong in (lambda output: output, 5):
        with pytest.raises(ConfigurationError, match=r"write lambda output, batch: output.argmax"):
            learner.predict(batches(), wrong)
    with pytest.raises(ConfigurationError, match=r"step: .*two arguments, the model and the batch"):
        learner.predict(batches(), step=lambda batch: batch)


def test_a_breakpoints_function_takes_the_moment(tmp_path):
    with pytest.raises(TypeError, match=r"write lambda moment: moment.loss > 100"):
        built(tmp_path).breakpoints.add(lambda: True)


def test_an_evaluator_refuses_a_loss_of_another_arity(tmp_path):
    with pytest.raises(ConfigurationError, match=r"takes \(output\)"):
        Evaluator(tmp_path, net(), loss=lambda output: 0)


# Verbs of the other one ----------------------------------------------------------------------------------


def test_every_verb_of_the_builder_that_a_learner_lacks_says_where_it_is(tmp_path):
    learner = built(tmp_path)
    verbs = [name for name in dir(LearnerBuilder) if not name.startswith("_") and not hasattr(Learner, name)]
    assert {"metrics", "loss", "strategy", "train_step", "build"} <= set(verbs)
    for verb in verbs:
        with pytest.raises(AttributeError, match=rf"{verb}\(...\) is a verb of LearnerBuilder, called"):
            getattr(learner, verb)
    with pytest.raises(AttributeError, match=r"^'Learner' object has no attribute 'metrick'$"):
        learner.metrick  # noqa: B018
    assert not hasattr(learner, "_repr_latex_")


def test_num_epochs_is_a_number_and_says_so(tmp_path):
    learner = built(tmp_path)
    with pytest.raises(TypeError, match=r"learner.num_epochs = 5 sets it, and fit\(epochs=n\)"):
        learner.num_epochs(5)
    assert (learner.num_epochs, f"{learner.num_epochs}") == (2, "2")


# Metrics -------------------------------------------------------------------------------------------------


def test_a_number_of_classes_is_no_list_of_labels():
    with pytest.raises(TypeError, match=r"ConfusionMatrix\(labels=15\): give a list of names or None, and"):
        ConfusionMatrix(15)
    with pytest.raises(TypeError, match="the classes' names, in the order of the indices; by default"):
        ConfusionMatrix("cat")


def test_a_confusion_matrix_is_registered_as_any_metric(tmp_path):
    shown = Tape()
    model = net()
    builder = classifier(tmp_path).metrics(Loss(), ConfusionMatrix()).num_epochs(1).renderer(shown)
    learner = builder.build(model, adam(model), None, batches(), batches())
    learner.fit()
    for split in ("train", "valid"):
        assert (tmp_path / split / "epoch-1" / "Confusion_Matrix.log").exists()


def test_what_a_metrics_update_is_called_with_is_asked_for_by_build(tmp_path):
    class Blind(metrics.Metric):
        name, needs, higher_is_better = "Blind", (), True

        def update(self):
            """The item is missing."""

    with pytest.raises(
        ConfigurationError, match=r"Blind.update: .*one argument, the item, and takes none; wri"
    ):
        built(tmp_path, metrics=Blind())


def test_a_metric_names_itself_and_what_it_takes():
    with pytest.raises(TypeError, match=r"^TopKAccuracy\(k='x'\): give a whole number, and not a str"):
        TopKAccuracy("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Accuracy\(pad_token=2.5\): give a whole number or None"):
        Accuracy(pad_token=2.5)  # type: ignore[arg-type]


def makes() -> list[tuple[type, str, dict[str, Any]]]:
    """Every parameter of every metric, with what the others need."""
    needed = {"beta": 1.0, "k": 2, "pad_token": 0}
    bases = (
        "Metric",
        "TextMetric",
        "Counted",
        "Ratio",
        "Reading",
        "AccumulatedText",
        "MetricGroup",
        "GpuReading",
    )
    found = []
    for name in metrics.__all__:
        kind = getattr(metrics, name)
        if isinstance(kind, type) and name not in (*bases, "StepContext", "GpuReading"):
            parameters = inspect.signature(kind).parameters.values()
            others = {each.name: needed.get(each.name) for each in parameters if each.default is each.empty}
            found += [(kind, each.name, others) for each in parameters]
    return found


def test_no_wrong_argument_of_a_metric_comes_as_an_error_from_within(tmp_path):
    """Made, registered, and measured for a step of each split."""
    learners = 0
    for kind, name, others in makes():
        for value in WRONG:
            try:
                metric = kind(**{**others, name: value})
                learner = built(tmp_path, metric_valid=metric)
                learner.run_until((1, "valid", 1))
                learners += 1
            except Exception as error:
                assert is_meant(error), f"{kind.__name__}({name}={value!r}): {error!r}"
    assert learners


# The builder's verbs -------------------------------------------------------------------------------------


def verbs() -> list[str]:
    return [
        name for name in dir(LearnerBuilder) if not name.startswith("_") and name not in ("build", "compile")
    ]


@pytest.mark.parametrize("verb", verbs())
def test_no_wrong_argument_of_a_builders_verb_comes_as_an_error_from_within(tmp_path, verb):
    usual = {"metric": "Loss", "patience": 2, "size": 4}
    parameters = list(inspect.signature(getattr(LearnerBuilder, verb)).parameters.values())[1:]
    needed = {
        each.name for each in parameters if each.default is each.empty and each.kind != each.VAR_POSITIONAL
    }
    for each in parameters:
        for value in WRONG:
            builder = classifier(tmp_path).metric_logger(Tape()).remote_control(False)
            named = {name: usual.get(name, 1) for name in needed - {each.name}}
            try:
                if each.kind == each.VAR_POSITIONAL:
                    getattr(builder, verb)(value)
                else:
                    getattr(builder, verb)(**{**named, each.name: value})
                if verb in ("devices", "precision", "grads_accumulation"):
                    builder.graph()
                model = net()
                builder.build(model, adam(model), None, batches()[:1], batches()[:1])
            except Exception as error:
                assert is_meant(error), f"{verb}({each.name}={value!r}): {error!r}"


@pytest.mark.parametrize("name", ["model", "optimizer", "lr_scheduler", "train", "valid"])
def test_no_wrong_argument_of_build_comes_as_an_error_from_within(tmp_path, name):
    for value in WRONG:
        model = net()
        given = {"model": model, "optimizer": adam(model), "train": batches()[:1], name: value}
        try:
            classifier(tmp_path).build(**given)
        except Exception as error:
            assert is_meant(error), f"build({name}={value!r}): {error!r}"


class OnlyTheEpoch:
    def save(self, epoch):
        """The state is missing."""

    def load(self):
        """Which one is missing."""


class Deaf:
    def handle(self):
        """The event is missing."""


def test_what_a_checkpointer_is_called_with_is_asked_for_by_build(tmp_path):
    with pytest.raises(ConfigurationError) as told:
        built(tmp_path, with_checkpointer=OnlyTheEpoch())
    save, load = told.value.mistakes
    assert save == (
        "with_checkpointer(an OnlyTheEpoch), its save: it is called with two arguments, the epoch and the "
        "state, and takes (epoch); write def save(self, epoch, state)"
    )
    assert load.endswith("and takes none; write def load(self, which)")


@pytest.mark.parametrize("verb", ["renderer", "metric_logger"])
def test_what_a_listener_is_called_with_is_asked_for_by_build(tmp_path, verb):
    said = r"Deaf\)?, its handle: it is called with one argument, the event, and takes none; write def handle"
    with pytest.raises(ConfigurationError, match=said):
        built(tmp_path, **{verb: Deaf()})


# A learner's verbs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda learner: learner.tools.lr_find(start="x"),
        lambda learner: learner.tools.lr_find(growth=None),
        lambda learner: learner.what_if(lr="x"),
        lambda learner: learner.what_if(betas=0.9),
        lambda learner: learner.what_if(clip_norm="x"),
        lambda learner: learner.what_if(train_step=lambda: 0),
        lambda learner: learner.tools.try_step(5),
        lambda learner: learner.tools.try_step(lambda batch: 0),
        lambda learner: learner.inspect(rank=None),
        lambda learner: learner.evaluate(batches(), metrics=5),
        lambda learner: learner.evaluate({"a": batches()}, metrics=Loss),
        lambda learner: setattr(learner, "num_epochs", None),
        lambda learner: setattr(learner, "num_epochs", "x"),
        lambda learner: learner.rewind(to="x"),
        lambda learner: learner.restore(2.5),
        lambda learner: learner.run_until("x"),
        lambda learner: learner.step("x"),
        lambda learner: learner.plot(5),
        lambda learner: learner.plot(torch.zeros(2)),
        lambda learner: learner.artifacts.plot(5),
        *(
            lambda learner, verb=verb, value=value: getattr(learner, verb)(epochs=value)
            for verb in ("fit", "start")
            for value in (torch.zeros(2), torch.zeros(1), "x", 2.5, True, 0, [1], float("nan"))
        ),
        *(
            lambda learner, value=value: learner.save(wait=value)
            for value in (torch.zeros(2), "x", None, 1.5)
        ),
    ],
)
def test_a_wrong_argument_of_a_learners_verb_is_said_in_words_and_moves_nothing(tmp_path, wrong):
    learner = built(tmp_path)
    learner.step()
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    with pytest.raises(Exception) as told:
        wrong(learner)
    assert is_meant(told.value), repr(told.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.model.state_dict().items())
    learner.fit()
    assert learner.status == "finished"
