"""How long a frame of the panel's page takes while a person zooms and drags: the built page in a real Chromium,
which hears the messages of a real panel. Only the notebook's connection between the two is left out.

Chromium has no graphics card here and draws by the processor. Its limit of 60 frames a second is off, so the time
from one frame to the next is what a frame costs: our scripts, layout, and the drawing itself. A frame that has
nothing to do is measured as well.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from notebook_learner.event import (
    Column,
    EpochEnded,
    MetricBlock,
    MetricInfo,
    RunOpened,
    SplitEnded,
    SplitStarted,
    StatusChanged,
)
from notebook_learner.widget import panel as panels

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))

STATIC = Path(panels.__file__).parent / "static"
UNLIMITED = ["--disable-frame-rate-limit", "--disable-gpu-vsync"]
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/panel.css">
<body data-jp-theme-light="true"><main id="here"></main><script type="module">
import panel from "/panel.js";
const heard = new Set();
const model = {
    on: (_, hear) => heard.add(hear),
    off: (_, hear) => heard.delete(hear),
    send: (content) => window.toKernel(JSON.stringify(content)),
};
const bytes = (text) => new DataView(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
window.take = (content, buffers) => heard.forEach((hear) => hear(content, buffers.map(bytes)));
const widget = panel();
widget.initialize({ model });
widget.render({ model, el: document.getElementById("here") });
</script></body>"""
FRAMES = """
async ([what, count]) => {
    const over = document.querySelector(".nl-canvas .u-over");
    over.scrollIntoView({ block: "center" });
    const box = over.getBoundingClientRect();
    const at = (share) => ({ clientX: box.left + share * box.width, clientY: box.top + 100, bubbles: true, cancelable: true });
    const frame = () => new Promise(requestAnimationFrame);
    const wheel = (number) => over.dispatchEvent(new WheelEvent("wheel", {
        ...at(0.35 + 0.3 * Math.sin(number / 9)), ctrlKey: true, deltaY: number % 24 < 12 ? -100 : 100,
    }));
    const drag = (number) => window.dispatchEvent(new MouseEvent("mousemove", at(0.5 + 0.4 * Math.sin(number / 20))));
    const point = (number) => over.dispatchEvent(new MouseEvent("mousemove", at(0.5 + 0.4 * Math.sin(number / 20))));
    const acts = { nothing: () => {}, zoom: wheel, drag, point };
    if (what === "drag") {
        for (let number = 0; number < 4; number++) { wheel(number); await frame(); await frame(); }
        over.dispatchEvent(new MouseEvent("mousedown", { ...at(0.5), shiftKey: true, button: 0 }));
    }
    if (what === "point") over.dispatchEvent(new MouseEvent("mouseenter", at(0.5)));
    const took = [];
    for (let number = 0, before = null; number < count + 10; number++) {
        acts[what](number);
        await frame();
        const now = performance.now();
        if (number >= 10) took.push(now - before); // the first ones compile
        before = now;
    }
    window.dispatchEvent(new MouseEvent("mouseup", at(0.5)));
    return took;
}
"""


class Lines:
    """Carries the messages of a panel to the page."""

    def __init__(self, receive: Callable[[object], None]) -> None:
        self.receive = receive
        self.waiting: list[Any] = []

    def send(self, message: Any) -> None:
        self.waiting.append(message)

    def bundle(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def flush(self, page: Any) -> None:
        page.wait_for_timeout(0)  # the page's own messages come in meanwhile
        messages, self.waiting = self.waiting, []
        for message in messages:
            buffers = [base64.b64encode(each).decode() for each in message.buffers]
            page.evaluate("([content, buffers]) => take(content, buffers)", [message.content, buffers])


def trained(panel: panels.Panel, lines: Lines, page: Any, metrics: int, epochs: int, steps: int) -> None:
    """Let the panel hear of a run, while the page looks."""
    names = ["Loss", *(f"metric {n}" for n in range(1, metrics))]
    infos = [MetricInfo(name, split) for name in names for split in ("train", "valid")]
    panel.handle(RunOpened("runs/frames", "Net", 1000, epochs, tuple(infos)))
    panel.handle(StatusChanged("running", 1, "train", 0, steps))
    noise = np.random.default_rng(0)
    weights = np.full(steps, 32.0)
    for epoch in range(1, epochs + 1):
        panel.handle(SplitStarted(epoch, "train", steps, epochs))
        columns = {name: Column(1 / epoch + noise.normal(0, 0.1, steps), weights) for name in names}
        panel.handle(MetricBlock(epoch, "train", 1, steps, epoch * steps, columns, {}, steps * 0.001))
        panel.handle(SplitEnded(epoch, "train", steps, dict.fromkeys(names, 1 / epoch)))
        panel.handle(SplitStarted(epoch, "valid", 1, epochs))
        one = {name: Column(np.array([1 / epoch]), np.array([32.0])) for name in names}
        panel.handle(MetricBlock(epoch, "valid", 1, 1, epoch * steps, one, {}, 0.001))
        panel.handle(SplitEnded(epoch, "valid", 1, dict.fromkeys(names, 1 / epoch)))
        panel.handle(EpochEnded(epoch, epochs))
        lines.flush(page)
    panel.handle(StatusChanged("paused", epochs, "valid", 1, 1))
    lines.flush(page)


CASES = {
    "1 metric, 100,000 steps": (1, 50, 2000),
    "30 metrics, 300 epochs of 40 steps": (30, 300, 40),
}


def main(rounds: int) -> None:
    from chromium import ARGUMENTS, find
    from playwright.sync_api import sync_playwright

    panels.INTERVAL, panels.IDLE_PER_COST = 0.0, 0  # every step reaches the page
    count = 60 * rounds
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(playwright), args=[*ARGUMENTS, *UNLIMITED])
        print(
            f"Chromium {browser.version}, no graphics card; ms a frame over {count} frames: median, 95 of 100"
        )
        for name, case in CASES.items():
            page = browser.new_page(viewport={"width": 1400, "height": 1100})
            page.route("http://panel/*", _serve)
            panel = panels.Panel(Lines)
            lines: Any = panel.wire
            page.expose_function("toKernel", lambda text, to=lines: to.receive(json.loads(text)))
            page.goto("http://panel/")
            page.wait_for_selector(".nl-panel")
            lines.flush(page)
            trained(panel, lines, page, *case)
            page.wait_for_selector(".nl-canvas .u-over")
            points = page.locator("[data-part=plot]").get_attribute("data-points")
            for along in ("Step", "Time"):
                page.get_by_role("group", name="Horizontal axis").get_by_role("button", name=along).click()
                for what in ("nothing", "zoom", "drag", "point"):
                    took = page.evaluate(FRAMES, [what, count])
                    page.keyboard.press("Escape")
                    middle, most = np.quantile(took, [0.5, 0.95])
                    print(
                        f"{name}, {points} points held, along {along}, {what:8} {middle:6.1f} {most:6.1f}",
                        flush=True,
                    )
                    page.get_by_role("button", name="All", exact=True).click()
            page.close()
        browser.close()


def _serve(route: Any) -> None:
    name = route.request.url.rpartition("/")[2]
    kind = {"panel.js": "text/javascript", "panel.css": "text/css"}.get(name)
    if kind is None:
        route.fulfill(body=PAGE, content_type="text/html")
    else:
        route.fulfill(path=STATIC / name, content_type=kind)


if __name__ == "__main__":
    main(2)
