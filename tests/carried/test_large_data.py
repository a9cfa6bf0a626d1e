"""Large data in memory cost no copy; where steps change them, it is told, and they are kept from then on."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from carried_support import Notices, weights
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.carried import memory, untouched
from notebook_learner.carried.untouched import checksum

LARGE = 5_000_000
"""Numbers: 20 MB."""
WHERE = LARGE // 2 + 12_345
"""A place that a look at some of the numbers does not see."""


@pytest.fixture(autouse=True)
def the_thread_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine 50 ms are over before the thread begins, and an early change is missed."""
    monkeypatch.setattr(untouched, "_BEFORE", 30.0)
    monkeypatch.setattr(untouched, "_PATIENCE", 30.0)


def learner_over(
    directory: Path, data: Any, write: Callable[[int], None], epochs: int = 4
) -> tuple[Learner, Notices]:
    """Its steps read the data, and count and write in step 6, which is in the second of its epochs."""
    torch.manual_seed(0)
    model, shown, steps = nn.Linear(4, 2), Notices(), torch.zeros(())

    def step(model: nn.Module, batch: Any) -> Tensor:
        steps.add_(1)
        if data is not None:
            write(int(steps))
        x, y = batch
        return F.cross_entropy(model(x), y)

    batches = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 5
    builder = LearnerBuilder(directory).train_step(step).num_epochs(epochs).metrics().renderer(shown)
    builder.with_file_checkpointer()
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches), shown


def told(shown: Notices) -> list[str]:
    return [text for text in shown.texts if text.startswith("not in the state")]


def test_an_array_that_steps_change_is_told_at_the_next_checkpoint_and_kept_from_then_on(
    tmp_path: Path,
) -> None:
    data = np.zeros(LARGE, np.float32)

    def write(step: int) -> None:
        if step >= 6:
            data[WHERE] = step

    learner, shown = learner_over(tmp_path, data, write)
    learner.run_until((1, "train", 5))
    assert not told(shown)
    learner.run_until((3, "train", 1))  # beyond the checkpoint of the epoch in which it changed
    learner.step(1)
    (line,) = told(shown)
    assert "data (ndarray, 20 MB) was taken to be read only" in line and "kept from now on" in line
    now = float(data[WHERE])
    learner.step(2)
    assert data[WHERE] == now + 2
    learner.rewind(2)
    assert data[WHERE] == now
    assert learner.carried["data"].kept == "by value"


def test_a_tensor_that_is_written_behind_torchs_back_is_told(tmp_path: Path) -> None:
    data = torch.zeros(LARGE)

    def write(step: int) -> None:
        if step == 6:
            data.numpy()[WHERE] = step

    learner, shown = learner_over(tmp_path, data, write)
    learner.fit()
    (line,) = told(shown)
    assert "data (Tensor, 20 MB)" in line


def test_a_table_that_steps_change_is_told(tmp_path: Path) -> None:
    data = pd.DataFrame({"a": np.zeros(1000), "b": ["x"] * 1000})

    def write(step: int) -> None:
        if step == 6:
            data.loc[7, "a"] = 1.0

    learner, shown = learner_over(tmp_path, data, write)
    learner.fit()
    (line,) = told(shown)
    assert "data (DataFrame): has changed, and tables are not copied; a rewind will not take it back" in line
    assert ".carry(data=...)" in line


