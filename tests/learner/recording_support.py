"""In the place of CUDA graphs: a recorder for the CPU, which computes nothing while it records, and does the
same work again, into the same memory, at each play."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from notebook_learner import Learner


class Again:
    """Records for one learner."""

    def __init__(self) -> None:
        self.learner: Learner | None = None
        self.recording = False
        self.recorded = 0
        self.played = 0
        self.apart_steps = 0

    def apart(self) -> AbstractContextManager[None]:
        self.apart_steps += 1
        return nullcontext()

    def record(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        before = [(tensor, tensor.detach().clone()) for tensor in self._held()]
        generator, self.recording = torch.get_rng_state(), True
        try:
            made = work()
        finally:
            self.recording = False
            torch.set_rng_state(generator)
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)
        self.recorded += 1
        memory = self._made(made)
        for tensor in memory:  # nothing is computed yet
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
        notes = list(self.step.notes or ())

        def play() -> None:
            self.played += 1
            update = self.step.update
            python = update.count, update.norm, update.rates
            shown = [parameter.grad for parameter in update.parameters]
            update.norm = memory_of_norm
            self.step.notes = []
            for tensor, value in zip(memory, self._made(work()), strict=True):
                tensor.copy_(value)
            for (_, kept), (_, value) in zip(notes, self.step.notes, strict=True):
                if isinstance(kept, Tensor):
                    kept.detach().copy_(value.detach())
            self.step.notes = None
            update.count, update.norm, update.rates = python
            for parameter, gradient in zip(update.parameters, shown, strict=True):
                parameter.grad = gradient

        memory_of_norm = self.step.update.norm
        return made, play

    @property
    def step(self) -> Any:
        assert self.learner is not None
        return self.learner._replica.loop.passes["train"].step

    def _held(self) -> list[Tensor]:
        """What a step writes to in place."""
        model, optimizer = self.step.update.model, self.step.update.optimizer
        moments = [v for held in optimizer.state.values() for v in held.values() if isinstance(v, Tensor)]
        return [*model.parameters(), *model.buffers(), *moments]

    def _made(self, output: Any) -> list[Tensor]:
        """What a step makes: the fields of its output, gradients, the norm."""
        values = [getattr(output, f.name) for f in fields(output)] if is_dataclass(output) else []
        found = [*values, *(p.grad for p in self.step.update.parameters), self.step.update.norm]
        return [tensor.detach() for tensor in found if isinstance(tensor, Tensor)]
