// Which rank's step the panel looks at, where several devices train.

import { setReason } from "./controls.js";
import { fill, freshId, h, setAttribute, setText, show } from "./dom.js";
import { passes } from "./keys.js";

/**
 * The rank that was looked at last, until a person chooses another. One request is under way at a time, so that
 * arrow keys may run over many; what the kernel could not show is chosen no more.
 */
export class Choice {
  #ask;
  #chosen = null;
  #shown = 0;
  #told = null; // what the kernel last said that it shows
  #several = false;
  #asked = null; // the rank, and the number of the request

  /** `ask(rank)` gives the number of the request. */
  constructor(ask) {
    this.#ask = ask;
  }

  get rank() {
    return this.#several ? this.#chosen ?? this.#shown : 0;
  }

  get busy() {
    return this.#asked !== null;
  }

  choose(rank) {
    this.#chosen = rank;
    if (!this.busy) this.#go();
  }

  /** The kernel shows this rank, or none; `waiting(seq)` tells whether a request has no answer yet. */
  told({ ranks, inspected }, waiting) {
    this.#several = (ranks ?? []).length > 1;
    if (inspected !== this.#told) this.#shown = inspected ?? this.#shown;
    this.#told = inspected;
    if (this.busy && !waiting(this.#asked.seq)) this.answered({ seq: this.#asked.seq, ok: false }); // it was lost
  }

  /** An answer of the kernel; it may come before what was seen. */
  answered({ seq, ok }) {
    if (this.#asked?.seq !== seq) return;
    const { rank } = this.#asked;
    if (ok) this.#shown = rank;
    this.#asked = null;
    if (this.#chosen === rank) this.#chosen = null;
    else this.#go();
  }

  #go() {
    this.#asked = { rank: this.#chosen, seq: this.#ask(this.#chosen) };
  }
}

const PASSES = new Set(["Tab", "Escape", "Shift", "Control", "Alt", "Meta"]);

export class Chooser {
  #choice;
  #refuse;
  #why = "";

  constructor(ask, refuse, signal) {
    this.#choice = new Choice((rank) => ask("inspect", { rank }));
    this.#refuse = refuse;
    this.select = h("select", { class: "nl-field nl-select" });
    this.reason = h("span", { class: "nl-unseen", id: freshId("why") });
    this.element = h("div", { class: "nl-choose" }, h("label", {}, h("span", {}, "Inspect rank"), this.select), this.reason);
    const on = (event, handler) => this.select.addEventListener(event, handler, { signal });
    on("mousedown", (event) => this.#why !== "" && this.#no(event));
    on("keydown", (event) => this.#why !== "" && !PASSES.has(event.key) && !passes(event) && this.#no(event));
    on("change", (event) => (this.#why === "" ? this.#choice.choose(Number(this.select.value)) : this.#no(event)));
  }

  get rank() {
    return this.#choice.rank;
  }

  answered(answer) {
    this.#choice.answered(answer);
  }

  update(board, store) {
    const ranks = board.ranks ?? [];
    this.#choice.told(board, (seq) => store.pending.has(seq));
    this.#why = board.controls?.inspect ?? "";
    show(this.element, ranks.length > 1);
    fill(this.select, ranks, () => h("option"), (option, { rank, device, alive }) => {
      setAttribute(option, "value", rank);
      setText(option, `${rank} · ${device}${alive ? "" : ", dead"}`);
    });
    if (this.select.value !== String(this.rank)) this.select.value = this.rank;
    setReason(this.select, this.reason, this.#why);
    setAttribute(this.select, "aria-busy", this.#choice.busy ? "true" : null);
  }

  #no(event) {
    event.preventDefault();
    this.select.focus();
    this.#refuse(this.#why);
  }
}
