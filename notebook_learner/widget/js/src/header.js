// What is trained, how it stands, and how far it is.

import { h, icon, setAttribute, setText, show } from "./dom.js";

const ICONS = { ready: "dot", running: "play", paused: "pause", failed: "cross", stopped: "stop", finished: "check" };

export class Header {
  constructor() {
    this.icon = icon("dot");
    this.status = h("span", { "data-part": "status" });
    this.pill = h("span", { class: "nl-pill" }, this.icon, this.status);
    this.title = h("h2", { class: "nl-title" });
    this.directory = h("span", { class: "nl-directory" });
    this.readonly = h("span", { class: "nl-badge" }, "read only");
    this.position = h("span", { class: "nl-position", "data-part": "position" });
    this.why = h("span", { "data-part": "reason" });
    this.hit = icon("dot");
    this.reason = h("div", { class: "nl-reason" }, this.hit, this.why);
    this.element = h(
      "header",
      { class: "nl-header" },
      h("div", { class: "nl-name" }, this.title, this.directory, this.readonly),
      h("div", { class: "nl-where" }, this.position, this.pill),
      this.reason,
    );
  }

  update(board) {
    setText(this.title, board.title);
    setAttribute(this.title, "title", board.title);
    setText(this.directory, board.directory);
    setAttribute(this.directory, "title", board.directory);
    show(this.directory, board.directory !== board.title);
    show(this.readonly, board.readonly === true);
    setText(this.status, board.status);
    setAttribute(this.icon, "class", `nl-icon nl-icon-${ICONS[board.status] ?? "dot"}`);
    setText(this.position, board.position);
    setText(this.why, board.reason);
    show(this.hit, board.stopped === true);
    setAttribute(this.reason, "data-stopped", board.stopped ? "true" : null);
    show(this.reason, Boolean(board.reason) && !board.error);
  }
}

/** For a bar with an unknown end: how much of it is filled, and how far that moves when a step was taken. An
 * animation would have the browser draw sixty times a second, on a core that may be the training's. */
const [PIECE, MOVE] = [0.25, 0.07];

export class Progress {
  #step = 0;
  #at = 0;

  constructor() {
    this.run = bar("Whole run");
    this.epoch = bar("This epoch");
    this.share = h("span", { class: "nl-share" });
    this.rate = h("span", { class: "nl-rate", title: "of training" });
    this.elapsed = h("span", { title: "spent in steps" });
    this.left = h("span", { class: "nl-left" });
    this.memory = h("span", { title: "held on the device" });
    this.element = h(
      "div",
      { class: "nl-progress", "data-part": "progress" },
      h("div", { class: "nl-tracks" }, this.run, this.epoch),
      h("div", { class: "nl-pace" }, this.share, this.rate, this.elapsed, this.left, this.memory),
    );
  }

  update(board) {
    const percent = Math.min(100, Math.max(0, (board.progress ?? 0) * 100));
    const shown = `${percent > 0 && percent < 10 ? percent.toFixed(1) : Math.floor(percent)} %`;
    move(this.run, percent, `${shown} of the run, epoch ${board.epoch} of ${board.num_epochs}`);
    const known = board.total > 0;
    if (known) move(this.epoch, Math.min(100, (board.step / board.total) * 100), `step ${board.step} of ${board.total}`);
    else this.#wander(board.step);
    setAttribute(this.epoch, "data-split", board.split);
    setText(this.share, shown);
    setText(this.rate, board.rate);
    setText(this.elapsed, board.elapsed ? `${board.elapsed} so far` : "");
    setText(this.memory, board.memory ? `${board.memory} of memory` : "");
    setText(this.left, board.left ? `${board.left} left` : "");
  }

  #wander(step) {
    if (step !== this.#step) this.#at = (this.#at + MOVE) % (1 - PIECE);
    this.#step = step;
    move(this.epoch, null, `step ${step}`);
    this.epoch.firstElementChild.style.transform = `translateX(${this.#at * 100}%) scaleX(${step > 0 ? PIECE : 0})`;
  }
}

function bar(label) {
  const fill = h("div", { class: "nl-fill" });
  return h("div", { class: "nl-track", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
}

function move(track, percent, text) {
  setAttribute(track, "aria-valuenow", percent === null ? null : Math.round(percent));
  setAttribute(track, "aria-valuetext", text);
  setAttribute(track, "title", text);
  if (percent !== null) track.firstElementChild.style.transform = `scaleX(${percent / 100})`;
}
