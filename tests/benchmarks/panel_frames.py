"""How long a frame of the panel's page takes while a person zooms, drags and points: the built page in a real
Chromium, which hears the messages of a real panel. Only the notebook's connection between them is left out.

Chromium has no graphics card here and draws by the processor. A frame's work is the time from its begin until
the page's thread is free again: scripts, layout, and the drawing. Chromium begins 60 frames a second at most.
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
from notebook_learner.widget import message_pace
from notebook_learner.widget import panel as panels

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))

STATIC = Path(panels.__file__).parent / "static"
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
    const at = (share) => ({
        clientX: box.left + share * box.width, clientY: box.top + 100, bubbles: true, cancelable: true,
    });
    const away = (number) => at(0.5 + 0.4 * Math.sin(number / 20));
    const free = new MessageChannel();
    const work = () => new Promise((done) => {
        let began = 0;
        free.port1.onmessage = () => done([began, performance.now() - began]);
        requestAnimationFrame(() => (began = performance.now()));
        return act(step++, () => requestAnimationFrame(() => free.port2.postMessage(null)));
    });
    const wheel = (number) => over.dispatchEvent(new WheelEvent("wheel", {
        ...at(0.6), ctrlKey: true, deltaY: number % 24 < 12 ? -100 : 100,
    }));
    const acts = {
        nothing: () => {},
        zoom: wheel,
        drag: (number) => window.dispatchEvent(new MouseEvent("mousemove", away(number))),
        point: (number) => over.dispatchEvent(new MouseEvent("mousemove", away(number))),
    };
    let step = 0;
    const act = (number, then) => { acts[what](number); then(); };
    if (what === "drag") {
        for (let number = 0; number < 4; number++) wheel(number);
        over.dispatchEvent(new MouseEvent("mousedown", { ...at(0.5), shiftKey: true, button: 0 }));
    }
    if (what === "point") over.dispatchEvent(new MouseEvent("mouseenter", at(0.5)));
    const frames = [];
    for (let number = 0; number < count + 10; number++) frames.push(await work());
    window.dispatchEvent(new MouseEvent("mouseup", at(0.5)));
    return frames.slice(10); // the first ones compile
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
    "30 metrics, 300 epochs": (30, 300, 10),
}


def main(rounds: int) -> None:
    from chromium import ARGUMENTS, find
    from playwright.sync_api import sync_playwright

    message_pace.INTERVAL, message_pace.IDLE_PER_COST = 0.0, 0  # every step reaches the page
    count = 60 * rounds
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(playwright), args=ARGUMENTS)
        print(f"Chromium {browser.version}, no graphics card; ms of {count} frames, median and 95 of 100:")
        print(f"{'':58}{'work a frame':>16}{'between frames':>16}")
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
            for along in ("By step", "By time"):
                page.get_by_role("group", name="Horizontal axis").get_by_role("button", name=along).click()
                for what in ("nothing", "zoom", "drag", "point"):
                    began, took = np.array(page.evaluate(FRAMES, [what, count])).T
                    figures = [*np.quantile(took, [0.5, 0.95]), *np.quantile(np.diff(began), [0.5, 0.95])]
                    row = f"{name}, {points} held, {along.lower()}, {what}"
                    print(f"{row:58}" + "".join(f"{each:8.1f}" for each in figures), flush=True)
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
