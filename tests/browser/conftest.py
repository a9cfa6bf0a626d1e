"""A real JupyterLab, a real kernel, a real headless Chromium, for the tests of what people see and touch."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import chromium
import pytest
from lab import Lab
from lab_page import Notebook
from playwright.sync_api import Browser, BrowserContext, Error, Playwright, sync_playwright

OpenNotebook = Callable[..., Notebook]
OPENED = pytest.StashKey[list[Notebook]]()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One JupyterLab server for all tests of the session (of a worker under xdist)."""
    with closing(Lab(tmp_path_factory.mktemp("lab"))) as server:
        server.wait_until_up()
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module.

    Not for the session: while Playwright is open, an asyncio loop counts as running in this thread, and
    tests of other folders could not run their own.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(playwright), args=chromium.ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tabs(browser: Browser) -> Iterator[BrowserContext]:
    """One window for a module: JupyterLab's scripts come from the cache from the second page on."""
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        yield context


@pytest.fixture
def notebook(lab: Lab, tabs: BrowserContext, request: pytest.FixtureRequest) -> Iterator[OpenNotebook]:
    """Open a notebook of these cells, with a kernel of its own that is idle: `notebook(["1 + 1"])`.

    Pictures go to the folder NOTEBOOK_LEARNER_SHOTS, or to a temporary one.
    """
    with _opening(lab, tabs, request.node) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def module_notebook(lab: Lab, tabs: BrowserContext, request: pytest.FixtureRequest) -> Iterator[OpenNotebook]:
    """As `notebook`, for pages that several tests use one after the other: to open one takes seconds."""
    with _opening(lab, tabs, request.node) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def page(module_notebook: OpenNotebook, request: pytest.FixtureRequest) -> Notebook:
    """A notebook of the module's CELLS, the first of which has run."""
    page = module_notebook(list(request.module.CELLS.values()))
    page.result(0)
    return page


@contextmanager
def _opening(lab: Lab, tabs: BrowserContext, node: pytest.Item | pytest.Collector) -> Iterator[OpenNotebook]:
    shots = Path(os.environ.get("NOTEBOOK_LEARNER_SHOTS") or lab.home / "shots")
    opened: list[Notebook] = []
    node.stash[OPENED] = opened

    # A theme that an earlier test chose is not this one's.
    lab.set_settings("@jupyterlab/apputils-extension/themes", None)

    def open_one(cells: Sequence[str], kernel: str = "bench") -> Notebook:
        page = Notebook(lab, tabs, lab.write(cells, kernel), shots, opened)
        page.wait_idle()
        return page

    yield open_one
    for page in opened:
        page.close()
    for path in {page.path for page in opened}:
        lab.shut_down_kernels(path, wait=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its pages and the server said, and keeps a picture of each page."""
    report = yield
    if report.failed and report.when != "teardown":
        pages: list[Notebook] = [page for node in item.listchain() for page in node.stash.get(OPENED, [])]
        for number, page in enumerate(pages):
            with suppress(AssertionError, Error):  # the page may be the one thing that does not answer
                page.screenshot(f"failed-{item.name}-{number}")
            report.sections.append((f"page of {page.path}", page.story()))
    return report


def _chromium(playwright: Playwright) -> str:
    found = chromium.find(playwright)
    if found is None:
        pytest.fail(chromium.why_there_is_none())
    return found
