"""Loops written by hand: torch alone, sensible and naive, and the two helpers that leave the loop to you."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peer_work import EPOCHS, Batch, Kind, Work
from torch import Tensor, nn

EVERY = 10
"""How often a sensible loop reads its metrics."""


class Tally:
    """Loss and accuracy of an epoch, as tensors; with W1 a line on the screen and a row in a file as they
    are read. A naive loop reads them at every batch."""

    def __init__(self, kind: Kind, folder: Path, every: int = EVERY) -> None:
        self.every, self.wanted, self.shows = every, kind.metrics, kind.shows
        self.screen, self.file, self.rows = None, None, None
        if self.shows:
            # Not sys.stderr: a trainer's display may have put itself there.
            self.screen = open(os.dup(2), "w")  # noqa: SIM115
            self.file = open(folder / "metrics.csv", "w", newline="")  # noqa: SIM115
            self.rows = csv.writer(self.file)
        self.reset()

    def reset(self) -> None:
        self.total, self.right = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        self.seen = self.step = 0

    def add(self, loss: Tensor, output: Tensor, y: Tensor) -> None:
        if not self.wanted:
            return
        self.total += loss.detach() * len(y)
        self.right += (output.argmax(1) == y).sum()
        self.seen += len(y)
        self.step += 1
        if self.step % self.every == 0:
            self.read()

    def read(self) -> None:
        self.tell(self.total.item() / self.seen, self.right.item() / self.seen)

    def tell(self, loss: float, accuracy: float) -> None:
        if self.rows is not None:
            self.rows.writerow([self.step, loss, accuracy])
            print(f"\rstep {self.step}: loss {loss:.4f}, accuracy {accuracy:.4f}", end="", file=self.screen)
            self.screen.flush()

    def end_epoch(self) -> None:
        if self.wanted and self.seen:
            self.read()
        if self.file is not None:
            self.file.flush()
            print(file=self.screen)
        self.reset()


class NaiveTally(Tally):
    """`loss.item()` and the share of right answers as numbers, at every batch."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        super().__init__(kind, folder, every=1)

    def reset(self) -> None:
        super().reset()
        self.losses: list[float] = []
        self.shares: list[float] = []

    def add(self, loss: Tensor, output: Tensor, y: Tensor) -> None:
        if not self.wanted:
            return
        self.losses.append(loss.item())
        self.shares.append((output.argmax(1) == y).float().mean().item())
        self.step += 1
        self.tell(self.losses[-1], self.shares[-1])


class Loop:
    """torch alone."""

    def __init__(
        self, kind: Kind, model: nn.Module, optimizer: torch.optim.Optimizer, tally: Tally, folder: Path
    ) -> None:
        self.kind, self.model, self.optimizer, self.tally, self.folder = kind, model, optimizer, tally, folder
        self.autocast = torch.autocast("cpu", torch.bfloat16) if kind.bf16 else nullcontext()
        self.steps = self.epochs = 0

    def train(self, batches: Iterable[Batch]) -> None:
        net, window, autocast, tally, optimizer = (
            self.model,
            self.kind.window,
            self.autocast,
            self.tally,
            self.optimizer,
        )
        net.train()
        for x, y in batches:
            if self.steps % window == 0:
                optimizer.zero_grad()
            with autocast:
                output = net(x)
                loss = F.cross_entropy(output, y)
            (loss if window == 1 else loss / window).backward()
            self.steps += 1
            if self.steps % window == 0:
                optimizer.step()
            tally.add(loss, output, y)

    def end_epoch(self) -> None:
        self.tally.end_epoch()
        self.epochs += 1
        if self.kind.shows:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state | {"epoch": self.epochs}, self.folder / f"checkpoint-{self.epochs}.pt")


def loop_for(kind: Kind, model: nn.Module, folder: Path) -> Loop:
    """A sensible one: metrics are read every so many steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Loop(kind, model, optimizer, Tally(kind, folder), folder)


def _run(work: Work, tally: Tally, optimizer: torch.optim.Optimizer) -> None:
    loop = Loop(work.kind, work.model, optimizer, tally, work.folder)
    for _ in range(EPOCHS):
        loop.train(work.feed)
        loop.end_epoch()


def raw(work: Work) -> None:
    """The loop that everybody is compared with, once more: what a figure is worth."""
    _run(work, Tally(work.kind, work.folder), work.optimizer())


def naive(work: Work) -> None:
    """torch alone, and every number read from the device at once."""
    _run(work, NaiveTally(work.kind, work.folder), work.optimizer())


def fused(work: Work) -> None:
    """torch alone, with Adam in one kernel: other last bits."""
    fused_adam = torch.optim.Adam(work.model.parameters(), lr=1e-3, fused=True)
    _run(work, Tally(work.kind, work.folder), fused_adam)


def fabric(work: Work) -> None:
    """A loop of one's own with Lightning Fabric."""
    from lightning.fabric import Fabric

    precision: Any = "bf16-mixed" if work.kind.bf16 else "32-true"
    helper = Fabric(accelerator="cpu", devices=1, precision=precision)
    helper.launch()
    optimizer: Any
    net, optimizer = helper.setup(work.model, work.optimizer())
    tally, window = Tally(work.kind, work.folder), work.kind.window
    for epoch in range(1, EPOCHS + 1):
        net.train()
        for number, (x, y) in enumerate(work.feed, start=1):
            if window == 1 or number % window == 1:
                optimizer.zero_grad()
            output = net(x)
            loss = work.loss(output, y)
            helper.backward(loss if window == 1 else loss / window)
            if number % window == 0:
                optimizer.step()
            tally.add(loss, output, y)
        tally.end_epoch()
        if work.kind.shows:
            state = {"model": net, "optimizer": optimizer, "epoch": epoch}
            helper.save(work.folder / f"checkpoint-{epoch}.ckpt", state)


def accelerate(work: Work) -> None:
    """A loop of one's own with Accelerate, as its documentation writes it."""
    from accelerate import Accelerator

    window = work.kind.window
    helper = Accelerator(
        cpu=True, mixed_precision="bf16" if work.kind.bf16 else "no", gradient_accumulation_steps=window
    )
    net, optimizer = helper.prepare(work.model, work.optimizer())
    tally = Tally(work.kind, work.folder)
    for epoch in range(1, EPOCHS + 1):
        net.train()
        for x, y in work.feed:
            with helper.accumulate(net):
                with helper.autocast():
                    output = net(x)
                    loss = work.loss(output, y)
                helper.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            tally.add(loss, output, y)
        tally.end_epoch()
        if work.kind.shows:
            helper.save_state(work.folder / f"checkpoint-{epoch}")
