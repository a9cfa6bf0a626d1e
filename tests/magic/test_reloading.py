"""A class that was defined anew: the live model gets its methods, and keeps its weights."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from builder_support import adam, batches, quiet
from torch import nn

from notebook_learner import StateError
from notebook_learner.trial.reload_code import reload_code

NET = """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 6)
    def forward(self, x):
        return self.fc(x)

class Net(torch.nn.Module):
    factor = 1
    def __init__(self, deep=False):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.fc1, self.fc2 = torch.nn.Linear(6, 3), None
        if deep:
            self.extra = torch.nn.Linear(3, 3)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.fc1(x) * self.factor
    @property
    def depth(self):
        return 2
"""


@pytest.fixture
def defined(empty):
    empty.run(NET)
    empty.run("torch.manual_seed(0); model = Net()")
    return empty


def reload(notebook):
    return reload_code(notebook.names["model"], notebook.names)


def test_all_modules_of_a_class_get_the_new_one_and_keep_everything(defined):
    model = defined.names["model"]
    x = torch.ones(2, 6)
    before, parameters = model(x), list(model.parameters())
    defined.run(NET.replace("return self.fc(x)", "return self.fc(x) * 0").replace("factor = 1", "factor = 3"))
    report = reload(defined)
    assert type(model) is defined.names["Net"] and {type(each) for each in model.blocks} == {
        defined.names["Block"]
    }
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(model(x), model.fc1.bias.expand(2, 3) * 3) and not torch.equal(model(x), before)
    assert report.classes == {"Net": ("factor",), "Block": ("forward",)}
    assert repr(report) in (
        "reloaded Net (factor), Block (forward); the weights are as they were",
        "reloaded Block (forward), Net (factor); the weights are as they were",
    )


def test_nothing_that_was_defined_anew_is_nothing_to_reload(defined):
    assert repr(reload(defined)) == "nothing to reload: no class of the model was defined anew"


def test_super_and_isinstance_hold_afterwards(defined):
    defined.run(NET + "    def extra_repr(self):\n        return super().extra_repr() + 'new'\n")
    reload(defined)
    assert defined.names["model"].extra_repr() == "new"
    assert isinstance(defined.names["model"], defined.names["Net"])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("self.fc3 = torch.nn.Linear(3, 3)", "fc3"),
        ("self.fc3: torch.nn.Module = torch.nn.Linear(3, 3)", "fc3"),
        ("self.a, self.fc3 = 1, 2", "a"),
        ("self.register_buffer('mean', torch.zeros(3))", "mean"),
        ("with torch.no_grad(): self.fc3 = torch.nn.Linear(3, 3)", "fc3"),
    ],
)
def test_what_the_live_model_lacks_is_named_and_nothing_changes(defined, line, name):
    model, old = defined.names["model"], defined.names["Net"]
    changed = NET.replace("        if deep:", f"        {line}\n        if deep:").replace(
        "return self.fc(x)", "return x"
    )
    defined.run(changed)
    with pytest.raises(
        StateError, match=rf"Net.__init__ now sets self\.{name} \(.*which the live model lacks"
    ):
        reload(defined)
    assert type(model) is old and type(model.blocks[0]).__qualname__ == "Block"
    assert type(model.blocks[0]) is not defined.names["Block"]


def test_what_may_be_set_and_what_was_set_by_hand_is_no_obstacle(defined):
    defined.run(NET.replace("if deep:", "if deep:\n            self.fc3 = 1"))
    reload(defined)
    defined.run("model.fc4 = torch.nn.Linear(3, 3)")
    defined.run(NET.replace("        if deep:", "        self.fc4 = torch.nn.Linear(3, 3)\n        if deep:"))
    reload(defined)
    assert type(defined.names["model"]) is defined.names["Net"]


def test_another_init_is_told_and_not_run(defined):
    defined.run(NET.replace("Linear(6, 6)", "Linear(6, 12)"))
    told = "Block.__init__ has changed, and was not run; it makes self.fc differently, "
    assert reload(defined).notes == (f"{told}the live one is as it was",)
    assert defined.names["model"].blocks[0].fc.weight.shape == (6, 6)
    defined.run(NET.replace("        self.fc = torch.nn.Linear(6, 6)\n", "").replace("self.fc(x)", "x"))
    assert "it makes no self.fc any more, which stays" in repr(reload(defined))


def test_a_class_of_another_make_is_refused_as_a_whole(defined):
    model = defined.names["model"]
    before = [type(each) for each in model.modules()]
    slots = NET.replace("class Block(torch.nn.Module):", "class Block(torch.nn.Module, list):")
    defined.run(slots)
    with pytest.raises(StateError, match=r"Block cannot become the new one in place .* nothing was changed"):
        reload(defined)
    assert [type(each) for each in model.modules()] == before


def test_a_base_that_is_new_alone_is_told(defined):
    defined.run("class Wide(Net): pass")
    defined.run("model = Wide()")
    defined.run(NET)
    assert any(note.startswith("Wide still inherits from the old Net") for note in reload(defined).notes)


def test_classes_of_a_module_that_was_imported_again(defined, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "module_of_mine.py"
    file.write_text(f"import torch\n{NET}")
    module = importlib.import_module("module_of_mine")
    try:
        model = module.Net()
        file.write_text(f"import torch\n{NET}    def added(self):\n        return 'a longer file'\n")
        importlib.reload(module)
        report = reload_code(model, {})
        assert (model.added(), report.classes["Net"]) == ("a longer file", ("added",))
    finally:
        del sys.modules["module_of_mine"]


def test_a_class_made_in_a_function_stays_what_it_is(defined):
    class Local(nn.Module):
        pass

    assert reload_code(Local(), {"__name__": __name__, "Local": nn.Linear}).classes == {}


def test_the_average_of_a_model_is_reloaded_with_it(defined):
    defined.run("average = Net()")
    defined.run(NET.replace("factor = 1", "factor = 2"))
    reload_code(defined.names["model"], defined.names, [defined.names["average"]])
    assert defined.names["average"].factor == defined.names["model"].factor == 2


# ---------------------------------------------------------------------------------------------- the offer


def test_a_changed_class_of_a_live_model_is_offered_once_and_in_one_line(defined):
    defined.run("learner = quiet(folder / 'r').build(model, adam(model), None, batches())")
    assert defined.try_(NET).shown == ""
    changed = NET.replace("factor = 1", "factor = 2")
    offer = "Net changed: learner.tools.reload_code() gives the model in training the new methods\n"
    assert defined.try_(changed).shown == offer
    assert defined.try_("1;").shown == ""
    assert defined.try_(changed.replace("return self.fc(x)", "return x")).shown == offer.replace(
        "Net", "Block and Net"
    )
    reload(defined)
    assert defined.try_("2;").shown == ""


def test_a_class_that_no_learner_trains_is_not_offered(defined, tmp_path):
    model = nn.Linear(6, 3)
    step = lambda model, batch: model(batch[0]).sum()  # noqa: E731
    learner = quiet(tmp_path / "r").train_step(step).build(model, adam(model), None, batches())
    defined.names["learner"] = learner
    assert defined.try_(NET.replace("factor = 1", "factor = 2")).shown == ""
