// Making and changing elements. Text goes in as text, always.

import { keep, kept } from "./keep.js";

let serial = 0;

/** A name for one element of this page. */
export const freshId = (what) => `nl-${what}-${++serial}`;

/** An element: `h("button", { class: "nl-button", type: "button" }, "Run")`. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A picture of one colour, drawn by a clip-path of the style sheet; the word next to it says the same. */
export const icon = (name) => h("span", { class: `nl-icon nl-icon-${name}`, "aria-hidden": "true" });

export function setText(element, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, String(value));
  }
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

/**
 * As many children as there are items, each made once and then only changed, so that focus, selection
 * and scroll position outlive an update.
 */
export function fill(parent, items, make, change) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(make());
  items.forEach((item, at) => change(parent.children[at], item, at));
}

/** Change `panel` with `change`; if that hides or removes what has the focus, the control before it gets it. */
export function keepFocus(panel, change) {
  const held = panel.getRootNode().activeElement;
  const inside = held !== panel && panel.contains(held);
  const before = inside ? [...panel.querySelectorAll("button, input, select, summary, [tabindex]")] : [];
  before.length = Math.max(0, before.indexOf(held));
  change();
  if (!inside || (held.isConnected && !held.closest("[hidden]"))) return;
  (before.reverse().find((one) => one.checkVisibility()) ?? panel).focus();
}

/** A section of the panel with a small heading, which folds it: the browser remembers that. No landmark: a page
 * has many panels, and each of them is one. */
export function section(title, name, ...children) {
  const button = h("button", { class: "nl-fold", type: "button" }, title);
  const heading = h("h3", { class: "nl-heading", id: freshId(name) }, button);
  const element = h("div", { role: "group", class: `nl-section nl-${name}`, "data-part": name, "aria-labelledby": heading.id }, heading, ...children);
  const fold = (folded) => {
    element.classList.toggle("nl-folded", folded);
    setAttribute(button, "aria-expanded", String(!folded));
  };
  button.addEventListener("click", () => {
    const folded = !element.classList.contains("nl-folded");
    fold(folded);
    keep("folded", [...kept("folded", []).filter((one) => one !== name), ...(folded ? [name] : [])]);
  });
  fold(kept("folded", []).includes(name));
  return element;
}

/** A section that lists things a person can do something with, and is hidden while there are none. */
export class Listing {
  constructor(title, name, ask, signal) {
    this.ask = ask;
    this.signal = signal;
    this.list = h("ul", { class: "nl-list" });
    this.element = section(title, name, this.list);
  }

  fill(items, make, change) {
    show(this.element, items.length > 0);
    fill(this.list, items, make, change);
  }
}

/** A button that asks once: at the first click it says `question`, at a second within 4 s it acts. */
export function askOnce(button, label, question, act, signal) {
  let timer = null;
  const name = button.getAttribute("aria-label");
  const calm = () => {
    clearTimeout(timer);
    timer = null;
    button.classList.remove("nl-asking");
    setText(label.element, label.text);
    setAttribute(button, "aria-label", name);
  };
  button.addEventListener(
    "click",
    () => {
      if (timer !== null) {
        calm();
        act();
        return;
      }
      if (button.getAttribute("aria-disabled") === "true") return act();
      button.classList.add("nl-asking");
      setText(label.element, question);
      button.removeAttribute("aria-label");
      timer = setTimeout(calm, 4000);
    },
    { signal },
  );
  button.addEventListener("blur", () => timer !== null && calm(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  return calm;
}
