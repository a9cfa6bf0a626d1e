import assert from "node:assert/strict";
import test from "node:test";
import { keyOf, LOOK_EVERY, Store } from "../src/store.js";

/** A model that remembers what was sent, and a clock that is turned by hand. */
function bench() {
  const handlers = new Set();
  const timers = new Map();
  const bench = {
    sent: [],
    time: 0,
    handlers,
    timers,
    model: { on: (_, f) => handlers.add(f), off: (_, f) => handlers.delete(f), send: (content) => bench.sent.push(content) },
    pass(ms) {
      const until = bench.time + ms;
      for (;;) {
        const due = [...timers].filter(([, [at]]) => at <= until).sort((a, b) => a[1][0] - b[1][0])[0];
        if (due === undefined) break;
        bench.time = due[1][0];
        timers.delete(due[0]);
        due[1][1]();
      }
      bench.time = until;
    },
    commands: () => bench.sent.map(({ cmd }) => cmd),
  };
  let serial = 0;
  const clock = {
    now: () => bench.time,
    set: (task, ms) => {
      timers.set(++serial, [bench.time + ms, task]);
      return serial;
    },
    clear: (timer) => timers.delete(timer),
  };
  bench.store = new Store(bench.model, clock);
  bench.store.open();
  return bench;
}

const bytes = (...numbers) => new DataView(Float64Array.from(numbers).buffer);
const loss = (points, split = "train") => ({ metric: "Loss", split, points });
const snapshot = (seq, board = {}) => [{ type: "snapshot", seq, board: { status: "running", ...board }, series: [loss(2)] }, [bytes(1, 2, 0.5, 0.4, 0.5, 0.4, 0.5, 0.4)]];
const delta = (seq, series = [], buffers = [], board = {}) => [{ type: "delta", seq, board, series }, buffers];
const train = (store) => {
  const series = store.series.get(keyOf("Loss", "train"));
  return Array.from({ length: series.length }, (_, at) => [series.x[at], series.mean[at]]);
};

test("it says hello once it is open, with a name of its own", () => {
  const { sent } = bench();
  assert.equal(sent.length, 1);
  assert.equal(sent[0].cmd, "hello");
  assert.deepEqual(sent[0].args, {});
  assert.match(sent[0].client, /^[0-9a-f]{24}$/);
  assert.notEqual(sent[0].client, bench().sent[0].client);
});

test("a snapshot and the deltas after it make one curve and one board", () => {
  const { store } = bench();
  store.receive(...snapshot(7, { title: "digits", step: 2 }));
  store.receive(...delta(8, [loss(2)], [bytes(3, 4, 0.3, 0.2)], { step: 4 }));
  assert.deepEqual(train(store), [[1, 0.5], [2, 0.4], [3, 0.3], [4, 0.2]]);
  assert.deepEqual(store.board, { status: "running", title: "digits", step: 4 });
});

test("buffers that begin at an odd byte are read", () => {
  const { store } = bench();
  store.receive(...snapshot(1));
  const raw = new Uint8Array(19);
  raw.set(new Uint8Array(Float64Array.from([3, 0.25]).buffer), 3);
  store.receive(...delta(2, [loss(1)], [new DataView(raw.buffer, 3, 16)]));
  assert.deepEqual(train(store).at(-1), [3, 0.25]);
});

test("the point of a validation pass that is going on is replaced", () => {
  const { store } = bench();
  store.receive(...snapshot(1));
  store.receive(...delta(2, [loss(1, "valid")], [bytes(2, 0.9)]));
  store.receive(...delta(3, [loss(1, "valid")], [bytes(2, 0.8)]));
  const valid = store.series.get(keyOf("Loss", "valid"));
  assert.deepEqual([valid.length, valid.x[0], valid.mean[0]], [1, 2, 0.8]);
});

test("a gap drops deltas and asks once, until a snapshot comes", () => {
  const { store, commands } = bench();
  store.receive(...snapshot(1));
  store.receive(...delta(3, [loss(1)], [bytes(9, 9)]));
  store.receive(...delta(4, [loss(1)], [bytes(10, 9)]));
  store.receive(...delta(5));
  assert.deepEqual(commands(), ["hello", "resync"]);
  assert.equal(train(store).length, 2);
  store.receive(...snapshot(6));
  store.receive(...delta(7, [loss(1)], [bytes(3, 0.1)]));
  assert.deepEqual(train(store).at(-1), [3, 0.1]);
  store.receive(...delta(9));
  assert.deepEqual(commands(), ["hello", "resync", "resync"]);
});

