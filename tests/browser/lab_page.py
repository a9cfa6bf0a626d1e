"""A notebook in a page of JupyterLab, as the tests drive and read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab import PATIENCE, Lab
from playwright.sync_api import BrowserContext, ConsoleMessage, Error, Locator, Page

# `window.jupyterapp` is there because the server was started with --expose-app-in-browser. The counter of
# runs is ours: JupyterLab's own indicator says "idle" still when a run was asked for a moment ago.
SCRIPT = """
window.bench = {
    open: 0,
    panel(path) {
        const all = window.jupyterapp?.shell.widgets("main") ?? [];
        return [...all].find((one) => one.context?.path === path);
    },
    ready(path) {
        const panel = this.panel(path), context = panel?.context;
        return Boolean(context?.isReady && context.sessionContext.isReady && panel.content.widgets.length
            && document.querySelector(".jp-NotebookPanel-notebook .jp-Cell"));
    },
    kernel(path) { return this.panel(path)?.context.sessionContext.session?.kernel ?? null; },
    idle(path) { return this.ready(path) && this.open === 0 && this.kernel(path)?.status === "idle"; },
    execute(path, command, cell) {
        const panel = this.panel(path);
        if (cell !== null) panel.content.activeCellIndex = cell;
        window.jupyterapp.shell.activateById(panel.id);
        this.open += 1;
        const done = () => { this.open -= 1; };
        window.jupyterapp.commands.execute(command).then(done, done);
    },
};
"""

THEME = "(document.body.dataset.jpThemeName ?? '')"
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Notebook:
    """One notebook, opened in one page."""

    def __init__(
        self, lab: Lab, context: BrowserContext, path: str, shots: Path, opened: list[Notebook]
    ) -> None:
        self.lab, self.path = lab, path
        self._context, self._shots, self._opened = context, shots, opened
        opened.append(self)  # so that `close` finds also a page that never got ready
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.add_init_script(SCRIPT)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        with self._patience("the notebook opens"):
            self.page.goto(lab.address(path), wait_until="commit")
        self._wait_ready()

    # -- cells -----------------------------------------------------------------------------------------

    def run(self, cell: int) -> None:
        """Run a cell and do not wait for it; counted from 0."""
        self._execute("notebook:run-cell", cell)

    def run_all(self) -> None:
        """Run all cells and do not wait for them."""
        self._execute("notebook:run-all-cells", None)

    def wait_idle(self) -> None:
        """Until every cell that was run is over and the kernel has nothing to do."""
        self.wait("bench.idle(path)", "the kernel becomes idle")

    def result(self, cell: int) -> str:
        """Run a cell to its end; what it shows as text."""
        self.run(cell)
        self.wait_idle()
        return self.output_text(cell)

    def cell(self, cell: int) -> Locator:
        """A cell, input and outputs."""
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{cell}"]')

    def prompt(self, cell: int) -> str:
        """Its number as it stands beside it: "[3]"."""
        return self.cell(cell).locator(".jp-InputPrompt").inner_text().rstrip(":")

    def outputs(self, cell: int) -> Locator:
        """The outputs of a cell: not its source, which often has the same words in it."""
        return self.cell(cell).locator(".jp-OutputArea-output")

    def output_text(self, cell: int) -> str:
        """What the outputs of a cell say, those that are no widgets."""
        # Not what is rendered: JupyterLab renders nothing of a cell that is scrolled away.
        outputs = self.cell(cell).locator(".jp-OutputArea-output[data-mime-type]")
        return "\n".join(text.strip() for text in outputs.all_text_contents())

    def wait_output(self, cell: int, text: str | re.Pattern[str]) -> None:
        """Until an output of that cell shows the text."""
        with self._patience(f"cell {cell} shows {text!r}", lambda: self.output_text(cell)):
            self.outputs(cell).filter(has_text=text).first.wait_for()

    def panel(self, cell: int) -> Locator:
        """The widget that a cell shows."""
        # JupyterLab says of every other output what it is; a widget's it fills with the element of the view.
        return self.cell(cell).locator(".jp-OutputArea-output:not([data-mime-type]) > .lm-Widget").first

    # -- by hand ---------------------------------------------------------------------------------------

    def editor(self, cell: int) -> Locator:
        """Where the source of a cell is typed."""
        return self.cell(cell).locator(".cm-content")

    def type(self, cell: int, source: str) -> None:
        """Put other text into a cell, as one who selects all and pastes; the cursor stands at its end."""
        # With a key: a click puts the cursor somewhere, and JupyterLab's own tools lie over the first line.
        self.editor(cell).focus()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)

    def press(self, keys: str) -> None:
        """Press keys wherever the focus is: "Shift+Enter" runs the cell that was typed into."""
        self.page.keyboard.press(keys)

    def tool(self, title: str) -> Locator:
        """A button of the toolbar above the notebook, by what it is called."""
        return self.page.locator(".jp-NotebookPanel-toolbar").get_by_role("button", name=title)

    # -- kernel ----------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """The button with the square."""
        self.page.evaluate("(path) => bench.kernel(path).interrupt()", self.path)

    def restart(self) -> None:
        """Restart the kernel, without its dialog; returns when the new one answers."""
        with self._patience("the kernel restarts"):
            self.page.evaluate("(path) => bench.kernel(path).restart()", self.path)
        self.wait("bench.kernel(path)?.status === 'idle'", "the restarted kernel becomes idle")

    # -- page ------------------------------------------------------------------------------------------

    def reload(self, save: bool = True) -> None:
        """Load the page again; the notebook as it was saved, which is now unless told otherwise.

        Returns when the notebook stands there again; the kernel may be busy.
        """
        if save:
            self.save()
        with self._patience("the page loads again"):
            self.page.reload(wait_until="commit")
        self._wait_ready()

    def save(self) -> None:
        """Write the notebook to its file."""
        with self._patience("the notebook is saved"):
            self.page.evaluate("(path) => bench.panel(path).context.save()", self.path)

    def second_tab(self) -> Notebook:
        """The same notebook in another tab of the same browser, as it was saved, which is now."""
        self.save()
        return Notebook(self.lab, self._context, self.path, self._shots, self._opened)

    def theme(self, name: str) -> None:
        """Switch to "JupyterLab Dark" or "JupyterLab Light", as the menu does: without a reload."""
        with self._patience(f"the theme becomes {name}", lambda: str(self.page.evaluate(THEME))):
            self.page.evaluate(
                "(theme) => jupyterapp.commands.execute('apputils:change-theme', {theme})", name
            )
            self.page.wait_for_function(f"(name) => {THEME} === name", arg=name)

    def resize(self, width: int, height: int = 900) -> None:
        """Another size of the window, in CSS pixels; without the file list, which would take most of 400."""
        self.page.evaluate("jupyterapp.shell.collapseLeft()")
        self.page.set_viewport_size({"width": width, "height": height})

    def screenshot(self, name: str, of: Locator | None = None) -> Path:
        """A picture of the page, or of one element, in the folder of this run's pictures."""
        self._shots.mkdir(parents=True, exist_ok=True)
        file = self._shots / f"{name}.png"
        # JupyterLab takes its splash away with an animation; a frame later, what was asked for is drawn.
        with self._patience("the splash goes"):
            self.page.locator("#jupyterlab-splash").wait_for(state="detached")
        self.page.evaluate(TWO_FRAMES)
        (of or self.page).screenshot(path=file)
        return file

    def wait(self, expression: str, what: str) -> None:
        """Until a JavaScript expression is true; `path` is the notebook's in it."""
        with self._patience(what):
            self.page.wait_for_function(f"(path) => {expression}", arg=self.path)

    def story(self) -> str:
        """What the page complained about, and the end of the server's log."""
        complaints = "\n".join(self.complaints[-20:])
        return f"-- the page complained:\n{complaints}\n-- the server said:\n{self.lab.log_tail()}"

    def close(self) -> None:
        """Close the page. The kernel lives on."""
        self.page.close()

    # -- inside ----------------------------------------------------------------------------------------

    def _execute(self, command: str, cell: int | None) -> None:
        self.page.evaluate(
            "([path, command, cell]) => bench.execute(path, command, cell)", [self.path, command, cell]
        )

    def _wait_ready(self) -> None:
        self.wait("bench.ready(path)", "the notebook is there with its kernel")

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text}")

    @contextmanager
    def _patience(self, what: str, detail: Any = None) -> Iterator[None]:
        """An error after a vain wait shows what the page and the server had to say."""
        try:
            yield
        except Error as error:
            instead = f"-- instead: {detail()}\n" if detail else ""
            raise AssertionError(f"{what}: {error.message}\n{instead}{self.story()}") from error