KINDS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.zeros(LARGE),
    "array": lambda: np.zeros(LARGE, np.float32),
    "view": lambda: np.zeros((10, LARGE), np.float32)[::2, : LARGE // 2],
    "table": lambda: pd.DataFrame({"a": np.zeros(LARGE, np.float32), "b": np.arange(LARGE)}),
    "strings": lambda: [f"sentence {number}" for number in range(1_000_000)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_only_read_costs_no_copy_and_is_not_named(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind]()
    learner, shown = learner_over(tmp_path, data, lambda step: None)
    gc.collect()
    tracemalloc.start()
    learner.step(2)
    learner.rewind(1)
    learner.fit()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < (17e6 if kind == "strings" else 4e6), "strings: references to them, and no copy"
    assert not told(shown)


def test_what_the_user_changes_between_steps_is_not_named(tmp_path: Path) -> None:
    data = np.zeros(LARGE, np.float32)
    learner, shown = learner_over(tmp_path, data, lambda step: None)
    learner.step(6)
    data[:] = 1.0
    learner.fit()
    assert not told(shown)


@pytest.mark.parametrize("value", ["another", 3, np.zeros(3), None], ids=repr)
def test_a_long_list_of_texts_is_kept_whatever_steps_put_into_it(value: Any, tmp_path: Path) -> None:
    data = [f"sentence {number}" for number in range(5_000)]
    before = list(data)

    def write(step: int) -> None:
        data[step] = value

    learner, shown = learner_over(tmp_path, data, write)
    learner.step(3)
    assert data[3] is value
    learner.rewind(2)
    assert data[1] is value and data[2:] == before[2:]
    assert not told(shown)


def test_verify_names_large_data_that_the_steps_change(tmp_path: Path) -> None:
    data = np.zeros(LARGE, np.float32)

    def write(step: int) -> None:
        data[WHERE] += step

    learner, _ = learner_over(tmp_path, data, write)
    report = learner.verify(2)
    assert not report.exact and report.differs is not None
    assert report.differs.what.endswith("data") and "taken to be read only" in report.differs.cause
    assert learner.verify(2).exact, "it is kept from then on"


def test_where_no_thread_compares_a_change_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untouched, "checksum", lambda live: 0)
    data = np.zeros(LARGE, np.float32)

    def write(step: int) -> None:
        data[WHERE] = step

    learner, shown = learner_over(tmp_path, data, write)
    learner.fit()
    assert not told(shown)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_a_checksum_sees_a_change_of_one_number_anywhere(dtype: torch.dtype, monkeypatch: Any) -> None:
    monkeypatch.setattr(untouched, "_PIECE", 64)
    for shape in [(), (1,), (7, 3), (100,)]:
        for live in (torch.zeros(shape, dtype=dtype), torch.zeros(*shape, 2, dtype=dtype)[..., 0]):
            before = checksum(live)
            assert checksum(live.clone()) == before
            for place in range(live.numel()):
                changed = live.clone().contiguous()
                changed.view(-1)[place] = 1
                assert checksum(changed) != before


def test_a_checksum_sees_other_objects_and_other_columns() -> None:
    objects = np.array(["a", None, {}], dtype=object)
    before = checksum(objects)
    objects[1] = 3
    assert checksum(objects) != before
    table = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": pd.Categorical(["u", "v"])})
    before = checksum(table)
    assert checksum(table) == before
    for name, value in (("a", 5), ("b", "z"), ("c", "u")):
        other = table.copy()
        other.loc[1, name] = value
        assert checksum(other) != before, name


def test_small_data_are_kept_at_once(tmp_path: Path) -> None:
    data = np.zeros(1000, np.float32)
    assert data.nbytes < memory.FREE

    def write(step: int) -> None:
        data[step] = step

    learner, shown = learner_over(tmp_path, data, write)
    learner.step(6)
    learner.rewind(3)
    assert data[3] == 3 and not data[4:].any()
    assert not told(shown)
    assert weights(learner).isfinite().all()


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("count", [20, 1200])
def test_batches_that_steps_change_in_place_come_back_or_are_named(
    count: int, changes: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    batches = [(torch.rand(2, 4) * 255, torch.tensor([0, 1])) for _ in range(count)]
    model, shown = nn.Linear(4, 2), Notices()

    def step(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(x.div_(255) if changes else x / 255), y)

    builder = LearnerBuilder(tmp_path).train_step(step).metrics().renderer(shown)
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches)
    learner.step(3)
    learner.rewind(2)
    assert (float(batches[2][0].max()) <= 1) == (changes and count == 1200)
    lines = told(shown)
    assert len(lines) == (changes and count == 1200)
    for line in lines:
        assert "batches of the train data (list): steps change them in place" in line
        assert line.endswith("a rewind will not take it back. Let the step change a copy")
    learner.step(3)
    assert len(told(shown)) == len(lines)
    assert "train data" not in [row.name for row in learner.carried if row.kept == "by value"] or count == 20
