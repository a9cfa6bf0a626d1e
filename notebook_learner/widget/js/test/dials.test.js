import assert from "node:assert/strict";
import test from "node:test";
import { entriesOf, labelOf } from "../src/dials.js";

const group = (name, lr, more = {}) => ({ name, lr, momentum: "0.9", ...more });
const said = (dials) => entriesOf(dials).map((entry) => `${labelOf(entry)} ${entry.value}`);

test("of one group each option is told once, without the group's name", () => {
  assert.deepEqual(said([group("head", "0.1", { weight_decay: "0" })]), ["Learning rate 0.1", "Momentum 0.9", "Weight decay 0"]);
});

test("an option that the optimizer has not is not told", () => {
  assert.deepEqual(said([{ name: "", lr: "0.1" }]), ["Learning rate 0.1"]);
});

test("of several groups each rate is told by name, also where they are the same", () => {
  assert.deepEqual(said([group("body", "0.1"), group("head", "0.1")]), ["Learning rate, body 0.1", "Learning rate, head 0.1", "Momentum 0.9"]);
});

test("what differs between groups is told for each", () => {
  assert.deepEqual(said([group("body", "0.1"), group("head", "0.1", { momentum: "0" })]).slice(2), ["Momentum, body 0.9", "Momentum, head 0"]);
});

test("what only one of several groups has keeps its name", () => {
  assert.deepEqual(said([group("body", "0.1"), group("head", "0.1", { weight_decay: "1e-2" })]).at(-1), "Weight decay, head 1e-2");
});

test("without a learner there is nothing to tell", () => {
  assert.deepEqual(said([]), []);
});
