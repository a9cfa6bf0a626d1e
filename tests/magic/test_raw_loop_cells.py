"""The body of a loop, as it stands, in a `%%train` cell: it steps its optimizer itself, and carries names."""

from __future__ import annotations

import ast

import pytest
import torch
from builder_support import adam, assert_same_bits, batches, net
from torch.nn import functional as F

from notebook_learner.magic.carried_names import carried_in

BUILD = """
torch.manual_seed(0)
model = net(dropout=0.3)
optimizer = adam(model)
hidden, step_count = torch.zeros(3), 0
learner = (
    quiet(folder / "run").num_epochs(2).metrics(Loss()).with_file_checkpointer()
    .build(model, optimizer, None, batches())
)
"""
RAW = """
x, target = batch
optimizer.zero_grad()
output = model(x)
loss = F.cross_entropy(output + hidden, target)
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
hidden = 0.5 * hidden + 0.1 * output.detach().mean(0)
step_count += 1
""".strip()


def by_hand(rounds: int = 2) -> tuple[torch.nn.Module, torch.Tensor, int]:
    torch.manual_seed(0)
    model = net(dropout=0.3)
    optimizer, hidden, count = adam(model), torch.zeros(3), 0
    model.train()
    for _ in range(rounds):
        for x, target in batches():
            optimizer.zero_grad()
            output = model(x)
            F.cross_entropy(output + hidden, target).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            hidden = 0.5 * hidden + 0.1 * output.detach().mean(0)
            count += 1
    return model, hidden, count


def assert_is_the_loop(notebook) -> None:
    model, hidden, count = by_hand()
    assert_same_bits(notebook.names["model"], model)
    assert notebook.learner.locals["step_count"] == count
    assert torch.equal(notebook.learner.locals["hidden"], hidden)


def test_it_is_the_loop(empty):
    empty.run(BUILD)
    empty.run(f"%%train\n{RAW}")
    assert_is_the_loop(empty)
    assert empty.names["step_count"] == empty.learner.position.iteration  # as after the loop


def test_the_notebooks_own_value_stays_if_it_is_asked_to(empty):
    empty.run(BUILD)
    empty.run(f"%%train --no-export\n{RAW}")
    assert_is_the_loop(empty)
    assert empty.names["step_count"] == 0


def test_a_rewind_brings_the_carried_names_back(empty):
    empty.run(BUILD)
    empty.run(f"%%train --steps 5\n{RAW}")
    empty.run("%rewind 3")
    empty.run("learner.what_if(2, lr=0.1)")
    empty.run(f"%%train\n{RAW}")
    assert_is_the_loop(empty)


def test_an_edit_in_the_midst_keeps_them(empty):
    empty.run(BUILD)
    empty.run(f"%%train --steps 4\n{RAW}")
    empty.run(f"%%train\n{RAW}\nseen = step_count  # another cell")
    assert_is_the_loop(empty)


def test_a_new_program_goes_on_with_them(empty):
    empty.run(BUILD)
    empty.run(f"%%train --steps 5\n{RAW}")
    empty.run("learner.save()")
    empty.run(BUILD.replace(".with_file", ".resume().with_file"))
    empty.run(f"%%train\n{RAW}")
    assert_is_the_loop(empty)


def test_a_fork_has_its_own(empty):
    empty.run(BUILD)
    empty.run(f"%%train --steps 5\n{RAW}")
    empty.run("other = learner.fork(folder / 'fork'); other.fit()")
    empty.run(f"%%train learner\n{RAW}")
    assert_is_the_loop(empty)
    assert_same_bits(empty.names["other"].model, by_hand()[0])


def test_a_name_without_a_value_is_the_error_of_the_first_round(empty):
    empty.run(BUILD)
    cell = empty.try_(f"%%train\n{RAW}\ntotal = total + 1")
    assert isinstance(cell.error, UnboundLocalError) and "total" in str(cell.error)


def test_a_cell_that_steps_needs_no_loss(empty):
    empty.run(BUILD.replace(".metrics(Loss())", ".metrics()"))
    raw = "error = F.cross_entropy(model(batch[0]), batch[1])\nerror.backward()\noptimizer.step()"
    empty.run(f"%%train --steps 2\n{raw}")
    assert empty.learner.position.step == 2


@pytest.mark.parametrize(
    ("code", "carried"),
    [
        ("a = 1; b = a", []),
        ("b = a; a = 1", ["a"]),
        ("a += 1", ["a"]),
        ("a: int = 1; a += 1", []),
        ("if x:\n    a = 1\nb = a", ["a"]),
        ("if x:\n    a = 1\nelse:\n    a = 2\nb = a", []),
        ("for a in x:\n    b = a\nc = b", []),
        ("for i in x:\n    c = b\n    b = i", ["b"]),
        ("while a > 1:\n    a = a - 1", ["a"]),
        ("with x as a:\n    b = a\nc = b", []),
        ("try:\n    a = 1\nexcept E as e:\n    print(e)\nb = a", []),
        ("b = [a for a in x]; a = 1", []),
        ("b = [y for y in a]; a = 1", ["a"]),
        ("def f():\n    return a\na = f()", []),
        ("import a.b\nc = a", []),
        ("x[a] = 1\na = 2", ["a"]),
        ("if (a := x) and a:\n    b = a", []),
        ("match x:\n    case [a, *b]:\n        c = a + len(b)", []),
        ("a, b = b, a", ["b", "a"]),
        ("b = lambda: a\na = 1", []),
    ],
)
def test_the_names_that_are_read_before_they_are_assigned(code, carried):
    tree = ast.parse(code)
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    assert list(carried_in(tree.body, own | {"f"})) == carried
