// The settings: each defined once, with its values, its label, its help and its key in a link.

import { ACTIVATIONS } from "./activations.js";
import { ARCHITECTURES, schemesOf } from "./architectures.js";
import { PROBLEMS } from "./data.js";

const VERSION = 1;

/** A list to choose from; `titles` has [value, what the page shows] pairs. */
const choice = (key, value, titles, label, help, group) => {
  const shown = new Map(titles);
  return { key, value, values: [...shown.keys()], title: (v) => shown.get(v), label, help, group };
};

/** A slider over an ordered list of values. */
const slider = (key, value, values, label, help, group, title = String) => ({
  key,
  value,
  values,
  title,
  label,
  help,
  group,
  slider: true,
});

const plain = (names) => names.map((name) => [name, name]);
const upTo = (last, step = 1) => Array.from({ length: Math.floor(last / step) + 1 }, (_, i) => i * step);
const networks = Object.entries(ARCHITECTURES).map(([name, row]) => [name, row.title]);

export const SETTINGS = {
  data: choice(
    "d",
    "swiss-roll",
    [...Object.entries(PROBLEMS).map(([name, p]) => [name, p.title]), ["drawn", "Draw your own"]],
    "Data set",
    "What the networks learn to separate.",
    "Data",
  ),
  arms: slider("k", 3, [2, 3, 4, 5, 6], "Arms", "How many spirals, each a class of its own.", "Data"),
  noise: slider(
    "z",
    null,
    [null, 0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1],
    "Noise",
    "Uniform noise on each coordinate.",
    "Data",
    (v) => (v === null ? "usual" : String(v)),
  ),
  layers: slider(
    "l",
    64,
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 200, 256, 400, 512, 700, 1000],
    "Layers",
    "Depth N. The network is a flow of time T in N steps of size h = T / N.",
    "Network",
  ),
  T: slider(
    "T",
    2.5,
    [0.1, 0.2, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 40, 60, 100],
    "Time T",
    "How long the flow lasts. A long flow in few layers has large steps h = T / N, which can be unstable. The plain " +
      "network has no steps and ignores it.",
    "Network",
  ),
  width: slider(
    "w",
    4,
    [2, 4, 6, 8, 10, 12, 14, 16],
    "Extra dimensions",
    "A point has two coordinates. The extra ones start at 0 and give the flow room to pull the classes apart.",
    "Network",
    (v) => String(v - 2),
  ),
  timeInvariant: choice(
    "ti",
    "no",
    plain(["no", "yes"]),
    "Shared weights",
    "All layers have the same weights. The energy of a Hamiltonian network is then conserved, up to the error of its " +
      "steps.",
    "Network",
  ),
  learningRate: slider(
    "lr",
    0.02,
    [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5],
    "Learning rate",
    "Step size of the optimizer (Adam) at the start. It falls while the training goes on, so that the network settles.",
    "Training",
  ),
  seed: slider("r", 0, upTo(99), "Random seed", "Of the points, the initial weights and the batches.", "Training"),
  batch: slider(
    "n",
    125,
    [1, 5, 10, 25, 50, 125, 250, 500, 1000],
    "Batch size",
    "Points in one training step.",
    "More settings",
  ),
  alpha: slider(
    "al",
    0.0005,
    [0, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.1, 1],
    "Smoothness",
    "Regularization of the layers: how strongly the weights of neighboring layers are kept alike.",
    "More settings",
  ),
  alphaC: slider(
    "ac",
    0.0001,
    [0, 0.00001, 0.0001, 0.001, 0.01, 0.1, 1],
    "Regularization",
    "Of the output layer: how strongly its weights are kept small.",
    "More settings",
  ),
  method: choice(
    "m",
    "coordinate",
    [
      ["coordinate", "solved"],
      ["joint", "trained"],
    ],
    "Output layer",
    "Solved exactly in every step (Newton’s method), or trained by gradient steps like the other layers.",
    "More settings",
  ),
  scheme: choice(
    "s",
    "own",
    [
      ["own", "usual"],
      ["ForwardEuler", "forward Euler"],
      ["Leapfrog", "leapfrog"],
      ["Yoshida4", "Yoshida 4"],
    ],
    "Time steps",
    "How a step in time is computed. Leapfrog and Yoshida (order 4) need a separable network (MS1, MS3, HS); the " +
      "others keep forward Euler.",
    "More settings",
  ),
  activation: choice(
    "f",
    "tanh",
    plain(Object.keys(ACTIVATIONS)),
    "Activation",
    "The nonlinear function σ of every layer. Its integral is the energy: log cosh for tanh. The guarantee of " +
      "Hamiltonian networks needs an increasing one (all but sin).",
    "More settings",
  ),
  test: choice(
    "te",
    "0.5",
    [
      ["0.2", "20 %"],
      ["0.5", "50 %"],
      ["0.8", "80 %"],
    ],
    "Test share",
    "Share of the points that is kept for testing.",
    "More settings",
  ),
  first: choice("a", "H1", networks, "First network", "", "hidden"),
  second: choice("b", "ResNet", [...networks, ["none", "none"]], "Second network", "", "hidden"),
};

