import assert from "node:assert/strict";
import test from "node:test";
import { passes } from "../src/keys.js";

const all = (keys) => keys.every((key) => passes(typeof key === "string" ? { key } : key));
const none = (keys) => !keys.some((key) => passes(typeof key === "string" ? { key } : key));

test("keys with Control, Meta or Alt are the notebook's", () => {
  assert(all([{ key: "s", ctrlKey: true }, { key: "s", metaKey: true }, { key: "1", altKey: true }, { key: "ArrowLeft", ctrlKey: true }]));
});

test("so are those keys themselves, as the first of two", () => {
  assert(all(["Control", "Meta", "Alt"]));
});

test("function keys are the notebook's", () => {
  assert(all(["F1", "F9", "F12"]));
});

test("Escape and Shift+Enter are the notebook's", () => {
  assert(all(["Escape", { key: "Enter", shiftKey: true }]));
});

test("a letter or a digit stays in the panel, also a capital one", () => {
  assert(none(["b", "d", "1", "F", { key: "F", shiftKey: true }]));
});

test("what moves, presses and leaves a control stays in the panel", () => {
  assert(none(["Enter", " ", "Tab", "ArrowLeft", { key: "ArrowLeft", shiftKey: true }, "Home", "Backspace"]));
});
