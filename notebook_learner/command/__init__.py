"""`notebook-learner`: look at runs, check, export and steer them, from a shell.

    notebook-learner ls runs              the runs below a directory
    notebook-learner show runs/digits     one run: settings, best epochs, evaluated sets, checkpoints
    notebook-learner verify runs/digits   check every byte
    notebook-learner repair runs/digits   clean up the unfinished files of a killed process
    notebook-learner export runs/digits digits.h5
    notebook-learner compare runs/a runs/b
    notebook-learner ctl runs/digits pause     steer the run that trains there

The exit status is 0 when all is well, 1 when damage was found or something failed, 2 for a wrong command.

The words of a command line come in; lines of text go out. Only `repair` and `export` write. Nothing here
loads torch before it is needed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..errors import NotebookLearnerError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        # Each command loads what it needs: looking at runs loads torch, steering a run does not.
        module, name = given.verb
        status: int = getattr(import_module(f".{module}", __name__), name)(given)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (NotebookLearnerError, OSError, KeyError, ValueError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        print(f"notebook-learner: {one_line(text)}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="notebook-learner", description="Look at training runs, check, export and steer them."
    )
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    ls = verbs.add_parser("ls", help="list the runs below directories")
    ls.add_argument("directories", nargs="*", default=["."], metavar="DIR")
    ls.set_defaults(verb=("runs", "ls"))
    for name, text in (
        ("show", "show runs: settings, best epochs, evaluated sets, checkpoints"),
        ("verify", "read every byte of runs and report what is damaged"),
        ("repair", "clean up the unfinished files of a killed process"),
        ("compare", "compare runs"),
    ):
        each = verbs.add_parser(name, help=text)
        each.add_argument("directories", nargs="+", metavar="DIR")
        each.set_defaults(verb=("runs", name))
    export = verbs.add_parser("export", help="write a whole run into one HDF5 file")
    export.add_argument("directory", metavar="DIR")
    export.add_argument("target", metavar="FILE")
    export.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    export.set_defaults(verb=("runs", "export"))
    _add_ctl(verbs)
    return parser


def _add_ctl(verbs: Any) -> None:
    ctl = verbs.add_parser(
        "ctl",
        help="steer the run that trains in a directory: pause, resume, step, rewind, stop, save, set",
        description="Steer the run that trains in a directory, from any terminal of the same user.",
        epilog=_COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ctl.add_argument("--json", action="store_true", help="print the answer as a line of JSON")
    ctl.add_argument("directory", metavar="DIR", help="the directory that the run writes to")
    ctl.add_argument("words", nargs="+", metavar="COMMAND", help="one of those below")
    ctl.set_defaults(verb=("steer", "ctl"), parser=ctl)


def one_line(text: str) -> str:
    """A message on one line, without control characters that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_COMMANDS = """\
commands:
  status                 print its position, speed and last values; the run does not wait for it
  pause                  pause at the next step boundary; returns when the run stands there
  resume                 go on, in the background of the run's process
  step [N]               take N steps of a run that is paused; returns when they are taken
  step_epoch             go on to the end of the epoch
  rewind [N]             take N training steps back; rewind_to N goes back to the state after N of them
  go_to BRANCH           go to the end of a branch that the run has left, by its number
  restore LABEL          go to a checkpoint: an epoch's number, 3-117, latest, best
  breakpoint NAME on     switch a breakpoint on, or off
  stop                   end the running fit() at the next step boundary
  save                   save a checkpoint of this step; prints its label
  set lr=0.01            the learning rate of all parameter groups, from the next step on
  set lr[1]=0.001        of one parameter group, counted from 0
  set momentum=0.8       also weight_decay=0.01; of one group: momentum[1]=0.8
  set num_epochs=20      train up to this epoch; several changes are made at one boundary

Each change is written to the run's experiment.log, with its sender. The exit status is 0 when it was done, 1
when the run refused or could not be reached, 2 for a wrong command.
"""
