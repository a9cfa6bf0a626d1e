// What the page knows of one Learner, and its talk with the kernel. One store a model, however many
// views show it. The wire is JSON and Float64 columns; see wire.py.

import { Kernel } from "./kernel.js";
import { Series } from "./series.js";

export const LOOK_EVERY = 20_000; // ms: the kernel forgets a watcher that has been silent for longer
const KERNEL_EVERY = 1000; // ms between two looks at the kernel
const HELLO_AGAIN = 10_000; // ms before the first second hello; doubled each time
const ANSWER_LOST = 10_000; // ms after which a snapshot without an answer means that none will come
const RESYNC_AGAIN = 10_000; // ms after which an unanswered resync may be repeated

export const keyOf = (metric, split) => `${split}\u0000${metric}`;

export class Store {
  #model;
  #clock;
  #listeners = new Set();
  #watching = new Map(); // view -> is it on the screen?
  #timers = new Set();
  #lookTimer = null;
  #looked = 0;
  #kernelTimer = null;
  #reached = true;
  #said = "";
  #resyncSince = null;
  #sent = 0;
  // The picture in the file is to be of now: it is drawn when a file was saved, and that is saved then.
  #again = false;
  #onSave = (_, state) => {
    if (state !== "completed") return;
    if (!this.#again) this.#send("saving", {});
    this.#again = false;
  };
  #onMessage = (content, buffers) => this.receive(content, buffers);

  constructor(model, clock = { now: () => Date.now(), set: (f, ms) => setTimeout(f, ms), clear: (t) => clearTimeout(t) }) {
    this.#model = model;
    this.#clock = clock;
    this.client = randomName();
    this.board = null;
    this.series = new Map();
    this.branches = new Map(); // the same by the name of a branch, which no delta changes
    this.seq = null;
    this.over = false; // the learner is gone
    this.pending = new Map(); // number of a request -> {cmd, at}
    this.heard = clock.now();
    this.opened = clock.now();
    this.kernel = new Kernel(model.widget_manager, () => this.#kernelTold());
    this.curves = 0; // grows whenever a curve changed
  }

  /** Listen to the kernel, and ask it how things stand. */
  open() {
    this.#model.on("msg:custom", this.#onMessage);
    this.#document?.saveState?.connect(this.#onSave);
    this.#hello(HELLO_AGAIN);
  }

  close() {
    this.#model.off("msg:custom", this.#onMessage);
    this.kernel.close();
    this.#document?.saveState?.disconnect(this.#onSave);
    for (const timer of this.#timers) this.#clock.clear(timer);
    this.#timers.clear();
    this.#listeners.clear();
    this.#watching.clear();
  }

  /** Call `listener(what, detail)` at each change; what: "board", "answer", "sent". */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Ask the kernel for something; its answer comes as a change. */
  ask(cmd, args = {}) {
    this.pending.set(this.#sent + 1, { cmd, at: this.#clock.now() });
    const seq = this.#send(cmd, args);
    this.#tell("sent", { seq, cmd });
    return seq;
  }

  /** A view says whether it can be seen. The kernel sends curves only to those who look. */
  watch(view, visible) {
    const before = this.visible;
    if (visible === null) this.#watching.delete(view);
    else this.#watching.set(view, visible);
    if (this.visible === before) return;
    this.#lookAgain();
    this.#stop(this.#kernelTimer);
    this.kernel.heard(); // nobody looked, so nothing was sent
    if (this.visible) this.#lookAtKernel();
  }

  /** What keeps the panel from its learner. */
  get trouble() {
    return this.kernel.trouble(this.board?.connection);
  }

  #lookAtKernel() {
    this.#kernelTimer = this.#later(KERNEL_EVERY, () => {
      this.kernel.look();
      this.#kernelTold();
      this.#lookAtKernel();
    });
  }

