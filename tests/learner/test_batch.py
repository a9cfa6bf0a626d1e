"""Batches of any shape reach the device, and their samples are counted."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest
import torch
import torch.nn.functional as F
from builder_support import net, quiet, sgd
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from notebook_learner.data.batch import count_samples, is_on, move

CPU = torch.device("cpu")


class Leaf:
    """Stands for a tensor elsewhere: knows where it was sent."""

    def __init__(self, place="elsewhere"):
        self.place = place

    def to(self, device):
        return Leaf(str(device))


Pair = namedtuple("Pair", ["x", "y"])


class Samples(list):
    """A list of a library's own."""


@dataclass
class Record:
    x: object
    name: str = "a"


@dataclass(frozen=True)
class Frozen:
    x: object


@dataclass(frozen=True)
class Slotted:
    __slots__ = ("x",)
    x: object


@dataclass(frozen=True, slots=True)
class Compact:
    x: object


@dataclass
class Derived:
    """Its second field is made from the first, once."""

    x: object
    made: object = field(init=False, default=None)
    runs: int = field(init=False, default=0)

    def __post_init__(self):
        self.made = Leaf()
        self.runs += 1


def leaves(batch):
    """Every leaf of a batch."""
    if isinstance(batch, Leaf):
        return [batch]
    if isinstance(batch, (dict, UserDict, MappingProxyType)):
        return [leaf for value in batch.values() for leaf in leaves(value)]
    if isinstance(batch, (list, tuple)):
        return [leaf for value in batch for leaf in leaves(value)]
    if hasattr(batch, "__dataclass_fields__"):
        return [leaf for name in batch.__dataclass_fields__ for leaf in leaves(getattr(batch, name))]
    return []


def counting(mapping):
    made = defaultdict(list)
    made.update(mapping)
    return made


FORMS = {
    "tuple": lambda: (Leaf(), Leaf()),
    "list": lambda: [Leaf(), Leaf()],
    "named tuple": lambda: Pair(Leaf(), Leaf()),
    "list of ones own": lambda: Samples([Leaf(), Leaf()]),
    "dict": lambda: {"x": Leaf(), "y": Leaf()},
    "ordered dict": lambda: OrderedDict(y=Leaf(), x=Leaf()),
    "default dict": lambda: counting({"x": Leaf(), "y": Leaf()}),
    "user dict": lambda: UserDict(x=Leaf(), y=Leaf()),
    "read-only mapping": lambda: MappingProxyType({"x": Leaf(), "y": Leaf()}),
    "dataclass": lambda: Record([Leaf(), Leaf()]),
    "frozen dataclass": lambda: Frozen((Leaf(), Leaf())),
    "slotted dataclass": lambda: Slotted((Leaf(), Leaf())),
    "compact dataclass": lambda: Compact((Leaf(), Leaf())),
    "dataclass with a made field": lambda: Derived(Leaf()),
    "nested": lambda: {"a": [Pair(Leaf(), Record(Leaf()))], "names": ("b", 3, None)},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_any_form_reaches_the_device_and_keeps_its_form(form):
    batch = FORMS[form]()
    moved = move(batch, CPU)
    assert type(moved) is type(batch)
    assert [leaf.place for leaf in leaves(moved)] == ["cpu", "cpu"]
    assert [leaf.place for leaf in leaves(batch)] == ["elsewhere", "elsewhere"], "the user's own stays"


@pytest.mark.parametrize("form", FORMS)
def test_a_training_step_gets_the_moved_batch_and_the_user_sees_the_loaders(form, tmp_path):
    def step(model, batch):
        places.append([leaf.place for leaf in leaves(batch)])
        return model(torch.ones(2, 6)).sum()

    places = []
    model = net()
    data = [FORMS[form]() for _ in range(3)]
    learner = quiet(tmp_path).train_step(step).valid_step(step).build(model, sgd(model))
    learner.fit(data, data)
    assert places == [["cpu", "cpu"]] * 6
    assert learner.batch is data[-1]


def test_what_else_is_in_a_batch_comes_along():
    batch = {"x": torch.zeros(2), "ids": ["a", "b"], "n": 3, "none": None, "kind": torch.Tensor}
    moved = move(batch, CPU)
    assert moved["x"] is batch["x"], "a tensor in place is not copied"
    assert {key: moved[key] for key in ("ids", "n", "none", "kind")} == {
        key: batch[key] for key in ("ids", "n", "none", "kind")
    }


def test_a_default_dict_keeps_its_default_and_a_dict_its_order():
    moved = move(counting({"x": Leaf()}), CPU)
    assert moved["new"] == []
    assert list(move(OrderedDict(b=Leaf(), a=Leaf()), CPU)) == ["b", "a"]


def test_a_made_field_is_moved_and_not_made_again():
    moved = move(Derived(1), CPU)
    assert (moved.made.place, moved.runs) == ("cpu", 1)


def test_what_a_batch_was_given_beside_its_fields_stays():
    batch = Record(Leaf())
    batch.remark = "kept"
    assert move(batch, CPU).remark == "kept"


def test_an_object_that_can_move_itself_is_asked():
    """A PackedSequence keeps its batch sizes on the host: taking it for the tuple it is would not."""

    class Asked(PackedSequence):
        def to(self, *args, **kwargs):
            asked.append(args)
            return self

    asked = []
    packed = pack_sequence([torch.zeros(3), torch.zeros(2)])
    move([Asked(*packed)], CPU)
    assert asked == [(CPU,)]
    assert isinstance(move(packed, CPU), PackedSequence)


@pytest.mark.parametrize(
    ("batch", "there"),
    [
        (torch.zeros(2), True),
        ((torch.zeros(2), [torch.zeros(2)], "a", 3), True),
        ({"x": Record(torch.zeros(2))}, True),
        (Leaf(), False),
        ({"x": [Leaf()]}, False),
        (Record(Leaf()), False),
    ],
)
def test_batches_in_place_are_left_alone(batch, there):
    assert is_on(batch, CPU) is there


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        (torch.tensor(3.0), 1),
        ((torch.zeros(5, 2), torch.zeros(5)), 5),
        ([None, torch.zeros(4)], 4),
        ({"name": "a", "x": torch.zeros(3, 1)}, 3),
        (UserDict(x=torch.zeros(3, 1)), 3),
        (Pair([torch.zeros(6), torch.zeros(6)], 1), 6),
        (Record(torch.zeros(7)), 7),
        (["a", "b", "c"], 3),
        ((["a", "b"], torch.zeros(2)), 2),
        ("one", 1),
        ([], 1),
    ],
)
def test_the_samples_of_a_batch_are_counted(batch, samples):
    assert count_samples(batch) == samples


def test_samples_are_what_a_loss_weighs_by_where_the_output_does_not_say(tmp_path):
    def step(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"])

    model = net()
    learner = quiet(tmp_path).train_step(step).build(model, sgd(model))
    learner.fit([{"x": torch.ones(n, 6), "y": torch.zeros(n, dtype=torch.long)} for n in (4, 2, 3)])
    assert learner.history.weights("Loss", "train").tolist() == [4, 2, 3]
