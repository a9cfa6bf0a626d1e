"""The processes of ranks on this machine belong to one learner alone."""

from __future__ import annotations

import importlib
import random
import time
from types import SimpleNamespace

import torch

from notebook_learner.ranks.engines import OnThisMachine


def test_programs_with_one_seed_that_start_in_the_same_second_have_engines_of_their_own(monkeypatch):
    """With one name each would get the other's engines, in which two ranks draw from one generator."""
    module = importlib.import_module("ipyparallel.cluster.cluster")
    now = time.time()
    monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), "time": lambda: now}))
    names = set()
    for _ in range(2):
        random.seed(0)
        before = random.getstate()
        engines = OnThisMachine([torch.device("cpu")])
        try:
            names.add(engines._cluster.cluster_id)
        finally:
            engines.stop()
        assert random.getstate() == before, "a step that draws from it would see other numbers"
    assert len(names) == 2
