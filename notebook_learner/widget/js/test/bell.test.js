import assert from "node:assert/strict";
import test from "node:test";
import { begin, newsOf, possible, ring } from "../src/bell.js";
import { LOOK_EVERY, Store } from "../src/store.js";

/** A store whose kernel says these boards; `views` of it ask for news at each. */
function listened(first, views = 1, manager = undefined) {
  const clock = { time: 0, now: () => clock.time, set: () => 0, clear: () => {} };
  const sent = [];
  const store = new Store({ on: () => {}, off: () => {}, send: (content) => sent.push(content), widget_manager: manager }, clock);
  const heard = [];
  const open = () => {
    begin(store);
    store.subscribe((what) => {
      const news = ["board", "kernel"].includes(what) ? newsOf(store) : null;
      if (news !== null) heard.push(news);
    });
  };
  for (let view = 0; view < views; view++) open();
  let seq = 0;
  const snapshot = (board) => store.receive({ type: "snapshot", seq: ++seq, board: { title: "digits", path: "/digits", trained: 9, position: "epoch 1, train, step 9", stopped: false, reason: "", ...board }, series: [] });
  const delta = (board) => store.receive({ type: "delta", seq: ++seq, board, series: [] });
  if (first) snapshot(first);
  return { store, heard, snapshot, delta, open, clock, sent };
}

test("the end of a run is told once, however many views show it", () => {
  for (const [status, reason] of [["finished", ""], ["failed", "ValueError: no"], ["stopped", "the process that trained it is gone"]]) {
    const { delta: told, heard } = listened({ status: "running" }, 3);
    const delta = (board) => told({ reason: board.status === status ? reason : "", ...board });
    delta({ status: "running" });
    delta({ status });
    delta({ rate: "" });
    assert.equal(heard.length, 1, status);
    delta({ status: "running" });
    delta({ status });
    assert.equal(heard.length, 2, status);
  }
});

test("a breakpoint is told and a user's pause or stop is not", () => {
  const { delta, heard } = listened({ status: "running" });
  delta({ status: "paused" });
  delta({ status: "running" });
  delta({ status: "stopped" });
  assert.equal(heard.length, 0);
  delta({ status: "running" });
  delta({ status: "paused", stopped: true });
  assert.equal(heard.length, 1);
});

/** A notebook's kernel whose status a test sends. */
function noteBook() {
  const slots = new Set();
  const kernel = { id: "a", status: "busy", connectionStatus: "connected", statusChanged: { connect: (slot) => slots.add(slot), disconnect: (slot) => slots.delete(slot) } };
  return { kernel, become: (status) => slots.forEach((slot) => slot(null, status)) };
}

test("a kernel that dies while it trains is told once, and one that a person restarts or shuts down is not", () => {
  const { kernel, become } = noteBook();
  const { heard, open } = listened({ status: "running" }, 2, { kernel });
  become("restarting");
  assert.equal(heard.length, 0);
  become("autorestarting");
  become("dead");
  assert.deepEqual(heard, [{ title: "digits", text: "the kernel died · epoch 1, train, step 9", bad: true, tag: "/digits kernel gone 9" }]);
  open();
  become("restarting");
  assert.equal(heard.length, 1);
  for (const [first, status] of [["running", "restarting"], ["running", "terminating"], ["paused", "dead"], ["finished", "autorestarting"]]) {
    const other = noteBook();
    const { heard } = listened({ status: first }, 1, other);
    other.become(status);
    assert.equal(heard.length, 0, status);
  }
});

test("an old end is no news: not when the page loads, not for a view that opens later", () => {
  const { heard, snapshot, delta, open } = listened(null);
  snapshot({ status: "failed" });
  open();
  snapshot({ status: "failed" });
  delta({ status: "ready" });
  delta({ status: "finished" }); // not from running
  assert.equal(heard.length, 0);
});

test("an end that was missed while the connection was lost is told when it is known", () => {
  const { heard, snapshot } = listened({ status: "running" });
  snapshot({ status: "finished" });
  assert.equal(heard.length, 1);
});

test("it says what happened, why and where", () => {
  const told = (board) => {
    const { store, snapshot } = listened({ status: "running" }, 0);
    begin(store);
    snapshot(board);
    return newsOf(store);
  };
  const where = "epoch 1, train, step 9";
  assert.deepEqual(told({ status: "finished" }), { title: "digits", text: `finished · ${where}`, bad: false, tag: "/digits finished 9" });
  assert.deepEqual(told({ status: "failed", reason: "ValueError: no" }), { title: "digits", text: `failed: ValueError: no · ${where}`, bad: true, tag: "/digits failed 9" });
  assert.equal(told({ status: "paused", stopped: true, reason: "stopped by NonFinite()" }).text, `stopped by NonFinite() · ${where}`);
});

test("where notifications are not allowed, or not there, it is a sound", async () => {
  const answering = (answer) => ({ requestPermission: async () => answer });
  assert.equal(await possible("notification", answering("granted")), "notification");
  for (const answer of ["denied", "default"]) assert.equal(await possible("notification", answering(answer)), "sound");
  assert.equal(await possible("notification", undefined), "sound");
  assert.equal(await possible("off", undefined), "off");
  assert.equal(await possible("sound", answering("granted")), "sound");
});

test("it rings in the way that was chosen, and lower for a failure", () => {
  const rung = (choice, bad = false, open = (...given) => (opened.push(given), {})) => {
    opened.length = beeps.length = 0;
    return ring({ title: "digits", text: "finished", bad, tag: "t" }, choice, (low) => beeps.push(low), open);
  };
  const [opened, beeps] = [[], []];
  assert.equal(rung("off"), "off");
  assert.deepEqual([opened, beeps], [[], []]);
  assert.equal(rung("sound", true), "sound");
  assert.deepEqual([opened, beeps], [[], [true]]);
  assert.equal(rung("notification"), "notification");
  assert.deepEqual([opened, beeps], [[["digits", { body: "finished", tag: "notebook_learner t" }]], []]);
  const refuses = () => {
    throw new TypeError("Illegal constructor");
  };
  assert.equal(rung("notification", false, refuses), "sound");
  assert.deepEqual(beeps, [false]);
});

test("a page whose timers are held back goes on looking when messages come", () => {
  const { store, clock, sent } = listened({ status: "running" });
  store.watch("view", true);
  const looks = () => sent.filter(({ cmd }) => cmd === "look").length;
  assert.equal(looks(), 1);
  clock.time += LOOK_EVERY - 1;
  store.receive({ type: "beat" });
  assert.equal(looks(), 1);
  clock.time += 2;
  store.receive({ type: "beat" });
  store.receive({ type: "beat" });
  assert.equal(looks(), 2);
});
