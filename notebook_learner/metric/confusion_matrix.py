"""Which classes are mistaken for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Size, Tensor

from ..errors import OutputError, StateError
from ..event import Matrix
from .base import AccumulatedText, Input
from .tensors import Alike, class_dimension

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALL_CLASSES = 12
"""With up to this many classes the text lists all of them, with more only the worst ones."""
_WORST = 5


class ConfusionMatrix(AccumulatedText):
    """How often each class was the answer for each class, over the epoch so far: a picture and a text.

    Register it with `.metrics(ConfusionMatrix())`, or `.metrics(ConfusionMatrix(), train=False)`. Its text
    (the accuracy per class, and the classes that are confused most) is shown and logged. The object itself
    is the picture: as the last line of a cell, or `figure()`. It holds the current pass, or the last one
    until the next begins. An object that is registered a second time (for the other split, or with a second
    learner) is copied, so that the counts stay separate. So make one object for each, and look at that
    object.

    `output` has a score per class and `targets` class indices, as for `Accuracy`; or, with a threshold, one
    score per target of 0 or 1. Every target counts once. The matrix is read from the device once for each
    block of steps, 8 bytes a cell.

    Args:
        labels: the classes' names, in the order of the indices; by default their numbers, for as many classes
            as the output has.
        threshold: above it the answer is class 1: 0.0 for logits, 0.5 for probabilities.
        pad_token: targets equal to it are left out.
        class_dim: the dimension of the classes, if dimension 1 and the last one both fit.
        name: another name, to have several of them.
        input: takes `output` and `targets` out of another output.

    >>> from types import SimpleNamespace
    >>> confusion = ConfusionMatrix(["cat", "dog"])
    >>> scores, targets = torch.tensor([[3.0, 1.0], [0.5, 0.2], [0.1, 2.0]]), torch.tensor([0, 1, 1])
    >>> confusion.update(SimpleNamespace(output=scores, targets=targets))
    >>> confusion.counts.tolist()
    [[1, 0], [1, 1]]
    >>> confusion.text()
    'cat 100 %, dog 50 %; most confused: dog for cat (1)'
    """

    needs = ("output", "targets")

    def __init__(
        self,
        labels: Sequence[str] | None = None,
        *,
        threshold: float | None = None,
        pad_token: int | None = None,
        class_dim: int | None = None,
        name: str = "Confusion Matrix",
        input: Input | None = None,
    ) -> None:
        self.name = name
        self.labels = None if labels is None else [str(label) for label in labels]
        self.threshold = threshold
        self.pad_token = pad_token
        self.class_dim = class_dim
        self.input = input
        self._alike = Alike(name)
        self._matrix: Tensor | None = None
        self._seen: tuple[Size, Size, torch.device] | None = None
        self._dim, self._classes, self._ones = 1, 2, torch.empty(0)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The matrix: a row for each true class, a column for each answer. Reading it waits for the
        device."""
        if self._matrix is None:
            return np.zeros((0, 0), dtype=np.int64)
        counts: NDArray[np.int64] = self._matrix.cpu().numpy()
        return counts

    def per_class(self) -> dict[str, float]:
        """Return the accuracy of each class (its recall), in percent; NaN for a class that was never a
        target."""
        counts = self.counts
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = 100 * np.diag(counts) / counts.sum(1)
        return dict(zip(self._names(len(counts)), shares.tolist(), strict=True))

    def update(self, item: Any) -> None:
        """Count on the device, without a wait for the result."""
        matrix = self._table(item.output, item.targets)
        before = self._matrix
        if before is None:
            self._matrix = matrix
        elif before.shape != matrix.shape:
            raise OutputError(
                f"{self.name} saw {len(before)} classes in this epoch so far, but this output has "
                f"{len(matrix)}; give every step an output with the same classes"
            )
        else:
            self._matrix = (before if before.device == matrix.device else before.to(matrix.device)) + matrix

    def text(self) -> str:
        """Return the accuracy of each class, or of the worst ones, and the classes that are confused most."""
        shares = {name: share for name, share in self.per_class().items() if share == share}
        if not shares:
            return "no answers yet"
        told = shares if len(shares) <= _ALL_CLASSES else _lowest(shares, _WORST)
        head = "" if told is shares else f"worst of {len(shares)}: "
        line = head + ", ".join(f"{name} {share:.4g} %" for name, share in told.items())
        confused = self._confused(3)
        return f"{line}; most confused: {', '.join(confused)}" if confused else line

    def figure(self, *, dark: bool = False) -> Figure:
        """Draw the matrix: rows sum to 100 % of a true class, and cells hold the counts.

        Args:
            dark: draw light on dark.
        """
        from ..renderer.drawn_table import draw_matrix

        counts = self.counts
        return draw_matrix(counts, self._names(len(counts)), self.name, dark=dark)

    def picture(self) -> Matrix | None:
        """Return the counts, for the panel."""
        counts = self.counts
        return Matrix((*self._names(len(counts)),), counts) if len(counts) else None

    def reset(self) -> None:
        """Forget the counts."""
        self._matrix = None

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"matrix": self._matrix}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved counts."""
        self._matrix = self._checked(state["matrix"])

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another one counted (its `state_dict`) on other samples."""
        theirs = self._checked(state["matrix"])
        if theirs is not None:
            ours = self._matrix
            self._matrix = theirs if ours is None else ours + theirs.to(ours.device)

    def __repr__(self) -> str:
        counts = self.counts
        total, right = int(counts.sum()), int(np.trace(counts))
        share = f", {100 * right / total:.4g} % right" if total else ""
        return f"<{self.name}: {total} answers of {len(counts)} classes{share}>"

    def _repr_png_(self) -> Any:
        """Show the picture if a notebook shows the object."""
        return self.figure()._repr_png_() if self._matrix is not None else None  # type: ignore[attr-defined]

    def _table(self, output: Tensor, targets: Tensor) -> Tensor:
        if (output.shape, targets.shape, output.device) != self._seen:
            self._remember(output, targets)
        classes = self._classes
        if self.threshold is None:
            said = output.argmax(self._dim).reshape(-1)
        else:
            said = (self._alike(output, targets) > self.threshold).long().reshape(-1)
        due, real = targets.reshape(-1).long(), self._ones
        if self.pad_token is not None:
            real = (due != self.pad_token).long()
            due = due * real  # a pad (-100) is not an index; it counts 0 times for class 0
        # By scatter: torch.bincount reads the result's length from the GPU, and waits.
        cells = torch.zeros(classes * classes, dtype=torch.int64, device=output.device)
        cells.scatter_add_(0, torch.add(said, due, alpha=classes), real)
        return cells.reshape(classes, classes)

    def _remember(self, output: Tensor, targets: Tensor) -> None:
        """Check shapes when they have changed, and not at every step."""
        self._classes = 2
        if self.threshold is None:
            self._dim = class_dimension(self.name, output, targets, self.class_dim)
            self._classes = output.shape[self._dim]
        self._require_labels(self._classes)
        self._ones = torch.ones((), dtype=torch.int64, device=output.device).expand(targets.numel())
        self._seen = (output.shape, targets.shape, output.device)

    def _require_labels(self, classes: int) -> None:
        if self.labels is not None and len(self.labels) != classes:
            raise OutputError(
                f"{self.name} has {len(self.labels)} labels, but the output has {classes} classes; give one "
                "label for each, in the order of their indices"
            )

    def _names(self, classes: int) -> list[str]:
        return self.labels[:classes] if self.labels is not None else [str(index) for index in range(classes)]

    def _confused(self, most: int) -> list[str]:
        wrong = self.counts - np.diag(np.diag(self.counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        cells = [divmod(int(index), len(wrong)) for index in order]
        names = self._names(len(wrong))
        found = [(due, said) for due, said in cells if wrong[due, said]]
        return [f"{names[due]} for {names[said]} ({wrong[due, said]})" for due, said in found]

    def _checked(self, matrix: Any) -> Tensor | None:
        if matrix is None:
            return None
        square = isinstance(matrix, Tensor) and matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
        if not square or matrix.dtype != torch.int64:
            raise StateError(f"the state of {self.name} holds no matrix of counts")
        return matrix  # type: ignore[no-any-return]


def _lowest(shares: Mapping[str, float], count: int) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda pair: pair[1])[:count])
