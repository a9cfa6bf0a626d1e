"""`python -m tests.tutorials.write [01 04 ...]`: runs the tutorials, or those whose names begin so, and
writes their outputs into their files. To be run after an edit; a test asks for it where it was forgotten."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tutorial_runs import NOTEBOOKS, rewrite  # test folders are no packages

chosen = [file for file in NOTEBOOKS if not sys.argv[1:] or file.name.startswith(tuple(sys.argv[1:]))]
if not chosen:
    sys.exit(f"no tutorial begins with {' or '.join(sys.argv[1:])}; there are {[f.stem for f in NOTEBOOKS]}")
for file in chosen:
    began = time.monotonic()
    rewrite(file)
    print(f"{file.name}: {time.monotonic() - began:.0f} s, {file.stat().st_size / 1000:.0f} kB", flush=True)
