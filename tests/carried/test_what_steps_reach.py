"""What a step reaches outside of model, optimizer and loaders is part of the state, kind by kind."""

from __future__ import annotations

import itertools
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from carried_support import Notices, weights
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.carried.heap import Heap

EPOCHS, BATCHES, SIZE = 2, 5, 8


class Net(nn.Module):
    """A model whose output depends on a value that `turn` gives, and changes."""

    def __init__(self, turn: Callable[[], float]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2))
        self.turn = turn

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * (1 + self.turn() / 10)


def plain_step(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


# The kinds: each makes a function that returns another number each time ------------------------------


def counter_of_a_closure() -> Callable[[], float]:
    count = 0

    def turn() -> float:
        nonlocal count
        count += 1
        return count

    return turn


TOTAL = 0


def counter_of_a_module() -> Callable[[], float]:
    global TOTAL
    TOTAL = 0

    def turn() -> float:
        global TOTAL
        TOTAL += 1
        return TOTAL

    return turn


def of_value(value: Any, change: Callable[[Any], float]) -> Callable[[], float]:
    return lambda: change(value)


def appended(items: Any) -> float:
    items.append(len(items) + 1)
    return float(sum(items))


def replaced_list() -> Callable[[], float]:
    held = {"items": [1, 2]}

    def turn() -> float:
        held["items"].append(len(held["items"]))
        held["items"] = held["items"][-4:]
        return sum(held["items"])

    return turn


def added(items: set[int]) -> float:
    items.add(len(items))
    return float(len(items))


def counted(counts: Any) -> float:
    counts["steps"] += 1
    return float(counts["steps"])


def turned(order: OrderedDict[str, float]) -> float:
    order.move_to_end(next(iter(order)))
    return next(iter(order.values()))


class Transition(NamedTuple):
    state: Any
    reward: float


def remembered(buffer: deque[Any]) -> float:
    number = float(len(buffer) and buffer[-1].reward)
    buffer.append(Transition(np.full(3, number), number + 1))
    return float(sum(each.state.sum() for each in buffer)) / 100


@dataclass
class Mean:
    value: float = 0.0
    seen: int = 0


def averaged(mean: Mean) -> float:
    mean.seen += 1
    mean.value += (mean.seen % 3 - mean.value) / mean.seen
    return mean.value


class Slotted:
    __slots__ = ("level",)

    def __init__(self) -> None:
        self.level = 0.5


def raised(slotted: Slotted) -> float:
    slotted.level = 3.7 * slotted.level * (1 - slotted.level)
    return slotted.level


class Stack(list[int]):
    """A list with an attribute."""

    pushed = 0


def pushed(stack: Stack) -> float:
    stack.pushed += 2
    stack.append(stack.pushed)
    return float(sum(stack[-3:]))


def written_in_place(tensor: Tensor) -> float:
    tensor[int(tensor[0]) % 3 + 1] += 1
    tensor[0] += 1
    return float(tensor.sum())


def tensor_that_is_replaced() -> Callable[[], float]:
    hidden = torch.zeros(3)

    def turn() -> float:
        nonlocal hidden
        hidden = hidden * 0.5 + 1
        return float(hidden.sum())

    return turn


def view_and_base() -> Callable[[], float]:
    base = torch.zeros(4, 2)
    row = base[1]

    def turn() -> float:
        row.add_(1)
        return float(base.sum())

    return turn


def array_in_place(array: Any) -> float:
    array[int(array[0]) % 3 + 1] += 1
    array[0] += 1
    return float(array.sum())


def other_network() -> Callable[[], float]:
    critic = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.1)

    def turn() -> float:
        with torch.enable_grad():
            loss = (critic(torch.ones(3)) - 2).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    return turn


def function_attribute() -> Callable[[], float]:
    def turn() -> float:
        turn.calls += 1  # type: ignore[attr-defined]
        return turn.calls  # type: ignore[attr-defined, no-any-return]

    turn.calls = 0  # type: ignore[attr-defined]
    return turn


def default_argument() -> Callable[[], float]:
    def turn(seen: list[int] = []) -> float:  # noqa: B006  (what is tested)
        seen.append(1)
        return len(seen)

    return turn


def iterator(make: Callable[[], Any]) -> Callable[[], float]:
    numbers = make()
    return lambda: float(next(numbers))


def made_again() -> Callable[[], float]:
    held: dict[str, Any] = {"numbers": iter(())}

    def turn() -> float:
        for number in held["numbers"]:
            return float(number)
        held["numbers"] = iter([3, 1, 4, 2, 7, 5, 9])
        return float(next(held["numbers"]))

    return turn


class SaysItself:
    def __init__(self) -> None:
        self._numbers = (number for number in range(1000))
        self._at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]

    def move(self) -> float:
        self._at += 1
        return self._at


class OfAClass:
    count = 0


