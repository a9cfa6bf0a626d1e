// Breakpoints, and what a step looks like at the place where the training stopped.

import { Chooser } from "./chooser.js";
import { setReason } from "./controls.js";
import { Listing, fill, freshId, h, icon, section, setAttribute, setText, show } from "./dom.js";

/** What a row of the inspection says of alarming values: the panel marks such a row. */
const ALARMING = /\b(NaN|inf|dead)\b|^(failed|not finite)$|\b(no|zero) gradient\b/;

export const isAlarming = ([name, text]) => ALARMING.test(name) || ALARMING.test(text);

const LONG = 34; // letters: what has more of them stands in two lines, the text below its name

/** A table of many columns needs the whole width; what is narrower stands side by side. */
export const isWide = ({ grid }) => Boolean(grid) && grid.heads.length > 5;

export class Breakpoints extends Listing {
  constructor(ask, refuse, signal) {
    super("Breakpoints", "breakpoints", ask, signal);
    this.refuse = refuse;
  }

  update(board, store) {
    const why = board.still ? store.trouble.text : "";
    this.fill(board.breakpoints ?? [], () => this.#make(), (row, item) => {
      const box = row.querySelector("input");
      const [name, badge] = row.querySelector(".nl-its > div").children;
      row.dataset.name = item.name;
      setAttribute(row, "data-hit", item.hit ? "true" : null);
      if (box.checked !== item.on) box.checked = item.on;
      box.disabled = board.readonly === true;
      setAttribute(box, "aria-disabled", why === "" ? null : "true");
      setAttribute(box, "title", why || null);
      setText(name, item.name);
      show(badge, item.hit === true);
      setText(row.querySelector(".nl-its-note"), item.text || (item.on ? "no hit yet" : "off"));
    });
  }

  #make() {
    const box = h("input", { class: "nl-switch", type: "checkbox", role: "switch" });
    const name = h("span", { class: "nl-its-label", id: freshId("breakpoint") });
    const badge = h("span", { class: "nl-badge nl-wrong" }, icon("dot"), "stopped here");
    const note = h("span", { class: "nl-its-note", id: freshId("note") });
    setAttribute(box, "aria-labelledby", name.id);
    setAttribute(box, "aria-describedby", note.id);
    const row = h("li", {}, h("label", { class: "nl-check" }, box, h("span", { class: "nl-its" }, h("div", {}, name, badge), note)));
    // A switch that waits for the kernel keeps the focus, as the buttons do.
    const refuse = (event) => {
      event.preventDefault();
      this.refuse(box.title);
    };
    box.addEventListener("click", (event) => box.title && refuse(event), { signal: this.signal });
    box.addEventListener("change", () => this.ask("breakpoint", { name: row.dataset.name, on: box.checked }), { signal: this.signal });
    return row;
  }
}

/** Whether steps that are taken twice give the same bits: a button to try it, and what was found last. */
export class Verified {
  constructor(ask, refuse, signal) {
    this.button = h("button", { class: "nl-button nl-small", type: "button", "data-cmd": "verify" }, icon("verify"), h("span", {}, "Verify"));
    this.reason = h("span", { class: "nl-unseen", id: freshId("why") });
    this.badge = h("span", { class: "nl-badge" });
    this.text = h("span", { class: "nl-break" });
    this.when = h("small");
    this.element = section("Exactness", "verified", h("p", {}, this.badge, " ", this.text), this.when);
    this.element.prepend(h("div", { class: "nl-top" }, this.element.firstElementChild, h("div", {}, this.button, this.reason)));
    const press = () => (this.button.getAttribute("aria-disabled") === "true" ? refuse(this.button.title) : ask("verify", {}));
    this.button.addEventListener("click", press, { signal });
  }

