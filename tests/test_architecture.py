"""The shape of the house: who may import whom.

Data flows one way, from batch to step to metrics to events to whoever listens; so do imports. What
listens (loggers, renderers) knows events and nothing of learners; what runs a step knows nothing of
who asked for it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = ROOT / "notebook_learner"
LINES_OF_ONE_SUBJECT = 600

# ------------------------------------------------------------------------------------- the table

# Read a row as: who | may import, besides itself. A package stands for all that is in it; a name with a
# dot in front is a module of learner/.
#
# WORDS  the vocabulary of the loop: values and requests, known to everybody in learner/
# PARTS  what the loop is made of (state, modes, keyframes, ...): every module right in learner/ that has
#        no row here. None of them knows the loop, nor who turns it.
# STOPPING before the update of a step, and looking at it
# TURNING the loop, and who turns it
# SHOWN  the parts of a Learner's face
# WIRING what is known of a learner before anything of it is made
TABLE = """
    errors                      |
    cluster                     |
    event                       | errors
    metric                      | errors event.values
    store                       | errors
    breakpoint                  | errors event.values
    logger                      | errors event store
    renderer                    | errors event
    checkpoint                  | errors store
    inspection                  | errors renderer
    widget                      | errors event renderer
    remote                      | errors event store
    artifacts          | errors event store logger checkpoint renderer widget remote.detached remote.owner
    command                     | errors artifacts remote renderer store

    WORDS                       | errors WORDS
    .ranks                      | errors metric WORDS .data .state
    .data                       | errors .rng store.hdf5_library
    .step                       | errors event WORDS .epoch_value .data .rng
    PARTS             | errors event metric checkpoint.info store.layout store.workers WORDS PARTS .data .step

    .loop                       | errors event metric WORDS PARTS .data .step .ranks
    .failure                    | errors event metric WORDS PARTS .data .loop
    .aside                      | WORDS PARTS .loop
    .holding                    | breakpoint WORDS PARTS .data .step .loop .aside
    .watch                      | breakpoint event metric WORDS PARTS .step .loop
    .on_ranks                   | errors .replica .driver .step
    .on_detach                  | errors .control .driver .premises PARTS
    .on_premises                | event artifacts .premises .replica
    .replay                     | event WORDS
    .replica | errors event logger metric WORDS PARTS STOPPING .loop .failure .ranks .replay checkpoint.info
    .passes                     | event store checkpoint WORDS PARTS
    .filing                     | errors event store checkpoint artifacts WORDS PARTS .passes

    .breaking                   |
    .parting                    | store.hdf5_library
    .background                 | .control
    .driver                     | errors .control .breaking .background store.ending
    .comparison                 | errors event.values renderer.numbers artifacts.page WORDS
    .changes                    | errors metric WORDS .data .step .loop
    .excursion                  | errors event WORDS PARTS .ranks .loop .replica .comparison .changes
    .what_if                    | errors WORDS .loop .replica .comparison .changes .excursion
    .trial                      | errors WORDS .replica .changes .excursion .step
    .lr_find              | errors event.values renderer.numbers WORDS .step .replica .changes .excursion
    .inspecting                 | errors inspection WORDS PARTS .data .step .replica .aside
    .evaluating                 | errors event metric logger WORDS PARTS .data .step .loop .failure .ranks
    .predicting                 | errors PARTS .data .evaluating .step .ranks
    .beside                     | errors PARTS .data .replica .aside
    .on_sets | event metric artifacts store WORDS .data .step .ranks TURNING .evaluating .predicting .beside
    .shown                      | errors event logger WORDS PARTS TURNING
    .debugging                  | errors event breakpoint WORDS PARTS TURNING STOPPING .step store .on_sets
    .learner             | errors event logger WORDS PARTS TURNING SHOWN artifacts .parting store.ending

    .wiring              |
    .wiring.undo         |
    .wiring.cells        |
    .wiring.compiling    | errors
    .wiring.settings     | errors cluster event metric WORDS PARTS .data .step checkpoint
    .wiring.autosave     | PARTS
    .wiring.dividing     | .wiring.settings
    .wiring.checks       | errors event metric breakpoint store checkpoint PARTS .step WIRING
    .wiring.making       | errors event metric WORDS PARTS .step .wiring.settings
    .wiring.opening      | errors event metric WORDS PARTS .step .wiring.settings
    .wiring.loaders      | errors event metric WORDS PARTS .data .step WIRING .loop .replica .predicting
    .wiring.builder | errors event metric WORDS PARTS .step .wiring.settings .learner BUILT
    .wiring.storing      | errors event store logger checkpoint artifacts PARTS .filing WIRING
    .wiring.tenancy      | errors event store remote artifacts TURNING .wiring.storing
    .wiring.forking      | errors event PARTS .step .learner WIRING
    .wiring.assembly     | errors cluster event metric breakpoint store logger renderer remote learner
    fleet                | errors cluster event metric breakpoint learner
    detach         | errors event metric breakpoint store checkpoint logger remote fleet learner

    .evaluator | errors event metric logger artifacts store renderer WORDS PARTS .data .step .driver EVALUATOR

    learner                     |
    magic                       | errors event learner
    notebook_learner            | errors artifacts learner
