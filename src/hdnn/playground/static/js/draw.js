// The panels. Each draws itself on a canvas of given size, from what a network's
// view holds: the last snapshot, the history, the data, and where the flow stands.

import { coordinate, dot, extent, isOnePlace, projection } from "./geometry.js";

const COLORS = ["paper", "ink", "muted", "grid", ...Array.from({ length: 10 }, (_, k) => `c${k}`)];

/** The colors of theme.css, light or dark as the page is. */
export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const [paper, ink, muted, grid, ...classes] = COLORS.map((name) => style.getPropertyValue(`--${name}`).trim());
  return { paper, ink, muted, grid, classes };
}

/** The context of a canvas as large as it is shown, cleared, and its size; null if it is hidden. */
export function surface(canvas) {
  const [w, h, ratio] = [canvas.clientWidth, canvas.clientHeight, Math.min(devicePixelRatio || 1, 3)];
  if (!w || !h) return [null];
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, w, h);
  return [ctx, w, h];
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

const clamp = (v, a, b) => Math.max(a, Math.min(b, v));
const classColor = ({ classes }, label) => classes[label % classes.length];
const mix = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t);

// Blue: vanishing, pale: 1, orange: exploding. Equal steps of the decimal logarithm.
const DECADES = [-12, -6, -2, 0, 1, 2, 3];
const HEAT_COLORS = ["#0b1d3a", "#1f5f9e", "#8fbfe0", "#f6f2e9", "#fae0b8", "#f0a650", "#b34a00"].map(rgb);

/** The color of log10 of a norm, between -12 and 3. */
function heatColor(value) {
  const k = Math.max(1, DECADES.filter((decade) => decade < value).length);
  const [low, high] = [DECADES[k - 1], DECADES[k]];
  return mix(HEAT_COLORS[k - 1], HEAT_COLORS[k], (value - low) / (high - low));
}

// Images are drawn many times a second: their colors are looked up, as 32-bit pixels.
const pack = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
const SHADES = 300;
const HEAT = Uint32Array.from({ length: SHADES + 1 }, (_, i) => pack(heatColor(-12 + (15 * i) / SHADES)));
const heatPixel = (norm) =>
  Number.isNaN(norm) ? pack([128, 128, 128]) : HEAT[Math.round(clamp((Math.log10(norm) + 12) / 15, 0, 1) * SHADES)];

const LEVELS = 64;
const shades = new Map();
/** Pixels of a color by how sure the network is, on a paper. */
function shadesOf(color, paper) {
  const key = `${color} ${paper}`;
  if (!shades.has(key)) {
    const at = (i) => pack(mix(rgb(paper), rgb(color), 0.1 + (0.42 * i) / LEVELS));
    shades.set(
      key,
      Uint32Array.from({ length: LEVELS + 1 }, (_, i) => at(i)),
    );
  }
  return shades.get(key);
}

/** An image of width x height pixels, to be stretched; the same canvas serves again. */
function image(view, name, width, height, pixel) {
  const canvas = ((view.images ??= {})[name] ??= document.createElement("canvas"));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const ctx = canvas.getContext("2d");
  const data = ctx.createImageData(width, height);
  const pixels = new Uint32Array(data.data.buffer);
  for (let y = 0, p = 0; y < height; y++) for (let x = 0; x < width; x++, p++) pixels[p] = pixel(x, y);
  ctx.putImageData(data, 0, 0);
  return canvas;
}

export function text(
  ctx,
  theme,
  words,
  x,
  y,
  { align = "left", base = "alphabetic", color = theme.muted, size = 10, weight = 400 } = {},
) {
  ctx.font = `${weight} ${size}px ${FONT}`;
  ctx.fillStyle = color;
  ctx.textAlign = align;
  ctx.textBaseline = base;
  ctx.fillText(words, x, y);
}

/** A line through points; those that are not finite leave gaps. */
export function polyline(ctx, points) {
  ctx.beginPath();
  let open = false;
  for (const [x, y] of points) {
    if (open) ctx.lineTo(x, y);
    else ctx.moveTo(x, y);
    open = Number.isFinite(y);
  }
  ctx.stroke();
}

export function segment(ctx, ...ends) {
  polyline(ctx, [ends.slice(0, 2), ends.slice(2)]);
}