def class_attribute() -> Callable[[], float]:
    OfAClass.count = 0

    def turn() -> float:
        OfAClass.count += 1
        return OfAClass.count

    return turn


def shared_by_two() -> Callable[[], float]:
    one: list[float] = [0.0]
    both = {"a": one, "b": one}

    def turn() -> float:
        both["a"].append(1.0)
        assert both["a"] is both["b"], "the two holders share it"
        return sum(both["b"])

    return turn


def in_a_cycle() -> Callable[[], float]:
    ring: dict[str, Any] = {"n": 0}
    ring["self"] = ring

    def turn() -> float:
        ring["self"]["n"] += 1
        return ring["n"]

    return turn


def torch_generator() -> Callable[[], float]:
    generator = torch.Generator().manual_seed(5)
    return lambda: float(torch.rand((), generator=generator))


KINDS: dict[str, Callable[[], Callable[[], float]]] = {
    "variable of a closure": counter_of_a_closure,
    "global variable": counter_of_a_module,
    "list": lambda: of_value([1.0], appended),
    "deque": lambda: of_value(deque([1.0], maxlen=4), appended),
    "namespace": lambda: of_value(SimpleNamespace(items=[1.0]), lambda space: appended(space.items)),
    "list that is replaced": replaced_list,
    "set": lambda: of_value(set(), added),
    "Counter": lambda: of_value(Counter(), counted),
    "defaultdict": lambda: of_value(defaultdict(int), counted),
    "OrderedDict": lambda: of_value(OrderedDict(zip("abcdefg", map(float, range(7)), strict=True)), turned),
    "replay buffer": lambda: of_value(deque(maxlen=6), remembered),
    "dataclass": lambda: of_value(Mean(), averaged),
    "slots": lambda: of_value(Slotted(), raised),
    "subclass of list": lambda: of_value(Stack(), pushed),
    "class attribute": class_attribute,
    "function attribute": function_attribute,
    "default argument": default_argument,
    "tensor in place": lambda: of_value(torch.zeros(4), written_in_place),
    "tensor that is replaced": tensor_that_is_replaced,
    "view and base": view_and_base,
    "array": lambda: of_value(np.zeros(4), array_in_place),
    "torch.Generator": torch_generator,
    "numpy Generator": lambda: of_value(np.random.default_rng(1), lambda it: float(it.normal())),
    "RandomState": lambda: of_value(np.random.RandomState(1), lambda it: float(it.rand())),
    "Random": lambda: of_value(random.Random(1), lambda it: it.random()),
    "other network and optimizer": other_network,
    "count": lambda: iterator(itertools.count),
    "cycle": lambda: iterator(lambda: itertools.cycle([1, 2, 4, 8, 3, 5, 7])),
    "cycle that has come round": lambda: iterator(lambda: itertools.cycle([1, 2])),
    "list iterator": lambda: iterator(lambda: iter(list(range(100)))),
    "iterators of the step's making": made_again,
    "chain": lambda: iterator(lambda: itertools.chain(range(3), range(100))),
    "object with state_dict": lambda: of_value(SaysItself(), lambda it: it.move()),
    "shared by two": shared_by_two,
    "cycle of references": in_a_cycle,
}


# The program -----------------------------------------------------------------------------------------


def program(
    directory: Path, kind: str, *, resume: bool = False, shown: Notices | None = None, seed: int | None = None
) -> Learner:
    """Everything anew, as in a new kernel."""
    torch.manual_seed(0)
    model = Net(KINDS[kind]())
    data = TensorDataset(torch.randn(BATCHES * SIZE, 4), torch.randint(0, 2, (BATCHES * SIZE,)))
    builder = LearnerBuilder(directory).train_step(plain_step).num_epochs(EPOCHS).metrics()
    builder.renderer(shown or "silent").with_file_checkpointer()
    if seed is not None:
        builder.seed(seed)
    if resume:
        builder.resume()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    return builder.build(model, optimizer, None, DataLoader(data, SIZE, shuffle=True))


def straight(directory: Path, kind: str) -> Tensor:
    learner = program(directory, kind)
    learner.fit()
    return weights(learner)


