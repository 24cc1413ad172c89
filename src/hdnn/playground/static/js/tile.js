// A stage of four units that read and write all of a state of width four, tanh, gain A: in one pass
// over the samples, with everything between two loads and stores in registers. That is H1 and H2 of
// the paper's width, a quarter faster than by `multiply` and `activate`, which compute the same.

import { tanh } from "./activations.js";

/** Whether a stage is such a one. */
export const isTile = ({ m, r, w, S, carry }, activation) =>
  m === 4 && r === 4 && w === 4 && S !== null && carry === 1 && activation === "tanh";

/** Z = tanh(W X + b), D = 1 - Z^2, Y = X + A Z. */
export function forwardTile(W, A, w, b, b0, X, x, y, Z, D, z, B) {
  const [k0, k1, k2, k3, k4, k5, k6, k7] = [W[w], W[w + 1], W[w + 2], W[w + 3], W[w + 4], W[w + 5], W[w + 6], W[w + 7]];
  const [k8, k9, ka, kb, kc, kd, ke, kf] = [W[w + 8], W[w + 9], W[w + 10], W[w + 11], W[w + 12], W[w + 13], W[w + 14], W[w + 15]];
  const [a0, a1, a2, a3, a4, a5, a6, a7] = [A[w], A[w + 1], A[w + 2], A[w + 3], A[w + 4], A[w + 5], A[w + 6], A[w + 7]];
  const [a8, a9, aa, ab, ac, ad, ae, af] = [A[w + 8], A[w + 9], A[w + 10], A[w + 11], A[w + 12], A[w + 13], A[w + 14], A[w + 15]];
  const [c0, c1, c2, c3] = [b[b0], b[b0 + 1], b[b0 + 2], b[b0 + 3]];
  const [B2, B3] = [2 * B, 3 * B];
  for (let i = 0; i < B; i++) {
    const p = X[x + i];
    const q = X[x + B + i];
    const u = X[x + B2 + i];
    const v = X[x + B3 + i];
    const s = tanh(c0 + k0 * p + k1 * q + k2 * u + k3 * v);
    const t = tanh(c1 + k4 * p + k5 * q + k6 * u + k7 * v);
    const f = tanh(c2 + k8 * p + k9 * q + ka * u + kb * v);
    const g = tanh(c3 + kc * p + kd * q + ke * u + kf * v);
    Z[z + i] = s;
    Z[z + B + i] = t;
    Z[z + B2 + i] = f;
    Z[z + B3 + i] = g;
    D[z + i] = 1 - s * s;
    D[z + B + i] = 1 - t * t;
    D[z + B2 + i] = 1 - f * f;
    D[z + B3 + i] = 1 - g * g;
    X[y + i] = p + a0 * s + a1 * t + a2 * f + a3 * g;
    X[y + B + i] = q + a4 * s + a5 * t + a6 * f + a7 * g;
    X[y + B2 + i] = u + a8 * s + a9 * t + aa * f + ab * g;
    X[y + B3 + i] = v + ac * s + ad * t + ae * f + af * g;
  }
}

/** E = (A' G) D, G = G + W' E, and db the sums of E. */
export function backwardTile(W, A, w, G, D, z, E, db, B) {
  const [k0, k1, k2, k3, k4, k5, k6, k7] = [W[w], W[w + 1], W[w + 2], W[w + 3], W[w + 4], W[w + 5], W[w + 6], W[w + 7]];
  const [k8, k9, ka, kb, kc, kd, ke, kf] = [W[w + 8], W[w + 9], W[w + 10], W[w + 11], W[w + 12], W[w + 13], W[w + 14], W[w + 15]];
  const [a0, a1, a2, a3, a4, a5, a6, a7] = [A[w], A[w + 1], A[w + 2], A[w + 3], A[w + 4], A[w + 5], A[w + 6], A[w + 7]];
  const [a8, a9, aa, ab, ac, ad, ae, af] = [A[w + 8], A[w + 9], A[w + 10], A[w + 11], A[w + 12], A[w + 13], A[w + 14], A[w + 15]];
  const [B2, B3] = [2 * B, 3 * B];
  let [d0, d1, d2, d3] = [0, 0, 0, 0];
  for (let i = 0; i < B; i++) {
    const p = G[i];
    const q = G[B + i];
    const u = G[B2 + i];
    const v = G[B3 + i];
    const s = (a0 * p + a4 * q + a8 * u + ac * v) * D[z + i];
    const t = (a1 * p + a5 * q + a9 * u + ad * v) * D[z + B + i];
    const f = (a2 * p + a6 * q + aa * u + ae * v) * D[z + B2 + i];
    const g = (a3 * p + a7 * q + ab * u + af * v) * D[z + B3 + i];
    d0 += s;
    d1 += t;
    d2 += f;
    d3 += g;
    E[i] = s;
    E[B + i] = t;
    E[B2 + i] = f;
    E[B3 + i] = g;
    G[i] = p + k0 * s + k4 * t + k8 * f + kc * g;
    G[B + i] = q + k1 * s + k5 * t + k9 * f + kd * g;
    G[B2 + i] = u + k2 * s + k6 * t + ka * f + ke * g;
    G[B3 + i] = v + k3 * s + k7 * t + kb * f + kf * g;
  }
  db[0] = d0;
  db[1] = d1;
  db[2] = d2;
  db[3] = d3;
}
