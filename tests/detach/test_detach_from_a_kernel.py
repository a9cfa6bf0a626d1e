"""In a real kernel: a `%%train` cell's step goes over by value, and the run outlives a restart."""

from __future__ import annotations

from pathlib import Path

from builder_support import adam, assert_same_bits, batches, by_hand, net
from detach_support import HERE, LEARNER, printed_in, until_it_ends
from kernels import INSTALLED, PATIENCE, Page, python_of

from notebook_learner import Artifacts
from notebook_learner.remote.detached import noted_in

SETUP = f"""
import sys
sys.path += [{str(HERE.parents[1])!r}, {str(LEARNER)!r}]
import torch, warnings
torch.set_num_threads(1)
import torch.nn.functional as F
from builder_support import adam, batches, net, quiet
%load_ext notebook_learner
weight = 1.0
model = net()
learner = quiet({{folder!r}}).num_epochs(3).build(model, adam(model), None, batches())
"""
CELL = """%%train learner --steps 2
x, target = batch
output = model(x)
loss = weight * F.cross_entropy(output, target)
"""


def test_the_step_of_a_cell_trains_on_while_the_kernel_is_restarted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    page = Page(python_of(INSTALLED), tmp_path)
    try:
        page.run(SETUP.format(folder=str(run)))
        page.run(CELL)
        said = page.run("print(learner.detach())")
        assert "goes on in process" in said and "from epoch 1, train, step 2 of 4" in said
        noted = noted_in(run)
        assert noted is not None and f"process {noted.pid}" in said
        page.manager.restart_kernel(now=False)  # politely: it ends its own children
        page.client.wait_for_ready(timeout=PATIENCE)
        assert until_it_ends(run, noted.pid).ended == "finished", printed_in(run)
    finally:
        page.leave()
    model = net(seed=3)
    Artifacts(run).load_model(model)
    first = net()
    assert_same_bits(model, by_hand(first, adam(first), batches(), epochs=3))
