"""The shape of the house: rooms in one line, each of which knows those below it and no other.

Data flows one way, from batch to step to metrics to events to listeners; so do imports. What
listens (loggers, renderers) knows events and nothing of learners; what runs a step knows nothing of
who asked for it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = ROOT / "notebook_learner"
LINES_OF_ONE_SUBJECT = 600

ROOMS = (
    "errors",
    "event",
    "cluster",
    "store",
    "checkpoint",
    "logger",
    "renderer",
    "inspection",
    "metric",
    "breakpoint",
    "steering",
    "widget",
    "remote",
    "artifacts",
    "data",
    "step",
    "state",
    "recipe",
    "carried",
    "run",
    "trial",
    "evaluation",
    "ranks",
    "learner",
    "worker",
    "magic",
    "command",
)
"""The lowest first. A file imports from its own room and from lower ones: when it is loaded, in a function,
or for a type checker alone. The package's own `__init__` stands above all of them."""
TOP = ""

# --------------------------------------------------------------------------------- reading the source


class Import(NamedTuple):
    """An import of one module of the package in another. The package itself is called ""."""

    source: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.source or 'notebook_learner'} imports {self.target} (line {self.line})"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str) -> list[Import]:
    """What a module imports from the package, wherever in it that is written."""
    return list(imports_in(FILES[module].read_text("utf-8"), module))


def imports_in(source: str, module: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (Import(module, target, node.lineno) for target in sorted(_targets(node, module)))


def _targets(node: ast.Import | ast.ImportFrom, module: str) -> set[str]:
    if isinstance(node, ast.Import):
        return {
            alias.name.partition(".")[2] for alias in node.names if alias.name.split(".")[0] == PACKAGE.name
        }
    if node.level:
        is_package = FILES[module].name == "__init__.py"
        steps_up = node.level - is_package
        parents = module.split(".") if module else []
        base = ".".join([*parents[: len(parents) - steps_up], *([node.module] if node.module else [])])
    elif (node.module or "").split(".")[0] == PACKAGE.name:
        base = (node.module or "").partition(".")[2]
    else:
        return set()
    names = {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
    modules = names & FILES.keys()
    return modules if len(modules) == len(names) else modules | {base}


def height(module: str) -> int:
    """The number of a module's room in the line."""
    return len(ROOMS) if module == TOP else ROOMS.index(module.split(".")[0])


def points_up(edge: Import) -> bool:
    return height(edge.target) > height(edge.source)


def circle_in(imports: Iterable[Import]) -> list[str]:
    """Files that import each other in a circle, if there are any."""
    graph: dict[str, set[str]] = {}
    for edge in imports:
        if edge.source != edge.target:
            graph.setdefault(edge.source, set()).add(edge.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


ALL = [edge for module in FILES for edge in imports_of(module)]

# -------------------------------------------------------------------------------------------- tests


def test_every_file_is_in_a_room_and_every_room_has_one():
    assert {module.split(".")[0] for module in FILES} - {TOP} == {*ROOMS}


def test_the_line_of_rooms_in_contributing_is_this_one():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert tuple(re.findall(r"(?m)^\| `(\w+)` \|", text)) == ROOMS


@pytest.mark.parametrize("module", FILES)
def test_imports_point_one_way(module):
    assert [str(edge) for edge in imports_of(module) if points_up(edge)] == []


def test_no_files_import_each_other_in_a_circle():
    assert circle_in(ALL) == []


def test_what_is_named_as_data_in_another_room_is_there():
    """`module:function` names what runs in another process, or in a room above."""
    named = [
        text
        for path in FILES.values()
        for text in re.findall(r'"notebook_learner\.[\w.]+:\w+"', path.read_text("utf-8"))
    ]
    assert named
    for text in named:
        module, _, name = text.strip('"').partition(":")
        assert hasattr(import_module(module), name), text


def test_every_room_says_what_comes_in_what_goes_out_and_what_it_leaves_alone():
    silent = []
    for room in ROOMS:
        told = ast.get_docstring(ast.parse(FILES[room].read_text("utf-8"))) or ""
        if FILES[room].name == "__init__.py" and len(re.findall(r"[.:](?=\s|$)", told)) < 3:
            silent.append(room)
    assert silent == []


PLANTED = {
    "an import of a room above": "from ..run.loop import Loop",
    "one by its whole name": "import notebook_learner.run.loop",
    "one from the package": "from notebook_learner.run import loop",
    "one inside a function": "def f():\n    from ..run.loop import Loop",
    "one for a type checker": "if TYPE_CHECKING:\n    from ..run.loop import Loop",
    "one in a try": "try:\n    from ..run import loop\nexcept ImportError: pass",
    "one of the package itself": "from .. import LearnerBuilder",
}


@pytest.mark.parametrize("source", PLANTED.values(), ids=PLANTED)
def test_a_planted_import_of_what_is_above_is_found(source):
    assert [edge for edge in imports_in(source, "metric.step_values") if points_up(edge)]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("from ..event import Event", "event"),
        ("from .base import Metric", "metric.base"),
        ("from . import base", "metric.base"),
        ("from ..store.files import open_to_read", "store.files"),
    ],
)
def test_an_import_of_what_is_below_is_let_pass(source, target):
    (edge,) = imports_in(source, "metric.step_values")
    assert edge.target == target and not points_up(edge)


def test_other_packages_are_not_in_question():
    assert list(imports_in("import torch\nfrom torch import nn", "metric.step_values")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from .group import MetricGroup",
        "def f():\n    from .group import MetricGroup",
        "if TYPE_CHECKING:\n    from .group import MetricGroup",
    ],
)
def test_a_planted_circle_inside_a_room_is_found(source):
    assert circle_in([*ALL, *imports_in("from .base import Metric", "metric.group")]) == []
    planted = [*ALL, *imports_in(source, "metric.base")]
    assert {"metric.base", "metric.group"} <= {*circle_in(planted)}


def test_no_file_has_more_than_one_subject():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in [*PACKAGE.rglob("*.py"), *TESTS.rglob("*.py")]
        if (lines := len(path.read_text("utf-8").splitlines())) > LINES_OF_ONE_SUBJECT
    }
    assert long == {}, f"more than {LINES_OF_ONE_SUBJECT} lines"


def test_test_files_and_their_helpers_have_names_of_their_own():
    names = Counter(
        path.name for path in TESTS.rglob("*.py") if path.name not in ("conftest.py", "__init__.py")
    )
    assert [name for name, count in names.items() if count > 1] == []


# Names that DESIGN gives to users: `metric.GradNorm` measures what `breakpoint.GradNorm` watches.
NAMED_TWICE_ON_PURPOSE = {"GradNorm"}


def test_no_class_name_stands_for_two_things():
    places: dict[str, list[str]] = {}
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    twice = {
        name: where for name, where in places.items() if len(where) > 1 and "widget.js" not in str(where)
    }
    assert twice.keys() == NAMED_TWICE_ON_PURPOSE, twice
