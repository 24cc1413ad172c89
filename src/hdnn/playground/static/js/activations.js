// Activations sigma with the energies E they are the derivative of (hdnn/fields/activations.py).

// tanh from a table and five terms of the Taylor series at the nearest entry, which are exact to
// 2e-11 as the entries are 1/32 apart. It takes a third of the time of Math.tanh, on which most of
// a training step would be spent.
const PER_UNIT = 32;
const LIMIT = 20; // beyond it tanh is 1 in double precision
const HALF = LIMIT * PER_UNIT;
const TANH = Float64Array.from({ length: 2 * HALF + 1 }, (_, i) => Math.tanh((i - HALF) / PER_UNIT));

/** tanh(x); NaN passes through. */
export function tanh(x) {
  if (!(x > -LIMIT)) return x <= -LIMIT ? -1 : NaN;
  if (x >= LIMIT) return 1;
  const scaled = x * PER_UNIT + HALF;
  const i = (scaled + 0.5) | 0;
  const b = (scaled - i) * (1 / PER_UNIT);
  const t = TANH[i];
  const t2 = t * t;
  return t + b * (1 - t2) * (1 - b * (t - b * (t2 - 1 / 3 - b * t * (t2 - 2 / 3))));
}

/** The error function, by its series near 0 and a continued fraction of its complement. */
export function erf(x) {
  const a = Math.abs(x);
  if (a < 2.5) {
    let term = a;
    let sum = a;
    for (let k = 1; k < 60 && Math.abs(term) > 1e-17 * sum; k++) {
      term *= (-a * a) / k;
      sum += term / (2 * k + 1);
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  if (a > 6) return Math.sign(x);
  let fraction = a;
  for (let k = 60; k > 0; k--) fraction = a + k / 2 / fraction;
  return Math.sign(x) * (1 - Math.exp(-a * a) / fraction / Math.sqrt(Math.PI));
}

const logistic = (x) => 1 / (1 + Math.exp(-x));
const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

/** name -> { f: sigma, d: sigma'(x) given x and sigma(x), energy: E, odd }. */
export const ACTIVATIONS = {
  tanh: {
    f: tanh,
    d: (x, s) => 1 - s * s,
    energy: (x) => Math.abs(x) + Math.log1p(Math.exp(-2 * Math.abs(x))) - Math.LN2,
    odd: true,
  },
  sigmoid: { f: logistic, d: (x, s) => s * (1 - s), energy: softplus, odd: false },
  relu: {
    f: (x) => (x > 0 ? x : 0),
    d: (x) => (x > 0 ? 1 : 0),
    energy: (x) => (x > 0 ? (x * x) / 2 : 0),
    odd: false,
  },
  identity: { f: (x) => x, d: () => 1, energy: (x) => (x * x) / 2, odd: true },
  arctan: {
    f: Math.atan,
    d: (x) => 1 / (1 + x * x),
    energy: (x) => x * Math.atan(x) - Math.log1p(x * x) / 2,
    odd: true,
  },
  softsign: {
    f: (x) => x / (1 + Math.abs(x)),
    d: (x, s) => (1 - Math.abs(s)) ** 2,
    energy: (x) => Math.abs(x) - Math.log1p(Math.abs(x)),
    odd: true,
  },
  sin: { f: Math.sin, d: (x) => Math.cos(x), energy: (x) => 1 - Math.cos(x), odd: true },
  erf: {
    f: erf,
    d: (x) => (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x),
    energy: (x) => x * erf(x) + (Math.exp(-x * x) - 1) / Math.sqrt(Math.PI),
    odd: true,
  },
};

/** In place: z becomes sigma(z), and D sigma'(z), both from `start` on. */
export function activate(name, z, D, start, count) {
  if (name === "tanh") {
    for (let i = start; i < start + count; i++) {
      const s = tanh(z[i]);
      z[i] = s;
      D[i] = 1 - s * s;
    }
    return;
  }
  const { f, d } = ACTIVATIONS[name];
  for (let i = start; i < start + count; i++) {
    const s = f(z[i]);
    D[i] = d(z[i], s);
    z[i] = s;
  }
}
