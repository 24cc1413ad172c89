// The part of a canvas context that the panels use, writing SVG: one drawing serves both.

const escape = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const r = (v) => Math.round(v * 100) / 100;

export class SvgContext {
  constructor(width, height) {
    Object.assign(this, {
      width, height, parts: [], path: [], fillStyle: "#000", strokeStyle: "#000", lineWidth: 1,
      globalAlpha: 1, font: "10px sans-serif", textAlign: "start", textBaseline: "alphabetic",
      clips: 0, lineJoin: "round", dash: [], stack: [],
    });
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash } = this;
    this.stack.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash, groups: 0 });
  }

  restore() {
    const { groups, ...rest } = this.stack.pop();
    this.parts.push("</g>".repeat(groups));
    Object.assign(this, rest);
  }

  setLineDash(dash) {
    this.dash = dash;
  }

  beginPath() {
    this.path = [];
  }

  moveTo(x, y) {
    this.path.push(`M${r(x)} ${r(y)}`);
  }

  lineTo(x, y) {
    this.path.push(`L${r(x)} ${r(y)}`);
  }

  closePath() {
    this.path.push("Z");
  }

  rect(x, y, w, h) {
    this.path.push(`M${r(x)} ${r(y)}h${r(w)}v${r(h)}h${r(-w)}Z`);
  }

  arc(x, y, radius) {
    const d = r(2 * radius);
    this.path.push(`M${r(x - radius)} ${r(y)}a${r(radius)} ${r(radius)} 0 1 0 ${d} 0a${r(radius)} ${r(radius)} 0 1 0 ${-d} 0`);
  }

  clip() {
    const id = `clip${(this.clips += 1)}`;
    this.parts.push(`<clipPath id="${id}"><path d="${this.path.join("")}"/></clipPath><g clip-path="url(#${id})">`);
    this.stack.at(-1).groups += 1;
  }

  fill() {
    this.parts.push(`<path d="${this.path.join("")}" fill="${escape(this.fillStyle)}" fill-opacity="${this.globalAlpha}"/>`);
  }

  stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    this.parts.push(`<path d="${this.path.join("")}" fill="none" stroke="${escape(this.strokeStyle)}" stroke-opacity="${this.globalAlpha}" stroke-width="${this.lineWidth}" stroke-linejoin="round"${dash}/>`);
  }

  fillRect(x, y, w, h) {
    this.parts.push(`<rect x="${r(x)}" y="${r(y)}" width="${r(w)}" height="${r(h)}" fill="${escape(this.fillStyle)}" fill-opacity="${this.globalAlpha}"/>`);
  }

  clearRect() {}

  fillText(text, x, y) {
    const anchor = { center: "middle", right: "end" }[this.textAlign] ?? "start";
    const base = { middle: "central", top: "hanging" }[this.textBaseline] ?? "auto";
    this.parts.push(`<text x="${r(x)}" y="${r(y)}" fill="${escape(this.fillStyle)}" style="font:${escape(this.font)}" text-anchor="${anchor}" dominant-baseline="${base}">${escape(text)}</text>`);
  }

  measureText(text) {
    return { width: String(text).length * parseFloat(this.font.match(/[\d.]+px/)?.[0] ?? 10) * 0.55 };
  }

  drawImage(canvas, x, y, w, h) {
    this.parts.push(`<image x="${r(x)}" y="${r(y)}" width="${r(w)}" height="${r(h)}" preserveAspectRatio="none" href="${canvas.toDataURL("image/png")}"/>`);
  }

  toString() {
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.width} ${this.height}" width="${this.width}" height="${this.height}">${this.parts.join("")}</svg>`;
  }
}
