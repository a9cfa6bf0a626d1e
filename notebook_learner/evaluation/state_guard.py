"""Work on other data between training steps. Afterwards the training is as it was, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..data.cursor import Cursor
from ..data.rng import capture_generators, restore_generators
from ..errors import StateError
from ..run.replica import Replica
from ..run.step_undo import aside
from ..state.parts import CursorPart

_TRAINING_ALONE = ("optimizer", "scheduler", "scaler", "early_stopping", "rng")
"""The parts that no validation step touches. An optimizer's state is twice as large as the model, so it is
not copied. Random streams are only borrowed."""


@contextmanager
def beside(replica: Replica, cursor: Cursor, what: str) -> Iterator[None]:
    """Inside, the model is in validation mode, and its steps may run. Afterwards, also after an error,
    everything is put back: weights and buffers, gradients, modes, random generators, and the place in the
    data, even if the cursor belongs to one of the training's own loaders. It costs a copy of the weights.

    Raises:
        StateError: the loader is the training's own, and can be walked only once.
    """
    loop = replica.loop
    sharing = _sharing(replica, cursor, what)
    replica.settle()
    places = [(part, part.capture()) for part in sharing]
    for part in sharing:
        part.cursor().drop()  # persistent workers are about to begin another epoch
    generators = cursor.walk.generators
    drawn = capture_generators(generators)
    try:
        with replica.rng.lent(), loop.modes.kept(), aside(loop, replica.parts, but=_TRAINING_ALONE):
            loop.modes.enter("valid")
            yield
    finally:
        cursor.close()
        restore_generators(generators, drawn)
        for part, place in places:
            part.restore(place)


def _sharing(replica: Replica, cursor: Cursor, what: str) -> list[CursorPart]:
    """The training's own places in the loaders that the cursor walks, too."""
    found = []
    for split, each in replica.loop.passes.items():
        if each.cursor.source is cursor.source:
            if not cursor.walks_again:
                raise StateError(
                    f"{what}: this is the {split} loader of the training, and it can be walked only once, so "
                    "the training would miss its batches; give a list, a DataLoader, or an object whose "
                    "__iter__ starts anew"
                )
            part = replica.parts[f"data {split}"]
            assert isinstance(part, CursorPart)
            found.append(part)
    return found