function dots(ctx, theme, list, radius) {
  for (const [label, places] of list) {
    ctx.beginPath();
    for (const [x, y] of places) {
      ctx.moveTo(x + radius, y);
      ctx.arc(x, y, radius, 0, 2 * Math.PI);
    }
    ctx.fillStyle = classColor(theme, label);
    ctx.fill();
  }
}

/** Points by class: [label, [[x, y], ...]] pairs. */
function byClass(count, labels, place) {
  const groups = new Map();
  for (let i = 0; i < count; i++) {
    if (!groups.has(labels[i])) groups.set(labels[i], []);
    groups.get(labels[i]).push(place(i));
  }
  return [...groups].sort((a, b) => a[0] - b[0]);
}

export const percent = (v) => `${(100 * v).toFixed(1)} %`;

export const format = (v) => {
  if (!Number.isFinite(v)) return v > 0 ? "∞" : "–";
  const a = Math.abs(v);
  if (a !== 0 && (a < 1e-2 || a >= 1e4)) {
    const e = Math.floor(Math.log10(a));
    return `10${String(e).replace(/./g, (c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻")}`;
  }
  return String(Number(v.toPrecision(2)));
};

// --- the panels -----------------------------------------------------------------------------------

/** Where the network puts which class, and some test points. */
export function regions(ctx, w, h, view, theme) {
  const { snapshot, data, bounds } = view;
  const side = Math.min(w, h);
  const x0 = (w - side) / 2;
  const place = (x, y) => [x0 + ((x - bounds.x) / bounds.side) * side, side - ((y - bounds.y) / bounds.side) * side];
  if (snapshot) {
    const { gridSize: size, outputs, grid } = snapshot;
    const tables = Array.from({ length: Math.max(2, outputs) }, (_, label) =>
      shadesOf(classColor(theme, label), theme.paper),
    );
    const canvas = image(view, "regions", size, size, (x, y) => {
      const [label, p] = predicted(grid, ((size - 1 - y) * size + x) * outputs, outputs);
      return tables[label][Math.round(clamp(p, 0, 1) * LEVELS)];
    });
    ctx.imageSmoothingEnabled = true;
    ctx.drawImage(canvas, x0, 0, side, side);
  }
  const count = Math.min(data.test.labels.length, 400);
  ctx.globalAlpha = 0.9;
  const { points, labels } = data.test;
  const places = byClass(count, labels, (i) => place(points[2 * i], points[2 * i + 1]));
  dots(ctx, theme, places, side < 200 ? 1.2 : 1.6);
  ctx.globalAlpha = 1;
  if (view.cursor) {
    const [x, y] = place(...view.cursor);
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 1.5;
    segment(ctx, x - 7, y, x + 7, y);
    segment(ctx, x, y - 7, x, y + 7);
  }
}

/** Class and how sure, 0 to 1, of the logits from `at` on. */
function predicted(grid, at, outputs) {
  if (outputs === 1) {
    const p = 1 / (1 + Math.exp(-grid[at]));
    return [p > 0.5 ? 1 : 0, 2 * Math.abs(p - 0.5)];
  }
  let [best, sum] = [0, 0];
  for (let o = 1; o < outputs; o++) if (grid[at + o] > grid[at + best]) best = o;
  for (let o = 0; o < outputs; o++) sum += Math.exp(grid[at + o] - grid[at + best]);
  return [best, (1 / sum - 1 / outputs) / (1 - 1 / outputs)];
}

