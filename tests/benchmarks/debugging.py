"""What debugging costs: a breakpoint that is on, a keyframe, a look."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from notebook_learner import LearnerBuilder
from notebook_learner.breakpoint import GradNorm, LossSpike, NonFinite
from notebook_learner.state.state import tensors_in

STEPS = 100
CONDITIONS = {
    "none set": (),
    "one that is off": (NonFinite,),
    "NonFinite()": (NonFinite,),
    "NonFinite(every_step=True)": (lambda: NonFinite(every_step=True),),
    "LossSpike()": (LossSpike,),
    "GradNorm(above=1e9)": (lambda: GradNorm(above=1e9),),
}


def learner_of(width: int, depth: int, conditions: Any = ()) -> Any:
    torch.manual_seed(0)
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    batches = [(torch.randn(32, width), torch.randint(0, 10, (32,))) for _ in range(STEPS)]
    builder = (
        LearnerBuilder(tempfile.mkdtemp())
        .loss(F.cross_entropy)
        .num_epochs(10**6)
        .renderer("silent")
        .with_application_logger(False)
        .remote_control(False)
        .break_on(*(make() for make in conditions))
    )
    return builder.build(model, torch.optim.Adam(model.parameters()), None, batches)


CHUNK = 25


def cpu_of(learner: Any) -> float:
    """CPU time of a step, over a chunk of them: short, so that what else the machine does hits all alike."""
    started = time.process_time()
    learner.step(CHUNK)
    return (time.process_time() - started) / CHUNK


def breakpoints(rounds: int, width: int, depth: int) -> dict[str, Any]:
    """Each condition against learners without any, in turn in one process."""
    torch.set_num_threads(1)
    learners = {name: learner_of(width, depth, conditions) for name, conditions in CONDITIONS.items()}
    learners["one that is off"].breakpoints[1].on = False
    learners = {"bare": learner_of(width, depth), **learners}
    for learner in learners.values():
        learner.step(2 * STEPS)  # the blocks have grown to a tenth of a second
    times: dict[str, list[float]] = {name: [] for name in learners}
    for _ in range(20 * rounds):
        for name, learner in learners.items():
            times[name].append(cpu_of(learner))
    bare = times.pop("bare")
    return {
        "step_us": statistics.median(bare) * 1e6,
        "ratio": {
            name: statistics.median(mine / plain for mine, plain in zip(each, bare, strict=True))
            for name, each in times.items()
        },
        "least": {name: min(each) / min(bare) for name, each in times.items()},
        "added_us": {
            name: statistics.median(mine - plain for mine, plain in zip(each, bare, strict=True)) * 1e6
            for name, each in times.items()
        },
    }


def keyframes(rounds: int, width: int, depth: int) -> dict[str, Any]:
    """A keyframe of an Adam model against a plain clone of the same tensors, in turn."""
    learner = learner_of(width, depth)
    learner.step(3)
    replica = learner._replica
    state = replica.capture()
    live = [
        *learner.model.parameters(),
        *(value for values in learner.optimizer.state.values() for value in values.values()),
    ]
    pairs = []
    for _ in range(rounds):
        started = time.perf_counter()
        clones = [tensor.detach().clone() for tensor in live]
        cloned = time.perf_counter()
        kept = replica.capture()
        captured = time.perf_counter()
        pairs.append((captured - cloned, cloned - started))
        del clones, kept
    return {
        "mb": sum(tensor.nbytes for tensor in live) / 1e6,
        "memory_ratio": state.nbytes / sum(tensor.nbytes for tensor in live),
        "tensors": len(tensors_in(state.parts)),
        "clone_ms": statistics.median(clone for _, clone in pairs) * 1e3,
        "time_ratio": statistics.median(mine / clone for mine, clone in pairs),
    }


def main(rounds: int) -> dict[str, Any]:
    """Print a line for each, and give all figures."""
    found: dict[str, Any] = {}
    for name, width, depth in (("0.5 ms", 64, 3), ("1 ms", 200, 4), ("3 ms", 400, 6)):
        found[f"breakpoints, {name} steps"] = each = breakpoints(rounds, width, depth)
        print(f"steps of {each['step_us']:,.0f} us")
        for condition, ratio in each["ratio"].items():
            least, added = each["least"][condition], each["added_us"][condition]
            print(f"  {condition:28} {ratio:7.4f}, by least times {least:7.4f}  {added:+7.1f} us a step")
    for name, width, depth, pairs in (("small", 64, 3, 500), ("medium", 512, 8, 50), ("large", 2048, 8, 2)):
        found[f"keyframe, {name}"] = each = keyframes(pairs * rounds, width, depth)
        print(
            f"keyframe, {name}: {each['mb']:.1f} MB, memory {each['memory_ratio']:.3f} and time "
            f"{each['time_ratio']:.2f} of a plain clone ({each['clone_ms']:.2f} ms)"
        )
    return found
