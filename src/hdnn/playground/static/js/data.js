// The planar problems (hdnn/data/planar.py), and what is made of points.

import { Random } from "./random.js";

export const SIZE = 4000;

const LEVELS = [-0.3079, 0.0017, 0.1536, 1.3136];
const peaksFunction = (x, y) =>
  3 * (1 - x) ** 2 * Math.exp(-x * x - (y + 1) ** 2) -
  10 * (x / 5 - x ** 3 - y ** 5) * Math.exp(-x * x - y * y) -
  Math.exp(-((x + 1) ** 2) - y * y) / 3;

/** name -> title, own noise, and a function (index, random, arms) -> [x, y, label]. */
export const PROBLEMS = {
  "swiss-roll": {
    title: "Swiss roll",
    noise: 0,
    draw(i, random) {
      const t = 4 * Math.PI * random.uniform();
      const r = t / (4 * Math.PI) + (i % 2 ? 0 : 0.2);
      return [r * Math.cos(t), r * Math.sin(t), i % 2];
    },
  },
  "double-moons": {
    title: "Double moons",
    noise: 0.15,
    draw(i, random) {
      const t = Math.PI * random.uniform();
      const x = (i % 2 ? 1 - Math.cos(t) : Math.cos(t)) + 2 * (Math.floor(i / 2) % 2);
      return [x, i % 2 ? 0.5 - Math.sin(t) : Math.sin(t), i % 2];
    },
  },
  peaks: {
    title: "Peaks",
    noise: 0,
    draw(_, random) {
      const [x, y] = [6 * random.uniform() - 3, 6 * random.uniform() - 3];
      const value = peaksFunction(x, y);
      return [x, y, LEVELS.filter((level) => level < value).length];
    },
  },
  spirals: {
    title: "Spirals",
    noise: 0.02,
    draw(i, random, arms) {
      const r = Math.sqrt(0.02 + 0.98 * random.uniform());
      const t = 2.5 * Math.PI * r + (2 * Math.PI * (i % arms)) / arms;
      return [r * Math.cos(t), r * Math.sin(t), i % arms];
    },
  },
};

/** A sample of a problem: points (x, y, x, y, ...), labels, classes. */
export function sample(name, { seed = 0, noise = null, arms = 2 } = {}) {
  const problem = PROBLEMS[name];
  const random = new Random(seed + 101);
  const amplitude = noise ?? problem.noise;
  const points = new Float32Array(2 * SIZE);
  const labels = new Int32Array(SIZE);
  for (let i = 0; i < SIZE; i++) {
    const [x, y, label] = problem.draw(i, random, arms);
    points[2 * i] = x + amplitude * (2 * random.uniform() - 1);
    points[2 * i + 1] = y + amplitude * (2 * random.uniform() - 1);
    labels[i] = label;
  }
  return { points, labels, classes: labels.reduce((most, l) => Math.max(most, l), 0) + 1 };
}

/** Shuffle, and cut a share off as test data; of very few points, test on all. */
export function split({ points, labels, classes }, share, seed) {
  const size = labels.length;
  const order = new Random(seed + 202).permutation(size);
  const cut = size < 8 ? size : Math.max(1, Math.round(size * (1 - share)));
  const take = (rows) => ({
    points: Float32Array.from({ length: 2 * rows.length }, (_, i) => points[2 * rows[i >> 1] + (i & 1)]),
    labels: Int32Array.from(rows, (i) => labels[i]),
    classes,
  });
  const test = size < 8 ? order : order.subarray(cut);
  return { train: take(order.subarray(0, cut)), test: take(test), classes };
}

/** The square around the points that the panels show. */
export function boundsOf(points) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < points.length; i += 2) {
    x0 = Math.min(x0, points[i]);
    x1 = Math.max(x1, points[i]);
    y0 = Math.min(y0, points[i + 1]);
    y1 = Math.max(y1, points[i + 1]);
  }
  const half = Math.max(x1 - x0, y1 - y0, 1e-3) * 0.56;
  return { x: (x0 + x1) / 2 - half, y: (y0 + y1) / 2 - half, side: 2 * half };
}
