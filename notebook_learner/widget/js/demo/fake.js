// A model as anywidget hands it to the panel, with a made-up training behind it in place of a kernel.

const EPOCH = 240;

/** Noise that is the same at each load, so that pictures can be compared. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const noise = generator(7);
const wobble = (size) => (noise() + noise() + noise() - 1.5) * size;
const lossAt = (step) => 2.2 * Math.exp(-step / 420) + 0.22 + wobble(0.12 + 0.3 * Math.exp(-step / 500)) + (step === 611 ? 1.1 : 0);
const accuracyAt = (step) => Math.min(1, 0.97 - 0.85 * Math.exp(-step / 380) + wobble(0.05));

function series(steps, perEpoch) {
  const curve = (at, xs) => ({ xs, ys: xs.map(at) });
  const train = Array.from({ length: steps }, (_, at) => at + 1);
  const valid = train.filter((step) => step % EPOCH === 0);
  const found = [
    ["Loss", "train", curve(lossAt, train)],
    ["Accuracy", "train", curve((x) => 100 * accuracyAt(x), train)],
  ];
  if (perEpoch && valid.length > 0) {
    found.push(["Loss", "valid", curve((x) => lossAt(x) * 0.4 + 0.3 + Math.max(0, x - 1400) / 9000, valid)]);
    found.push(["Accuracy", "valid", curve((x) => 100 * accuracyAt(x) - 2, valid)]);
  }
  if (steps > 0) found.push(["LearningRate", "train", curve((x) => 0.001 * 0.5 * (1 + Math.cos((x / 2400) * Math.PI)), train)]);
  return found;
}

/** Branches: name, where it left, where it went, what was changed, and how much its loss is off. */
const LEFT = [
  ["3", 480, 760, "lr = 0.01", 0.35],
  ["4", 700, 1240, "lr = 0.003", -0.08],
  ["7", 838, 861, "", 0.02],
];
const branches = { lines: LEFT.map(([name, from, to, changes]) => ({ name, from, to, changes, again: to - from, text: `branch ${name}: from epoch ${1 + Math.floor(from / EPOCH)}, train, step ${from % EPOCH} to epoch ${1 + Math.floor(to / EPOCH)}, train, step ${to % EPOCH}${changes && ` (${changes})`}` })), more: 4 };

function thin() {
  const steps = ([, from, to]) => Array.from({ length: to - from + 1 }, (_, at) => from + at);
  return LEFT.flatMap(([name, from, to, , off]) =>
    [["Loss", (x) => lossAt(x) * 0.8 + 0.1 + off * (1 - Math.exp((from - x) / 40))], ["Accuracy", (x) => 100 * accuracyAt(x) - 30 * off]].map(([metric, at]) => {
      const xs = steps([name, from, to]);
      return [metric, "train", { xs, ys: xs.map(at) }, name];
    }),
  );
}

const usable = { run: "", pause: "", step: "", step_epoch: "", rewind: "", rewind_to: "", go_to: "", stop: "", inspect: "", save: "", restore: "", epochs: "" };
const off = (reason, ...names) => Object.fromEntries(names.map((name) => [name, reason]));

