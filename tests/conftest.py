"""What holds for every test.

Test files and their helpers have names of their own throughout the tree: folders here are no packages,
so a helper is imported by its bare name, and a second one of that name would silently be the first.
"""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

# One thread here, and in the processes that tests start. The tensors of tests are tiny, so a second
# thread costs more than it saves; and with a pytest-xdist worker on every core there is none to spare:
# OpenMP's threads then wait for each other (the digits tutorial took 60 s in place of 5).
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# No deadline and no slowness check: a test does not fail for the machine's being busy. In CI the same
# examples every time, so that a change is judged by what it changed; at a desk new ones, kept when they
# fail.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("desk", UNTIMED)
settings.register_profile("ci", UNTIMED, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
