"""What a training thread notices of a checkpoint that is written in the background.

One training of a Learner with a checkpoint every so many steps. Of each step it is known how long it took,
and whether a checkpoint began in it, was on its way, or neither; and how long the thread stood at the
boundary that took a checkpoint, and waited before the optimizer for a copy that was not done. In the middle
between two checkpoints the least is done by hand that a copy beside the training takes: a yardstick, since
the same machine is half as fast again on other days.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batches = list[tuple[Tensor, Tensor]]


def small() -> tuple[nn.Module, Batches, int]:
    """26,000 parameters; steps of less than a millisecond, a checkpoint every 1,600: several blocks apart."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return net, [(torch.randn(32, 64), torch.randint(0, 10, (32,)))] * 16000, 1600


def large() -> tuple[nn.Module, Batches, int]:
    """100 MB of parameters; steps of a few hundred milliseconds, a checkpoint every 8."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(2240, 2240) for _ in range(5)])
    return net, [(torch.randn(64, 2240), torch.randint(0, 2240, (64,)))] * 49, 8


class ByHand:
    """The least of deferred copies: a list of the tensors, torch's random generator, and a thread that copies
    into memory that is there already. No position, no other generator, no other part, no check, no file. It
    took 0.8 ms for 76 MB where the target of 1 ms was set."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.copies = [torch.zeros_like(each) for each in model.parameters()]
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def copy(self) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        lives = [each.detach() for each in self.model.parameters()]
        self.generator = torch.get_rng_state()
        self.versions = [each._version for each in lives]
        thread = threading.Thread(target=lambda: torch._foreach_copy_(self.copies, lives))
        thread.start()
        self.cpu.append(time.thread_time() - cpu)
        self.wall.append(time.perf_counter() - began)
        thread.join()


class Watch:
    """Notes when steps began, and how long the thread stood still."""

    def __init__(self, learner: Any, every: int) -> None:
        self.by_hand, self.every, self._next = ByHand(learner.model), every, every // 2
        self.began: list[float] = []
        self.flying: list[bool] = []
        self.cpu: list[float] = []
        """Of the boundaries in `taken`: what this thread alone computed."""
        self.taken: dict[int, float] = {}
        """By the number of the step that followed: seconds at a boundary that took a checkpoint."""
        self.waited: list[float] = []
        replica = learner._replica
        self._busy = replica.saving.store.keeper.background.busy
        self._saving, self._reached = replica.saving, replica.reached
        self._settle = replica.snapshots._before_step
        replica.reached, replica.snapshots._before_step = self.reached, self.before_step
        learner.model.register_forward_pre_hook(self.forward)

    def forward(self, *_: Any) -> None:
        self.flying.append(self._busy("checkpoint"))
        self.began.append(time.perf_counter())

    def reached(self, position: Any) -> None:
        due, began, cpu = self._saving.due(position), time.perf_counter(), time.thread_time()
        self._reached(position)
        if due:
            self.cpu.append(time.thread_time() - cpu)
            self.taken[len(self.began)] = time.perf_counter() - began
        elif position.iteration >= self._next:
            self.by_hand.copy()
            self._next += self.every

    def before_step(self, *arguments: Any) -> None:
        began = time.perf_counter()
        self._settle(*arguments)
        self.waited.append(time.perf_counter() - began)


def measure(name: str) -> None:
    from notebook_learner import LearnerBuilder

    net, data, every = {"small": small, "large": large}[name]()
    with tempfile.TemporaryDirectory() as directory:
        builder = LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(1).renderer("silent").metrics()
        builder = builder.with_file_checkpointer().autosave(every).with_application_logger(False)
        learner = builder.build(net, torch.optim.SGD(net.parameters(), lr=1e-3))
        watch = Watch(learner, every)
        learner.fit(data)
    report(name, watch)


def report(name: str, watch: Watch) -> None:
    steps = [after - before for before, after in zip(watch.began, watch.began[1:], strict=False)]
    free, first, flying = [], [], []
    for number, seconds in enumerate(steps):
        if number <= len(steps) // 20 or number + 1 in watch.taken:
            continue  # it warms up; or its time ends with a boundary, which is told of its own
        kind = first if number in watch.taken else flying if watch.flying[number] else free
        kind.append(seconds)
    print(f"{name}: {len(watch.taken)} checkpoints in {len(steps)} steps")
    for what, times in (
        ("a step without a checkpoint", free),
        ("the step after the boundary", first),
        ("other steps while it is written", flying),
        ("at the boundary itself", list(watch.taken.values())[1:]),
        ("of it, CPU of the thread", watch.cpu[1:]),
        ("the least by hand", watch.by_hand.wall[1:]),
        ("of it, CPU of the thread", watch.by_hand.cpu[1:]),
        ("waiting for the copy", watch.waited),
    ):
        if times:
            median, longest = statistics.median(times) * 1e3, max(times) * 1e3
            print(f"  {what:34}{median:10.3f} ms{longest:10.3f} ms at most{len(times):7}", flush=True)


def main() -> None:
    torch.set_num_threads(1)  # a core for the training, one for the writer thread
    print(f"torch {torch.__version__}, one thread; medians, maxima and how many there were")
    for name in ("small", "large"):
        measure(name)
    tensors = [torch.randn(1024, 1024) for _ in range(24)]
    copies, times = [torch.empty_like(tensor) for tensor in tensors], []
    for _ in range(9):
        began = time.perf_counter()
        torch._foreach_copy_(copies, tensors)
        times.append(time.perf_counter() - began)
    print(f"for comparison, copying 100 MB at once: {statistics.median(times) * 1e3:.1f} ms")
