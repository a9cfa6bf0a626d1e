"""Loops written by hand: torch alone, sensible and naive, and the two helpers that leave the loop to you."""

from __future__ import annotations

import csv
import sys
from contextlib import nullcontext
from typing import Any

import torch
from peer_work import EPOCHS, Work
from torch import Tensor

EVERY = 10
"""How often a sensible loop reads its metrics."""


class Tally:
    """Loss and accuracy of an epoch, as tensors; with W1 a line on the screen and a row in a file as they
    are read. A naive loop reads them at every batch."""

    def __init__(self, work: Work, every: int = EVERY) -> None:
        self.every, self.wanted, self.shows = every, work.kind.metrics, work.kind.shows
        self.file = open(work.folder / "metrics.csv", "w", newline="") if self.shows else None  # noqa: SIM115
        self.rows = csv.writer(self.file) if self.file else None
        self.reset()

    def reset(self) -> None:
        self.total, self.right, self.seen, self.step = (
            torch.zeros(()),
            torch.zeros((), dtype=torch.int64),
            0,
            0,
        )

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
        mean, share = self.total.item() / self.seen, self.right.item() / self.seen
        if self.rows is not None:
            self.rows.writerow([self.step, mean, share])
            print(f"\rstep {self.step}: loss {mean:.4f}, accuracy {share:.4f}", end="", file=sys.stderr)

    def end(self) -> None:
        if self.wanted and self.seen:
            self.read()
        if self.file is not None:
            self.file.flush()
            print(file=sys.stderr)
        self.reset()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class NaiveTally(Tally):
    """`loss.item()` and the share of right answers as numbers, at every batch."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, every=1)

    def reset(self) -> None:
        self.losses: list[float] = []
        self.shares: list[float] = []
        self.seen = self.step = 0

    def add(self, loss: Tensor, output: Tensor, y: Tensor) -> None:
        if not self.wanted:
            return
        self.losses.append(loss.item())
        self.shares.append((output.argmax(1) == y).float().mean().item())
        self.seen += len(y)
        self.step += 1
        if self.rows is not None:
            self.rows.writerow([self.step, self.losses[-1], self.shares[-1]])
            shown = f"loss {self.losses[-1]:.4f}, accuracy {self.shares[-1]:.4f}"
            print(f"\rstep {self.step}: {shown}", end="", file=sys.stderr)

    def read(self) -> None:
        sum(self.losses) / len(self.losses), sum(self.shares) / len(self.shares)


def raw(work: Work, tally: Tally | None = None, optimizer: torch.optim.Optimizer | None = None) -> None:
    """torch alone."""
    tally, optimizer = tally or Tally(work), optimizer or work.optimizer()
    net, window = work.model, work.kind.window
    autocast = torch.autocast("cpu", torch.bfloat16) if work.kind.bf16 else nullcontext()
    for epoch in range(1, EPOCHS + 1):
        net.train()
        for number, (x, y) in enumerate(work.feed, start=1):
            if window == 1 or number % window == 1:
                optimizer.zero_grad()
            with autocast:
                output = net(x)
                loss = work.loss(output, y)
            (loss if window == 1 else loss / window).backward()
            if number % window == 0:
                optimizer.step()
            tally.add(loss, output, y)
        tally.end()
        if work.kind.shows:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, work.folder / f"checkpoint-{epoch}.pt")
    tally.close()


def naive(work: Work) -> None:
    """torch alone, and every number read from the device at once."""
    raw(work, NaiveTally(work))


def fused(work: Work) -> None:
    """torch alone, with Adam in one kernel: other last bits."""
    raw(work, optimizer=torch.optim.Adam(work.model.parameters(), lr=1e-3, fused=True))


def fabric(work: Work) -> None:
    """A loop of one's own with Lightning Fabric."""
    from lightning.fabric import Fabric

    precision: Any = "bf16-mixed" if work.kind.bf16 else "32-true"
    helper = Fabric(accelerator="cpu", devices=1, precision=precision)
    helper.launch()
    optimizer: Any
    net, optimizer = helper.setup(work.model, work.optimizer())
    tally, window = Tally(work), work.kind.window
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
        tally.end()
        if work.kind.shows:
            state = {"model": net, "optimizer": optimizer, "epoch": epoch}
            helper.save(work.folder / f"checkpoint-{epoch}.ckpt", state)
    tally.close()


def accelerate(work: Work) -> None:
    """A loop of one's own with Accelerate, as its documentation writes it."""
    from accelerate import Accelerator

    window = work.kind.window
    helper = Accelerator(
        cpu=True, mixed_precision="bf16" if work.kind.bf16 else "no", gradient_accumulation_steps=window
    )
    net, optimizer = helper.prepare(work.model, work.optimizer())
    tally = Tally(work)
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
        tally.end()
        if work.kind.shows:
            helper.save_state(work.folder / f"checkpoint-{epoch}")
    tally.close()