const ready = {
  title: "digits",
  directory: "runs/digits",
  model: "ConvNet",
  parameters: "52,650",
  settings: [
    ["optimizer", "Adam (lr 0.001, weight decay 0.01)"],
    ["scheduler", "cosine, 2,400 steps"],
    ["loss", "cross_entropy"],
    ["train loader", "1,437 samples in 240 batches of 6"],
    ["valid loader", "360 samples in 12 batches of 32"],
    ["device", "cuda:0, bfloat16"],
    ["checkpoints", "the best by valid Loss, and the last"],
    ["seed", "42"],
  ],
  status: "ready",
  reason: "",
  position: "epoch 1, train, step 0 of 240",
  epoch: 1,
  split: "train",
  step: 0,
  total: EPOCH,
  num_epochs: 10,
  progress: 0,
  rate: "",
  left: "",
  metrics: [
    { name: "Loss", unit: "", better: "lower", splits: ["train", "valid"] },
    { name: "Accuracy", unit: "%", better: "higher", splits: ["train", "valid"] },
    { name: "LearningRate", unit: "", better: null, splits: ["train"] },
  ],
  table: [],
  texts: [],
  checkpoints: [],
  reach: { from: 0, to: 0 },
  breakpoints: [
    { name: "NonFinite()", text: "", on: true, hit: false },
    { name: "LossSpike(z=5)", text: "hit once", on: true, hit: false },
    { name: "GradNorm(above=100)", text: "once only", on: false, hit: false },
  ],
  inspection: [],
  inspected: null,
  log: [],
  marks: [],
  controls: { ...usable, ...off("nothing is running", "pause", "stop"), ...off("no step was taken yet", "rewind", "rewind_to"), ...off("there is no checkpoint yet", "restore") },
  connection: { mode: "background", text: "Run trains in the background" },
  readonly: false,
  error: null,
};

const epochs = (last) => Array.from({ length: last }, (_, at) => ({ x: (at + 1) * EPOCH, kind: "epoch", text: `epoch ${at + 1}` }));
const log = (last) => [
  "16:01:02  run digits: ConvNet, 52,650 parameters, seed 42",
  ...Array.from({ length: last }, (_, at) => [
    `16:0${1 + at}:14  epoch ${at + 1} ended: Loss 0.${512 - 31 * at} train, 0.${498 - 22 * at} valid`,
    `16:0${1 + at}:14  checkpoint ${at + 1}-240 is the best by valid Loss`,
  ]).flat(),
];

const going = {
  ...ready,
  status: "running",
  position: "epoch 5, train, step 117 of 240",
  epoch: 5,
  step: 117,
  reach: { from: 240, to: 1077 },
  progress: 0.4487,
  rate: "1,240 steps/s",
  left: "2 min",
  table: [
    { metric: "Loss", unit: "", split: "train", last: "0.312", epoch: "0.350", best: "0.301", where: "(4)" },
    { metric: "Loss", unit: "", split: "valid", last: "0.398", epoch: "0.398", best: "0.371", where: "(3)" },
    { metric: "Accuracy", unit: "%", split: "train", last: "94.20", epoch: "93.81", best: "94.02", where: "(4)" },
    { metric: "Accuracy", unit: "%", split: "valid", last: "91.94", epoch: "91.94", best: "92.50", where: "(3)" },
    { metric: "LearningRate", unit: "", split: "train", last: "6.21e-4", epoch: "6.5e-4", best: "", where: "" },
  ],
  texts: [
    ["GPU memory", "3.1 GB of 24 GB"],
    ["GPU use", "84 %"],
  ],
  ranks: [
    { rank: 0, device: "cuda:0", where: "workstation, process 41023", memory: "3.1 GB", step: "1,077", rate: "1.5k steps/s", alive: true },
    { rank: 1, device: "cuda:1", where: "workstation, process 41077", memory: "3.1 GB", step: "1,077", rate: "1.3k steps/s", alive: true },
  ],
  checkpoints: [
    { label: "1-240", place: "epoch 1, step 240", size: "1.2 MB", metrics: "valid Loss 0.498", state: "damaged", best: false },
    { label: "3-240", place: "epoch 3, step 240", size: "1.2 MB", metrics: "valid Loss 0.371", state: "complete", best: true },
    { label: "4-240", place: "epoch 4, step 240", size: "1.2 MB", metrics: "Loss 0.398, Accuracy 91.94, LearningRate 6.5e-4", state: "complete", best: false },
  ],
  log: log(4),
  marks: [
    ...epochs(4),
    { x: 240, kind: "checkpoint", text: "checkpoint 1-240" },
    { x: 402, kind: "pause", text: "paused" },
    { x: 611, kind: "breakpoint", text: "Spike: Loss 1.54" },
    { x: 720, kind: "checkpoint", text: "checkpoint 3-240" },
    { x: 838, kind: "rewind", text: "rewound from step 861" },
    { x: 960, kind: "checkpoint", text: "checkpoint 4-240" },
  ],
  controls: { ...usable, run: "it is running", step: "it is running", step_epoch: "it is running", rewind: "it is running", rewind_to: "it is running", go_to: "it is running", inspect: "it is running", restore: "it is running" },
  connection: { mode: "boundary", text: "buttons act at the next step" },
};

