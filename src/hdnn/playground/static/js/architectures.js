// The catalog: structures of K, interconnections J, schemes, and the paper's networks as their
// combinations; `lower` turns one into the stages of a layer (hdnn/zoo.py, hdnn/schemes.py).
//
//   Stage:  x[write] = carry x[write] + A sigma(W x[read] + b),   A = c h S W'  or the number c h
//
// A structure is a table of signed parameter numbers: K[i, k] = sign(code) theta[|code| - 1].

import { ACTIVATIONS } from "./activations.js";

/** An error of the user's making: its message is for people. */
export class PlaygroundError extends Error {}

/** An entry of a catalog, and not what every object has. */
const own = (catalog, name) => (Object.hasOwn(catalog, name) ? catalog[name] : undefined);

const table = (n, entry) => Int32Array.from({ length: n * n }, (_, p) => entry(Math.floor(p / n), p % n));

/** Parameters of one half of K that is a full block, numbered row by row from `start`. */
const block = (half, i, k, start) => start + i * half + k + 1;

export const STRUCTURES = {
  dense: (n) => table(n, (i, k) => i * n + k + 1),
  skew: (n) => {
    const above = (i, k) => i * n - (i * (i + 1)) / 2 + (k - i);
    return table(n, (i, k) => (i === k ? 0 : i < k ? above(i, k) : -above(k, i)));
  },
  "off-diagonal-skew": (n) => {
    const half = n / 2;
    return table(n, (i, k) => {
      if (i < half && k >= half) return block(half, i, k - half, 0);
      return i >= half && k < half ? -block(half, k, i - half, 0) : 0;
    });
  },
  "off-diagonal": (n) => {
    const half = n / 2;
    return table(n, (i, k) => {
      if (i < half && k >= half) return block(half, i, k - half, 0);
      return i >= half && k < half ? block(half, i - half, k, half * half) : 0;
    });
  },
  "block-diagonal": (n) => {
    const half = n / 2;
    return table(n, (i, k) => {
      if (i < half && k < half) return block(half, i, k, 0);
      return i >= half && k >= half ? block(half, i - half, k - half, half * half) : 0;
    });
  },
};

export const INTERCONNECTIONS = {
  J1: (n) => Float64Array.from(table(n, (i, k) => (k === i + n / 2 ? 1 : i === k + n / 2 ? -1 : 0))),
  J2: (n) => Float64Array.from(table(n, (i, k) => Math.sign(k - i))),
};

const OUTER = 1 / (2 - 2 ** (1 / 3));
const YOSHIDA = [OUTER / 2, OUTER, (1 - OUTER) / 2, 1 - 2 * OUTER, (1 - OUTER) / 2, OUTER, OUTER / 2];

/** name -> the coefficients of a splitting; null: not a splitting. */
export const SCHEMES = {
  ForwardEuler: null,
  SemiImplicitEuler: [1, 1],
  Verlet: [1, 1],
  Leapfrog: [0.5, 1, 0.5],
  Yoshida4: YOSHIDA,
  DirectMap: null,
};

const GUARANTEE = "Hamiltonian: its gradient cannot fall below 1, whatever the weights.";

/**
 * name -> structure of K, J (null: a baseline; "inverse": J K' = I), its own scheme; what the page
 * calls it and says about it. A step of a Hamiltonian network has a determinant of at least 1
 * (eigenvalues 1 + i h lambda in pairs, or a splitting, which preserves volume), and so has the
 * product of all steps: its norm, the largest singular value, is at least 1.
 */
export const ARCHITECTURES = {
  H1: {
    title: "H1 (Hamiltonian)",
    about: GUARANTEE,
    structure: "dense",
    J: "J1",
    scheme: "ForwardEuler",
    equation: "y ← y + h J₁ Kᵀ σ(K y + b)",
  },
  H2: {
    title: "H2 (Hamiltonian)",
    about: GUARANTEE,
    structure: "dense",
    J: "J2",
    scheme: "ForwardEuler",
    equation: "y ← y + h J₂ Kᵀ σ(K y + b)",
  },
  MS1: {
    title: "MS1 (Hamiltonian)",
    about: GUARANTEE,
    structure: "off-diagonal-skew",
    J: "inverse",
    scheme: "Verlet",
    first: "z",
    bias: "ms1",
    equation: "z ← z − h σ(K₀ᵀ y + b₁);  y ← y + h σ(K₀ z + b₂)",
  },
  MS2: {
    title: "MS2 (Hamiltonian)",
    about: GUARANTEE,
    structure: "skew",
    J: "inverse",
    scheme: "ForwardEuler",
    equation: "y ← y + h σ(K y + b),  K = −Kᵀ",
  },
  MS3: {
    title: "MS3 (Hamiltonian)",
    about: GUARANTEE,
    structure: "off-diagonal",
    J: "J1",
    scheme: "Verlet",
    first: "y",
    equation: "y ← y + h K₁ᵀ σ(K₁ z + b₁);  z ← z − h K₂ᵀ σ(K₂ y + b₂)",
  },
  HS: {
    title: "HS (Hamiltonian)",
    about: GUARANTEE,
    structure: "block-diagonal",
    J: "J1",
    scheme: "SemiImplicitEuler",
    first: "y",
    equation: "y ← y + h K₂ᵀ σ(K₂ z + b₂);  z ← z − h K₁ᵀ σ(K₁ y + b₁)",
  },
  ResNet: {
    title: "ResNet (skip connections)",
    about: "No Hamiltonian structure: often learns as well, without a guarantee.",
    structure: "dense",
    J: null,
    scheme: "ForwardEuler",
    equation: "y ← y + h σ(K y + b)",
  },
  FCNN: {
    title: "Plain network (no skip connections)",
    about: "Layers in sequence, nothing else: its gradient vanishes with depth.",
    structure: "dense",
    J: null,
    scheme: "DirectMap",
    equation: "y ← σ(K y + b)",
  },
};

