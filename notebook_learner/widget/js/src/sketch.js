// A canvas that gives back SVG: of what a canvas can do, what the panel's own drawings use. All text may be
// anybody's, so none goes in without `escaped`.

const ANCHORS = { left: "start", center: "middle", right: "end" };
const LOWER = { top: 0.8, middle: 0.35, alphabetic: 0 }; // of the letters' size: not every program knows other base lines
const NOT_XML = /[^\t\n\r -\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

export const escaped = (text) => String(text).replace(NOT_XML, "\ufffd").replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt()};`);

const short = (value) => +value.toFixed(2);

export class Sketch {
  #kept = [];
  #path = "";
  #box = [];
  #parts = [];

  constructor(width) {
    Object.assign(this, { canvas: { width }, globalAlpha: 1, textAlign: "left", textBaseline: "alphabetic", left: 0, top: 0, dash: [], tag: "", close: "" });
  }

  toString() {
    return this.#parts.join("\n");
  }

  save() {
    this.#kept.push({ ...this });
    this.close = "";
  }

  restore() {
    this.#parts.push(this.close);
    Object.assign(this, this.#kept.pop());
  }

  /** A pixel of the page is one of the picture. */
  scale() {}

  translate(left, top) {
    this.left += left;
    this.top += top;
  }

  setLineDash(dash) {
    this.dash = dash;
  }

  beginPath() {
    this.#path = "";
  }

  moveTo(x, y, how = "M") {
    this.#path += `${how}${short(x + this.left)} ${short(y + this.top)}`;
  }

  lineTo(x, y) {
    this.moveTo(x, y, "L");
  }

  closePath() {
    this.#path += "Z";
  }

  /** A whole circle. */
  arc(x, y, radius) {
    this.moveTo(x - radius, y);
    for (const width of [2 * radius, -2 * radius]) this.#path += `a${radius} ${radius} 0 1 0 ${width} 0`;
  }

  rect(x, y, width, height) {
    this.#box = [x + this.left, y + this.top, width, height].map(short);
  }

  /** To the last rectangle. A picture in the picture cuts off what leaves it, without names that could clash. */
  clip() {
    this.#parts.push(`<svg ${this.#placed} viewBox="${this.#box.join(" ")}">`);
    this.close = "</svg>";
  }

  fill() {
    this.#put("path", `d="${this.#path}"`);
  }

  stroke() {
    if (this.#path !== "") this.#put("path", `d="${this.#path}"`, true);
  }

  fillRect(...box) {
    this.rect(...box);
    this.#put("rect", this.#placed);
  }

  fillText(text, x, y, stroked = false) {
    const [, weight = 400, size] = /^(\d+ )?([\d.]+)px/.exec(this.font);
    const at = `x="${short(x + this.left)}" y="${short(y + this.top + LOWER[this.textBaseline] * size)}"`;
    this.#put("text", `${at} font-size="${size}" font-weight="${+weight}" text-anchor="${ANCHORS[this.textAlign]}"`, stroked, escaped(text));
  }

  strokeText(text, x, y) {
    this.fillText(text, x, y, true);
  }

  /** About. */
  measureText(text) {
    return { width: text.length * parseFloat(this.font.replace("600 ", "")) * 0.56 };
  }

  get #placed() {
    return ["x", "y", "width", "height"].map((name, at) => `${name}="${this.#box[at]}"`).join(" ");
  }

  #put(name, attributes, stroked = false, content = "") {
    const line = `fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${this.lineWidth}" stroke-linejoin="round" stroke-dasharray="${this.dash.join(" ") || "none"}"`;
    this.#parts.push(`<${name} ${attributes} ${stroked ? line : `fill="${escaped(this.fillStyle)}"`} opacity="${short(this.globalAlpha)}"${this.tag}>${content}</${name}>`);
  }
}
