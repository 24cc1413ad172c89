// The second tab: a mass on a spring, held by two controllers whose weights are scrambled.

import { control, showValue } from "./controls.js";
import { frame, polyline, readTheme, segment, surface, text } from "./draw.js";
import { loopCode } from "./python.js";
import { Random } from "./random.js";
import { slider } from "./state.js";
import { makeCell, makeMlp, scrambled, simulate } from "./statespace.js";
import { cloned, makePanel } from "./views.js";

const SECONDS = 60; // of a run
const PACE = 8; // seconds of a run in one
const START = [2, 0]; // position and velocity
const RAIL = 5; // half its length
const FAINT = 100; // earlier runs that are shown

const SETTINGS = {
  scale: slider("", "Random weights", 3, [0.1, 0.3, 1, 3, 10, 30, 100], (v) => `± ${v}`),
  force: slider("", "Noise on the force", 0.3, [0, 0.1, 0.3, 1, 3]),
};

const PANELS = {
  mass: ["Mass on a spring", `The rail is ${2 * RAIL} m long. The controller measures the velocity, and pushes.`],
  position: ["Position", "Of this run, and faintly of the earlier ones; the rail lies between the dashed lines."],
};

export class ControlPage {
  constructor() {
    this.data = JSON.parse(document.getElementById("controllers").textContent);
    const { gain, limit, stateSpace, mlp } = this.data;
    this.values = { scale: SETTINGS.scale.value, force: SETTINGS.force.value };
    this.sides = [
      {
        name: "State-space network",
        about: `hdnn.StateSpace(passive=True, gain=${gain}). Cost after training: ${stateSpace.cost}.`,
        promise:
          `Proved: without noise the mass comes to rest, whatever the weights, as a gain of ${gain} is below the ` +
          `limit of this mass, ${limit.toFixed(2)}.`,
        weights: stateSpace.weights,
        make: (weights) => makeCell(weights, this.data),
      },
      {
        name: "MLP",
        about: `Sees the same, trained alike. Cost after training: ${mlp.cost}.`,
        promise: "It stays this time. Nothing promises it for other weights.",
        weights: mlp.weights,
        make: makeMlp,
      },
    ].map((side, index) => this.makeSide(side, index));
    const form = /** @type {HTMLFormElement} */ (document.getElementById("loop"));
    for (const [name, setting] of Object.entries(SETTINGS)) {
      form.firstElementChild.append(control(name, setting, (_, value) => this.set(name, value)));
      showValue(form.elements[name], setting, this.values[name]);
    }
    this.seed = 0;
    this.trained();
  }

  makeSide(side, index) {
    const element = cloned("controller");
    element.dataset.index = String(index);
    element.setAttribute("aria-label", side.name);
    element.querySelector("h2").textContent = side.name;
    element.querySelector(".about").textContent = side.about;
    const canvases = Object.entries(PANELS).map(([name, [title, why]]) => {
      const { figure, canvas } = makePanel(name, title, why);
      element.querySelector(".panels").append(figure);
      new ResizeObserver(() => this.redraw()).observe(canvas);
      return canvas;
    });
    document.getElementById("loops").append(element);
    return { ...side, index, element, canvases, runs: [] };
  }

  set(name, value) {
    this.values[name] = value;
    this.trained();
  }

  /** Begin anew, with the weights that were trained. */
  trained() {
    for (const side of this.sides) side.runs = [];
    this.run(() => null);
  }

  /** Other weights, many times; the last ones are shown. */
  scramble(times = 1) {
    for (let k = 0; k < times; k++) {
      const seed = this.seed++;
      this.run((side) => scrambled(side.weights, this.values.scale, new Random(seed)));
    }
  }

  run(weightsOf) {
    const random = new Random(1); // the same noise for all
    const noise = Array.from({ length: SECONDS / this.data.step }, () => this.values.force * random.normal());
    for (const side of this.sides) {
      const weights = weightsOf(side);
      const states = simulate(this.data.plant, side.make(weights ?? side.weights), START, noise);
      const positions = states.map(([x]) => x);
      side.runs.push({ positions, stays: positions.every((x) => Math.abs(x) <= RAIL), random: weights !== null });
    }
    const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.began = performance.now() - (reduced ? (1000 * SECONDS) / PACE : 0);
    this.describe();
    this.redraw();
  }

  python() {
    return loopCode(this.values.scale);
  }