/** The data carried through the layers, at the depth where the slider stands. */
export function flow(ctx, w, h, view, theme) {
  const { snapshot, data, depth } = view;
  if (!snapshot) return;
  const { n, shown, depths, V, outputs } = snapshot;
  const at = clamp(depth, 0, 1) * (depths.length - 1);
  const low = Math.min(Math.floor(at), depths.length - 2);
  const smooth = depth * depth * (3 - 2 * depth);
  const turn = (snapshot.turn ??= projection(snapshot));
  const plane = turn(smooth);
  const project = (d, s) => plane.map((direction) => coordinate(snapshot, d, s, direction));
  const between = (s) => mix(project(low, s), project(low + 1, s), at - low);
  // The scale is that of the data, or of the depth where the states have grown beyond it: one for
  // all depths would make a long flow small, one for each would hide a collapse.
  snapshot.extent ??= extent(snapshot, 0, turn(0));
  const scale = Math.max(snapshot.extent, extent(snapshot, Math.round(at), plane), 1e-6) * 1.12;
  const half = Math.min(w, h) / 2;
  const place = (p) => [w / 2 + (p[0] / scale) * half, h / 2 - (p[1] / scale) * half];
  if (outputs === 1 && smooth > 0.6) decision(ctx, theme, V, n, place, plane, (smooth - 0.6) / 0.4);
  ctx.lineWidth = 0.7;
  // A network without a step jumps: its points leave no trails.
  for (let s = 0; s < (snapshot.usesStep ? Math.min(shown, 36) : 0); s++) {
    ctx.globalAlpha = 0.3;
    ctx.strokeStyle = classColor(theme, data.test.labels[s]);
    const path = [];
    for (let d = Math.max(0, low - 8); d <= low; d++) path.push(place(project(d, s)));
    path.push(place(between(s)));
    polyline(ctx, path);
  }
  ctx.globalAlpha = 0.9;
  const places = byClass(shown, data.test.labels, (s) => place(between(s)));
  dots(ctx, theme, places, half < 100 ? 1.5 : 2);
  ctx.globalAlpha = 1;
  if (isOnePlace(snapshot, Math.round(at))) {
    const [x, y] = place(between(0));
    const words = depth === 1 ? "all points end in one place" : "all points are in one place";
    ctx.font = `600 11px ${FONT}`;
    const room = ctx.measureText(words).width / 2 + 4; // the dot may be near an edge
    text(ctx, theme, words, clamp(x, room, w - room), y + (y > h / 2 ? -12 : 20), {
      align: "center",
      size: 11,
      weight: 600,
      color: theme.ink,
    });
  }
  text(ctx, theme, `layer ${Math.round(depth * snapshot.layers)} of ${snapshot.layers}`, w - 6, h - 7, {
    align: "right",
  });
}

/** The plane where the output layer changes its mind; in the last view it is a line across. */
function decision(ctx, theme, V, n, place, plane, alpha) {
  const head = Array.from(V.subarray(0, n));
  const [a, b] = plane.map((direction) => dot(head, direction));
  const square = a * a + b * b;
  if (!(square > 1e-12)) return;
  const foot = [(-V[n] * a) / square, (-V[n] * b) / square];
  const away = 1e3 / Math.sqrt(square);
  ctx.globalAlpha = alpha * 0.7;
  ctx.strokeStyle = theme.muted;
  ctx.lineWidth = 1;
  ctx.setLineDash([4, 4]);
  const ends = [-away, away].map((t) => place([foot[0] + b * t, foot[1] - a * t]));
  polyline(ctx, ends);
  ctx.setLineDash([]);
  ctx.globalAlpha = 1;
}

/** || d y_N / d y_l || over depth and iterations. */
export function heat(ctx, w, h, view, theme) {
  const { history } = view;
  const [left, bottom, right, top] = [38, 16, 54, 4];
  const [pw, ph] = [w - left - right, h - bottom - top];
  if (history.rows.length) {
    const columns = history.rows.map((row) => row.norms);
    const count = columns[0].length;
    const canvas = image(view, "heat", columns.length, count, (x, y) => heatPixel(columns[x][count - 1 - y]));
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(canvas, left, top, pw, ph);
  }
  const layers = view.snapshot?.layers ?? 1;
  text(ctx, theme, String(layers), left - 5, top + 8, { align: "right" });
  text(ctx, theme, "layer", left - 5, top + ph / 2 + 3, { align: "right" });
  text(ctx, theme, "0", left - 5, top + ph, { align: "right" });
  text(ctx, theme, "iteration", left, h - 4);
  text(ctx, theme, String(history.rows.at(-1)?.iteration ?? 0), left + pw, h - 4, { align: "right" });
  const bar = image(view, "bar", 1, 90, (_, y) => heatPixel(10 ** (3 - (y / 89) * 15)));
  ctx.imageSmoothingEnabled = true;
  const bx = w - right + 8;
  ctx.drawImage(bar, bx, top, 8, ph);
  for (const e of [3, 0, -6, -12]) {
    text(ctx, theme, e ? format(10 ** e * 1.0001) : "1", bx + 12, top + 1 + ((3 - e) / 15) * (ph - 2), {
      base: e === 3 ? "top" : e === -12 ? "alphabetic" : "middle",
    });
  }
}

