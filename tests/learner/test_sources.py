"""Batches from a function, from an iterator that is used up, and from several loaders at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder
from notebook_learner.data import sources
from notebook_learner.data.cursor import Cursor
from notebook_learner.errors import ConfigurationError, DataError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs, as it loads
    from lightning.pytorch.utilities import CombinedLoader

pytestmark = pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")  # Lightning's, of torch

STEPS, EPOCHS = 6, 3


def by_its_own() -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from a generator of torch of its own."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randn(4, 3, generator=generator), torch.randn(4, 1, generator=generator)


def by_the_global() -> Iterator[tuple[Tensor, Tensor]]:
    """Batches that draw by turns with the steps."""
    for _ in range(STEPS):
        yield torch.randn(4, 3), torch.randn(4, 1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    if isinstance(batch, dict):
        return F.mse_loss(model(batch["a"][0]), batch["a"][1]) + model(batch["b"][0]).pow(2).mean()
    return F.mse_loss(model(batch[0]), batch[1])


def learner_on(source: Any, directory: Path, *, epochs: int = EPOCHS, **more: Any) -> Any:
    model = net()
    builder = LearnerBuilder(directory).train_step(loss_of).num_epochs(epochs).renderer("silent")
    builder = builder.with_file_checkpointer()
    if more.get("seed") is not None:
        builder = builder.seed(more["seed"])
    if more.get("resume"):
        builder = builder.resume()
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.05), None, source)
    torch.manual_seed(7)
    return learner


def by_hand(source: Callable[[], Any], epochs: int = EPOCHS) -> list[Tensor]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(7)
    for _ in range(epochs):
        for batch in source():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return bits(model)


def bits(model: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def straight(learner: Any, again: Callable[[], Any]) -> Any:
    learner.fit()
    return learner


def rewound(learner: Any, again: Callable[[], Any]) -> Any:
    learner.step(4)
    learner.rewind(3)
    learner.step(4)
    learner.rewind(1)
    learner.fit()
    return learner


def asked(learner: Any, again: Callable[[], Any]) -> Any:
    learner.step(3)
    learner.what_if(steps=2, lr=1.0)
    learner.fit()
    return learner


def resumed(learner: Any, again: Callable[[], Any]) -> Any:
    learner.step(4)
    learner.save()
    other: Any = again()
    other.fit()
    return other


ways = pytest.mark.parametrize("way", [straight, rewound, asked, resumed], ids=lambda way: way.__name__)


# A function ----------------------------------------------------------------------------------------------


@ways
def test_a_function_is_called_for_each_epoch(way: Callable[..., Any], tmp_path: Path) -> None:
    learner = way(learner_on(by_its_own, tmp_path), lambda: learner_on(by_its_own, tmp_path, resume=True))
    assert same(bits(learner.model), by_hand(by_its_own))


@ways
def test_a_seeded_function_may_draw_from_the_global_generators(
    way: Callable[..., Any], tmp_path: Path
) -> None:
    expected = learner_on(by_the_global, tmp_path / "straight", seed=3)
    expected.fit()
    learner = way(
        learner_on(by_the_global, tmp_path / "run", seed=3),
        lambda: learner_on(by_the_global, tmp_path / "run", seed=3, resume=True),
    )
    assert same(bits(learner.model), bits(expected.model))


def test_a_function_that_draws_by_turns_with_the_steps_is_told(tmp_path: Path, capsys: Any) -> None:
    model = net()
    builder = LearnerBuilder(tmp_path).train_step(loss_of).renderer("plain")
    builder.build(model, torch.optim.SGD(model.parameters(), lr=0.05), None, by_the_global).step(3)
    assert "draws by turns with the steps" in capsys.readouterr().out


def test_what_a_function_changes_goes_back(tmp_path: Path) -> None:
    calls: list[int] = []

    def batches() -> Any:
        calls.append(len(calls))
        return list(by_its_own())

    learner = learner_on(batches, tmp_path)
    learner.step(STEPS + 2)
    assert calls == [0, 1]
    learner.rewind(4)
    learner.step(4)
    assert calls == [0, 1]


def test_a_function_that_gives_one_batch_is_refused_in_words(tmp_path: Path) -> None:
    learner = learner_on(lambda: next(by_its_own()), tmp_path)
    with pytest.raises(DataError, match=r"yield get_batch\(\)"):
        learner.step()


def test_a_function_that_needs_an_argument_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="of type function"):
        learner_on(lambda epoch: [], tmp_path)


# An iterator that is used up -----------------------------------------------------------------------------


@ways
@pytest.mark.parametrize("make", [by_its_own, by_the_global])
@pytest.mark.parametrize(
    "kind", [lambda each: each, lambda each: iter(list(each)), lambda each: zip(each, strict=True)]
)
def test_a_generator_is_walked_once_and_its_batches_come_again(
    kind: Callable[[Any], Any], make: Callable[[], Any], way: Callable[..., Any], tmp_path: Path
) -> None:
    def source() -> Any:
        torch.manual_seed(2)
        made = kind(make())
        return made if not isinstance(made, zip) else (pair[0] for pair in made)

    made = source()
    learner = way(
        learner_on(made, tmp_path, epochs=1), lambda: learner_on(source(), tmp_path, epochs=1, resume=True)
    )
    if way is resumed and make is by_the_global:
        return  # a new generator draws in another place: it is told, see below
    model = net()
    given = source()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(7)
    for batch in given:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    assert same(bits(learner.model), bits(model))


def test_batches_that_are_let_go_are_told_before_they_are_missed(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_MOST", 2 * 4 * 16)  # two batches
    model = net()
    builder = LearnerBuilder(tmp_path).train_step(loss_of).renderer("plain")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.05), None, by_its_own())
    learner.step(4)
    assert "not in the state: the batches before the last" in capsys.readouterr().out
    before = bits(model)
    with pytest.raises(DataError, match="were kept"):
        learner.rewind(4)
        learner.step()
    assert before and same(before, before)


def test_a_resume_of_what_draws_by_turns_with_the_steps_is_told(tmp_path: Path, capsys: Any) -> None:
    model = net()
    builder = LearnerBuilder(tmp_path).train_step(loss_of).renderer("plain")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.05), None, by_the_global())
    learner.step(4)
    assert "return into an epoch (a resume) it may give another order" in capsys.readouterr().out


def test_an_iterator_for_several_epochs_is_told_at_once(tmp_path: Path, capsys: Any) -> None:
    model = net()
    builder = LearnerBuilder(tmp_path).train_step(loss_of).renderer("plain").num_epochs(2)
    builder.build(model, torch.optim.SGD(model.parameters(), lr=0.05), None, by_its_own())
    assert "a generator, can be walked only once, and the training has 2 epochs" in capsys.readouterr().out


def test_a_failed_step_has_its_batch_again(tmp_path: Path) -> None:
    trouble = [2]

    def step(model: nn.Module, batch: Any) -> Tensor:
        if trouble and not trouble[0]:
            trouble.clear()
            raise ValueError("once")
        if trouble:
            trouble[0] -= 1
        return loss_of(model, batch)

    model = net()
    builder = LearnerBuilder(tmp_path).train_step(step).renderer("silent").exactness("off")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.05), None, by_its_own())
    torch.manual_seed(7)
    with pytest.raises(ValueError, match="once"):
        learner.fit()
    learner.fit()
    assert same(bits(model), by_hand(by_its_own, epochs=1))


# Several loaders -----------------------------------------------------------------------------------------


def rows(count: int, *, labelled: bool = True) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    x, y = torch.randn(count, 3, generator=generator), torch.randn(count, 1, generator=generator)
    return TensorDataset(x, y) if labelled else TensorDataset(x)


def loaders(*, own: bool = False) -> dict[str, Any]:
    def generator(seed: int) -> Any:
        return torch.Generator().manual_seed(seed) if own else None

    return {
        "a": DataLoader(rows(30), batch_size=4, shuffle=True, generator=generator(1)),
        "b": DataLoader(rows(11, labelled=False), batch_size=4, shuffle=True, generator=generator(2)),
    }


@ways
@pytest.mark.parametrize("own", [False, True], ids=["global", "own"])
@pytest.mark.parametrize("seed", [None, 5])
def test_loaders_by_name_are_walked_together_and_exactly(
    seed: int | None, own: bool, way: Callable[..., Any], tmp_path: Path
) -> None:
    expected = learner_on(loaders(own=own), tmp_path / "straight", seed=seed)
    expected.fit()
    learner = way(
        learner_on(loaders(own=own), tmp_path / "run", seed=seed),
        lambda: learner_on(loaders(own=own), tmp_path / "run", seed=seed, resume=True),
    )
    assert same(bits(learner.model), bits(expected.model))


@ways
def test_the_shortest_ends_the_epoch_as_in_a_loop_over_zip(way: Callable[..., Any], tmp_path: Path) -> None:
    def source() -> Any:
        return CombinedLoader(loaders(), "min_size")

    def pairs() -> Iterator[Any]:
        both = loaders()
        for a, b in zip(both["a"], both["b"], strict=False):
            yield {"a": a, "b": b}

    learner = way(learner_on(source(), tmp_path), lambda: learner_on(source(), tmp_path, resume=True))
    assert same(bits(learner.model), by_hand(pairs))


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "min_size"])
@pytest.mark.parametrize("form", [dict, list, tuple])
def test_lightnings_combined_loader_gives_the_same_batches(form: type, mode: Any) -> None:
    def plain() -> Any:
        named = {
            "a": DataLoader(rows(30), batch_size=4),
            "b": DataLoader(rows(11, labelled=False), batch_size=4),
        }
        return named if form is dict else form(named.values())

    theirs = [batch for batch, _, _ in CombinedLoader(plain(), mode)]
    both = sources.Combined(plain(), mode)
    cursor = Cursor(both)
    cursor.begin(1)
    ours = [cursor.fetch() for _ in theirs]
    assert len(both) == len(theirs)
    assert all(map(equal, ours, theirs))
    assert cursor.fetch() is sources.END


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if one is None or other is None:
        return one is other
    return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    mode=st.sampled_from(sources.MODES),
    at=st.integers(0, 8),
)
@settings(max_examples=60, deadline=None)
def test_any_place_of_any_loaders_is_reached(lengths: list[int], mode: str, at: int) -> None:
    parts = [[10 * number + index for index in range(length)] for number, length in enumerate(lengths)]
    size = min(lengths) if mode == "min_size" else max(lengths)
    rounds = [part if mode != "max_size_cycle" else list(islice(cycle(part), size)) for part in parts]
    expected = [[part[step] if step < len(part) else None for part in rounds] for step in range(size)]
    cursor = Cursor(sources.Combined(parts, mode))
    cursor.begin(1)
    at = min(at, size)
    found = [cursor.fetch() for _ in range(at)]
    state = cursor.capture(at)
    again = Cursor(sources.Combined(parts, mode))
    again.restore(state)
    rest = []
    while (batch := again.fetch()) is not sources.END:
        rest.append(batch)
    assert found + rest == expected


def test_each_round_of_the_shorter_loader_has_each_of_its_samples(tmp_path: Path) -> None:
    cursor = Cursor(sources.Combined(loaders(), "max_size_cycle"))
    cursor.begin(1)
    batches = [cursor.fetch()["b"][0] for _ in range(6)]
    first, second = (torch.cat(batches[start : start + 3]) for start in (0, 3))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(0).values, second.sort(0).values)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (lambda: CombinedLoader(loaders(), "sequential"), "the mode 'sequential'"),
        (lambda: {}, "without loaders"),
        (lambda: {"a": 3}, "loader 0 is of type int"),
        (lambda: {"x": torch.ones(3)}, "of type dict; give an iterable of batches"),
    ],
)
def test_what_cannot_be_walked_together_is_refused_in_words(
    source: Callable[[], Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        learner_on(source(), tmp_path)


def test_a_loader_without_a_length_cannot_begin_again(tmp_path: Path) -> None:
    learner = learner_on({"a": loaders()["a"], "b": (batch for batch in [])}, tmp_path)
    with pytest.raises(DataError, match="each needs a length"):
        learner.step()


def test_several_loaders_do_not_validate(tmp_path: Path) -> None:
    model = net()
    builder = LearnerBuilder(tmp_path).train_step(loss_of).valid_step(loss_of)
    with pytest.raises(ConfigurationError, match=r"learner.evaluate\(loader, name='b'\)"):
        builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, loaders()["a"], loaders())


@pytest.mark.parametrize("way", [straight, rewound])
def test_loaders_with_workers_are_walked_together(way: Callable[..., Any], tmp_path: Path) -> None:
    def source() -> Any:
        return {
            name: DataLoader(each.dataset, batch_size=4, shuffle=True, num_workers=1)
            for name, each in loaders().items()
        }

    expected = learner_on(source(), tmp_path / "straight", epochs=2)
    expected.fit()
    learner = way(learner_on(source(), tmp_path / "run", epochs=2), lambda: None)
    assert same(bits(learner.model), bits(expected.model))


@pytest.mark.parametrize("make", [lambda: by_its_own, loaders], ids=["function", "loaders"])
def test_a_fork_has_its_own_source(make: Callable[[], Any], tmp_path: Path) -> None:
    expected = learner_on(make(), tmp_path / "straight")
    expected.fit()
    learner = learner_on(make(), tmp_path / "run")
    learner.step(4)
    child = learner.fork(tmp_path / "child")
    child.fit()
    learner.fit()
    assert same(bits(child.model), bits(expected.model))
    assert same(bits(learner.model), bits(expected.model))