  update(board, store) {
    const found = board.verified;
    show(this.element, !board.readonly);
    setReason(this.button, this.reason, board.controls?.verify ?? "");
    setAttribute(this.button, "aria-busy", [...store.pending.values()].some(({ cmd }) => cmd === "verify") ? "true" : null);
    show(this.badge, Boolean(found));
    this.badge.classList.toggle("nl-good", found?.exact === true);
    this.badge.classList.toggle("nl-wrong", found?.exact === false);
    setText(this.badge, found?.exact ? "exact" : "not exact");
    setText(this.text, found ? found.text.replace(/^(not )?exact: /, "") : "Do the same steps give the same bits again? Not tried yet.");
    setText(this.when, found ? whenExact(found) : "");
  }
}

/** When it was tried, and when it was exact for the last time. */
export function whenExact({ exact, at, exact_at }, said = clock) {
  if (exact) return `last exact at ${said(at)}`;
  return `tried at ${said(at)}; ${exact_at === null ? "not exact before" : `last exact at ${said(exact_at)}`}`;
}

const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString();

/** What a paused step looks like. */
export class Inspection {
  constructor(ask, refuse, signal) {
    this.list = h("div", { class: "nl-cards" });
    this.chooser = new Chooser(ask, refuse, signal);
    this.element = section("Inspection", "inspection", this.list);
    this.heading = this.element.firstElementChild;
    this.element.prepend(h("div", { class: "nl-top" }, this.heading, this.chooser.element));
  }

  /** The one to look at: that of the chooser. */
  get rank() {
    return this.chooser.rank;
  }

  update(board, store) {
    const items = board.inspection ?? [];
    const several = (board.ranks ?? []).length > 1;
    this.chooser.update(board, store);
    setText(this.heading, items.length > 0 && (several || board.inspected > 0) ? `Inspection of rank ${board.inspected}` : "Inspection");
    show(this.element, items.length > 0 || several);
    fill(this.list, items, makeCard, (card, item) => {
      const [title, pairs, frame, more] = card.children;
      setText(title, item.title);
      card.classList.toggle("nl-wide", isWide(item));
      show(pairs, !item.grid);
      show(frame, Boolean(item.grid));
      setText(more, item.grid?.more);
      if (item.grid) fillGrid(frame, item);
      else fillRows(pairs, item.rows);
    });
  }
}

const makeCard = () =>
  h(
    "details",
    { open: true },
    h("summary"),
    h("dl", { class: "nl-pairs nl-mono" }),
    h("div", { class: "nl-scroll", tabindex: 0, role: "group" }, h("table", { class: "nl-table nl-grid" }, h("thead", {}, h("tr")), h("tbody"))),
    h("small"),
  );

/** 1e-4 would be broken at its hyphen. */
const unbroken = (text) => text.replace(/(\de)-(?=\d)/g, "$1−");

function fillRows(list, rows) {
  fill(list, rows, () => h("div", {}, h("dt"), h("dd")), (pair, row) => {
    setText(pair.firstElementChild, row[0]);
    setText(pair.lastElementChild, unbroken(row[1]));
    setAttribute(pair, "data-long", row[0].length + row[1].length > LONG ? "true" : null);
    setAttribute(pair, "data-alarming", isAlarming(row) ? "true" : null);
  });
}

function fillGrid(frame, { title, grid }) {
  const [head, body] = frame.firstElementChild.children;
  setAttribute(frame, "aria-label", `${title}: table`);
  fill(head.firstElementChild, grid.heads, () => h("th", { scope: "col" }), (cell, text, at) => {
    setText(cell, text);
    setAttribute(cell, "data-right", grid.right[at]);
  });
  const makeRow = () => h("tr", {}, h("th", { scope: "row" }));
  fill(body, grid.cells, makeRow, (row, cells, number) => {
    setAttribute(row, "data-alarming", grid.wrong[number]);
    while (row.children.length > cells.length) row.lastElementChild.remove();
    while (row.children.length < cells.length) row.append(h("td"));
    cells.forEach((text, at) => {
      setText(row.children[at], text);
      setAttribute(row.children[at], "data-right", grid.right[at]);
      setAttribute(row.children[at], "data-said", grid.heads[at] === "remarks");
    });
  });
}
