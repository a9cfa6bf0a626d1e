// Whether the kernel is there: by its status, where the notebook tells it to widgets, and by its messages.

const ENDED = {
  restarting: "the kernel was restarted",
  autorestarting: "the kernel died",
  dead: "the kernel died",
  terminating: "the kernel was shut down",
};
const ANOTHER = "the kernel died or was restarted"; // while this page was away
const BUSY_FOR = 2; // looks: a message that the kernel handles makes it busy for a moment, too
const SILENT_FOR = 3; // looks without a message; there is one every 1.5 seconds at least

const STATUS = { gone: "kernel gone", lost: "no contact" };
const NONE = { kind: "", text: "" };

export class Kernel {
  #manager;
  #kernel = null;
  #tell;
  #busy = 0;
  #quiet = 0;
  #process = ""; // each start of a kernel is another one
  #onMessage = (_, message) => this.#heardFrom(message);
  #onStatus = (_, status) => this.#heardStatus(status);
  #onConnection = () => this.#tell();

  /** `tell` is called when something may have changed between two looks. */
  constructor(manager, tell) {
    this.#manager = manager;
    this.#tell = tell;
    this.ended = "";
    this.#follow(this.#now);
  }

  get #now() {
    return this.#manager?.kernel ?? null;
  }

  #follow(kernel) {
    this.#kernel = kernel;
    kernel?.iopubMessage?.connect(this.#onMessage);
    kernel?.statusChanged?.connect(this.#onStatus);
    kernel?.connectionStatusChanged?.connect(this.#onConnection);
  }

  close() {
    this.#kernel?.iopubMessage?.disconnect(this.#onMessage);
    this.#kernel?.statusChanged?.disconnect(this.#onStatus);
    this.#kernel?.connectionStatusChanged?.disconnect(this.#onConnection);
  }

  #heardStatus(status) {
    if (status !== "busy") this.#busy = 0;
    const how = ENDED[status];
    if (how === undefined || (this.ended !== "" && status === "restarting")) return;
    this.ended = how;
    this.#tell();
  }

  /** A page that slept is not told that its kernel was started anew: it finds the same name and another process. */
  #heardFrom({ header, content }) {
    // The server writes messages, too, also of the type "status".
    if (header.msg_type !== "comm_msg" && !["busy", "idle"].includes(content.execution_state)) return;
    const before = this.#process;
    this.#process = header.session;
    if (before === "" || before === header.session || this.ended !== "") return;
    this.ended = ANOTHER;
    this.#tell();
  }

  /** Whether it ended without anybody who asked for that, as far as the page can know. */
  get died() {
    return this.ended === ENDED.dead || this.ended === ANOTHER;
  }

  /** A message came. */
  heard() {
    this.#quiet = 0;
  }

  /** Once a second, while the page is awake: what is counted is looks, so that a sleep of the computer is none. */
  look() {
    if (this.#kernel !== null && this.ended === "") {
      const now = this.#now;
      if (now === null) this.ended = ENDED.terminating;
      else if (now.id !== this.#kernel.id) this.ended = "the notebook has another kernel";
      else if (now !== this.#kernel) {
        this.close();
        this.#follow(now);
      }
    }
    this.#busy = this.#kernel?.status === "busy" ? this.#busy + 1 : 0;
    this.#quiet++;
  }

  /** What keeps the panel from the learner: how it is called, and a line for people. */
  trouble(connection) {
    if (this.ended !== "") return { kind: "gone", text: this.ended };
    if (connection?.mode === "away") return { kind: "replaced", text: connection.text };
    const link = this.#kernel?.connectionStatus ?? "connected";
    if (link !== "connected") return { kind: "lost", text: "the connection to the kernel is lost; the notebook tries again" };
    if (this.#quiet > SILENT_FOR) return { kind: "lost", text: `no news from the kernel for ${this.#quiet} s: it hangs, or the connection is lost` };
    const elsewhere = this.#busy > BUSY_FOR && connection?.mode === "background" && !connection.hears;
    return elsewhere ? { kind: "busy", text: "the kernel is busy with a cell; buttons work when it is over" } : NONE;
  }
}

/** The board as it may be shown: no time runs, and no button can be used that cannot work. */
export function asSeen(board, { kind, text }) {
  if (kind === "") return board;
  const controls = Object.fromEntries(Object.keys(board.controls ?? {}).map((name) => [name, text]));
  const held = { ...board, controls, still: true };
  return kind === "busy" ? held : { ...held, status: STATUS[kind] ?? board.status, rate: "", left: "" };
}

/** The newest checkpoint that is whole, and what a line says of the steps after it. */
export function losses({ trained, checkpoints }) {
  const whole = (checkpoints ?? []).filter(({ state }) => state === "complete");
  if (whole.length === 0) return trained > 0 ? `No checkpoint was saved, so ${steps(trained)} may be lost.` : "No step was taken.";
  const { at, place, label } = whole[whole.length - 1];
  const after = trained - at;
  if (after > 0) return `${steps(after)} since the last checkpoint (${place || label}) may be lost.`;
  return `The last checkpoint (${place || label}) has every step that was shown here.`;
}

const steps = (count) => `${count.toLocaleString("en-US")} ${count === 1 ? "step" : "steps"}`;

/** What the cell that builds the learner begins with, to go on with the run of that directory. */
export const resuming = (directory) => `LearnerBuilder(${JSON.stringify(directory)}).resume()`;