"""

WORDS = (".position", ".until", ".control")
STOPPING = (".aside", ".holding", ".watch")
SHOWN = (".shown", ".debugging", ".on_sets", ".on_ranks", ".on_detach", ".on_premises")
TURNING = (".loop", ".replica", ".driver")
BUILT = ("checkpoint", "breakpoint")
WIRING = (
    *(".wiring.checks", ".wiring.settings", ".wiring.compiling", ".wiring.autosave", ".wiring.cells"),
    ".wiring.dividing",
)

# Read a row as: this module may import that one inside a function, because ...
LAZY = {
    (
        "learner.wiring.builder",
        "learner.wiring.assembly",
    ): "the builder's verbs need none of what build() wires",
    ("learner.debugging", "learner.inspecting"): "the report is loaded for whoever looks",
    ("learner.debugging", "learner.what_if"): "tried now and then",
    ("learner.debugging", "learner.lr_find"): "tried once",
    ("learner.debugging", "learner.trial"): "tried now and then",
    ("learner.debugging", "learner.reloading"): "reads source code, for whoever edits it",
    ("learner.comparison", "renderer.drawing"): "matplotlib is loaded for whoever draws",
    ("learner.lr_find", "renderer.drawing"): "matplotlib is loaded for whoever draws",
    ("learner.wiring.forking", "learner.wiring.assembly"): "a sibling is assembled as its parent was",
    ("command.steer", "artifacts.place"): "where nobody listens, it says whether there is a run at all",
    ("learner.evaluator", "renderer"): "a display is loaded for whoever evaluates",
    ("learner.shown", "renderer.figure"): "matplotlib is loaded for whoever draws",
    ("learner.shown", "renderer.summary"): "a learner is bound to no display; a table is asked for",
    ("learner.shown", "learner.wiring.builder"): "which verbs a builder has, for whoever looks for one here",
    ("learner.shown", "widget.face"): "a panel for a learner that has another display, where a page asks",
    ("metric.confusion_matrix", "renderer.matrix"): "matplotlib is loaded for whoever draws",
    ("learner.on_ranks", "fleet.table"): "for whoever looks",
    ("learner.on_detach", "detach.handing"): "what packs and starts is for whoever leaves",
    ("learner.wiring.assembly", "fleet.leader"): "processes and their sums, for several devices",
    ("learner.wiring.assembly", "fleet.recipe"): "what other ranks are built from, for several devices",
    (
        "fleet.follower",
        "learner.wiring.assembly",
    ): "a follower is assembled as rank 0 is",
    ("breakpoint.non_finite", "inspection"): "only a hit asks which module it was",
    ("renderer.choose", "widget.face"): "the default in a notebook",
    ("", "magic"): "IPython is loaded for whoever loads the extension",
}

# --------------------------------------------------------------------------------- reading the source


@dataclass(frozen=True)
class Import:
    """An import of one module of the package in another. The package itself is called ""."""

    source: str
    target: str
    lazy: bool
    line: int

    def __str__(self) -> str:
        where = "in a function" if self.lazy else "at import"
        return f"{self.source or 'notebook_learner'} imports {self.target} {where} (line {self.line})"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(module: str) -> Iterator[Import]:
    """What a module imports from the package when it runs; not what only type checkers read."""
    yield from _imports_in(ast.parse(FILES[module].read_text("utf-8")), module, lazy=False)


def _imports_in(node: ast.AST, module: str, *, lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (Import(module, target, lazy, node.lineno) for target in _targets(node, module))
    lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for child in children:
        yield from _imports_in(child, module, lazy=lazy)


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


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def read_table() -> dict[str, set[str]]:
    """Who may import what, by module or package; words, parts and dots written out."""
    rows = [line.split("|") for line in TABLE.splitlines() if line.strip()]
    named = {name for who, _ in rows for name in who.split()} | {*WORDS}
    parts = {
        f".{name.removeprefix('learner.')}"
        for name in FILES
        if name.startswith("learner.") and f".{name.removeprefix('learner.')}" not in named
        if name.count(".") == 1
    }
    groups = {
        "WORDS": {*WORDS},
        "PARTS": parts,
        "BUILT": {*BUILT},
        "WIRING": {*WIRING},
        "STOPPING": {*STOPPING},
        "TURNING": {*TURNING},
        "SHOWN": {*SHOWN},
        "EVALUATOR": {".evaluating", ".predicting", ".wiring.checks", ".wiring.loaders", ".wiring.settings"},
        PACKAGE.name: {""},
    }

    def spelt_out(names: str) -> set[str]:
        members = [groups.get(name, {name}) for name in names.split()]
        return {f"learner{name}" if name.startswith(".") else name for name in set().union(*members)}

    return {name: spelt_out(may) for who, may in rows for name in spelt_out(who)}


MAY_IMPORT = read_table()


def row_of(module: str) -> str:
    """The table's row for a module: its own, or its package's."""
    while module not in MAY_IMPORT:
        module = module.rpartition(".")[0]
    return module


def allowed(edge: Import) -> bool:
    row = row_of(edge.source)
    within = row not in ("", "learner") and is_in(edge.target, row)
    return within or any(is_in(edge.target, package) for package in MAY_IMPORT[row])


def loaded_with(edge: Import) -> set[str]:
    """The module, and the packages around it, whose `__init__` runs first."""
    parents = edge.target.split(".")
    packages = {".".join(parents[:depth]) for depth in range(1, len(parents))}
    return {edge.target} | {package for package in packages if not is_in(edge.source, package)}


# -------------------------------------------------------------------------------------------- tests


def test_every_package_has_a_row_in_the_table():
    assert [module for module in FILES if module and row_of(module) == ""] == []


def test_the_table_names_only_what_exists():
    named = {*MAY_IMPORT, *set().union(*MAY_IMPORT.values()), *(name for pair in LAZY for name in pair)}
    assert named - FILES.keys() == set()


@pytest.mark.parametrize("module", FILES)
def test_imports_point_one_way(module):
    wrong = [
        str(edge)
        for edge in imports_of(module)
        if not allowed(edge) and not (edge.lazy and (edge.source, edge.target) in LAZY)
    ]
    assert wrong == []


def test_every_lazy_import_with_a_reason_is_still_there():
    made = {(edge.source, edge.target) for module in FILES for edge in imports_of(module) if edge.lazy}
    assert LAZY.keys() - made == set()


def test_no_two_modules_import_each_other():
    graph = {
        module: {name for edge in imports_of(module) if not edge.lazy for name in loaded_with(edge)}
        for module in FILES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


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


@pytest.mark.parametrize(
    ("module", "line", "target", "lazy"),
    [
        ("learner.loop", "from ..event import Event", "event", False),
        ("learner.loop", "from .data.cursor import Cursor", "learner.data.cursor", False),
        ("renderer.plain", "from . import epoch_table", "renderer.epoch_table", False),
        ("renderer", "from .plain import PlainRenderer", "renderer.plain", False),
        ("", "from .learner.wiring.builder import LearnerBuilder", "learner.wiring.builder", False),
        ("metric.loss", "import notebook_learner.learner.loop", "learner.loop", False),
        ("metric.loss", "from notebook_learner.learner import loop", "learner.loop", False),
        (
            "metric.loss",
            "try:\n    from ..store import layout\nexcept ImportError: pass",
            "store.layout",
            False,
        ),
        ("metric.loss", "def f():\n    from ..learner.loop import Loop", "learner.loop", True),
        (
            "metric.loss",
            "if TYPE_CHECKING: pass\nelse:\n    from ..store import layout",
            "store.layout",
            False,
        ),
    ],
)
def test_an_import_is_seen_however_it_is_written(module, line, target, lazy):
    (seen,) = _imports_in(ast.parse(line), module, lazy=False)
    assert (seen.target, seen.lazy) == (target, lazy)


@pytest.mark.parametrize(
    "line",
    ["import torch", "from torch import nn", "if TYPE_CHECKING:\n    from ..learner.loop import Loop"],
)
def test_other_packages_and_what_only_type_checkers_read_are_not_in_question(line):
    assert list(_imports_in(ast.parse(line), "metric.loss", lazy=False)) == []


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("metric.loss", "learner.loop"),
        ("metric.group", "event.fanout"),
        ("event.values", "metric"),
        ("learner.loop", "learner.replica"),
        ("learner.loop", "logger"),
        ("learner.replica", "renderer.choose"),
        ("learner.learner", "learner.wiring.assembly"),
        ("learner.control", "learner.loop"),
        ("learner.data.cursor", "learner.loop"),
        ("learner.wiring.settings", "learner.wiring.checks"),
        ("renderer.figure", "learner"),
        ("", "renderer"),
    ],
)
def test_the_table_forbids_the_way_back(source, target):
    assert not allowed(Import(source, target, lazy=False, line=1))
