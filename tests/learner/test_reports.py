"""What the stepping verbs show at the end of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_support import bench
from IPython.core.interactiveshell import InteractiveShell
from torch.utils._python_dispatch import TorchDispatchMode

from notebook_learner import Position
from notebook_learner.run.step_reports import RewindReport, StepReport

AT = Position(1, "train", 3, 3, 5)


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (StepReport(AT, 1, "train"), "1 step taken, now at epoch 1, train, step 3 of 5"),
        (
            StepReport(AT, 1200, "valid", {"Loss": 0.123456, "Accuracy": 50.0}),
            "1,200 steps taken, now at epoch 1, train, step 3 of 5; valid: Loss 0.1235, Accuracy 50 "
            "(last step)",
        ),
        (StepReport(AT, 2, "train", why="stop"), "2 steps taken, stopped at epoch 1, train, step 3 of 5"),
        (
            StepReport(AT, 2, "train", why="finished"),
            "2 steps taken, training is finished, at epoch 1, train, step 3 of 5",
        ),
        (
            StepReport(AT, 1, "train", {"Loss": float("nan")}),
            "1 step taken, now at epoch 1, train, step 3 of 5; train: Loss nan (last step)",
        ),
        (
            StepReport(AT, 0, "train", why="finished"),
            "no step taken: training is finished, at epoch 1, train, step 3 of 5; "
            "fit(epochs=n) trains n more",
        ),
        (RewindReport(AT, AT, 1, 0.0), "rewound to epoch 1, train, step 3 of 5 (1 step replayed, exact)"),
        (
            RewindReport(AT, Position(1, "valid", 0), 2, 0.0, only_validation=True),
            "rewound to epoch 1, valid, step 0 (2 steps replayed, exact); only steps of validation were "
            'taken back, in which a new learning rate has no effect: rewind(n, of="train") counts '
            "training steps",
        ),
        (
            RewindReport(AT, AT, 12, 0.001234),
            "rewound to epoch 1, train, step 3 of 5 (12 steps replayed, but the replay drifted by 0.00123)",
        ),
    ],
)
def test_a_report_reads_as_a_sentence_in_print_and_in_a_notebook(report: object, text: str) -> None:
    shown, _ = InteractiveShell.instance().display_formatter.format(report)
    assert str(report) == repr(report) == shown["text/plain"] == text


def test_a_report_is_a_value() -> None:
    with pytest.raises(AttributeError):
        StepReport(AT, 1, "train").steps = 2  # type: ignore[misc]


def test_any_drift_is_not_exact() -> None:
    assert RewindReport(AT, AT, 1, 0.0).exact
    assert not RewindReport(AT, AT, 1, float("inf")).exact


class NoOperation(TorchDispatchMode):
    """Fails at whatever would touch a tensor, on whatever device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise AssertionError(f"{func} was called")


@pytest.mark.parametrize("steps", [0, 3, 99])
def test_showing_a_learner_touches_no_tensor(steps: int, tmp_path: Path) -> None:
    learner = bench(tmp_path).learner
    report = learner.step(steps) if steps else None
    with NoOperation():
        shown = repr(learner), repr(report), str(learner.position), str(learner.summary()), learner.status
    assert shown[0].startswith(f"Learner({learner.status}, {learner.position}; Net, 99 parameters, ")


def test_what_would_touch_a_tensor_is_noticed(tmp_path: Path) -> None:
    learner = bench(tmp_path).learner
    with pytest.raises(AssertionError, match="was called"), NoOperation():
        repr(learner.model.body[0].weight.sum())  # type: ignore[index, union-attr]
