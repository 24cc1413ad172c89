// The settings: their values and labels, their keys in a link, their groups and help in the form.

import { ACTIVATIONS } from "./activations.js";
import { ARCHITECTURES, schemesOf } from "./architectures.js";
import { PROBLEMS } from "./data.js";

const VERSION = 1;

/** A list to choose from; `titles` has [value, what the page shows] pairs. */
const choice = (key, label, value, titles) => {
  const shown = new Map(titles);
  return { key, label, value, values: [...shown.keys()], title: (v) => shown.get(v), slider: false };
};

/** A slider over an ordered list of values. */
export const slider = (key, label, value, values, title = (v) => String(v)) => ({
  key,
  label,
  value,
  values,
  title,
  slider: true,
});

const plain = (names) => names.map((name) => [name, name]);
const upTo = (last) => Array.from({ length: last + 1 }, (_, i) => i);
const problems = Object.entries(PROBLEMS).map(([name, { title }]) => [name, title]);
const networks = Object.entries(ARCHITECTURES).map(([name, { title }]) => [name, title]);
const LAYERS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 200, 256, 400, 512, 700, 1000];
const TIMES = [0.1, 0.2, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 40, 60, 100];
const RATES = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
const NOISES = [null, 0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1];
const SCHEMES = Object.entries({
  own: "usual",
  ForwardEuler: "forward Euler",
  Leapfrog: "leapfrog",
  Yoshida4: "Yoshida 4",
});

export const SETTINGS = {
  data: choice("d", "Data set", "swiss-roll", [...problems, ["drawn", "Draw your own"]]),
  arms: slider("k", "Arms", 3, [2, 3, 4, 5, 6]),
  noise: slider("z", "Noise", null, NOISES, (v) => (v === null ? "usual" : String(v))),
  layers: slider("l", "Layers", 64, LAYERS),
  T: slider("T", "Time T", 2.5, TIMES),
  width: slider("w", "Extra dimensions", 4, [2, 4, 6, 8, 10, 12, 14, 16], (v) => String(v - 2)),
  timeInvariant: choice("ti", "Shared weights", "no", plain(["no", "yes"])),
  learningRate: slider("lr", "Learning rate", 0.02, RATES),
  seed: slider("r", "Random seed", 0, upTo(99)),
  batch: slider("n", "Batch size", 125, [1, 5, 10, 25, 50, 125, 250, 500, 1000]),
  alpha: slider("al", "Smoothness", 0.0005, [0, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.1, 1]),
  alphaC: slider("ac", "Regularization", 0.0001, [0, 0.00001, 0.0001, 0.001, 0.01, 0.1, 1]),
  method: choice("m", "Output layer", "coordinate", Object.entries({ coordinate: "solved", joint: "trained" })),
  scheme: choice("s", "Time steps", "own", SCHEMES),
  activation: choice("f", "Activation", "tanh", plain(Object.keys(ACTIVATIONS))),
  test: choice("te", "Test share", "0.5", Object.entries({ 0.2: "20 %", 0.5: "50 %", 0.8: "80 %" })),
  first: choice("a", "First network", "H1", networks),
  second: choice("b", "Second network", "FCNN", [...networks, ["none", "No second network"]]),
  panels: choice("pn", "Panels", "three", plain(["three", "all"])),
};

/** The groups of the form; the networks and panels are chosen elsewhere. */
export const GROUPS = {
  Data: ["data", "arms", "noise"],
  Network: ["layers", "T", "width", "timeInvariant"],
  Training: ["learningRate", "seed"],
  "More settings": ["batch", "alpha", "alphaC", "method", "scheme", "activation", "test"],
};

export const HELP = {
  data: "What the networks learn to separate.",
  arms: "How many spirals, each a class of its own.",
  noise: "Uniform noise on each coordinate.",
  layers: "Depth N. The network is a flow of time T in N steps of size h = T / N.",
  T:
    "How long the flow lasts. A long flow in few layers has large steps h = T / N, which can be unstable. The plain " +
    "network has no steps and ignores it.",
  width: "A point has two coordinates. The extra ones start at 0 and give the flow room to pull the classes apart.",
  timeInvariant:
    "All layers have the same weights. The energy of a Hamiltonian network is then conserved, up to the error of its " +
    "steps.",
  learningRate:
    "Step size of the optimizer (Adam) at the start. It falls while the training goes on, so that the network settles.",
  seed: "Of the points, the initial weights and the batches.",
  batch: "Points in one training step.",
  alpha: "Regularization of the layers: how strongly the weights of neighboring layers are kept alike.",
  alphaC: "Regularization of the output layer: how strongly its weights are kept small.",
  method: "Solved exactly in every step (Newton’s method), or trained by gradient steps like the other layers.",
  scheme:
    "How a step in time is computed. Leapfrog and Yoshida (order 4) need a separable network (MS1, MS3, HS); the " +
    "others keep forward Euler.",
  activation:
    "The nonlinear function σ of every layer. Its integral is the energy: log cosh for tanh. The guarantee of " +
    "Hamiltonian networks needs an increasing one (all but sin).",
  test: "Share of the points that is kept for testing.",
  scale: "Standard deviation of all weights when they are scrambled.",
  force: "Standard deviation of a random force, another one every 0.05 s, the same for both.",
};

export const defaults = () => Object.fromEntries(Object.entries(SETTINGS).map(([name, s]) => [name, s.value]));

/** The value that a text stands for, or undefined. */
const parse = (setting, text) => setting.values.find((value) => String(value) === text);

/** The part of a link after #: what differs from the defaults; drawn points as numbers. */
export function toHash(state, { tour = null, drawn = [] } = {}) {
  const parts = [`v=${VERSION}`];
  for (const [name, { key, value }] of Object.entries(SETTINGS)) {
    if (state[name] !== value) parts.push(`${key}=${encodeURIComponent(state[name])}`);
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
