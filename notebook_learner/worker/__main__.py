"""`python -m notebook_learner.worker`: started by `learner.detach()`, with three descriptors to talk over."""

import sys

from .detached_run import main

if __name__ == "__main__":  # a spawned worker of a loader imports it by another name
    sys.exit(main(*map(int, sys.argv[1:4])))
