"""What a paused step looks like: plain numbers, a report as text and as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from . import report_html, report_text
from .findings import Findings
from .frame import to_pandas
from .layers import Layer
from .pictures import Picture
from .sections import Section, sections
from .weights import Parameter


@dataclass(frozen=True, slots=True, repr=False)
class Inspection(Findings):
    """One step, seen from all sides. Prints as a report, and is one in a notebook.

    Attributes:
        place: where training stands.
        model: the model's class.
        loss: of the step; None where it did not get that far.
        failed: the exception that ended the step, and the module it came from; None where none did.
        first_non_finite: what was NaN or infinite first, and where; None where all was finite.
        batch: a row for every tensor of the batch.
        thumbnails: pictures of what looks like images.
        samples: the samples of the batch, the worst first; None where their losses are not known.
        samples_reason: why not.
        layers: a row for every layer, in the order of the model.
        parameters: a row for every parameter.
        optimizer: a row for every parameter group.
        memory: bytes by kind.
        times: seconds by part of a step, if the caller measured them.
        notes: what could not be seen, and why.
        rank: on several devices, the one whose step it is.
    """

    def __getitem__(self, name: str) -> Layer | Parameter:
        """The row of a layer, or of a parameter: `inspection["fc1"]`, `inspection["fc1.weight"]`."""
        rows: tuple[Layer | Parameter, ...] = (*self.layers, *self.parameters)
        for row in rows:
            if row.name == name:
                return row
        known = ", ".join(layer.name for layer in self.layers[:20] if layer.name)
        more = ", …" if len(self.layers) > 20 else ""
        raise KeyError(f"no layer or parameter is called {name!r}; the layers are {known or 'none'}{more}")

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, numbers and text, as JSON has them; pictures as data addresses."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def to_pandas(self) -> Any:
        """The table of layers as a DataFrame, one row a layer; needs pandas."""
        return to_pandas(self.layers)

    def sections(self) -> list[Section]:
        """The report in short: titles, and pairs of name and text, as the panel shows them."""
        return sections(self)

    def __repr__(self) -> str:
        return report_text.report(self)

    def _repr_html_(self) -> str:
        return report_html.report(self)


def _plain(value: Any) -> Any:
    if isinstance(value, Picture):
        return {"path": value.path, "count": value.count, "uri": value.uri}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return _plain(asdict(value)) if hasattr(value, "__dataclass_fields__") else value
