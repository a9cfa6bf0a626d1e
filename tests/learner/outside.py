"""What a test counts or breaks from outside of a training, while the training is taken back and forth."""

from __future__ import annotations

from typing import Any


class Outside:
    """A value that is no part of a training's state, as it says itself: a rewind leaves it as it is.

    >>> calls = Outside([])
    >>> calls.value.append("loss")
    >>> calls.state_dict()
    {}
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
