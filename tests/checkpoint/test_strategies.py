from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.checkpoint.info import CheckpointInfo
from notebook_learner.checkpoint.strategy import (
    DEFAULT,
    KeepAll,
    KeepAny,
    KeepBest,
    KeepEvery,
    KeepLast,
    Strategy,
    best_of,
    best_rule,
    resolved,
)
from notebook_learner.errors import ConfigurationError


def epoch(number: int, **valid: float) -> CheckpointInfo:
    return CheckpointInfo(str(number), number, 0, number * 10, metrics={"valid": valid})


def epochs(*losses: float | None) -> list[CheckpointInfo]:
    """One an epoch, with these losses; None for an epoch without."""
    return [
        epoch(number) if loss is None else epoch(number, Loss=loss)
        for number, loss in enumerate(losses, start=1)
    ]


LOSSES = st.lists(st.one_of(st.none(), st.floats(), st.sampled_from([0.5, 1.0])), max_size=12)
GAPPED = st.lists(st.integers(1, 60), unique=True, max_size=12).map(sorted)


@given(GAPPED, st.integers(1, 15))
def test_keep_last_keeps_the_last_ones(numbers: list[int], n: int) -> None:
    kept = KeepLast(n).keep([epoch(number) for number in numbers])
    assert kept == {str(number) for place, number in enumerate(numbers) if len(numbers) - place <= n}


@given(GAPPED, st.integers(1, 15))
def test_keep_every_keeps_the_multiples(numbers: list[int], n: int) -> None:
    kept = KeepEvery(n).keep([epoch(number) for number in numbers])
    assert kept == {str(number) for number in numbers if number in range(0, 61, n)}


@given(LOSSES, st.sampled_from([None, "min", "max"]), st.integers(1, 5))
def test_keep_best_keeps_those_that_fewer_than_n_are_better_than(
    losses: list[float | None], mode: Any, n: int
) -> None:
    def is_better(one: int, other: int) -> bool:
        a, b = losses[one], losses[other]
        assert a is not None
        assert b is not None
        return (a > b if mode == "max" else a < b) or (a == b and one < other)

    valued = [i for i, loss in enumerate(losses) if loss is not None and not math.isnan(loss)]
    wanted = {str(i + 1) for i in valued if sum(is_better(j, i) for j in valued) < n}
    if losses and not valued:
        wanted = {str(len(losses))}
    assert KeepBest(mode=mode, n=n).keep(epochs(*losses)) == wanted


@given(LOSSES)
def test_best_of_is_what_keep_best_keeps_one_of(losses: list[float | None]) -> None:
    found = best_of(epochs(*losses), KeepBest(n=3))
    valued = [loss for loss in losses if loss is not None and not math.isnan(loss)]
    if valued:
        assert found is not None
        assert found.label == str(losses.index(min(valued)) + 1)
        assert KeepBest().keep(epochs(*losses)) == {found.label}
    else:
        assert found is None


@given(
    GAPPED,
    st.lists(st.builds(KeepEvery, st.integers(1, 5)) | st.builds(KeepLast, st.integers(1, 5)), min_size=1),
)
def test_keep_any_is_the_union_and_keep_all_the_intersection(
    numbers: list[int], parts: list[Strategy]
) -> None:
    checkpoints = [epoch(number) for number in numbers]
    for info in checkpoints:
        by_each = [info.label in part.keep(checkpoints) for part in parts]
        assert (info.label in KeepAny(*parts).keep(checkpoints)) == any(by_each)
        assert (info.label in KeepAll(*parts).keep(checkpoints)) == all(by_each)


@given(GAPPED)
def test_keep_all_of_nothing_keeps_everything(numbers: list[int]) -> None:
    assert KeepAll().keep([epoch(number) for number in numbers]) == {str(number) for number in numbers}


@pytest.mark.parametrize("strategy", [KeepLast(), KeepBest(), KeepEvery(2), DEFAULT, KeepAll()], ids=repr)
def test_of_nothing_nothing_is_kept(strategy: Strategy) -> None:
    assert strategy.keep([]) == set()


def test_nan_is_never_best() -> None:
    assert KeepBest().keep(epochs(math.nan, 2.0, math.nan)) == {"2"}
    assert KeepBest(mode="max").keep(epochs(math.nan, 2.0, math.nan)) == {"2"}


def test_of_equal_ones_the_earliest_is_best() -> None:
    assert KeepBest().keep(epochs(2.0, 1.0, 1.0)) == {"2"}
    assert KeepBest(mode="max").keep(epochs(1.0, 2.0, 2.0)) == {"2"}


def test_without_any_value_the_last_is_kept_and_none_is_best() -> None:
    checkpoints = epochs(math.nan, None, math.nan)
    assert KeepBest("Loss").keep(checkpoints) == {"3"}
    assert KeepBest("Loss", "train").keep(checkpoints) == {"3"}
    assert best_of(checkpoints, KeepBest("Loss")) is None