  #kernelTold() {
    const { kind, text } = this.trouble;
    if (text === this.#said) return;
    this.#said = text;
    if (kind === "gone") this.pending.clear();
    // What was sent meanwhile may be lost.
    if (kind !== "lost" && !this.#reached) this.#send("resync", {});
    this.#reached = kind !== "lost";
    this.#tell("kernel", text);
  }

  /** Whether any step was taken that has a value. */
  get begun() {
    return [this.series, ...this.branches.values()].some((all) => [...all.values()].some(({ length }) => length > 0));
  }

  get visible() {
    return [...this.#watching.values()].some(Boolean);
  }

  /** How long nothing has come from the kernel, in ms. */
  get silence() {
    return this.#clock.now() - this.heard;
  }

  get waited() {
    return this.#clock.now() - this.opened;
  }

  /** How long the oldest unanswered request has waited, in ms; 0 when there is none. */
  get unanswered() {
    const [oldest] = this.pending.values();
    return oldest ? this.#clock.now() - oldest.at : 0;
  }

  receive(content, buffers = []) {
    this.heard = this.#clock.now();
    this.kernel.heard();
    // Browsers hold back the timers of a hidden tab, but no messages.
    if (this.visible && this.heard - this.#looked > LOOK_EVERY) this.#lookAgain();
    if (content?.type === "snapshot") this.#snapshot(content, buffers);
    else if (content?.type === "delta") this.#delta(content, buffers);
    else if (content?.type === "answer") this.#answer(content);
    else if (content?.type === "save") this.#saveAgain();
    else if (content?.type === "over") {
      this.over = true;
      this.#tell("over");
    }
  }

  #snapshot(content, buffers) {
    const columns = decode(content.series, buffers, 4);
    if (columns === null) return this.#resync();
    this.#resyncSince = null;
    this.#forgetLost();
    this.seq = content.seq;
    this.board = content.board;
    this.series = new Map();
    this.branches = new Map();
    content.series.forEach(({ metric, split, points, size, branch }, at) => {
      if (branch && !this.branches.has(branch)) this.branches.set(branch, new Map());
      (branch ? this.branches.get(branch) : this.series).set(keyOf(metric, split), Series.fromBuckets(columns[at], points, size));
    });
    this.curves++;
    this.#tell("board");
  }

  #delta(content, buffers) {
    if (this.seq === null) return; // the hello is still on its way; its snapshot holds this delta too
    const columns = content.seq === this.seq + 1 ? decode(content.series ?? [], buffers, 2) : null;
    if (columns === null) return this.#resync();
    if (this.#resyncSince !== null) return;
    this.seq = content.seq;
    Object.assign(this.board, content.board ?? {});
    (content.series ?? []).forEach(({ metric, split, points }, at) => this.#append(keyOf(metric, split), columns[at], points));
    this.#tell("board");
  }

  #append(key, numbers, points) {
    if (!this.series.has(key)) this.series.set(key, new Series());
    const series = this.series.get(key);
    for (let at = 0; at < points; at++) series.append(numbers[at], numbers[points + at]);
    if (points > 0) this.curves++;
  }

  /** A request whose answer went down with a connection is not waited for for ever. */
  #forgetLost() {
    for (const [seq, { at }] of this.pending) if (this.#clock.now() - at > ANSWER_LOST) this.pending.delete(seq);
  }

  #answer(content) {
    const request = this.pending.get(content.to);
    if (request === undefined) return;
    this.pending.delete(content.to);
    this.#tell("answer", { seq: content.to, cmd: request.cmd, ok: content.ok === true, text: String(content.text ?? "") });
  }

  get #document() {
    return this.#model.widget_manager?.context;
  }

  #saveAgain() {
    this.#again = true;
    this.#document?.save();
  }

  #resync() {
    const now = this.#clock.now();
    if (this.#resyncSince !== null && now - this.#resyncSince < RESYNC_AGAIN) return;
    this.#resyncSince = now;
    this.#send("resync", {});
  }

  #hello(again) {
    this.#send("hello", {});
    this.#later(again, () => this.board === null && this.#hello(again * 2));
  }

  #lookAgain() {
    this.#stop(this.#lookTimer);
    this.#look();
  }

  #look() {
    const visible = this.visible;
    this.#looked = this.#clock.now();
    this.#send("look", { visible });
    if (visible) this.#lookTimer = this.#later(LOOK_EVERY, () => this.#look());
  }

  #later(ms, task) {
    const timer = this.#clock.set(() => {
      this.#timers.delete(timer);
      task();
    }, ms);
    this.#timers.add(timer);
    return timer;
  }

  #stop(timer) {
    this.#clock.clear(timer);
    this.#timers.delete(timer);
  }

  #send(cmd, args) {
    const seq = ++this.#sent;
    if (this.kernel.ended === "") this.#model.send({ cmd, args, seq, client: this.client });
    return seq;
  }

  #tell(what, detail) {
    for (const listener of [...this.#listeners]) listener(what, detail);
  }
}

/** Float64 columns out of a message's buffers; null when they are not what the message says. */
function decode(series, buffers, columns) {
  if (buffers.length !== series.length) return null;
  const out = [];
  for (let at = 0; at < series.length; at++) {
    const bytes = bytesOf(buffers[at]);
    if (bytes.byteLength !== series[at].points * columns * 8) return null;
    // Copied, because a view into a socket's frame seldom begins at a multiple of eight.
    out.push(new Float64Array(bytes.slice().buffer));
  }
  return out;
}

function bytesOf(buffer) {
  return ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength)
    : new Uint8Array(buffer);
}

function randomName() {
  // Not randomUUID, which pages served without TLS lack.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
