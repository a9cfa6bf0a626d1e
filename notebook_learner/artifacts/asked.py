"""What was measured afterwards: the names of its metrics, which log files do not tell exactly."""

from __future__ import annotations

from ..errors import DamagedError
from ..store import durable
from ..store.json_text import parse
from ..store.layout import check_metric_name
from ..store.run_folder import RunPath

ASKED = "asked.json"
_LARGEST = 1 << 20


def asked_names(folder: RunPath) -> list[str]:
    """The names of the metrics that were asked; none if the file is not there, or is a stranger's."""
    try:
        with durable.opened(folder / ASKED) as file:
            text = file.read(0, min(file.size, _LARGEST))
        told = parse(text, len(text))
    except (OSError, ValueError, DamagedError):
        return []
    names = told.get("metrics") if isinstance(told, dict) else None
    return [name for name in names if check_metric_name(name) is None] if isinstance(names, list) else []