def test_the_split_and_the_metric_are_the_ones_named() -> None:
    one = CheckpointInfo(
        "1", 1, 0, 0, metrics={"train": {"Loss": 1.0}, "valid": {"Loss": 9.0, "Accuracy": 0.5}}
    )
    two = CheckpointInfo(
        "2", 2, 0, 0, metrics={"train": {"Loss": 2.0}, "valid": {"Loss": 8.0, "Accuracy": 0.4}}
    )
    assert KeepBest("Loss", "train").keep([one, two]) == {"1"}
    assert KeepBest("Loss", "valid").keep([one, two]) == {"2"}
    assert KeepBest("Accuracy", mode="max").keep([one, two]) == {"1"}


def test_the_default_keeps_the_last_two_and_the_best() -> None:
    assert DEFAULT.keep(epochs(0.1, 0.5, 0.4, 0.3)) == {"1", "3", "4"}


def test_a_mode_of_its_own_outweighs_what_the_metric_says() -> None:
    assert KeepBest("A").resolved(True) == KeepBest("A", mode="max")
    assert KeepBest("A").resolved(False) == KeepBest("A", mode="min")
    assert KeepBest("A").resolved(None) == KeepBest("A", mode="min")
    assert KeepBest("A", mode="min").resolved(True) == KeepBest("A", mode="min")


class Mine:
    def keep(self, checkpoints: Sequence[CheckpointInfo], /) -> set[str]:
        return {checkpoints[0].label}


def test_ones_own_strategy_is_one_and_combines() -> None:
    mine = Mine()
    assert isinstance(mine, Strategy)
    combined = KeepAny(mine, KeepLast())
    assert combined.keep(epochs(1.0, 2.0, 3.0)) == {"1", "3"}
    assert resolved(combined, lambda split, name: None) == combined
    assert best_rule(combined) is None


def test_every_rule_inside_is_resolved_by_its_own_metric() -> None:
    strategy = KeepAny(KeepLast(2), KeepAll(KeepBest("Accuracy"), KeepBest("Loss", "train")))
    asked = []

    def higher_is_better(split: str, name: str) -> bool | None:
        asked.append((split, name))
        return name == "Accuracy"

    assert resolved(strategy, higher_is_better) == KeepAny(
        KeepLast(2), KeepAll(KeepBest("Accuracy", mode="max"), KeepBest("Loss", "train", mode="min"))
    )
    assert asked == [("valid", "Accuracy"), ("train", "Loss")]


def test_the_first_keep_best_inside_says_what_best_means() -> None:
    first = KeepBest("Accuracy")
    assert best_rule(KeepAny(KeepLast(), KeepAll(KeepEvery(2), first), KeepBest())) is first
    assert best_rule(KeepLast()) is None
    assert best_rule(DEFAULT) == KeepBest("Loss", "valid")


@pytest.mark.parametrize(
    "strategy",
    [
        KeepLast(2),
        KeepEvery(3),
        KeepBest("Accuracy", "train", "max", 2),
        DEFAULT,
        KeepAll(),
        KeepAll(KeepAny(KeepLast())),
    ],
    ids=repr,
)
def test_a_repr_reads_like_the_call_and_equality_is_by_value(strategy: Strategy) -> None:
    names = {kind.__name__: kind for kind in (KeepLast, KeepEvery, KeepBest, KeepAny, KeepAll)}
    again = eval(repr(strategy), names)
    assert again == strategy
    assert hash(again) == hash(strategy)


def test_the_same_parts_combined_in_another_way_are_not_equal() -> None:
    assert KeepAny(KeepLast()) != KeepAll(KeepLast())
    assert KeepAny(KeepLast(1)) != KeepAny(KeepLast(2))


def test_strategies_cannot_be_changed() -> None:
    for strategy, name in ((KeepLast(), "n"), (DEFAULT, "strategies")):
        with pytest.raises(AttributeError):
            setattr(strategy, name, 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: KeepLast(0), "n=0"),
        (lambda: KeepLast(True), "n=True"),
        (lambda: KeepLast("2"), "n='2'"),
        (lambda: KeepEvery(-1), "n=-1"),
        (lambda: KeepEvery(1.0), "n=1.0"),
        (lambda: KeepBest(""), "metric=''"),
        (lambda: KeepBest(3), "metric=3"),
        (lambda: KeepBest("Loss", "test"), "split='test'"),
        (lambda: KeepBest("Loss", mode="best"), "mode='best'"),
        (lambda: KeepBest("Loss", n=0), "n=0"),
        (lambda: KeepAny(), "KeepAll() keeps everything"),
        (lambda: KeepAny(KeepLast), "KeepLast is a class"),
        (lambda: KeepAll(3), "3 is not a strategy"),
    ],
)
def test_a_mistake_is_named(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert said in str(caught.value)
    assert "cannot be made" in str(caught.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        KeepBest("", "test", "up", 0)  # type: ignore[arg-type]
    assert len(caught.value.mistakes) == 4
