// A state-space network in passive mode and an MLP as controllers of a linear plant
// (hdnn/statespace.py, hdnn/control.py): one measurement, one force. Matrices are lists of rows.

import { norm2 } from "./analysis.js";
import { cholesky } from "./head.js";

const dot = (a, b) => a.reduce((sum, v, k) => sum + v * b[k], 0);
const times = (M, x) => M.map((row) => dot(row, x));
const transposed = (M) => M[0].map((_, k) => M.map((row) => row[k]));
const product = (A, B) => transposed(transposed(B).map((column) => times(A, column)));
/** a A + b I */
const combined = (a, A, b) => A.map((row, i) => row.map((v, k) => a * v + (i === k ? b : 0)));

/** K and M = L L' + mu I, scaled so that h lambda_max(K'K + M) <= 2 - h mu. */
function scaled(K, L, h, mu) {
  const R = [...K, ...transposed(L)];
  const largest = norm2(product(transposed(R), R).flat(), 0, L.length);
  const scale = Math.min(1, (2 / h - 2 * mu) / largest);
  return { K: combined(Math.sqrt(scale), K, 0), M: combined(scale, product(L, transposed(L)), mu) };
}

/** Q = 2 (I - J)^-1 - I with J = (A - A') / 2: as J is skew, (I + J'J) w = (I + J) v gives (I - J) w = v. */
function cayley(A) {
  const J = A.map((row, i) => row.map((v, k) => (v - A[k][i]) / 2));
  const H = combined(1, product(transposed(J), J), 1).flat();
  const columns = transposed(combined(1, J, 1)).map((column) => {
    cholesky(Float64Array.from(H), column);
    return column;
  });
  return combined(2, transposed(columns), -1);
}

/**
 * A state-space network, for all weights: q = x - h [K'(tanh(K x + b) - tanh(b)) + M x],
 * y = (G'q + g u) / (1 + g / gain) with g = h/2 G'G, x+ = Q (q + h G (u - y / gain)).
 */
export function makeCell({ K: K0, b, L, A, G }, { step: h, mu, gain }) {
  const { K, M } = scaled(K0, L, h, mu);
  const [Q, back, drive] = [cayley(A), transposed(K), G.flat()];
  const g = (h / 2) * dot(drive, drive);
  return {
    initial: () => drive.map(() => 0),
    step(x, u) {
      const s = times(K, x).map((v, i) => Math.tanh(v + b[i]) - Math.tanh(b[i]));
      const [pull, damp] = [times(back, s), times(M, x)];
      const q = x.map((v, k) => v - h * (pull[k] + damp[k]));
      const y = (dot(drive, q) + g * u) / (1 + g / gain);
      const turned = times(
        Q,
        q.map((v, k) => v + h * drive[k] * (u - y / gain)),
      );
      return [turned, y];
    },
  };
}

/** y = V tanh(W u + b) + c, without a state. */
export function makeMlp({ W, b, V, c }) {
  const units = (u) => W.map(([w], i) => Math.tanh(w * u + b[i]));
  return { initial: () => [], step: (x, u) => [x, dot(V[0], units(u)) + c[0]] };
}

/** The states (position, velocity) of a plant in a loop with a controller: the force is noise - y. */
export function simulate({ A, B, C }, controller, start, noise) {
  const states = [start];
  let x = controller.initial();
  for (const force of noise) {
    const z = states.at(-1);
    const [after, y] = controller.step(x, dot(C[0], z));
    states.push(times(A, z).map((v, k) => v + B[k][0] * (force - y)));
    x = after;
  }
  return states;
}

/** Weights of the same shapes, normally distributed. */
export function scrambled(weights, scale, random) {
  const draw = (w) => (Array.isArray(w) ? w.map(draw) : scale * random.normal());
  return Object.fromEntries(Object.entries(weights).map(([name, w]) => [name, draw(w)]));
}