/** A frame with the range of y on its left. */
export function frame(
  ctx,
  w,
  h,
  theme,
  low,
  high,
  { left = 40, bottom = 16, labels = [format(low), format(high)] } = {},
) {
  const box = { left, top: 6, width: w - left - 8, height: h - bottom - 8 };
  ctx.strokeStyle = theme.grid;
  ctx.lineWidth = 1;
  const [right, foot] = [box.left + box.width, box.top + box.height];
  segment(ctx, left, box.top, left, foot);
  segment(ctx, left, foot, right, foot);
  text(ctx, theme, labels[1], left - 4, box.top + 7, { align: "right" });
  text(ctx, theme, labels[0], left - 4, box.top + box.height, { align: "right" });
  const range = high - low || 1;
  return { ...box, x: (t) => box.left + t * box.width, y: (v) => box.top + box.height * (1 - (v - low) / range) };
}

/** Test accuracy (thick) and training loss (thin, logarithmic) over iterations. */
export function curves(ctx, w, h, view, theme) {
  const { other, color } = view;
  const last = (source) => source?.history.rows.at(-1)?.iteration ?? 1;
  const end = Math.max(last(view), last(other), 1);
  const f = frame(ctx, w, h, theme, 0, 1, { labels: ["0 %", "100 %"] });
  const line = (source, value, width, alpha) => {
    ctx.strokeStyle = source.color(theme);
    ctx.lineWidth = width;
    ctx.globalAlpha = alpha;
    const points = source.history.rows.map((row) => [f.x(row.iteration / end), f.y(value(row))]);
    polyline(ctx, points);
    ctx.globalAlpha = 1;
  };
  const accuracy = (row) => row.accuracy;
  line(view, ({ loss }) => clamp((Math.log10(Math.max(loss, 1e-4)) + 4) / 4.5, 0, 1), 1, 0.55);
  if (other) line(other, accuracy, 1.5, 0.25);
  line(view, accuracy, 2, 1);
  text(ctx, theme, "accuracy", f.left + f.width, h - 4, { align: "right", color: color(theme), weight: 600 });
  text(ctx, theme, "loss (log)", f.left, h - 4, { color: theme.muted });
}

/** Entries of K and b of every layer. */
export function weights(ctx, w, h, view, theme) {
  const stacks = view.snapshot?.weights;
  if (!stacks?.depths.length) return;
  const all = [...stacks.lines, ...stacks.biases];
  const most = Math.max(1e-3, ...all.map((line) => line.reduce((m, v) => (Math.abs(v) > m ? Math.abs(v) : m), 0)));
  const f = frame(ctx, w, h, theme, -most, most);
  const last = Math.max(1, stacks.depths.at(-1));
  const xs = stacks.depths.map((d) => f.x(d / last));
  ctx.lineWidth = 1;
  const draw = (lines, color) => {
    ctx.strokeStyle = color;
    ctx.globalAlpha = lines.length > 20 ? 0.35 : 0.6;
    for (const line of lines)
      polyline(
        ctx,
        xs.map((x, i) => [x, f.y(line[i])]),
      );
  };
  draw(stacks.lines, theme.classes[0]);
  draw(stacks.biases, theme.classes[1]);
  ctx.globalAlpha = 1;
  text(ctx, theme, "K", f.left + 2, h - 4, { color: theme.classes[0], weight: 600 });
  text(ctx, theme, "b", f.left + 14, h - 4, { color: theme.classes[1], weight: 600 });
  text(ctx, theme, "depth →", f.left + f.width, h - 4, { align: "right" });
}

