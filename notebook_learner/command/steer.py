"""The command that steers the run which trains in a directory."""

from __future__ import annotations

import argparse
import json
import sys

from ..errors import RemoteError
from ..remote.client import ask, is_there
from ..steering.command import CommandError, typed
from . import one_line


def ctl(given: argparse.Namespace) -> int:
    """Send one request, and print the answer."""
    try:
        command = typed(given.words)
    except CommandError as wrong:
        given.parser.error(str(wrong))
    if not is_there(given.directory):
        _require_run(given.directory)
    try:
        answer = ask(given.directory, command)
    except KeyboardInterrupt:
        raise RemoteError(f"not waiting any more; the run goes on with `{command}`") from None
    if given.json:
        print(json.dumps({"ok": answer.ok, "text": answer.text, **answer.facts}))
    elif answer:
        print(one_line(answer.text))
    else:
        print(f"notebook-learner: {one_line(answer.text)}", file=sys.stderr)
    return 0 if answer else 1


def _require_run(directory: str) -> None:
    """Raise the store's own error if the directory holds no run; called when no process listens there."""
    from pathlib import Path

    from ..artifacts.run_status import require_run

    require_run(Path(directory))
