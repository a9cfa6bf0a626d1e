"""Pictures of the panel in each state, light and dark, wide and narrow: `python screenshots.py FOLDER`."""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDGET = Path(__file__).parents[2]
STATES = ("idle", "running", "paused", "branched", "failed", "finished", "hostile", "readonly", "silent")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


def main(folder: Path, states: tuple[str, ...]) -> None:
    """Take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=WIDGET))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for width in (1400, 400):
            page = browser.new_page(viewport={"width": width, "height": 900}, device_scale_factor=1.5)
            page.on("console", lambda message: print(message.type, message.text))
            page.on("pageerror", lambda error: print("page error:", error))
            for state in states:
                for theme in ("light", "dark"):
                    query = f"state={state}&theme={theme}"
                    page.goto(f"http://127.0.0.1:{server.server_port}/js/demo/index.html?{query}")
                    page.wait_for_selector(".nl-panel")
                    page.wait_for_timeout(3600 if state == "silent" else 400)
                    page.screenshot(path=folder / f"{state}-{theme}-{width}.png", full_page=True)
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]) or STATES)
