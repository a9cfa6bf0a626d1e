// Along what the curves are drawn: training steps, epochs, or training time. Curves are kept by their steps; where
// a step lies along an axis is said by a few known places, with straight lines between them.

import { fill, h, setAttribute } from "./dom.js";
import { duration, places, spans, steps } from "./format.js";
import { keep, kept } from "./keep.js";

const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, at) => [1, 2, 5].map((one) => Number(`${one}e${from + at}`))).flat();
const SPANS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, ...powers(0, 5).map((days) => days * 86_400)];

export const AXES = {
  step: {
    name: "By step",
    title: "Along the training steps",
    words: "training steps",
    marks: powers(0, 12), // steps are whole numbers: no label between them
    labels: steps,
    at: (place) => `step ${steps([place])[0]}`,
  },
  epoch: {
    name: "By epoch",
    title: "Along the epochs: 2.5 is the middle of the third one. Runs with epochs of other lengths lie one over the other",
    words: "epochs",
    marks: powers(-6, 9),
    labels: places,
    at: (place) => `epoch ${place.toFixed(2)}`,
  },
  time: {
    name: "By time",
    title: "Along the training time: the seconds that training and validation took, without pauses and without what a rewind took back",
    words: "training time",
    marks: [...powers(-6, 0), 10, 15, 30, ...SPANS],
    labels: spans,
    at: duration,
  },
};

/** Where the steps of one run lie along an axis. */
export class Track {
  #steps;
  #places;

  constructor(steps, places) {
    this.#steps = steps;
    this.#places = places;
  }

  to(step) {
    return along(this.#steps, this.#places, step);
  }

  back(place) {
    return along(this.#places, this.#steps, place);
  }

  /** The same of many. */
  all(steps) {
    return steps.map((step) => this.to(step));
  }
}

/** A step lies at itself. */
export const STEPS = { to: Number, back: Number, all: (steps) => steps };

/** Beyond what is known it goes on as the last two places say. */
function along(from, to, value) {
  let [low, high] = [0, from.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= value) low = middle;
    else high = middle;
  }
  return to[low] + ((value - from[low]) / (from[high] - from[low])) * (to[high] - to[low]);
}

const made = new WeakMap(); // what the kernel says -> the track of it, which is the same for as long as that

/** The track of a run, or of a line behind the curves, of which the kernel says `told`; null if there is none. */
export function trackOf(kind, told) {
  if (kind === "step") return STEPS;
  const known = kind === "epoch" ? told.epochs : told.seconds;
  if (!known) return null;
  const spent = kind === "time" ? (told.spent ?? null) : null;
  if (made.get(known)?.spent !== spent) made.set(known, { spent, track: trackThrough(known, told.trained, spent) });
  return made.get(known).track;
}

function trackThrough(known, newest, spent) {
  const [x, y] = [[], []];
  const put = (step, place) => {
    // Two steps at one place could not be told apart on the way back.
    if (x.length > 0 && (step <= x[x.length - 1] || place <= y[y.length - 1])) return;
    x.push(step);
    y.push(place);
  };
  known[0].forEach((step, at) => put(step, known[1][at]));
  if (spent !== null) put(newest, spent);
  return x.length > 1 ? new Track(x, y) : null;
}

/** Why a run cannot be drawn along an axis; "" if it can. */
export function whyNot(kind, told) {
  if (trackOf(kind, told) !== null) return "";
  return kind === "epoch" ? "how long an epoch is will be known at the end of the first one" : "of this run it is not known how long its steps took";
}

/** The choice, kept for the run's directory. */
export class AxisChoice {
  #path = null;
  #wanted = "step";
  #changed;
  #refuse;
  #whys = {};

  /** `changed()` is called when another one was chosen, `refuse(text)` when it cannot be. */
  constructor(refuse, changed, signal) {
    this.#changed = changed;
    this.#refuse = refuse;
    this.element = h("div", { class: "nl-joined", role: "group", "aria-label": "Horizontal axis", "data-part": "axis" });
    fill(this.element, Object.keys(AXES), () => h("button", { class: "nl-button nl-small", type: "button" }), (button, kind) => {
      button.dataset.axis = kind;
      button.textContent = AXES[kind].name;
      button.addEventListener("click", () => this.#choose(kind), { signal });
    });
  }

  /** Which one is shown: that one which was chosen, if this run has it. */
  kind = "step";

  update(board) {
    if (board.path !== this.#path) {
      this.#path = board.path;
      this.#wanted = kept(`axis in ${board.path}`, "step");
    }
    this.#whys = Object.fromEntries(Object.keys(AXES).map((kind) => [kind, whyNot(kind, board)]));
    this.kind = this.#whys[this.#wanted] === "" ? this.#wanted : "step";
    for (const button of this.element.children) {
      const { axis } = button.dataset;
      const why = this.#whys[axis];
      setAttribute(button, "aria-pressed", String(axis === this.kind));
      setAttribute(button, "aria-disabled", why === "" ? null : "true");
      setAttribute(button, "title", why || AXES[axis].title);
    }
  }

  #choose(kind) {
    if (this.#whys[kind] !== "") return this.#refuse(this.#whys[kind]);
    this.#wanted = kind;
    keep(`axis in ${this.#path}`, kind);
    this.#changed();
  }
}
