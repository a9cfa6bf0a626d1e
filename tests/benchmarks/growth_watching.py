"""Curves of what measuring and looking cost: scores that are kept, metrics, the panel, inspect()."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from growth import Row, cpu, curve


@contextmanager
def built(model: Any, batches: list[Any], metrics: list[Any], **more: Any) -> Iterator[Any]:
    """A learner that shows nothing, with one thread, in a directory of its own."""
    import torch

    from notebook_learner import LearnerBuilder

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        builder = LearnerBuilder(Path(folder) / "run").num_epochs(1).metrics(*metrics)
        builder.renderer(more.get("renderer", "silent"))
        if "loss" in more:
            builder.loss(more["loss"])
        learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=1e-4), None, batches)
        yield learner
        assert learner.artifacts is not None  # waits for all that is being written


@curve("scores", "steps", "ms CPU a step(1)", "scores, MB", "all keyframes, MB", "as copies, MB")
def scores(quick: bool) -> Iterator[Row]:
    """AUROC of 1,000 classes along an epoch of batches of 128, with a keyframe at each step(1)."""
    import torch

    from notebook_learner.metric import AUROC

    batch = torch.randn(128, 16), torch.randint(0, 1000, (128,))
    model, loss = torch.nn.Linear(16, 1000), torch.nn.functional.cross_entropy
    with built(model, [batch] * 4000, [AUROC()], loss=loss) as learner:
        at = 0
        for steps in (4, 8) if quick else (10, 100, 200, 400, 800):
            learner.step(steps - at)
            with cpu() as took:
                learner.step(1)
                learner.step(1)
            at = steps + 2
            timeline = learner._replica.timeline
            copies = sum(state.nbytes for state in timeline.keyframes)
            yield steps, took.ms / 2, learner.capture().nbytes / 1e6, timeline.nbytes / 1e6, copies / 1e6


class Waiting:
    """A model whose step takes so many milliseconds."""

    @staticmethod
    def made(seconds: float) -> Any:
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(()))

            def train_step(self, batch: Any) -> Any:
                ends = time.perf_counter() + seconds
                while time.perf_counter() < ends:
                    pass
                return self.weight.square() * batch

        return Model()


def losses(count: int) -> list[Any]:
    """So many metrics with names of their own."""
    from notebook_learner.metric import Loss

    found = [Loss() for _ in range(count)]
    for number, each in enumerate(found):
        each.name = f"Loss {number}"
    return found


@curve("metrics", "metrics", "us CPU a step")
def metrics(quick: bool) -> Iterator[Row]:
    """Copies of Loss, with a step that does next to nothing."""
    import torch

    for count in (1, 3) if quick else (1, 10, 30, 100):
        with built(Waiting.made(0.0), [torch.ones(())] * 10_000, losses(count)) as learner:
            steps = 50 if quick else 2000
            learner.step(steps // 2)
            with cpu() as took:
                learner.step(steps)
            yield count, 1e3 * took.ms / steps


@curve("panel", "metrics", "ms a step", "% of the CPU", "kB/s")
def panel(quick: bool) -> Iterator[Row]:
    """What the panel's calls take of a fit's CPU time while a page looks, and what it sends."""
    import torch

    from notebook_learner.widget.panel import Panel

    class Wire:
        sent = 0

        def __init__(self, receive: Callable[[object], None]) -> None:
            pass

        def send(self, message: Any) -> None:
            self.sent += sum(len(each) for each in message.buffers)

        def bundle(self) -> dict[str, Any]:
            return {}

        def close(self) -> None:
            pass

    class Timed:
        seconds = 0.0

        def __init__(self, panel: Any) -> None:
            self.panel = panel

        def handle(self, event: Any) -> None:
            began = time.thread_time()
            self.panel.handle(event)
            self.seconds += time.thread_time() - began

    for milliseconds in (0.2, 1.0, 10.0):
        for count in (1, 2) if quick else (1, 5, 20):
            shown = Panel(Wire)
            timed, seconds = Timed(shown), 0.2 if quick else 8.0
            batches = [torch.ones(())] * max(2, int(1000 * seconds / milliseconds))
            with built(Waiting.made(milliseconds / 1e3), batches, losses(count), renderer=timed) as learner:
                shown.attach(learner)
                shown.receive({"cmd": "hello", "args": {}, "seq": 1, "client": "page"})
                began = time.perf_counter()
                with cpu() as took:
                    learner.fit()
                lasted = time.perf_counter() - began
                share = 100 * timed.seconds / took.seconds
                yield count, milliseconds, share, shown.wire.sent / lasted / 1e3


@curve("inspect", "tensors", "one module, ms CPU", "in layers, ms CPU")
def inspect(quick: bool) -> Iterator[Row]:
    """`learner.inspect()` of so many small parameters, all in one module and in `Linear` layers."""
    import torch
    from torch import nn

    class Together(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.all = nn.ParameterList([nn.Parameter(torch.ones(20)) for _ in range(count)])

        def train_step(self, batch: Any) -> Any:
            return torch.cat(list(self.all)).square().mean() * batch

    class Layers(nn.Sequential):
        def train_step(self, batch: Any) -> Any:
            return self(batch.expand(8, 4)).square().mean()

    def milliseconds(model: Any) -> float:
        with built(model, [torch.ones(())] * 10, []) as learner:
            learner.step(1)
            learner.inspect()
            with cpu() as took:
                learner.inspect()
            return took.ms

    for count in (4, 10) if quick else (100, 1000, 3000):
        layers = Layers(*[nn.Linear(4, 4) for _ in range(count // 2)])
        yield count, milliseconds(Together(count)), milliseconds(layers)
