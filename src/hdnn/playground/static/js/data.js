// The planar problems (hdnn/data/toy.py), drawn points, and tables from CSV files.

import { PlaygroundError } from "./architectures.js";
import { Random } from "./random.js";

export const SIZE = 4000;
const MOST_CLASSES = 6;
const MOST_BYTES = 20e6;
const MOST_ROWS = 20000;

const LEVELS = [-0.3079, 0.0017, 0.1536, 1.3136];
const peaksFunction = (x, y) =>
  3 * (1 - x) ** 2 * Math.exp(-x * x - (y + 1) ** 2) -
  10 * (x / 5 - x ** 3 - y ** 5) * Math.exp(-x * x - y * y) -
  Math.exp(-((x + 1) ** 2) - y * y) / 3;

/** name -> title, own noise, and a function (index, random, arms) -> [x, y, label]. */
export const PROBLEMS = {
  "swiss-roll": {
    title: "Swiss roll", noise: 0,
    draw(i, random) {
      const t = 4 * Math.PI * random.uniform();
      const r = t / (4 * Math.PI) + (i % 2 ? 0 : 0.2);
      return [r * Math.cos(t), r * Math.sin(t), i % 2];
    },
  },
  "double-moons": {
    title: "Double moons", noise: 0.15,
    draw(i, random) {
      const t = Math.PI * random.uniform();
      const x = (i % 2 ? 1 - Math.cos(t) : Math.cos(t)) + 2 * (Math.floor(i / 2) % 2);
      return [x, i % 2 ? 0.5 - Math.sin(t) : Math.sin(t), i % 2];
    },
  },
  peaks: {
    title: "Peaks", noise: 0,
    draw(i, random) {
      const [x, y] = [6 * random.uniform() - 3, 6 * random.uniform() - 3];
      const value = peaksFunction(x, y);
      return [x, y, LEVELS.filter((level) => level < value).length];
    },
  },
  spirals: {
    title: "Spirals", noise: 0.02,
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
export function split({ points, labels, classes, names }, share, seed) {
  const size = labels.length;
  const order = new Random(seed + 202).permutation(size);
  const cut = size < 8 ? size : Math.max(1, Math.round(size * (1 - share)));
  const take = (rows) => ({
    points: Float32Array.from({ length: 2 * rows.length }, (_, i) => points[2 * rows[i >> 1] + (i & 1)]),
    labels: Int32Array.from(rows, (i) => labels[i]),
    classes,
  });
  const test = size < 8 ? order : order.subarray(cut);
  return { train: take(order.subarray(0, cut)), test: take(test), classes, names };
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

// --- tables ---------------------------------------------------------------------------------------

/** Lines of fields; quotes may hold separators and line breaks. */
function fields(text, separator) {
  const rows = [];
  let row = [];
  let field = "";
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') field += text[++i];
      else quoted = false;
    } else if (c === '"' && field === "") quoted = true;
    else if (c === separator) {
      row.push(field);
      field = "";
    } else if (c === "\n") {
      row.push(field.replace(/\r$/, ""));
      if (row.length > 1 || row[0] !== "") rows.push(row);
      if (rows.length > MOST_ROWS) return rows;
      [row, field] = [[], ""];
    } else field += c;
  }
  if (quoted) throw new PlaygroundError("the CSV is malformed: a quotation mark is never closed");
  if (field !== "" || row.length) rows.push([...row, field]);
  return rows;
}

const isNumber = (text) => text.trim() !== "" && Number.isFinite(Number(text));

/** A CSV file: its columns with their names, numeric or not. */
export async function parseTable(file) {
  const name = file.name.slice(0, 60);
  if (file.size > MOST_BYTES) throw new PlaygroundError(`${name} has ${Math.round(file.size / 1e6)} MB; the playground takes up to 20`);
  if (file.size === 0) throw new PlaygroundError(`${name} is empty`);
  const text = await file.text();
  if (text.includes("\u0000")) throw new PlaygroundError(`${name} is not a text file`);
  const first = text.slice(0, 5000).split("\n", 1)[0];
  const separator = [",", ";", "\t"].reduce((a, b) => (first.split(b).length > first.split(a).length ? b : a));
  const rows = fields(text.replace(/^\ufeff/, ""), separator);
  const width = rows[0]?.length ?? 0;
  if (width < 2 || width > 2000) throw new PlaygroundError(`a CSV needs two columns or more, ${name} has ${width}`);
  const header = rows[0].some((cell) => !isNumber(cell)) && rows.length > 1;
  const names = header ? rows.shift() : rows[0].map((_, k) => `column ${k + 1}`);
  const bad = rows.findIndex((row) => row.length !== width);
  if (bad >= 0) throw new PlaygroundError(`line ${bad + 1 + (header ? 1 : 0)} has ${rows[bad].length} fields, the first has ${width}`);
  if (rows.length < 4) throw new PlaygroundError(`${name} has ${rows.length} rows; at least 4 are needed`);
  const columns = names.map((title, k) => {
    const cells = rows.map((row) => row[k]);
    return { title: title.slice(0, 40) || `column ${k + 1}`, cells, numeric: cells.every(isNumber), kinds: new Set(cells).size };
  });
  const numeric = columns.flatMap((c, k) => (c.numeric ? [k] : []));
  const labels = columns.flatMap((c, k) => (c.kinds >= 2 && c.kinds <= MOST_CLASSES ? [k] : []));
  if (!labels.length) throw new PlaygroundError(`no column has 2 to ${MOST_CLASSES} different values to be the class`);
  const label = labels.find((k) => !columns[k].numeric) ?? labels.at(-1);
  const inputs = numeric.filter((k) => k !== label);
  if (inputs.length < 2) throw new PlaygroundError("two numeric columns are needed beside that of the class");
  return { name, columns, numeric, labels, label, x: inputs[0], y: inputs[1], rows: rows.length, cut: rows.length >= MOST_ROWS };
}

/** Call `take(file)` for a file that is dropped on the page or chosen. */
export function acceptFiles(take) {
  const veil = document.getElementById("drop");
  const input = document.getElementById("file");
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    veil.hidden = false;
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && (veil.hidden = true));
  addEventListener("drop", (event) => {
    veil.hidden = true;
    if (!carries(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  input.addEventListener("change", () => {
    if (input.files[0]) take(input.files[0]);
    input.value = "";
  });
}

const standardized = (values) => {
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const spread = Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length) || 1;
  return values.map((v) => (v - mean) / spread);
};

/** Points of two columns, standardized. */
export function tableSample(table) {
  const { columns, label } = table;
  const numbers = (k) => standardized(columns[k].cells.map(Number));
  const kinds = [...new Set(columns[label].cells)].sort((a, b) => (isNumber(a) && isNumber(b) ? a - b : a < b ? -1 : 1));
  const [x, y] = [numbers(table.x), numbers(table.y)];
  const points = Float32Array.from({ length: 2 * x.length }, (_, i) => (i & 1 ? y : x)[i >> 1]);
  const place = new Map(kinds.map((kind, k) => [kind, k]));
  return { points, labels: Int32Array.from(columns[label].cells, (c) => place.get(c)), classes: kinds.length, names: kinds };
}
