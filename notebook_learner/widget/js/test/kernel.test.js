import assert from "node:assert/strict";
import test from "node:test";
import { asSeen, Kernel, losses, resuming } from "../src/kernel.js";

const BACKGROUND = { mode: "background", text: "" };

/** A notebook's widget manager with a kernel whose signals a test sends. */
function bench(status = "idle") {
  const signal = () => {
    const slots = new Set();
    return { connect: (slot) => slots.add(slot), disconnect: (slot) => slots.delete(slot), slots, emit: (what) => slots.forEach((slot) => slot(null, what)) };
  };
  const kernel = { id: "a", status, connectionStatus: "connected", iopubMessage: signal(), statusChanged: signal(), connectionStatusChanged: signal() };
  const manager = { kernel };
  const bench = { manager, kernel, told: 0 };
  bench.watched = new Kernel(manager, () => bench.told++);
  bench.become = (next) => {
    kernel.status = next;
    kernel.statusChanged.emit(next);
  };
  bench.look = (times, connection = BACKGROUND) => {
    for (let at = 0; at < times; at++) bench.watched.look();
    return bench.watched.trouble(connection);
  };
  return bench;
}

for (const [status, text] of [["restarting", "the kernel was restarted"], ["dead", "the kernel died"], ["terminating", "the kernel was shut down"]]) {
  test(`a kernel that is ${status} takes the learner along, for ever`, () => {
    const { become, watched, look, told } = bench();
    become(status);
    become("idle");
    watched.heard();
    assert.deepEqual(look(1), { kind: "gone", text });
    assert.equal(told, 0); // as it was before
  });
}

test("a kernel that the server starts again has died, and was not restarted by a person", () => {
  const { become, look } = bench("busy");
  become("restarting");
  become("autorestarting");
  assert.equal(look(1).text, "the kernel died");
  become("restarting");
  assert.equal(look(1).text, "the kernel died");
});

test("a kernel that was started anew while the page was away has another session, and the server's own is none", () => {
  const { kernel, watched, look } = bench();
  const hear = (msg_type, session, content = {}) => kernel.iopubMessage.emit({ header: { msg_type, session }, content });
  hear("comm_msg", "first");
  hear("status", "server", { execution_state: "restarting" });
  hear("stream", "server", { text: "IOPub data rate exceeded" });
  hear("status", "first", { execution_state: "idle" });
  assert.equal(look(1).kind, "");
  hear("status", "second", { execution_state: "busy" });
  hear("comm_msg", "second");
  assert.deepEqual(look(1), { kind: "gone", text: "the kernel died or was restarted" });
  watched.close();
  assert.equal(kernel.iopubMessage.slots.size, 0);
});

test("a notebook without a kernel, or with another one, has no learner", () => {
  const [without, other] = [bench(), bench()];
  without.manager.kernel = null;
  other.manager.kernel = { ...other.kernel, id: "b" };
  assert.equal(without.look(1).kind, "gone");
  assert.deepEqual(other.look(1), { kind: "gone", text: "the notebook has another kernel" });
});

test("the same kernel over another connection is followed", () => {
  const { manager, kernel, watched, look } = bench();
  manager.kernel = { ...kernel };
  assert.equal(look(1).kind, "");
  watched.close();
  assert.equal(kernel.statusChanged.slots.size, 0);
});

test("a lost connection is told, and forgotten when it is back", () => {
  const { kernel, look } = bench();
  kernel.connectionStatus = "connecting";
  assert.equal(look(1).kind, "lost");
  kernel.connectionStatus = "connected";
  assert.equal(look(1).kind, "");
});

test("silence is told after four looks, and the next message ends it", () => {
  const { watched, look } = bench();
  assert.equal(look(3).kind, "");
  assert.equal(look(1).kind, "lost");
  watched.heard();
  assert.equal(look(1).kind, "");
});

test("where the notebook tells nothing of its kernel, silence is noticed all the same", () => {
  const watched = new Kernel(undefined, () => {});
  for (let at = 0; at < 4; at++) watched.look();
  assert.equal(watched.trouble(BACKGROUND).kind, "lost");
});

test("a kernel is busy elsewhere if no training holds it, and not for a moment only", () => {
  const { watched, become, look } = bench();
  become("busy");
  const looked = (connection) => {
    watched.heard();
    return look(1, connection).kind;
  };
  assert.deepEqual([looked(), looked(), looked()], ["", "", "busy"]);
  assert.equal(looked({ mode: "boundary", text: "" }), "");
  assert.equal(looked({ ...BACKGROUND, hears: true }), "");
  become("idle");
  assert.equal(looked(), "");
});

test("a learner that was replaced is told as such, but not of a kernel that is gone", () => {
  const { become, look } = bench();
  const away = { mode: "away", text: "a newer learner has it" };
  assert.deepEqual(look(1, away), { kind: "replaced", text: "a newer learner has it" });
  become("dead");
  assert.equal(look(1, away).kind, "gone");
});

test("no button of a kernel out of reach can be used, and no clock runs", () => {
  const board = { status: "running", controls: { pause: "", step: "it is running" }, rate: "3 steps/s", left: "2 s" };
  assert.equal(asSeen(board, { kind: "", text: "" }), board);
  const gone = asSeen(board, { kind: "gone", text: "it died" });
  assert.deepEqual(gone.controls, { pause: "it died", step: "it died" });
  assert.deepEqual([gone.status, gone.rate, gone.left], ["kernel gone", "", ""]);
  const busy = asSeen(board, { kind: "busy", text: "wait" });
  assert.deepEqual([busy.status, busy.left, busy.controls.pause], ["running", "2 s", "wait"]);
});

test("what would be lost is counted from the newest checkpoint that is whole", () => {
  const at = (step, state = "complete") => ({ at: step, place: `step ${step}`, state });
  assert.equal(losses({ trained: 1200, checkpoints: [] }), "No checkpoint was saved, so 1,200 steps may be lost.");
  assert.equal(losses({ trained: 51, checkpoints: [at(10), at(50), at(51, "damaged")] }), "1 step since the last checkpoint (step 50) may be lost.");
  assert.match(losses({ trained: 50, checkpoints: [at(50)] }), /has every step/);
});

test("the line that goes on is Python, whatever the directory is called", () => {
  assert.equal(resuming("runs/a"), 'LearnerBuilder("runs/a").resume()');
  assert.equal(resuming('a\\b "c"'), 'LearnerBuilder("a\\\\b \\"c\\"").resume()');
});
