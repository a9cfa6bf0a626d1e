"""Cells as a person runs them, one after the other, in a shell of this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

IMPORTS = """
import torch
import torch.nn.functional as F
from builder_support import adam, batches, classifier, net, quiet, sgd
from notebook_learner.metric import Accuracy, Loss
"""
LEARNER = """
torch.manual_seed(0)
model = net(dropout=0.3)
learner = (
    quiet(folder / "run").num_epochs(2).seed(5).metrics(Loss(), Accuracy())
    .build(model, adam(model), None, batches(), batches()[:2])
)
"""
BODY = """
x, target = batch
output = model(x)
loss = F.cross_entropy(output, target)
""".strip()
VALID = f"%%valid\n{BODY}"


@dataclass
class Cell:
    """What a cell came to."""

    result: Any
    error: BaseException | None
    shown: str

    @property
    def lines(self) -> list[str]:
        return self.shown.strip().splitlines()


class Notebook:
    """Runs cells as a person does, one after the other."""

    def __init__(self, shell: InteractiveShell, capture: Any) -> None:
        self.shell = shell
        self.names = shell.user_ns
        self.capture = capture

    def try_(self, code: str) -> Cell:
        """Run a cell that may fail."""
        self.capture.readouterr()
        result = self.shell.run_cell(code, store_history=True)
        out, err = self.capture.readouterr()
        shown = re.sub(r"\x1b\[[0-9;]*m", "", out + err)
        return Cell(result.result, result.error_before_exec or result.error_in_exec, shown)

    def run(self, code: str) -> Any:
        """Run a cell that does not; what its last line gave."""
        cell = self.try_(code)
        assert cell.error is None, cell.shown
        return cell.result

    def fails(self, code: str) -> str:
        """Run a cell with a mistake in it; the one line that is shown."""
        cell = self.try_(code)
        assert cell.error is not None
        (line,) = cell.lines
        return line

    @property
    def learner(self) -> Any:
        return self.names["learner"]