test("a resync without an answer is asked for again, later", () => {
  const { store, commands, pass } = bench();
  store.receive(...snapshot(1));
  store.receive(...delta(3));
  pass(11_000);
  store.receive(...delta(4));
  assert.deepEqual(commands(), ["hello", "resync", "resync"]);
});

test("deltas before the first snapshot ask for nothing: the hello is on its way", () => {
  const { store, commands } = bench();
  store.receive(...delta(4));
  assert.equal(store.board, null);
  assert.deepEqual(commands(), ["hello"]);
});

test("numbers that do not fit what the message says count as a gap", () => {
  const { store, commands } = bench();
  store.receive(...snapshot(1));
  store.receive(...delta(2, [loss(2)], [bytes(3, 0.3)]));
  store.receive(...delta(2, [loss(1)], []));
  assert.deepEqual(commands(), ["hello", "resync"]);
  assert.equal(train(store).length, 2);
});

test("a snapshot after a rewind takes points away", () => {
  const { store } = bench();
  store.receive(...snapshot(1));
  store.receive(...delta(2, [loss(3)], [bytes(3, 4, 5, 1, 1, 1)]));
  store.receive(...snapshot(3));
  assert.deepEqual(train(store).map(([x]) => x), [1, 2]);
});

test("an answer is told with the request it belongs to, and another page's is not", () => {
  const { store } = bench();
  const heard = [];
  store.subscribe((what, detail) => what === "answer" && heard.push(detail));
  const seq = store.ask("step", { n: 3 });
  assert.equal(store.pending.size, 1);
  store.receive({ type: "answer", to: seq, ok: false, text: "no data" });
  store.receive({ type: "answer", to: 999, ok: true, text: "not ours" });
  assert.deepEqual(heard, [{ seq, cmd: "step", ok: false, text: "no data" }]);
  assert.equal(store.pending.size, 0);
});

test("a snapshot after a long silence ends the waiting for an answer that was lost", () => {
  const { store, pass } = bench();
  store.ask("pause");
  pass(9000);
  store.receive(...snapshot(1));
  assert.equal(store.pending.size, 1);
  pass(2000);
  store.receive(...snapshot(2));
  assert.deepEqual([store.pending.size, store.unanswered], [0, 0]);
});

test("it says when it is looked at, again every 20 s, and when it is not looked at any more", () => {
  const { store, sent, pass } = bench();
  const looks = () => sent.filter(({ cmd }) => cmd === "look").map(({ args }) => args.visible);
  store.receive(...snapshot(1));
  store.watch("one", true);
  store.watch("two", true);
  store.watch("one", false);
  assert.deepEqual(looks(), [true]);
  pass(LOOK_EVERY * 2 + 1);
  assert.deepEqual(looks(), [true, true, true]);
  store.watch("two", null);
  pass(LOOK_EVERY * 3);
  assert.deepEqual(looks(), [true, true, true, false]);
});

test("hello is repeated, ever more rarely, until a snapshot has come", () => {
  const { store, commands, pass } = bench();
  pass(35_000);
  assert.deepEqual(commands(), ["hello", "hello", "hello"]);
  store.receive(...snapshot(1));
  pass(500_000);
  assert.equal(commands().length, 3);
});

test("once closed it holds no handler and no timer", () => {
  const { store, handlers, timers } = bench();
  store.watch("view", true);
  store.subscribe(() => {});
  store.close();
  assert.deepEqual([handlers.size, timers.size], [0, 0]);
});

test("messages of no kind that it knows are ignored", () => {
  const { store } = bench();
  for (const content of [null, {}, { type: "other" }, 3]) store.receive(content);
  assert.equal(store.board, null);
});

test("the curves of branches come with a snapshot, apart from those of the run", () => {
  const { store } = bench();
  const thin = { ...loss(1), branch: "2" };
  store.receive({ type: "snapshot", seq: 1, board: {}, series: [loss(1), thin] }, [bytes(1, 0.5, 0.5, 0.5), bytes(1, 0.9, 0.9, 0.9)]);
  assert.deepEqual(train(store), [[1, 0.5]]);
  assert.equal(store.branches.get("2").get(keyOf("Loss", "train")).mean[0], 0.9);
  store.receive(...delta(2, [loss(1)], [bytes(2, 0.4)]));
  assert.equal(store.branches.get("2").get(keyOf("Loss", "train")).length, 1);
  store.receive({ type: "snapshot", seq: 3, board: {}, series: [thin] }, [bytes(1, 0.9, 0.9, 0.9)]);
  assert.equal(store.begun, true, "the run stands at its beginning, and has left a branch");
  store.receive({ type: "snapshot", seq: 4, board: {}, series: [] }, []);
  assert.deepEqual([store.branches.size, store.begun], [0, false]);
});
