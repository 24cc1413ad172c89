// The settings: each defined once, with its range, its label, its help and its key in a link.

import { ACTIVATIONS } from "./activations.js";
import { ARCHITECTURES, SCHEMES, schemesOf } from "./architectures.js";
import { PROBLEMS } from "./data.js";

const VERSION = 1;

const choice = (key, value, options, label, help, group) => ({ key, value, options, label, help, group, kind: "choice" });
const number = (key, value, low, high, step, label, help, group, integer = false) =>
  ({ key, value, low, high, step, label, help, group, integer, kind: "number" });

const titles = (entries) => entries.map(([value, title]) => ({ value, title }));
const plain = (names) => names.map((name) => ({ value: name, title: name }));
const SCHEME_TITLES = {
  own: "its own", ForwardEuler: "forward Euler", Leapfrog: "leapfrog", Yoshida4: "Yoshida, order 4",
};

export const SETTINGS = {
  data: choice("d", "swiss-roll", titles([
    ...Object.entries(PROBLEMS).map(([name, p]) => [name, p.title]), ["drawn", "Drawn"], ["table", "CSV file"],
  ]), "Data set", "What the networks learn to separate. Draw your own points, or drop a CSV file anywhere on the page.", "Data"),
  arms: number("k", 3, 2, 6, 1, "Arms", "How many spirals, each a class of its own.", "Data", true),
  noise: number("z", null, 0, 2, 0.01, "Noise", "Uniform noise on each coordinate; empty: the data set's own.", "Data"),
  test: choice("te", "0.5", titles([["0.2", "20 %"], ["0.5", "50 %"], ["0.8", "80 %"]]), "Test share", "Share of the points that is kept for testing.", "Data"),
  width: number("w", 4, 2, 16, 2, "Width", "n: numbers in a state. The points have two; the others start at 0 and give the flow room.", "Network", true),
  layers: number("l", 64, 1, 1000, 1, "Layers", "N: depth. A flow of time T in N steps of h = T / N.", "Network", true),
  T: number("T", 2.5, 0.01, 100, 0.1, "Time T", "How long the flow lasts. A long flow in few layers has large steps h = T / N, which are unstable.", "Network"),
  scheme: choice("s", "own", titles(Object.entries(SCHEME_TITLES)), "Scheme", "How time is discretized. Splittings need a separable network (MS1, MS3, HS); the others keep forward Euler.", "Network"),
  activation: choice("f", "tanh", plain(Object.keys(ACTIVATIONS)), "Activation", "σ. Its integral is the energy: log cosh for tanh.", "Network"),
  timeInvariant: choice("ti", "no", plain(["no", "yes"]), "Tied weights", "All layers share their weights: an autonomous flow, whose energy is conserved up to the scheme's error.", "Network"),
  augmentation: choice("au", "append", plain(["append", "spread"]), "Zeros", "Where the added zeros go: (x, y, 0, 0), or (x, 0, 0, y).", "Network"),
  learningRate: number("lr", 0.02, 0.0001, 1, 0.005, "Learning rate", "Step size of Adam.", "Training"),
  batch: number("n", 125, 1, 1000, 1, "Batch", "Points in a training step.", "Training", true),
  alpha: number("al", 0.0005, 0, 1, 0.0005, "Smoothness α", "Weight of the penalty on the change of the weights from layer to layer.", "Training"),
  alphaC: number("ac", 0.0001, 0, 1, 0.0001, "Output α", "Weight of the penalty on the output layer.", "Training"),
  method: choice("m", "coordinate", titles([["coordinate", "Newton"], ["joint", "joint"]]), "Output layer", "Newton: solved exactly in every step. Joint: trained along with the others.", "Training"),
  seed: number("r", 0, 0, 999999, 1, "Seed", "Of the points, the initial weights and the batches.", "Training", true),
  first: choice("a", "H1", plain(Object.keys(ARCHITECTURES)), "First network", "", "hidden"),
  second: choice("b", "FCNN", [...plain(Object.keys(ARCHITECTURES)), { value: "none", title: "none" }], "Second network", "", "hidden"),
};

export const defaults = () => Object.fromEntries(Object.entries(SETTINGS).map(([name, s]) => [name, s.value]));

/** A value as the setting wants it, or undefined. */
export function checked(setting, text) {
  if (setting.kind === "choice") return setting.options.some((o) => o.value === text) ? text : undefined;
  if (String(text).trim() === "") return setting.value === null ? null : undefined;
  const value = Number(text);
  const fits = value >= setting.low && value <= setting.high && (!setting.integer || Number.isInteger(value));
  return fits && !(setting.key === "w" && value % 2) ? value : undefined;
}

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
  let given;
  try {
    given = new Map(hash.slice(1, 20000).split("&").map((part) => {
      const [key, ...rest] = part.split("=");
      return [key, decodeURIComponent(rest.join("="))];
    }));
  } catch {
    return bad("The link is damaged");
  }
  const version = Number(given.get("v") ?? VERSION);
  if (version > VERSION) return bad("The link comes from a later version of the playground");
  if (version !== VERSION) return bad("The link is damaged");
  const state = defaults();
  const tour = given.has("tour") ? Number(given.get("tour")) - 1 : null;
  if (tour !== null && ![0, 1, 2, 3, 4].includes(tour)) return bad("The tour has five steps");
  const keys = new Map(Object.entries(SETTINGS).map(([name, s]) => [s.key, name]));
  for (const [key, text] of given) {
    if (["v", "tour", "p"].includes(key)) continue;
    const name = keys.get(key);
    const value = name && checked(SETTINGS[name], text);
    if (value === undefined) return bad(`The link has a setting that does not exist (${key.slice(0, 20)})`);
    state[name] = value;
  }
  const drawn = given.has("p") ? unpackPoints(given.get("p")) : [];
  if (drawn === null) return bad("The link is damaged");
  if (state.data === "table") return { ...nothing, state: { ...state, data: "swiss-roll" }, message: "The link was made with a CSV file, which links do not carry; drop it here" };
  return { state, tour, drawn, message: null };
}

const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

/** Points in [-1, 1]^2: two digits a coordinate and one for the class. */
function packPoints(points) {
  const pair = (v) => {
    const q = Math.round(((Math.max(-1, Math.min(1, v)) + 1) / 2) * 4095);
    return DIGITS[q >> 6] + DIGITS[q & 63];
  };
  return points.slice(0, 400).map(([x, y, label]) => pair(x) + pair(y) + DIGITS[label]).join("");
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
    architecture, scheme, width: state.width, layers: state.layers, T: state.T, seed: state.seed,
    activation: odd ? state.activation : "tanh", timeInvariant: state.timeInvariant === "yes",
  };
}

export const schemeCoefficients = SCHEMES;