const WHY = "loss or gradients are not finite; 1 of 384 values of the batch[0] are not finite, before any module has run";

const paused = {
  ...going,
  status: "paused",
  reason: `stopped by NonFinite(): ${WHY}`,
  stopped: true,
  breakpoints: [{ name: "NonFinite()", text: `${WHY}; hit 3 times`, on: true, hit: true }, ...ready.breakpoints.slice(1)],
  rate: "",
  left: "",
  position: "epoch 5, train, step 117 of 240",
  marks: [...going.marks, { x: 1077, kind: "breakpoint", text: "NonFinite: fc1.weight" }],
  inspected: 1,
  // As a real step with a planted NaN gave them.
  inspection: [
    {"title": "Step", "rows": [["loss", "NaN"], ["not finite", "input: 1 of 384 values of the batch[0] are not finite, before any module has run"]], "grid": null},
    {"title": "Batch", "rows": [["[0]", "float32 [6, 1, 8, 8]  -3.052 … 2.823, 1 NaN"], ["[1]", "int64 [6]  1 … 9"], ["[1] classes", "1 (1), 3 (2), 8 (1), 9 (2)"]], "grid": null},
    {"title": "Worst samples", "rows": [["sample 0", "loss NaN, target 1, prediction 0"], ["sample 1", "loss NaN, target 8, prediction 0"], ["sample 2", "loss NaN, target 3, prediction 0"], ["sample 3", "loss NaN, target 9, prediction 0"], ["sample 4", "loss NaN, target 9, prediction 0"], ["sample 5", "loss NaN, target 3, prediction 0"]], "grid": {"heads": ["sample", "loss", "target", "prediction"], "right": [true, true, false, false], "cells": [["0", "NaN", "1", "0"], ["1", "NaN", "8", "0"], ["2", "NaN", "3", "0"], ["3", "NaN", "9", "0"], ["4", "NaN", "9", "0"], ["5", "NaN", "3", "0"]], "more": "", "wrong": [false, false, false, false, false, false]}},
    {"title": "Layers", "rows": [["0", "NaN (72 in output, 80 in gradient), mean 0.06850, std 0.5908, 0 % zero, gradient NaN, update/weight NaN"], ["1", "NaN (1,728 in output, 16 in gradient), gradient NaN, update/weight NaN"], ["2", "NaN (1,728 in output)"], ["3", "NaN (1,536 in output, 1,168 in gradient), gradient NaN, update/weight NaN"], ["4", "NaN (1,536 in output)"], ["5", "NaN (1,536 in output)"], ["6", "NaN (384 in output, 16,448 in gradient), gradient NaN, update/weight NaN"], ["7", "NaN (384 in output)"], ["8", "NaN (384 in output)"], ["9", "NaN (60 in output, 650 in gradient), gradient NaN, update/weight NaN"]], "grid": {"heads": ["layer", "kind", "remarks", "output", "mean", "std", "zeros", "gradient", "update/weight"], "right": [false, false, false, false, true, true, true, true, true], "cells": [["0", "Conv2d", "NaN (72 in output, 80 in gradient)", "6 x 8 x 6 x 6", "0.06850", "0.5908", "0 %", "NaN", "NaN"], ["1", "BatchNorm2d", "NaN (1,728 in output, 16 in gradient)", "6 x 8 x 6 x 6", "NaN", "NaN", "0 %", "NaN", "NaN"], ["2", "ReLU", "NaN (1,728 in output)", "6 x 8 x 6 x 6", "NaN", "NaN", "0 %", "", ""], ["3", "Conv2d", "NaN (1,536 in output, 1,168 in gradient)", "6 x 16 x 4 x 4", "NaN", "NaN", "0 %", "NaN", "NaN"], ["4", "ReLU", "NaN (1,536 in output)", "6 x 16 x 4 x 4", "NaN", "NaN", "0 %", "", ""], ["5", "Flatten", "NaN (1,536 in output)", "6 x 256", "NaN", "NaN", "0 %", "", ""], ["6", "Linear", "NaN (384 in output, 16,448 in gradient)", "6 x 64", "NaN", "NaN", "0 %", "NaN", "NaN"], ["7", "Dropout", "NaN (384 in output)", "6 x 64", "NaN", "NaN", "0 %", "", ""], ["8", "ReLU", "NaN (384 in output)", "6 x 64", "NaN", "NaN", "0 %", "", ""], ["9", "Linear", "NaN (60 in output, 650 in gradient)", "6 x 10", "NaN", "NaN", "0 %", "NaN", "NaN"]], "more": "", "wrong": [true, true, true, true, true, true, true, true, true, true]}},
    {"title": "Optimizer", "rows": [["group 0", "lr 0.001, 18,362 parameters, 30 steps"], ["exp_avg", "mean 8.569e-4, max 0.05056"], ["exp_avg_sq", "mean 1.62e-6, max 5.671e-4"]], "grid": null},
    {"title": "Memory", "rows": [["parameters", "73.4 kB  23 %"], ["gradients", "73.4 kB  23 %"], ["optimizer state", "147 kB  46 %"], ["buffers", "72 B  < 1 %"], ["saved activations", "23.3 kB  7 %"], ["batch", "1.58 kB  < 1 %"]], "grid": null},
    {"title": "Time", "rows": [["forward", "0.78 ms  4 %"], ["backward", "0.76 ms  3 %"], ["optimizer", "20 ms  93 %"]], "grid": null},
  ],
  controls: { ...usable, pause: "nothing is running" },
  connection: { mode: "background", text: "Run trains in the background" },
};