/** Eigenvalues of the field's Jacobian at every layer, in the complex plane. */
export function spectrum(ctx, w, h, view, theme) {
  const values = view.snapshot?.spectrum.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
  if (!values) return;
  const sizes = values.map(([a, b]) => Math.max(Math.abs(a), Math.abs(b))).sort((a, b) => a - b);
  const most = Math.max(0.1, sizes[Math.floor(0.98 * (sizes.length - 1))] ?? 1) * 1.1;
  const [cx, cy, half] = [w / 2, (h - 6) / 2, Math.min(w, h - 10) / 2 - 4];
  ctx.strokeStyle = theme.grid;
  ctx.lineWidth = 1;
  segment(ctx, 8, cy, w - 8, cy);
  ctx.strokeStyle = theme.muted;
  segment(ctx, cx, 4, cx, h - 12);
  const layers = Math.max(1, view.snapshot.layers - 1);
  const [first, last] = theme.classes.map(rgb);
  ctx.globalAlpha = 0.75;
  for (const [a, b, j] of values) {
    const [x, y] = [cx + clamp(a / most, -1.4, 1.4) * half, cy - clamp(b / most, -1.05, 1.05) * half];
    const color = mix(first, last, j / layers).map(Math.round);
    ctx.fillStyle = `rgb(${color.join(" ")})`;
    ctx.beginPath();
    ctx.arc(x, y, 1.8, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.globalAlpha = 1;
  text(ctx, theme, "Im", cx + 5, 11);
  text(ctx, theme, "Re", w - 8, cy - 5, { align: "right" });
  text(ctx, theme, format(most), cx + 5, h - 4);
}

/** H(y_j) of some points along depth. */
export function energy(ctx, w, h, view, theme) {
  const { snapshot, data } = view;
  if (!snapshot) return;
  const { energy: values, depths } = snapshot;
  if (!values) {
    text(ctx, theme, "not Hamiltonian:", w / 2, h / 2 - 4, { align: "center", size: 11 });
    text(ctx, theme, "it has no energy", w / 2, h / 2 + 11, { align: "center", size: 11 });
    return;
  }
  const few = values.length / depths.length;
  const most = Math.max(
    1e-6,
    values.reduce((m, v) => (v > m ? v : m), 0),
  );
  const f = frame(ctx, w, h, theme, 0, most);
  const xs = depths.map((_, d) => f.x(d / Math.max(1, depths.length - 1)));
  ctx.lineWidth = 1.2;
  ctx.globalAlpha = 0.65;
  for (let s = 0; s < few; s++) {
    ctx.strokeStyle = classColor(theme, data.test.labels[s]);
    polyline(
      ctx,
      xs.map((x, d) => [x, f.y(values[d * few + s])]),
    );
  }
  ctx.globalAlpha = 1;
  text(ctx, theme, "depth →", f.left + f.width, h - 4, { align: "right" });
}

export const PANELS = {
  regions: {
    draw: regions,
    name: "Decision regions",
    why: "The color says which class the network gives a point, its strength how sure it is. Dots are test points.",
  },
  flow: {
    draw: flow,
    name: "Flow",
    why:
      "The test points carried through the layers. The view turns from the plane of the data to one across the " +
      "direction in which the output layer decides: in the end the classes should lie on both sides of the dashed " +
      "line.",
  },
  heat: {
    draw: heat,
    name: "Gradient ‖∂y_N / ∂y_l‖",
    why:
      "How strongly the output depends on layer l (vertical), while training goes on (horizontal). Pale is 1; blue " +
      "means that the gradient vanishes on its way back to the first layers, which then cannot learn; orange means " +
      "that it explodes.",
  },
  curves: {
    draw: curves,
    name: "Learning",
    why:
      "Test accuracy (thick line) and training loss (thin line, logarithmic) over the iterations. The faint line is " +
      "the accuracy of the other network.",
  },
  weights: {
    draw: weights,
    name: "Weights",
    why:
      "Every entry of K (blue) and b (orange), from the first layer to the last. The smoothness penalty keeps " +
      "neighbors alike, so that the layers follow a flow.",
  },
  spectrum: {
    draw: spectrum,
    name: "Spectrum",
    why:
      "Eigenvalues of the Jacobian of the field at every layer (blue: first, orange: last), for one point. In a " +
      "Hamiltonian network all lie on the imaginary axis: nothing decays and nothing blows up.",
  },
  energy: {
    draw: energy,
    name: "Energy H",
    why:
      "H(y) = 1ᵀ log cosh(K y + b) of some points along depth. With shared weights and small steps it stays nearly " +
      "constant.",
  },
};
