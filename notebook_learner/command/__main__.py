"""`python -m notebook_learner.command`."""

import sys

from . import main

sys.exit(main())