/** The schemes that a network of the catalog can be discretized with. */
export function schemesOf(name) {
  const row = ARCHITECTURES[name];
  if (row.scheme === "DirectMap") return ["DirectMap"];
  if (!row.first) return ["ForwardEuler"];
  return [row.scheme, "ForwardEuler", "Leapfrog", "Yoshida4"];
}

function biasCodes(row, n) {
  if (row.bias !== "ms1") return Int32Array.from({ length: n }, (_, i) => i + 1);
  return Int32Array.from({ length: n }, (_, i) => (i < n / 2 ? i + n / 2 + 1 : -(i - n / 2 + 1)));
}

const largest = (codes) => codes.reduce((most, c) => Math.max(most, Math.abs(c)), 0);

/**
 * What a network is: its architecture, sizes and tables.
 * @param {object} settings architecture, width, layers, T or step, scheme, first, activation,
 *   timeInvariant.
 */
export function describe(settings) {
  const row = own(ARCHITECTURES, settings.architecture);
  if (!row) throw new PlaygroundError(`unknown architecture ${String(settings.architecture).slice(0, 40)}`);
  const { width: n, layers } = settings;
  const activation = settings.activation ?? "tanh";
  if (!own(ACTIVATIONS, activation)) throw new PlaygroundError(`unknown activation ${String(activation).slice(0, 40)}`);
  if (n % 2) throw new PlaygroundError(`the width must be even, got ${n}`);
  if (row.bias === "ms1" && !ACTIVATIONS[activation].odd) {
    throw new PlaygroundError(
      `MS1 needs an odd activation (tanh, arctan, softsign, sin, erf), and ${activation} is not`,
    );
  }
  const scheme = settings.scheme ?? row.scheme;
  if (own(SCHEMES, scheme) === undefined) {
    throw new PlaygroundError(`unknown scheme ${String(scheme).slice(0, 40)}`);
  }
  const codes = STRUCTURES[row.structure](n);
  const bias = biasCodes(row, n);
  const J = row.J && row.J !== "inverse" ? INTERCONNECTIONS[row.J](n) : null;
  const usesStep = scheme !== "DirectMap";
  const h = usesStep ? (settings.step ?? settings.T / layers) : 1;
  const first = settings.first ?? row.first ?? "y";
  const spec = {
    architecture: settings.architecture,
    n,
    layers,
    h,
    usesStep,
    scheme,
    first,
    activation,
    timeInvariant: Boolean(settings.timeInvariant),
    row,
    codes,
    bias,
    J,
    coefficients: SCHEMES[scheme],
    parameters: largest(codes),
    biases: n,
  };
  return { ...spec, stages: lower(spec) };
}

/** The stages of a layer, in order. */
function lower(spec) {
  const { n, coefficients } = spec;
  const all = [...Array(n).keys()];
  if (!coefficients) {
    const carry = spec.scheme === "DirectMap" ? 0 : 1;
    return [stage(spec, all, [0, n], [0, n], 1, carry)];
  }
  const ranges = { y: [0, n / 2], z: [n / 2, n] };
  const other = { y: "z", z: "y" };
  let part = spec.first;
  const stages = [];
  for (const c of coefficients) {
    const [write, read] = [ranges[part], ranges[other[part]]];
    stages.push(stage(spec, unitsOf(spec, write), read, write, c, 1));
    part = other[part];
  }
  return stages;
}

/** The hidden units that move x[write]; they must not read it. */
function unitsOf({ n, codes, J, architecture, scheme, row }, [from, to]) {
  if (row.J === null) throw new PlaygroundError(`${scheme} needs a separable network, which ${architecture} is not`);
  const units = [];
  for (let unit = 0; unit < n; unit++) {
    let moves = J === null && unit >= from && unit < to;
    for (let i = from; J !== null && i < to; i++) {
      for (let k = 0; k < n; k++) moves ||= J[i * n + k] !== 0 && codes[unit * n + k] !== 0;
    }
    if (!moves) continue;
    for (let k = from; k < to; k++) {
      if (codes[unit * n + k]) {
        throw new PlaygroundError(`${scheme} needs a separable network, which ${architecture} is not`);
      }
    }
    units.push(unit);
  }
  return units;
}

function stage({ n, codes, bias, J }, units, read, write, c, carry) {
  const [r, w, m] = [read[1] - read[0], write[1] - write[0], units.length];
  const W = new Int32Array(m * r);
  units.forEach((unit, i) => {
    for (let k = 0; k < r; k++) W[i * r + k] = codes[unit * n + read[0] + k];
  });
  let S = null;
  if (J) {
    S = new Float64Array(w * r);
    for (let i = 0; i < w; i++) {
      for (let k = 0; k < r; k++) S[i * r + k] = J[(write[0] + i) * n + read[0] + k];
    }
  }
  return { read: read[0], r, write: write[0], w, m, W, b: Int32Array.from(units, (u) => bias[u]), S, c, carry };
}