def disturbed(learner: Learner) -> Tensor:
    """Taken back and forth before it is trained to its end."""
    learner.step(3)
    learner.rewind(2)
    learner.step(4)
    learner.what_if(2, lr=0.5)
    learner.tools.try_step()
    learner.inspect()
    state = learner.capture()
    learner.step(2)
    learner.restore(state)
    learner.step(1)
    learner.rewind(3)
    learner.fit()
    return weights(learner)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_taken_back_and_forth_ends_like_the_straight_one(kind: str, tmp_path: Path) -> None:
    notices = Notices()
    end = disturbed(program(tmp_path / "disturbed", kind, shown=notices))
    assert torch.equal(end, straight(tmp_path / "straight", kind))
    assert not [text for text in notices.texts if text.startswith("not in the state")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_like_the_straight_one(kind: str, tmp_path: Path) -> None:
    notices = Notices()
    first = program(tmp_path / "resumed", kind)
    first.step(3)
    first.rewind(1)
    first.save()
    first.step(2)
    second = program(tmp_path / "resumed", kind, resume=True, shown=notices)
    assert second.position.step == 2
    second.step(4)  # beyond the end of the epoch, which is saved
    third = program(tmp_path / "resumed", kind, resume=True, shown=notices)
    assert third.position.epoch == 2
    third.step(1)
    third.save()
    fourth = program(tmp_path / "resumed", kind, resume=True, shown=notices)
    fourth.fit()
    assert torch.equal(weights(fourth), straight(tmp_path / "straight", kind))
    assert not [text for text in notices.texts if "no place" in text or "not in the state" in text]


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_engine_puts_nothing_back_the_comparison_notices(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = straight(tmp_path / "straight", kind)
    monkeypatch.setattr(Heap, "give", lambda *_, **__: None)
    assert not torch.equal(disturbed(program(tmp_path / "disturbed", kind)), expected)


def test_it_equals_a_loop_by_hand(tmp_path: Path) -> None:
    kind = "other network and optimizer"
    torch.manual_seed(0)
    model = Net(KINDS[kind]())
    data = TensorDataset(torch.randn(BATCHES * SIZE, 4), torch.randint(0, 2, (BATCHES * SIZE,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    loader = DataLoader(data, SIZE, shuffle=True)
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            plain_step(model, batch).backward()
            optimizer.step()
    by_hand = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert torch.equal(disturbed(program(tmp_path, kind)), by_hand)


def test_objects_stay_the_same_objects(tmp_path: Path) -> None:
    buffer: deque[float] = deque([1.0], maxlen=4)
    KINDS["mine"] = lambda: of_value(buffer, appended)
    try:
        learner = program(tmp_path, "mine")
    finally:
        del KINDS["mine"]
    learner.step(3)
    held = list(buffer)
    learner.step(1)
    learner.rewind(1)
    assert list(buffer) == held


# Settings, samplers, hooks, flags ---------------------------------------------------------------------


SCALE = 1.0


def scaled(model: nn.Module, batch: Any) -> Tensor:
    return plain_step(model, batch) * SCALE


def test_what_the_user_sets_between_steps_stays_after_a_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = program(tmp_path, "list")
    learner.tools.use_step("train", scaled)
    learner.step(3)
    monkeypatch.setattr(f"{__name__}.SCALE", 0.5)
    learner.step(1)
    learner.rewind(3)
    assert SCALE == 0.5


def test_what_a_step_freezes_thaws_again_on_the_way_back(tmp_path: Path) -> None:
    def freezing(model: Any, batch: Any) -> Tensor:
        if learner.position.step == 2:
            model.body[0].weight.requires_grad_(False)
        return plain_step(model, batch)

    learner = program(tmp_path, "list")
    learner.tools.use_step("train", freezing)
    learner.step(4)
    weight = learner.model.body[0].weight  # type: ignore[union-attr, index]
    assert not weight.requires_grad
    learner.rewind(3)
    assert weight.requires_grad


@pytest.mark.parametrize("back", ["rewind", "resume", "resume in validation"])
def test_a_module_that_a_step_puts_in_eval_mode_trains_again_on_the_way_back(
    back: str, tmp_path: Path
) -> None:
    def made(name: str, resume: bool = False) -> Learner:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
        calls = [0]

        def step(model: Any, batch: Any) -> Tensor:
            calls[0] += 1
            if calls[0] in (4, 8):
                model[1].train(calls[0] == 8)
            return plain_step(model, batch)

        builder = LearnerBuilder(tmp_path / name).train_step(step).valid_step(plain_step).metrics()
        builder.num_epochs(3).renderer("silent").with_file_checkpointer()
        if resume:
            builder.resume()
        data = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(3)]
        return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, data, data[:2])

    expected = made("straight")
    expected.fit()
    learner = made("other")
    if back == "rewind":
        learner.step(7)  # in the second epoch
        assert learner.model[1].training is False  # type: ignore[index, union-attr]
        learner.rewind(5)
        assert learner.model[1].training is True  # type: ignore[index, union-attr]
    else:
        learner.step(9 if back == "resume in validation" else 6)
        learner.save()
        learner = made("other", resume=True)
    learner.fit()
    assert torch.equal(weights(learner), weights(expected))


def test_the_table_names_what_steps_change(tmp_path: Path) -> None:
    learner = program(tmp_path, "variable of a closure")
    learner.step(2)
    row = learner.carried["count"]
    assert (row.kind, row.kept) == ("int", "by value")
    assert row.found == "closure of counter_of_a_closure.<locals>.turn"
    assert "count" in learner.carried._repr_html_()