  describe() {
    for (const { element, runs, promise, canvases, name } of this.sides) {
      const random = runs.filter((run) => run.random);
      const stay = random.filter((run) => run.stays).length;
      element.querySelector(".accuracy").textContent = random.length ? `${stay} of ${random.length}` : "–";
      const { stays, positions } = runs.at(-1);
      const verdict = /** @type {HTMLElement} */ (element.querySelector(".verdict"));
      verdict.textContent = stays ? promise : "It drives the mass off the rail.";
      verdict.dataset.kind = stays ? "good" : "bad";
      const last = `${positions.at(-1).toFixed(1)} m after ${SECONDS} s`;
      for (const canvas of canvases) canvas.setAttribute("aria-label", `${name}: position ${last}`);
    }
  }

  /** Draw now and until the run has been shown. */
  redraw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame((now) => {
      const time = Math.max(0, Math.min(SECONDS, (PACE * (now - this.began)) / 1000));
      const theme = readTheme();
      for (const side of this.sides) {
        const at = Math.round((time / SECONDS) * (side.runs.at(-1).positions.length - 1));
        side.canvases.forEach((canvas, k) => {
          const [ctx, w, h] = surface(canvas);
          if (ctx) [drawMass, drawPosition][k](ctx, w, h, side, at, theme);
        });
      }
      if (time < SECONDS) this.redraw();
    });
  }
}

function drawMass(ctx, w, h, { runs, index }, now, theme) {
  const x = runs.at(-1).positions[now];
  const [unit, size] = [(w - 50) / (2 * RAIL), Math.min(32, h / 4)];
  const [middle, foot] = [w / 2, h - 14];
  ctx.lineWidth = 2;
  ctx.strokeStyle = theme.muted;
  segment(ctx, middle - RAIL * unit, foot, middle + RAIL * unit, foot);
  segment(ctx, middle - 14, 6, middle + 14, 6);
  // The spring, from above the middle of the rail.
  const [far, high] = [Math.max(-w, Math.min(w, unit * x)), foot - size - 7];
  const length = Math.hypot(far, high);
  const coil = Array.from({ length: 21 }, (_, k) => {
    const aside = k > 1 && k < 19 ? (k % 2 ? 6 : -6) : 0;
    return [middle + (far * k + (20 * aside * high) / length) / 20, 6 + (high * k - (20 * aside * far) / length) / 20];
  });
  ctx.lineWidth = 1.2;
  polyline(ctx, coil);
  ctx.fillStyle = theme.classes[index];
  ctx.fillRect(middle + far - size / 2, foot - size - 1, size, size);
  if (Math.abs(far) > w / 2) {
    const words = `${Math.abs(x).toFixed(0)} m`;
    const style = { align: "center", size: 14, weight: 700, color: theme.ink };
    text(ctx, theme, x > 0 ? `${words} →` : `← ${words}`, middle, foot - 8, style);
  }
}

function drawPosition(ctx, w, h, { runs, index }, now, theme) {
  const f = frame(ctx, w, h, theme, -2 * RAIL, 2 * RAIL, { labels: [`${-2 * RAIL} m`, `${2 * RAIL} m`] });
  ctx.save();
  ctx.beginPath();
  ctx.rect(f.left, f.top, f.width, f.height);
  ctx.clip();
  ctx.strokeStyle = theme.muted;
  ctx.setLineDash([4, 4]);
  for (const edge of [-RAIL, RAIL]) segment(ctx, f.left, f.y(edge), f.left + f.width, f.y(edge));
  ctx.setLineDash([]);
  ctx.strokeStyle = theme.classes[index];
  const last = runs.at(-1).positions.length - 1;
  const line = (positions, every) =>
    polyline(
      ctx,
      positions.filter((_, t) => t % every === 0).map((x, t) => [f.x((every * t) / last), f.y(x)]),
    );
  ctx.globalAlpha = 0.18;
  ctx.lineWidth = 1;
  for (const { positions } of runs.slice(-FAINT - 1, -1)) line(positions, 6);
  ctx.globalAlpha = 1;
  ctx.lineWidth = 2;
  line(runs.at(-1).positions.slice(0, now + 1), 1);
  ctx.restore();
  text(ctx, theme, "0 s", f.left, h - 4);
  text(ctx, theme, `${SECONDS} s`, f.left + f.width, h - 4, { align: "right" });
}
