"""All code of the README, block after block, as a reader runs it: in cells of a real kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import INSTALLED, Page, python_of

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
NOT_PYTHON = ("sh", "text")


def cells_of(text: str) -> list[str]:
    """What a reader types into cells: a block each, and a new cell where a line begins with `%%`."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    code = [block for language, block in blocks if language not in NOT_PYTHON]
    parts = [part.strip() for block in code for part in re.split(r"^(?=%%)", block, flags=re.MULTILINE)]
    return [part for part in parts if part]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    page = Page(python_of(INSTALLED), tmp_path)
    page.run(
        f"import os, torch; os.chdir({str(tmp_path)!r}); torch.set_num_threads(1); torch.manual_seed(0);"
    )
    yield page
    page.leave()


def run_all(page: Page, cells: list[str]) -> None:
    for cell in cells:
        page.run(cell)


def test_every_block_runs_after_those_before_it(page: Page) -> None:
    cells = cells_of(README)
    assert [cell.split()[0] for cell in cells if cell.startswith("%")] == ["%load_ext", "%%train"]
    assert len(cells) == 9
    run_all(page, cells)
    trained = page.run("print(learner.status, sorted(learner.locals))")
    assert trained == "finished ['loss', 'output', 'x', 'y']\n"
    best = page.run(
        "print(learner.history.best('Accuracy', 'train').value > 90, len(run.epochs('Loss', 'train')) > 10)"
    )
    assert best == "True True\n"


BROKEN = [
    ("loss = nn.functional", "loss = F", "NameError: name 'F' is not defined"),
    ("x, y = batch", "x, a, b = batch", "ValueError: not enough values to unpack"),
    ("learner.fit(epochs=1)", "learner.fit(epoch=1)", "TypeError"),
]


@pytest.mark.parametrize(("line", "instead", "error"), BROKEN)
@pytest.mark.soak
def test_a_block_that_does_not_run_is_found(page: Page, line: str, instead: str, error: str) -> None:
    assert README.count(line) == 1
    with pytest.raises(AssertionError, match=re.escape(error)):
        run_all(page, cells_of(README.replace(line, instead)))
