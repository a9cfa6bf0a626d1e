import assert from "node:assert/strict";
import test from "node:test";
import { Aim } from "../src/rewind.js";

const none = () => false;

/** An aim over steps 10 to 100, and the requests it made. */
function aimed(target = null) {
  const aim = new Aim();
  const asked = [];
  aim.reach({ from: 10, to: 100 }, none);
  if (target !== null) aim.move(target);
  const go = () => aim.go((step) => asked.push(step));
  return { aim, asked, go };
}

test("it stands at the newest step and follows it", () => {
  const { aim } = aimed();
  assert.deepEqual([aim.value, aim.words], [100, "at step 100"]);
  aim.reach({ from: 10, to: 1200 }, none);
  assert.deepEqual([aim.value, aim.words], [1200, "at step 1,200"]);
});

test("a step that a person chose stays chosen, whatever comes from the kernel", () => {
  const { aim } = aimed(42);
  aim.reach({ from: 10, to: 101 }, none);
  assert.deepEqual([aim.value, aim.words], [42, "rewind to step 42"]);
});

test("nothing is asked for before the user says go, and then once", () => {
  const { aim, asked, go } = aimed(42);
  assert.deepEqual(asked, []);
  go();
  go();
  assert.deepEqual(asked, [42]);
  assert.equal(aim.words, "rewinding to step 42");
});

test("the newest step is none to go back to", () => {
  const { aim, asked, go } = aimed(100);
  assert.equal(aim.target, null);
  go();
  assert.deepEqual(asked, []);
});

test("it keeps its place until the kernel has answered, and then stands where the run does", () => {
  const { aim, go } = aimed(42);
  go();
  aim.move(77);
  aim.reach({ from: 10, to: 100 }, () => true);
  assert.equal(aim.value, 42);
  aim.reach({ from: 10, to: 42 }, none);
  assert.deepEqual([aim.value, aim.words, aim.asked], [42, "at step 42", null]);
});

test("what was refused leaves it at the newest step", () => {
  const { aim, go } = aimed(42);
  go();
  aim.reach({ from: 10, to: 100 }, none);
  assert.deepEqual([aim.value, aim.target], [100, null]);
});

test("a step that can not be reached any more is forgotten", () => {
  const { aim } = aimed(12);
  aim.reach({ from: 20, to: 120 }, none);
  assert.equal(aim.value, 120);
});

test("without a learner it reaches nowhere", () => {
  const { aim } = aimed(42);
  aim.reach(null, none);
  assert.deepEqual([aim.from, aim.to, aim.target], [0, 0, null]);
});
