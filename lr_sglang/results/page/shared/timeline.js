// The branches of the three roles as bars over time, on a canvas, which is fast with thousands of bars.

import { plural, time } from "./words.js";

const ROLES = ["draft", "target", "judge"];
const SHARES = { draft: 0.24, target: 0.52, judge: 0.24, path: 0 };
const PARTS = ["late", "prefill", "queue", "controller"]; // of the critical path, beside the roles
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600];
const AXIS = 16;
const THICK = 14;
const EVERY = 40; // milliseconds

/** Parts of the critical path have own colours. Branches: full if in the answer or decisive, half if in flight or agreeing, grey if given up, red if rejected. */
function look(bar, lit) {
  if (bar.part) return { colour: bar.part, strength: 1 };
  if (bar.state === "rejected") return { colour: "bad", strength: bar.role === "judge" ? 1 : 0.75 };
  if (bar.state === "cancelled") return { colour: lit ? bar.role : "past", strength: 0.4 };
  const half = bar.ended === null || bar.state === "here" || (bar.role === "target" && bar.state === "accepted");
  return { colour: bar.role, strength: half ? 0.55 : 1 };
}

export class Timeline {
  /** `pointed(row)` and `clicked(row)` are called with the row of the bar under the pointer, or null. */
  constructor(canvas, { pointed, clicked }) {
    Object.assign(this, { canvas, drawn: 0 });
    this.colours();
    this.clear([]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (this.colours(), this.draw()));
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => {
      const bar = this.find(event);
      canvas.style.cursor = bar ? "pointer" : "";
      canvas.title = bar?.about ?? "";
      pointed(bar?.row ?? null);
    });
    canvas.addEventListener("pointerleave", () => pointed(null));
    canvas.addEventListener("wheel", (event) => this.shift(event), { passive: false });
    canvas.addEventListener("click", (event) => clicked(this.find(event)?.row ?? null));
  }

  colours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => [name, style.getPropertyValue(`--${name}`).trim()];
    this.colour = Object.fromEntries([...ROLES, ...PARTS, "past", "bad", "muted", "line", "bench"].map(read));
  }

  /** `marks`: seconds at which a line is drawn. `told`: the picture in words; by default these are made from the bars. */
  clear(bars, { marks = [], told = "" } = {}) {
    Object.assign(this, { bars, marks, told, now: 0, row: null, zoom: 1, at: null, placed: 0, shares: SHARES });
    this.busy = { draft: [], target: [], judge: [], path: [] };
    this.label();
    this.draw();
  }

  /** Draws the state at time `now`, but not twice within EVERY milliseconds; always if it is the `last`. */
  show(now, last = false) {
    this.now = now;
    if (last) this.label();
    if (last || performance.now() - this.drawn > EVERY) this.draw();
  }

  /** Highlights the branches of a row; `bring` scrolls to them. */
  light(row, bring = false) {
    this.row = row;
    const own = row && this.bars.filter((bar) => bar.row === row);
    this.label();
    if (bring && own?.length) this.at = (own[0].began + (own.at(-1).ended ?? this.now)) / 2;
    this.draw();
  }

  magnify(how) {
    if (how === "fit") this.at = null;
    this.zoom = how === "fit" ? 1 : Math.min(Math.max(this.zoom * (how === "in" ? 2 : 0.5), 1), 256);
    this.draw();
  }

  /** Makes the canvas high enough for all lanes; returns the number of lanes of each role. */
  fit() {
    this.place();
    const lanes = Object.entries(this.busy).map(([role, own]) => [role, Math.max(own.length, 1)]);
    const all = lanes.reduce((sum, [, count]) => sum + count, 0);
    this.shares = Object.fromEntries(lanes.map(([role, count]) => [role, count / all]));
    this.canvas.style.height = `${AXIS + all * (THICK + 4)}px`;
    return lanes;
  }

  /** A horizontal turn of the wheel moves the visible range. */
  shift(event) {
    if (this.zoom === 1 || !event.deltaX) return;
    event.preventDefault();
    const { from, length } = this.window();
    this.at = from + length * (0.5 + event.deltaX / this.canvas.clientWidth);
    this.draw();
  }

  /** The visible range in seconds: everything, or when zoomed in, the part around the highlighted row or at the end. */
  window() {
    const whole = Math.max(this.now, 0.5);
    const length = whole / this.zoom;
    const from = this.at === null ? whole - length : Math.min(Math.max(this.at - length / 2, 0), whole - length);
    return { from, length };
  }

  /** Every branch gets the first lane of its role that is free when it begins. */
  place() {
    for (; this.placed < this.bars.length; this.placed += 1) {
      const bar = this.bars[this.placed];
      const lanes = this.busy[bar.role];
      let lane = lanes.findIndex((last) => last.ended !== null && last.ended <= bar.began + 1e-6);
      if (lane < 0) lane = lanes.length;
      lanes[lane] = bar;
      bar.lane = lane;
    }
  }

  *boxes() {
    this.place();
    const { from, length } = this.window();
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const scale = width / length;
    let top = AXIS;
    const tops = {};
    for (const [role, share] of Object.entries(this.shares)) {
      const tall = (height - AXIS) * share;
      tops[role] = { top: top + 2, each: Math.min((tall - 4) / Math.max(this.busy[role].length, 1), THICK) };
      top += tall;
    }
    for (const bar of this.bars) {
      const end = bar.ended ?? this.now;
      if (end < from || bar.began > from + length) continue;
      const { top: first, each } = tops[bar.role];
      const x = (bar.began - from) * scale;
      const gap = each > 4 ? 1 : 0;
      yield { bar, x, y: first + bar.lane * each, w: Math.max((end - bar.began) * scale - 0.5, 1.5), h: Math.max(each - gap, 1) };
    }
  }

  find({ offsetX, offsetY }) {
    let found = null;
    let best = 4; // a bar may be thinner than a finger
    for (const { bar, x, y, w, h } of this.boxes()) {
      if (offsetY < y - 1 || offsetY > y + h + 1) continue;
      const away = Math.max(x - offsetX, offsetX - x - w, 0);
      if (away < best) [found, best] = [bar, away];
    }
    return found;
  }

  draw() {
    const { canvas } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    const size = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.drawAxis(pen, width, height);
    for (const { bar, x, y, w, h } of this.boxes()) {
      const lit = bar.row === this.row;
      const { colour, strength } = look(bar, lit);
      pen.globalAlpha = strength * (this.row && !lit ? 0.3 : 1);
      pen.fillStyle = this.colour[colour];
      pen.fillRect(x, y, w, h);
      if (!bar.row || bar.part || h < 10 || w < 18) continue;
      pen.fillStyle = this.colour.bench;
      pen.fillText(String(bar.row.position + 1), x + w / 2 - 3, y + h / 2 - 5);
    }
    pen.globalAlpha = 1;
    this.drawn = performance.now();
  }

  drawAxis(pen, width, height) {
    const { from, length } = this.window();
    const tick = TICKS.find((one) => (one / length) * width >= 64) ?? TICKS.at(-1);
    pen.fillStyle = this.colour.muted;
    pen.strokeStyle = this.colour.line;
    pen.font = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
    pen.textBaseline = "top";
    pen.beginPath();
    for (let at = Math.ceil(from / tick) * tick; at <= from + length; at += tick) {
      const x = Math.round(((at - from) / length) * width) + 0.5;
      pen.moveTo(x, AXIS - 3);
      pen.lineTo(x, height);
      const text = `${Number(at.toFixed(1))} s`;
      if (x + pen.measureText(text).width < width) pen.fillText(text, x + 3, 2);
    }
    for (const mark of this.marks) {
      const x = Math.round(((mark - from) / length) * width) + 0.5;
      pen.moveTo(x, AXIS);
      pen.lineTo(x, height);
    }
    let y = AXIS + 0.5;
    for (const share of Object.values(this.shares)) {
      pen.moveTo(0, Math.round(y) + 0.5);
      pen.lineTo(width, Math.round(y) + 0.5);
      y += (height - AXIS) * share;
    }
    pen.stroke();
  }

  label() {
    this.canvas.setAttribute("aria-label", this.spoken());
  }

  spoken() {
    if (this.told || !this.bars.length) return this.told || "No branches yet";
    const count = { draft: 0, target: 0, judge: 0 };
    for (const bar of this.bars) count[bar.role] += 1;
    const told = ROLES.map((role) => `${role} ${plural(count[role], "branch").replace("branchs", "branches")}`);
    return `${told.join(", ")}; ${time(this.now)}${this.row ? `; step ${this.row.position + 1} is lit` : ""}`;
  }
}
