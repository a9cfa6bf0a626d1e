"""The names users write. Tutorials and other people's code hold on to them."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

import pytest
import torch
from torch import nn

import notebook_learner
from notebook_learner import Learner, LearnerBuilder

PUBLIC = {
    "notebook_learner": """
        Learner LearnerBuilder Paused Artifacts Evaluator
        TrainOutput ClassificationOutput MultiLabelClassificationOutput RegressionOutput SequenceOutput
    """,
    "notebook_learner.metric": """
        Metric Accuracy Loss LearningRate TopKAccuracy IterationSpeed CpuUse CpuMemory CudaMetric GradNorm
        CharErrorRate WordErrorRate BleuScore RougeLScore Perplexity Prediction SequenceMetric Counted
        Precision Recall FBetaScore AUROC AUCPR HammingScore ConfusionMatrix AccumulatedText TorchMetric
        MeanAbsoluteError MeanSquaredError RMSE R2 Dice PSNR SSIM MSSSIM
        SamplesPerSecond CpuTemperature GpuReading DataWait
    """,
    "notebook_learner.checkpoint": """
        Hdf5Recorder CompactRecorder NamedMpkGzRecorder SafetensorsRecorder
        KeepLast KeepBest KeepEvery KeepAny KeepAll save load
    """,
    "notebook_learner.artifacts": "Artifacts",
    "notebook_learner.breakpoint": """
        NonFinite LossSpike GradNorm UpdateRatio DeadUnits MetricIs AtStep EveryNSteps When Moment
    """,
    "notebook_learner.inspection": "Inspection Culprit look trace_non_finite",
    "notebook_learner.remote": "Answer control",
}

BUILDER_VERBS = """
    metric_train metric_valid metric_train_numeric metric_valid_numeric metrics
    metric_logger renderer with_application_logger
    num_epochs with_batch_size grads_accumulation devices precision clip_gradients compile graph ema seed
    loss train_step valid_step step_scheduler early_stopping keyframes checkpoint build carry exactness
    with_file_checkpointer with_checkpointing_strategy autosave remote_control break_on
"""

LEARNER_NAMES = """
    fit start wait pause resume stop paused
    step step_epoch run_until rewind capture restore save checkpoints artifacts
    status position num_epochs history model ema_model optimizer scheduler batch output plot summary
    breakpoints hit inspect what_if fork log locals evaluate evaluations predict detach take_back
    devices tools carried verify split_batch
"""
FORMER = "freeze lr_find note reload_code try_step use_step"
TOOLS = " ".join(
    sorted(f"ask branches ema_model evaluations go_to panel split_batch timeline {FORMER}".split())
)
MOVED_NAMES = {
    "fleet": "learner.devices",
    "restart": "learner.devices.restart()",
    **{name: f"learner.tools.{name}(" for name in FORMER.split()},
}

PACKAGES = [
    "notebook_learner",
    *(
        f"notebook_learner.{name}"
        for name in (
            "artifacts",
            "breakpoint",
            "checkpoint",
            "event",
            "inspection",
            "logger",
            "metric",
            "remote",
            "renderer",
            "store",
        )
    ),
]


def public_members(cls):
    """Methods and properties of `cls`, its bases' too, that it does not hide."""
    members = {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {
        name: member for name, member in members.items() if callable(member) or isinstance(member, property)
    }


@pytest.fixture
def learner(tmp_path):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    return LearnerBuilder(tmp_path).loss(nn.functional.mse_loss).build(model, optimizer)


@pytest.mark.parametrize(
    ("package", "name"), [(p, name) for p, names in PUBLIC.items() for name in names.split()]
)
def test_name_is_public(package, name):
    module = importlib.import_module(package)
    assert name in module.__all__
    assert getattr(module, name).__name__ == name


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_importable(package):
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_and_function_says_what_it_is(package):
    module = importlib.import_module(package)
    things = [getattr(module, name) for name in module.__all__]
    silent = [
        thing.__name__
        for thing in things
        if (inspect.isclass(thing) or inspect.isfunction(thing))
        and not vars(thing).get("__doc__", thing.__doc__)
    ]
    assert silent == []


def test_star_import_brings_the_public_names_and_nothing_else():
    scope = {}
    exec("from notebook_learner import *", scope)
    assert sorted(scope.keys() - {"__builtins__"}) == list(notebook_learner.__all__)


@pytest.mark.parametrize("verb", BUILDER_VERBS.split())
def test_builder_has_the_verb(verb):
    assert callable(getattr(LearnerBuilder, verb))


@pytest.mark.parametrize("cls", [LearnerBuilder, Learner])
def test_every_public_member_has_a_docstring(cls):
    assert len(public_members(cls)) > 20
    assert [name for name, member in public_members(cls).items() if not member.__doc__] == []


@pytest.mark.parametrize("cls", [LearnerBuilder, Learner])
def test_every_public_member_says_what_it_returns(cls):
    functions = {
        name: member.fget if isinstance(member, property) else member
        for name, member in public_members(cls).items()
    }
    assert [name for name, function in functions.items() if "return" not in function.__annotations__] == []


def test_every_builder_verb_but_build_can_be_chained():
    answers = {
        name: member.__annotations__["return"]
        for name, member in public_members(LearnerBuilder).items()
        if name != "build"
    }
    assert set(answers.values()) == {"Self"}


@pytest.mark.parametrize("name", LEARNER_NAMES.split())
def test_learner_has_the_name(learner, name):
    assert hasattr(learner, name)


def test_a_learner_shows_at_most_forty_names():
    assert len([name for name in dir(Learner) if not name.startswith("_")]) <= 42


def test_what_is_rare_lies_in_a_namespace_that_completes(learner):
    assert [name for name in dir(learner.tools) if not name.startswith("_")] == TOOLS.split()
    assert {"restart"} <= {name for name in dir(learner.devices) if not name.startswith("_")}


@pytest.mark.parametrize("name", MOVED_NAMES)
def test_a_name_that_a_learner_had_once_says_where_it_is(learner, name):
    with pytest.raises(AttributeError) as caught:
        getattr(learner, name)
    assert MOVED_NAMES[name] in str(caught.value) and caught.value.name == name


def test_two_values_of_the_namespace_are_still_read_from_the_learner(learner):
    assert learner.evaluations == learner.tools.evaluations == {}
    assert learner.ema_model is learner.tools.ema_model is None


def test_the_builder_s_verb_for_devices_is_no_verb_of_a_learner(learner):
    with pytest.raises(TypeError, match=r"devices\(\.\.\.\) is a verb of LearnerBuilder"):
        learner.devices(["cpu"])


def test_the_version_is_the_packages():
    assert notebook_learner.__version__ == importlib.metadata.version("notebook_learner")
