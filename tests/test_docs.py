"""What the documentation says holds: examples run, links lead somewhere, names exist."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest
import reference_page
import torch

import notebook_learner
from notebook_learner import artifacts, checkpoint, event, inspection, metric
from notebook_learner import breakpoint as breakpoints
from notebook_learner.learner.assigning import SETTABLE

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "notebook_learner"
CONCEPTS = tuple(
    path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tutorials" / "concepts").glob("*.md"))
)
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *CONCEPTS)
WITH_FOREIGN_NAMES = ("tutorials/concepts/internals.md", "tutorials/concepts/reference.md")
"""They say of names that are no class of ours what they stand for."""
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r"^\s*>>> ", path.read_text("utf-8"), re.MULTILINE)
]


def examples_in(module):
    """The docstrings of a module that hold examples; each is one session."""
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return [session for session in found if session.examples]


def page(name):
    return (ROOT / name).read_text("utf-8")


# ---------------------------------------------------------------------------------------- examples


# In process and not by --doctest-modules, so that an example that trains finds its own empty folder
# and that a skipped example is an error.
@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_in_docstrings_run(module, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner()
    report = []
    with torch.random.fork_rng():
        for session in examples_in(module):
            runner.run(session, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_no_example_is_left_out(module):
    sessions = examples_in(module)
    assert sessions != []
    left_out = [
        f"{session.name}, line {session.lineno + example.lineno + 1}: {example.source.strip()}"
        for session in sessions
        for example in session.examples
        if doctest.SKIP in example.options
    ]
    assert left_out == []


@pytest.mark.parametrize(
    "module", ["notebook_learner.learner.wiring.builder", "notebook_learner.metric.base"]
)
def test_where_people_start_there_is_an_example(module):
    assert module in WITH_EXAMPLES


# ------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("name", PAGES)
def test_links_within_the_repository_lead_somewhere(name):
    here = (ROOT / name).parent
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", page(name)) if "://" not in target]
    assert [target for target in targets if not leads_somewhere(here, target)] == []


def leads_somewhere(here, target):
    """Whether a relative link's file exists, and in it the heading, if the link names one."""
    path, _, anchor = target.partition("#")
    file = here / path if path else here
    if not anchor:
        return file.exists()
    headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_paths_in_the_text_exist(name):
    paths = re.findall(r"`([\w.]+(?:/[\w.]+)+|[\w.-]+\.(?:py|md|txt|toml))`", page(name))
    nowhere = [path for path in paths if not any((root / path).exists() for root in (ROOT, PACKAGE))]
    assert nowhere == []


@pytest.mark.parametrize("name", sorted({*PAGES} - {*WITH_FOREIGN_NAMES}))
def test_classes_in_the_text_are_public(name):
    packages = (notebook_learner, metric, checkpoint, artifacts, breakpoints, inspection, event)
    public = {each for package in packages for each in package.__all__}
    mentioned = set(re.findall(r"`([A-Z][a-z]+\w*)`", page(name)))
    assert mentioned - public == set()


@pytest.mark.parametrize("name", [*CONCEPTS, "CONTRIBUTING.md"])
def test_the_examples_of_a_page_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "page"}
    with torch.random.fork_rng():
        for block in python_blocks(name):
            exec(compile(block, name, "exec"), scope)


def python_blocks(name):
    return re.findall(r"^```python\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def test_the_pages_that_explain_show_code():
    assert [name for name in CONCEPTS if not python_blocks(name)] == []


@pytest.mark.parametrize("name", ["reference.md", "internals.md"])
def test_the_pages_of_all_names_are_up_to_date(name):
    assert page(f"tutorials/concepts/{name}") == reference_page.pages()[name], (
        "python tests/reference_page.py"
    )


def test_each_public_name_is_on_one_of_them_and_what_a_first_week_needs_comes_first():
    titles = re.findall(r"^## (.+)$", page("tutorials/concepts/reference.md"), re.MULTILINE)
    assert titles[1] == "A first week"
    for package in reference_page.PACKAGES:
        inner, outer = (dict(reference_page.exported(package, internal=each)) for each in (True, False))
        assert sorted([*inner, *outer]) == list(importlib.import_module(package).__all__)
        named = reference_page.INTERNALS.get(package, "").split()
        assert named in (["*"], sorted(inner)), "no name there is one that has gone"


def test_every_name_on_that_page_has_a_line():
    rows = re.findall(r"^\| `(.+)` \| (.*) \|$", page("tutorials/concepts/reference.md"), re.MULTILINE)
    assert len(rows) > 200
    assert [name for name, text in rows if len(text) < 8] == []


@pytest.mark.parametrize("cls", [notebook_learner.LearnerBuilder, notebook_learner.Learner])
def test_every_verb_is_on_that_page(cls):
    rows = set(re.findall(r"^\| `(\w+)", page("tutorials/concepts/reference.md"), re.MULTILINE))
    assert {name for name in dir(cls) if not name.startswith("_")} - rows == set()


def test_who_comes_from_elsewhere_is_told_names_that_exist():
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", page("tutorials/concepts/coming_from.md"), re.MULTILINE)
    told = set(re.findall(r"`\.?([a-z]\w+)", " ".join(rows)))
    cells = {"compile", "valid"}
    known = {name for cls in (notebook_learner.LearnerBuilder, notebook_learner.Learner) for name in dir(cls)}
    known |= {*SETTABLE}
    assert len(told) > 20
    assert told - known - cells == set()


def test_the_changelog_says_what_the_next_version_brings():
    sections = re.split(r"^## ", page("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    assert sections[0].startswith("[Unreleased]\n")
    assert re.findall(r"^- ", sections[0], re.MULTILINE) != []


def test_no_page_is_wider_than_the_code_but_for_commands_and_tables():
    wide = [
        f"{name}:{number}"
        for name in PAGES
        for number, line in enumerate(page(name).splitlines(), start=1)
        if len(line) > 120 and not line.startswith(("python3 -m venv", "|"))
    ]
    assert wide == []
