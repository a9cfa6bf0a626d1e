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
    """By button: nothing where it can be used, else the reason why not.

    Args:
        status: of the learner.
        begun: whether a step was taken.
        saved: whether there is a checkpoint.
        lacks: what it needs before it can train.
        kept: whether an earlier step can be gone back to.
        away: who else goes on with the run.

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
        found.update(dict.fromkeys(_MOVES, "all epochs are over; ask for more of them"))
    if not begun:
        found["rewind"] = found["rewind_to"] = "no step was taken yet"
    elif not kept:
        found["rewind_to"] = "no earlier step is kept"
    if not saved:
        found["restore"] = "there is no checkpoint"
    if lacks:
        found.update({name: found[name] or lacks for name in (*_MOVES, "inspect")})
    return found