const branched = { ...going, status: "paused", rate: "", left: "", branches, ranks: [], controls: { ...usable, pause: "nothing is running" }, connection: { mode: "background", text: "" } };

const failed = {
  ...going,
  status: "failed",
  ranks: [going.ranks[0], { ...going.ranks[1], memory: "", rate: "", alive: false }],
  reason: "RuntimeError: mat1 and mat2 shapes cannot be multiplied (6x512 and 256x10)",
  rate: "",
  left: "",
  error: {
    title: "RuntimeError: mat1 and mat2 shapes cannot be multiplied (6x512 and 256x10)",
    text: 'Traceback (most recent call last):\n  File "train.py", line 41, in train_step\n    logits = self(x)\n  File "model.py", line 22, in forward\n    return self.fc2(torch.relu(self.fc1(x.flatten(1))))\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (6x512 and 256x10)\n',
  },
  controls: { ...usable, pause: "nothing is running", stop: "nothing is running" },
};

const finished = {
  ...going,
  status: "finished",
  position: "10 epochs, 2,400 steps",
  epoch: 10,
  step: 240,
  reach: { from: 0, to: 2400 },
  progress: 1,
  rate: "1,240 steps/s",
  left: "",
  marks: [...epochs(10), { x: 720, kind: "checkpoint", text: "checkpoint 3-240" }, { x: 1200, kind: "checkpoint", text: "checkpoint 5-240" }, { x: 2400, kind: "checkpoint", text: "checkpoint 10-240" }],
  log: log(6),
  controls: { ...usable, ...off("all epochs are done: set a later last epoch", "run", "step", "step_epoch"), ...off("nothing is running", "pause", "stop") },
  connection: { mode: "background", text: "Run trains in the background" },
};

