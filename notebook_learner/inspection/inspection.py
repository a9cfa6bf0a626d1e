"""The inspection of a paused step: plain numbers, and a report as text and as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from . import report
from .batch import Picture
from .findings import Findings
from .layers import Layer, Parameter, to_pandas
from .report import Section, sections


@dataclass(frozen=True, slots=True, repr=False)
class Inspection(Findings):
    """The full description of one step. It prints as a report; a notebook shows an HTML report.

    Attributes:
        place: the position of the training.
        model: the model's class.
        loss: the step's loss; None if the step did not get that far.
        failed: the exception that ended the step, and its module; None if there was no exception.
        first_non_finite: the first NaN or infinite value, and its origin; None if all was finite.
        batch: a row for every tensor of the batch.
        thumbnails: pictures of tensors that look like images.
        samples: the samples of the batch, the worst first; None if their losses are unknown.
        samples_reason: why the samples' losses are unknown.
        layers: a row for every layer, in the order of the model.
        parameters: a row for every parameter.
        optimizer: a row for every parameter group.
        memory: bytes by kind.
        times: seconds by part of a step, if the caller measured them.
        notes: what could not be seen, and why.
        rank: on several devices, the rank whose step this is.
    """

    def __getitem__(self, name: str) -> Layer | Parameter:
        """Return the row of a layer or a parameter: `inspection["fc1"]`, `inspection["fc1.weight"]`."""
        rows: tuple[Layer | Parameter, ...] = (*self.layers, *self.parameters)
        for row in rows:
            if row.name == name:
                return row
        known = ", ".join(layer.name for layer in self.layers[:20] if layer.name)
        more = ", …" if len(self.layers) > 20 else ""
        raise KeyError(f"no layer or parameter is called {name!r}; the layers are {known or 'none'}{more}")

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values: dicts, lists, numbers and text; pictures as data URLs."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def to_pandas(self) -> Any:
        """Return the layers as a DataFrame with a row for each layer; needs pandas."""
        return to_pandas(self.layers)

    def sections(self) -> list[Section]:
        """Return the short report that the panel shows: titles, and pairs of name and text."""
        return sections(self)

    def __repr__(self) -> str:
        return report.as_text(self)

    def _repr_html_(self) -> str:
        return report.as_html(self)


def _plain(value: Any) -> Any:
    if isinstance(value, Picture):
        return {"path": value.path, "count": value.count, "uri": value.uri}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return _plain(asdict(value)) if hasattr(value, "__dataclass_fields__") else value