export const defaults = () => Object.fromEntries(Object.entries(SETTINGS).map(([name, s]) => [name, s.value]));

/** The value that a text stands for, or undefined. */
const parse = (setting, text) => setting.values.find((value) => String(value ?? "") === text);

/** The part of a link after #: what differs from the defaults; drawn points as numbers. */
export function toHash(state, { tour = null, drawn = [] } = {}) {
  const parts = [`v=${VERSION}`];
  for (const [name, { key, value }] of Object.entries(SETTINGS)) {
    if (state[name] !== value) parts.push(`${key}=${encodeURIComponent(state[name] ?? "")}`);
  }
  if (state.data === "drawn" && drawn.length) parts.push(`p=${packPoints(drawn)}`);
  if (tour !== null) parts.push(`tour=${tour + 1}`);
  return `#${parts.join("&")}`;
}

/** @returns {{state: object, tour: ?number, drawn: number[][], message: ?string}} */
export function fromHash(hash) {
  const nothing = { state: defaults(), tour: null, drawn: [], message: null };
  if (hash.length < 2) return nothing;
  const bad = (why) => ({ ...nothing, message: `${why}; these are the default settings` });
  let parts;
  try {
    parts = new Map(
      hash
        .slice(1, 20000)
        .split("&")
        .map((part) => {
          const [key, ...rest] = part.split("=");
          return [key, decodeURIComponent(rest.join("="))];
        }),
    );
  } catch {
    return bad("The link is damaged");
  }
  if (parts.has("v") && parts.get("v") !== String(VERSION))
    return bad("The link comes from another version of the playground");
  const tour = parts.has("tour") ? Number(parts.get("tour")) - 1 : null;
  if (tour !== null && ![0, 1, 2, 3, 4].includes(tour)) return bad("The tour has five steps");
  const state = defaults();
  const keys = new Map(Object.entries(SETTINGS).map(([name, s]) => [s.key, name]));
  for (const [key, text] of parts) {
    if (["v", "tour", "p"].includes(key)) continue;
    const name = keys.get(key);
    const value = name && parse(SETTINGS[name], text);
    if (value === undefined) return bad(`The link has a setting that does not exist (${key.slice(0, 20)})`);
    state[name] = value;
  }
  const drawn = parts.has("p") ? unpackPoints(parts.get("p")) : [];
  if (drawn === null) return bad("The link is damaged");
  return { state, tour, drawn, message: null };
}

const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

/** Points in [-1, 1]^2: two digits a coordinate and one for the class. */
function packPoints(points) {
  const pair = (v) => {
    const q = Math.round(((Math.max(-1, Math.min(1, v)) + 1) / 2) * 4095);
    return DIGITS[q >> 6] + DIGITS[q & 63];
  };
  return points
    .slice(0, 400)
    .map(([x, y, label]) => pair(x) + pair(y) + DIGITS[label])
    .join("");
}

function unpackPoints(text) {
  const digits = Array.from(text, (c) => DIGITS.indexOf(c));
  if (digits.length % 5 || digits.includes(-1)) return null;
  const points = [];
  for (let i = 0; i < digits.length; i += 5) {
    const [a, b, c, d, label] = digits.slice(i, i + 5);
    if (label > 2) return null;
    points.push([((a * 64 + b) / 4095) * 2 - 1, ((c * 64 + d) / 4095) * 2 - 1, label]);
  }
  return points;
}

/** The network that settings describe. */
export function networkOf(state, architecture) {
  const own = ARCHITECTURES[architecture].scheme;
  const scheme = schemesOf(architecture).includes(state.scheme) ? state.scheme : own;
  const odd = ACTIVATIONS[state.activation].odd || ARCHITECTURES[architecture].bias !== "ms1";
  return {
    architecture,
    scheme,
    width: state.width,
    layers: state.layers,
    T: state.T,
    seed: state.seed,
    activation: odd ? state.activation : "tanh",
    timeInvariant: state.timeInvariant === "yes",
  };
}

// The learning rate after t steps is learningRate / (1 + t / DECAY). At a constant rate the Swiss
// roll is learned in a second and lost again later: once the loss is tiny Adam's steps are noise.
const DECAY = 300;

/** How settings train a network. */
export function trainingOf({ learningRate, batch, alpha, alphaC, method, seed }) {
  return { learningRate, decay: DECAY, batch, alpha, alphaC, method, seed };
}
