"""A page that keeps what it is told, and learners to show on one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Accuracy, Loss
from notebook_learner.widget.panel import Panel
from notebook_learner.widget.wire import Message

SOON = 30.0


class Page:
    """A page that keeps what it is told, as the front end does: curves by metric and split, the board."""

    def __init__(self, receive: Callable[[object], None]) -> None:
        self.receive = receive
        self.messages: list[Message] = []
        self.board: dict[str, Any] = {}
        self.curves: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        self.thin: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
        """Curves of branches: steps and means by branch, metric and split."""
        self.answers: dict[int, tuple[bool, str]] = {}
        self.seq = 0
        self.closed = False
        self.beats = 0
        self._came = threading.Condition()

    def send(self, message: Message) -> None:
        with self._came:
            if message.content == {"type": "beat"}:
                self.beats += 1
            else:
                self.messages.append(message)
                self._take(message)
            self._came.notify_all()

    def _take(self, message: Message) -> None:
        content = message.content
        if content["type"] == "answer":
            self.answers[content["to"]] = (content["ok"], content["text"])
            return
        whole = content["type"] == "snapshot"
        assert whole or content["seq"] == self.seq + 1
        self.seq = content["seq"]
        self.board.update(content["board"])
        if whole:
            self.curves.clear()
            self.thin.clear()
        for head, data in zip(content["series"], message.buffers, strict=True):
            numbers = np.frombuffer(data, "<f8").reshape(4 if whole else 2, head["points"])
            if "branch" in head:
                key = (head["branch"], head["metric"], head["split"])
                self.thin[key] = (numbers[0].tolist(), numbers[-1].tolist())
                continue
            x, y = self.curves.setdefault((head["metric"], head["split"]), ([], []))
            for at, value in zip(numbers[0], numbers[-1], strict=True):
                if x and x[-1] == at:
                    y[-1] = float(value)
                else:
                    x.append(float(at))
                    y.append(float(value))

    def bundle(self) -> dict[str, Any]:
        return {"text/html": "the view"}

    def close(self) -> None:
        self.closed = True

    # As a person uses it

    def ask(self, cmd: str, seq: int = 1, **args: Any) -> None:
        self.receive({"cmd": cmd, "args": args, "seq": seq, "client": "page"})

    def until(self, ready: Callable[[], Any]) -> None:
        with self._came:
            assert self._came.wait_for(ready, SOON), (self.board, self.answers)

    def answer(self, cmd: str, **args: Any) -> tuple[bool, str]:
        """Ask, and wait for what came of it."""
        seq = len(self.answers) + 1
        self.ask(cmd, seq, **args)
        self.until(lambda: seq in self.answers)
        return self.answers[seq]


def learner_in(directory: Path, **more: Any) -> Learner:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    batches = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 40, 4)]
    builder = LearnerBuilder(directory).loss(F.cross_entropy).metrics(Loss(), Accuracy()).num_epochs(3)
    for name, value in more.items():
        getattr(builder, name)(value)
    return builder.renderer("silent").build(
        model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches, batches[:2]
    )


def panel_of(learner: Learner) -> Panel:
    panel = Panel(Page)
    panel.attach(learner)
    learner._replica.sinks.add(panel)
    return panel


def page_of(learner: Learner) -> Page:
    page = panel_of(learner).wire
    assert isinstance(page, Page)
    return page


def series_of(learner: Learner) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """What a page should show, from what was recorded."""
    found = {}
    for metric in ("Loss", "Accuracy"):
        values = learner.history["train", metric]
        if len(values):
            found[metric, "train"] = (
                [float(k + 1) for k in range(len(values))],
                [float(v) for v in np.asarray(values, dtype=float)],
            )
    return found
