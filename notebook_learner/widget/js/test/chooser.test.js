import assert from "node:assert/strict";
import test from "node:test";
import { Choice } from "../src/chooser.js";

/** A choice among ranks, those that it asked for, and what the kernel says: `hear` what it shows, or an `answer`. */
function choosing(ranks = [{ rank: 0 }, { rank: 1 }]) {
  const asked = [];
  const choice = new Choice((rank) => asked.push(rank));
  const hear = (inspected = null, waiting = true) => choice.told({ ranks, inspected }, () => waiting);
  const answer = (ok) => choice.answered({ seq: asked.length, ok });
  hear();
  return { choice, asked, hear, answer };
}

test("rank 0 is looked at until the user chooses", () => {
  const { choice, asked } = choosing();
  assert.deepEqual([choice.rank, choice.busy, asked], [0, false, []]);
});

test("a choice is asked for at once, and stays chosen whatever is shown until then", () => {
  const { choice, asked, hear, answer } = choosing();
  hear(0);
  choice.choose(1);
  assert.deepEqual([choice.rank, choice.busy, asked], [1, true, [1]]);
  hear(0);
  assert.equal(choice.rank, 1);
  answer(true);
  hear(0); // what was seen may come after the answer
  assert.deepEqual([choice.rank, choice.busy], [1, false]);
  hear(1);
  assert.deepEqual([choice.rank, choice.busy, asked], [1, false, [1]]);
});

test("what was seen may come before its answer, and the next choice is free at once", () => {
  const { choice, asked, hear, answer } = choosing();
  choice.choose(1);
  hear(1);
  assert.equal(choice.busy, true);
  answer(true);
  choice.choose(0);
  assert.deepEqual([choice.rank, asked], [0, [1, 0]]);
});

test("the rank stays chosen when the training goes on", () => {
  const { choice, hear } = choosing();
  hear(1);
  hear(null);
  assert.equal(choice.rank, 1);
});

test("what a cell looks at is what the chooser shows", () => {
  const { choice, asked, hear } = choosing();
  hear(1);
  hear(0);
  assert.deepEqual([choice.rank, asked], [0, []]);
});

test("a rank that cannot tell is chosen no more", () => {
  const { choice, asked, answer } = choosing();
  choice.choose(1);
  answer(false);
  assert.deepEqual([choice.rank, choice.busy, asked], [0, false, [1]]);
  choice.choose(1);
  assert.deepEqual(asked, [1, 1]);
});

test("a request whose answer was lost is waited for no more", () => {
  const { choice, hear } = choosing();
  choice.choose(1);
  hear(null, false);
  assert.deepEqual([choice.rank, choice.busy], [0, false]);
});

test("of many choices only the newest is asked for, once the first is answered", () => {
  const { choice, asked, hear, answer } = choosing([{ rank: 0 }, { rank: 1 }, { rank: 2 }, { rank: 3 }]);
  for (const rank of [1, 2, 3]) choice.choose(rank);
  hear(null);
  assert.deepEqual([choice.rank, asked], [3, [1]]);
  answer(true);
  assert.deepEqual([choice.rank, choice.busy, asked], [3, true, [1, 3]]);
  hear(1);
  assert.equal(choice.rank, 3);
  answer(true);
  assert.deepEqual([choice.rank, choice.busy, asked], [3, false, [1, 3]]);
});

test("an answer to another panel is no answer to this one", () => {
  const { choice } = choosing();
  choice.choose(1);
  choice.answered({ seq: 77, ok: true });
  assert.equal(choice.busy, true);
});

test("one device is rank 0, whatever was looked at before", () => {
  const ranks = [{ rank: 0 }, { rank: 1 }];
  const { choice, hear } = choosing(ranks);
  hear(1);
  ranks.length = 0;
  hear(null);
  assert.equal(choice.rank, 0);
});
