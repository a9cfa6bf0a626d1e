"""Which buttons can be used, and why the others cannot."""

from __future__ import annotations

from ..event import Status

BUTTONS = (
    *("run", "pause", "step", "step_epoch", "rewind", "rewind_to", "stop"),
    *("inspect", "save", "restore", "epochs"),
)
_STILL = "it is running; pause it first"
_NOT_MEANWHILE = ("run", "step", "step_epoch", "rewind", "rewind_to", "inspect", "restore")
_MOVES = ("run", "step", "step_epoch")


def obstacles(
    status: Status, *, begun: bool, saved: bool, lacks: str = "", kept: bool = True, away: str = ""
) -> dict[str, str]:
    """For each button: "" if it can be used, else the reason why not.

    Args:
        status: the learner's status.
        begun: whether the learner has taken a step.
        saved: whether there is a checkpoint.
        lacks: what the learner needs before it can train.
        kept: whether the learner can go back to an earlier step.
        away: which other process or learner continues the run.

    >>> obstacles("running", begun=True, saved=False)["step"]
    'it is running; pause it first'
    """
    if away:
        return dict.fromkeys(BUTTONS, away)
    found = dict.fromkeys(BUTTONS, "")
    if status == "running":
        return {**found, **dict.fromkeys(_NOT_MEANWHILE, _STILL)}
    found["pause"] = "nothing is running"
    if status not in ("paused", "failed"):
        found["stop"] = "nothing is running" if status != "stopped" else "it is stopped"
    if status == "finished":
        found.update(dict.fromkeys(_MOVES, "all epochs are over; set a higher number of epochs"))
    if not begun:
        found["rewind"] = found["rewind_to"] = "no step was taken yet"
    elif not kept:
        found["rewind_to"] = "no earlier step is kept"
    if not saved:
        found["restore"] = "there is no checkpoint"
    if lacks:
        found.update({name: found[name] or lacks for name in (*_MOVES, "inspect")})
    return found
