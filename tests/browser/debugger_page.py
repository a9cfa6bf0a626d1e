"""JupyterLab's visual debugger as people use it: the bug, the gutter of a cell, the bar on the right."""

from __future__ import annotations

from lab import PATIENCE
from lab_page import Notebook
from playwright.sync_api import Locator, expect

expect.set_options(timeout=1000 * PATIENCE)


class DebuggerPage:
    """The debugger of one notebook."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.sidebar = notebook.page.locator("#jp-debugger-sidebar")
        self.bug = notebook.page.locator(".jp-NotebookPanel-toolbar .jp-DebuggerBugButton")
        self.frame = self.sidebar.locator(".jp-DebuggerCallstackFrame.selected")
        """Where it stands."""

    def switch_on(self) -> None:
        """Press the bug; returns when the kernel has heard of it."""
        expect(self.bug).to_have_attribute("aria-pressed", "false")
        self.bug.click()
        expect(self.bug).to_have_attribute("aria-pressed", "true")

    def gutter(self, cell: int, line: int) -> Locator:
        """Left of a line, counted from 1."""
        # The first one of CodeMirror's is never seen: it only measures.
        return self.notebook.cell(cell).locator(".cm-breakpoint-gutter > .cm-gutterElement").nth(line)

    def click_gutter(self, cell: int, line: int) -> None:
        """Set a breakpoint, or take it away."""
        self.gutter(cell, line).click()

    def wait_breakpoints(self, count: int) -> None:
        """Until so many are listed: the kernel has agreed to them."""
        expect(self.sidebar.locator(".jp-DebuggerBreakpoint")).to_have_count(count)

    def wait_stop(self, cell: str, line: int) -> None:
        """Until it stands in that line of that cell ("[*]"), and that line is marked."""
        expect(self.frame.locator(".jp-DebuggerCallstackFrame-location")).to_have_text(f"Cell {cell}:{line}")

    def highlighted(self, cell: int) -> Locator:
        """The line of a cell that is marked as the next one."""
        return self.notebook.cell(cell).locator(".jp-DebuggerEditor-highlight")

    def wait_variable(self, name: str, detail: str) -> None:
        """Until the variables have one of that name, with that beside it: its value, or its type."""
        shown = self.sidebar.locator(".jp-DebuggerVariables-name").get_by_text(name, exact=True)
        expect(shown.locator("xpath=following-sibling::*[1]")).to_have_text(detail)

    def variables(self) -> set[str]:
        """The names that the variables show."""
        return set(self.sidebar.locator(".jp-DebuggerVariables-name").all_text_contents())

    def click(self, name: str) -> None:
        """Continue, Next, Step In, Step Out, Terminate."""
        button = self.sidebar.locator(f'.jp-AccordionPanel-toolbar jp-button[aria-label^="{name} ("]')
        expect(button).to_have_attribute("aria-disabled", "false")
        button.click()