const BAD = '<img src=x onerror="window.harmed = true">';
const hostile = {
  ...failed,
  title: BAD,
  directory: BAD,
  reason: BAD,
  position: BAD,
  log: [BAD, BAD],
  error: { title: BAD, text: BAD },
  metrics: [{ name: BAD, unit: BAD, better: null, splits: ["train", "valid"] }, ...going.metrics],
  table: [{ ...going.table[0], metric: BAD, unit: BAD }, ...going.table],
};

const STATES = { idle: [ready, 0], running: [going, 1077], paused: [paused, 1077], failed: [failed, 1077], finished: [finished, 2400], hostile: [hostile, 1077], readonly: [{ ...finished, readonly: true, controls: {} }, 2400], branched: [branched, 1077], million: [{ ...going, marks: epochs(4000) }, 1_000_000] };

export class FakeModel {
  #handlers = new Set();
  #seq = 0;
  #step;
  #timer = null;

  constructor(state) {
    const [board, steps] = STATES[state] ?? [null, 0];
    this.board = structuredClone(board);
    this.#step = steps;
    this.sent = [];
  }

  on(_, handler) {
    this.#handlers.add(handler);
  }

  off(_, handler) {
    this.#handlers.delete(handler);
  }

  get handlers() {
    return this.#handlers.size;
  }

  send(content) {
    this.sent.push(content);
    const { cmd, seq, args } = content;
    if (this.board === null) return; // a kernel that never answers
    if (cmd === "hello" || cmd === "resync") queueMicrotask(() => this.#snapshot());
    else if (cmd !== "look") this.#obey(cmd, args, seq);
  }

  #emit(content, buffers = []) {
    for (const handler of this.#handlers) handler(content, buffers);
  }

  #snapshot() {
    const found = [...series(this.#step, true), ...(this.board.branches ? thin() : [])];
    const buffers = found.map(([, , { xs, ys }]) => {
      const all = new Float64Array(xs.length * 4);
      for (const [at, column] of [xs, ys, ys, ys].entries()) all.set(column, at * xs.length);
      return new DataView(all.buffer);
    });
    const heads = found.map(([metric, split, { xs }, branch]) => ({ metric, split, points: xs.length, branch }));
    this.#emit({ type: "snapshot", seq: ++this.#seq, board: structuredClone(this.board), series: heads }, buffers);
  }

  #obey(cmd, args, seq) {
    const answer = (text) => this.#emit({ type: "answer", to: seq, ok: true, text });
    if (cmd === "run") {
      this.#change({ status: "running", controls: going.controls, rate: "200 steps/s" });
      this.#timer = setInterval(() => this.#steps(20), 100);
    } else if (cmd === "pause" || cmd === "stop") {
      clearInterval(this.#timer);
      this.#change({ status: cmd === "pause" ? "paused" : "stopped", controls: paused.controls, rate: "" });
    } else if (cmd === "step") this.#steps(args.n);
    else if (cmd === "inspect") this.#change({ inspected: args.rank, inspection: paused.inspection });
    answer(`${cmd}: done`);
  }

  #change(board) {
    Object.assign(this.board, board);
    this.#emit({ type: "delta", seq: ++this.#seq, board, series: [] });
  }

  #steps(n) {
    const xs = Array.from({ length: n }, () => ++this.#step);
    const heads = [];
    const buffers = [];
    for (const [metric, at] of [["Loss", lossAt], ["Accuracy", (x) => 100 * accuracyAt(x)]]) {
      heads.push({ metric, split: "train", points: n });
      buffers.push(new DataView(Float64Array.from([...xs, ...xs.map(at)]).buffer));
    }
    const step = this.#step % EPOCH;
    const board = { step, position: `epoch ${this.board.epoch}, train, step ${step} of ${EPOCH}` };
    Object.assign(this.board, board);
    this.#emit({ type: "delta", seq: ++this.#seq, board, series: heads }, buffers);
  }
}
