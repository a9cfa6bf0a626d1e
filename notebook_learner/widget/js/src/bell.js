// A sound or a notification when a run ends, fails, or stops at a breakpoint, and when its kernel dies; for those
// who look elsewhere.

import { fill, h, setText } from "./dom.js";
import { keep, kept } from "./keep.js";

const CHANGED = "notebook_learner tell"; // how the panels of one page hear of another choice
const CHOICES = ["off", "sound", "notification"];
const TONES = { good: [660, 880], bad: [311, 208] }; // Hz
const REFUSED = "the browser allows no notifications here; it will be a sound";

let audio = null;

export const chosen = () => kept("tell", "off");

/** What can be had of what the user wants; the browser asks him. */
export async function possible(wanted, Notification = globalThis.Notification) {
  if (wanted !== "notification") return wanted;
  try {
    return (await Notification.requestPermission()) === "granted" ? wanted : "sound";
  } catch {
    return "sound";
  }
}

const statuses = new WeakMap(); // the last that was seen of each store, by whichever view

/** What a view that opens finds is no news. */
export const begin = (store) => statuses.set(store, store.board?.status);

/** What is worth a call, once, however many views ask; null for nothing. What the user did is not: a pause, a stop, a restart. */
export function newsOf(store) {
  const { board, kernel } = store;
  const before = statuses.get(store);
  if (kernel.died) statuses.set(store, "kernel gone");
  else begin(store);
  if (before !== "running") return null;
  if (kernel.died) return { ...told(board, kernel.ended, "kernel gone"), bad: true };
  const { status, reason, stopped } = board;
  if (status === "paused") return stopped === true ? told(board, reason, status) : null;
  // Whoever is stopped by nobody has a reason: its process is gone, or was told to end.
  const over = ["finished", "failed"].includes(status) || (status === "stopped" && Boolean(reason));
  return over ? told(board, [status, reason].filter(Boolean).join(": "), status) : null;
}

const told = ({ title, path, position, trained }, what, status) => ({ title, text: [what, position].filter(Boolean).join(" · "), bad: status === "failed", tag: `${path} ${status} ${trained}` });

/** Tell it in the way that was chosen, or by a sound where there is no other; returns how. */
export function ring(news, choice, beep, open = (...given) => new globalThis.Notification(...given)) {
  if (choice === "off") return choice;
  if (choice === "notification") {
    try {
      // Two tabs that show one run say it once.
      const shown = open(news.title, { body: news.text, tag: `notebook_learner ${news.tag}` });
      shown.onclick = () => window.focus();
      return choice;
    } catch {
      // on a telephone, for example
    }
  }
  beep(news.bad);
  return "sound";
}

/** Two short tones. */
function beep(bad) {
  try {
    audio ??= new AudioContext();
    audio.resume(); // a page may not sound before its user has touched it
    const [source, gain, now] = [audio.createOscillator(), audio.createGain(), audio.currentTime + 0.05];
    gain.gain.value = 0;
    TONES[bad ? "bad" : "good"].forEach((pitch, at) => {
      source.frequency.setValueAtTime(pitch, now + at * 0.2);
      gain.gain.setTargetAtTime(0.2, now + at * 0.2, 0.01);
      gain.gain.setTargetAtTime(0, now + at * 0.2 + 0.12, 0.02);
    });
    source.connect(gain).connect(audio.destination);
    source.start(now);
    source.stop(now + 0.5);
  } catch {
    // a machine without sound
  }
}

export class Bell {
  /** `note(ok, text)` says why it is another choice; `changed` is called when it is. */
  constructor(store, note, changed, signal) {
    this.select = h("select", { class: "nl-field nl-select", title: "when training ends, fails, a breakpoint stops it, or the kernel dies" });
    fill(this.select, CHOICES, () => h("option"), setText);
    this.element = h("label", { class: "nl-bell", "data-part": "bell" }, h("span", {}, "Tell me"), this.select);
    const show = () => {
      this.select.value = chosen();
      changed();
    };
    this.select.value = chosen();
    this.select.addEventListener("change", () => this.#choose(note), { signal });
    for (const event of [CHANGED, "storage"]) window.addEventListener(event, show, { signal }); // another panel, another tab
    begin(store);
    const unsubscribe = store.subscribe((what) => ["board", "kernel"].includes(what) && this.#hear(newsOf(store)));
    signal.addEventListener("abort", unsubscribe);
  }

  async #choose(note) {
    const wanted = this.select.value;
    const choice = await possible(wanted);
    keep("tell", choice);
    window.dispatchEvent(new Event(CHANGED));
    if (choice !== wanted) note(false, REFUSED);
    if (choice === "sound") beep(false); // how it will sound
  }

  #hear(news) {
    if (news !== null) ring(news, chosen(), beep);
  }
}
