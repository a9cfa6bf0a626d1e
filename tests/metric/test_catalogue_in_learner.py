"""The catalogue in a learner: logs, history, rewinding, and a run that goes on from a file, all the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAUROC, MulticlassCohenKappa

from notebook_learner import ClassificationOutput, LearnerBuilder
from notebook_learner.metric import (
    AUCPR,
    AUROC,
    R2,
    RMSE,
    Accuracy,
    ConfusionMatrix,
    Dice,
    FBetaScore,
    Loss,
    Precision,
    Recall,
    TorchMetric,
)

TEXTS = ("Confusion_Matrix",)


def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 5, generator=generator), torch.randint(4, (size,), generator=generator))
        for size in (6, 6, 6, 6, 2)
    ]


def step(model, batch):
    output = model(batch[0])
    return ClassificationOutput(cross_entropy(output, batch[1]), output, batch[1])


def catalogue():
    hot = {"input": lambda item: (item.output[:, 0], item.targets.float())}
    metrics = [Loss(), Accuracy(), Precision(), Recall(), FBetaScore(), AUROC(), AUCPR(), Dice()]
    metrics += [R2(**hot), RMSE(**hot), TorchMetric(MulticlassCohenKappa(4), name="Kappa")]
    return [*metrics, TorchMetric(MulticlassAUROC(4), name="Their AUROC")]


def learner_in(directory, checkpoint=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 4)
    builder = (
        LearnerBuilder(directory)
        .train_step(step)
        .valid_step(step)
        .metrics(*catalogue())
        .metric_valid(ConfusionMatrix())
        .metric_train(ConfusionMatrix())
        .num_epochs(2)
        .with_file_checkpointer()
        .renderer("silent")
        .with_application_logger(False)
    )
    if checkpoint is not None:
        builder.checkpoint(checkpoint)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return builder.build(model, optimizer, train=batches(1), valid=batches(2))


def logs(directory):
    """Every metric's log file by its path, as bytes; of a text, which is told once a block, its last line."""
    found = sorted([*directory.glob("train/**/*.log"), *directory.glob("valid/**/*.log")])
    return {
        str(path.relative_to(directory)): path.read_bytes().splitlines()[-1 if path.stem in TEXTS else 0 :]
        for path in found
    }


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The logs of a run without an interruption."""
    directory = tmp_path_factory.mktemp("straight")
    learner_in(directory).fit()
    return logs(directory)


def test_every_metric_has_its_log_and_the_epochs_value_in_the_history(straight):
    names = {metric.name.replace(" ", "_") for metric in catalogue()} | {"Confusion_Matrix"}
    for split in ("train", "valid"):
        for epoch in (1, 2):
            found = {path.split("/")[-1] for path in straight if path.startswith(f"{split}/epoch-{epoch}/")}
            assert found == {f"{name}.log" for name in names}
    area, theirs = (straight[f"valid/epoch-2/{name}.log"] for name in ("AUROC_[Macro]", "Their_AUROC"))
    assert area[:5] == [b"NaN,0"] * 5
    finals = [float(lines[5].removesuffix(b",final")) for lines in (area, theirs)]
    assert finals[0] == pytest.approx(100 * finals[1], rel=1e-5)
    (text,) = straight["valid/epoch-2/Confusion_Matrix.log"]
    assert b"most confused: " in text


@pytest.mark.parametrize("done", [2, 7, 13])
def test_a_run_restored_in_the_middle_of_a_pass_writes_the_same_logs(tmp_path, straight, done):
    learner = learner_in(tmp_path)
    learner.step(done)
    state = learner.capture()
    learner.step(4)
    learner.restore(state)
    learner.fit()
    assert logs(tmp_path) == straight


@pytest.mark.parametrize("done", [2, 7])
def test_a_run_that_goes_on_from_a_file_writes_the_same_logs(tmp_path, straight, done):
    first = learner_in(tmp_path)
    first.step(done)
    first.save()
    first._replica.saving.close()  # threads do not die with a learner that is let go
    second = learner_in(tmp_path, "latest")
    second.fit()
    assert logs(tmp_path) == straight


def test_taking_steps_back_gives_the_same_values_again(tmp_path, straight):
    learner = learner_in(tmp_path)
    learner.step(9)
    learner.rewind(3)
    learner.fit()
    assert logs(tmp_path) == straight


def test_the_history_holds_the_values_of_the_logs(tmp_path):
    learner = learner_in(tmp_path)
    learner.fit()
    for metric in catalogue():
        name = metric.name
        path = tmp_path / "valid" / "epoch-2" / f"{name.replace(' ', '_')}.log"
        final = float(path.read_text().splitlines()[-1].removesuffix(",final"))
        assert learner.history.final(name, "valid", 2) == pytest.approx(final, rel=0, nan_ok=True)
