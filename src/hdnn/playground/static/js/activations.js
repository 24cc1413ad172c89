// Activations sigma with the energies E they are the derivative of (hdnn/fields/activations.py).

// tanh from a table and the first terms of the Taylor series at the nearest entry: exact to 5e-9,
// in a fifth of the time of Math.tanh, on which most of a training step would be spent.
const PER_UNIT = 128;
const LIMIT = 10; // beyond it tanh is 1 to 5e-9
const HALF = LIMIT * PER_UNIT;
const TANH = Float64Array.from({ length: 2 * HALF + 2 }, (_, i) => Math.tanh((i - HALF) / PER_UNIT));

/** tanh(x); NaN passes through. */
export function tanh(x) {
  const place = x * PER_UNIT + (HALF + 0.5);
  const i = place | 0; // 0 for NaN and far outside
  if ((i - 1) >>> 0 >= 2 * HALF) return x > 0 ? 1 : x < 0 ? -1 : x;
  const b = (place - 0.5 - i) * (1 / PER_UNIT);
  const t = TANH[i];
  const t2 = t * t;
  return t + b * (1 - t2) * (1 - b * (t - b * (t2 - 1 / 3)));
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
    d: (_, s) => 1 - s * s,
    energy: (x) => Math.abs(x) + Math.log1p(Math.exp(-2 * Math.abs(x))) - Math.LN2,
    odd: true,
  },
  sigmoid: { f: logistic, d: (_, s) => s * (1 - s), energy: softplus, odd: false },
  relu: { f: (x) => (x > 0 ? x : 0), d: (x) => (x > 0 ? 1 : 0), energy: (x) => (x > 0 ? (x * x) / 2 : 0), odd: false },
  identity: { f: (x) => x, d: () => 1, energy: (x) => (x * x) / 2, odd: true },
  arctan: {
    f: Math.atan,
    d: (x) => 1 / (1 + x * x),
    energy: (x) => x * Math.atan(x) - Math.log1p(x * x) / 2,
    odd: true,
  },
  softsign: {
    f: (x) => x / (1 + Math.abs(x)),
    d: (_, s) => (1 - Math.abs(s)) ** 2,
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
