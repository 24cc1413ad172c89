// How gradients behave: d y_N / d y_l along depth, the spectrum of every layer, the energy.

import { ACTIVATIONS } from "./activations.js";

/** States y_0 ... y_N of points, ((layers + 1), n, B) in float32. */
export function trajectory(network, points) {
  const B = points.length / network.n; // points: (n, B)
  const ws = network.space(B);
  ws.X.set(points);
  network.forward(ws);
  const size = network.n * B;
  const jump = network.stages.length * size;
  const out = new Float32Array((network.layers + 1) * size);
  for (let j = 0; j <= network.layers; j++) out.set(ws.X.subarray(j * jump, j * jump + size), j * size);
  return out;
}

/** M_l = d y_N / d y_l, ((layers + 1), B, n, n), for states points (n, B), in one sweep. */
export function sensitivities(network, points) {
  const { n, layers } = network;
  const B = points.length / n;
  // Every sample n times: cotangent i of it is row i of the identity, and stays row i of M.
  const wide = B * n;
  const ws = network.space(wide);
  for (let k = 0; k < n; k++) {
    for (let s = 0; s < wide; s++) ws.X[k * wide + s] = points[k * B + Math.floor(s / n)];
  }
  network.forward(ws);
  for (let k = 0; k < n; k++) {
    for (let s = 0; s < wide; s++) ws.G[k * wide + s] = s % n === k ? 1 : 0;
  }
  const out = new Float64Array((layers + 1) * B * n * n);
  network.backward(
    ws,
    (l) => {
      for (let k = 0; k < n; k++) {
        for (let s = 0; s < wide; s++) out[(l * wide + s) * n + k] = ws.G[k * wide + s];
      }
    },
    false,
  );
  return out;
}

/** The largest singular value of the n x n matrix at `start`: Jacobi's rotations of its columns. */
export function norm2(M, start, n) {
  let most = 0;
  for (let p = start; p < start + n * n; p++) most = Math.max(most, Math.abs(M[p]));
  if (!(most > 0) || !Number.isFinite(most)) return most;
  // Scaled so that squares neither vanish nor overflow.
  const A = Float64Array.from({ length: n * n }, (_, p) => M[start + p] / most);
  const inner = (i, k) => {
    let sum = 0;
    for (let p = 0; p < n * n; p += n) sum += A[p + i] * A[p + k];
    return sum;
  };
  for (let sweep = 0, off = 1; sweep < 30 && off > 1e-28; sweep++) {
    off = 0;
    for (let i = 0; i < n; i++) {
      for (let k = i + 1; k < n; k++) {
        const b = inner(i, k);
        off += b * b;
        const angle = Math.atan2(2 * b, inner(i, i) - inner(k, k)) / 2;
        const [c, s] = [Math.cos(angle), Math.sin(angle)];
        for (let p = 0; p < n * n; p += n) {
          [A[p + i], A[p + k]] = [c * A[p + i] + s * A[p + k], c * A[p + k] - s * A[p + i]];
        }
      }
    }
  }
  return most * Math.sqrt(Math.max(...Array.from({ length: n }, (_, k) => inner(k, k))));
}

/**
 * Eigenvalues [re, im] of a real matrix: QR with Wilkinson's shifts on its Hessenberg form, in
 * complex arithmetic, which needs no special case for pairs.
 */
export function eigenvalues(A, n) {
  const re = hessenberg(Float64Array.from(A), n);
  const im = new Float64Array(n * n);
  const values = [];
  let size = n;
  for (let count = 0; size > 0 && count < 100 * n; count++) {
    let low = size - 1;
    while (low > 0) {
      const below = abs1(re, im, low * n + low - 1);
      const around = abs1(re, im, (low - 1) * n + low - 1) + abs1(re, im, low * n + low);
      if (below <= 1e-14 * around || below < 1e-300) break;
      low -= 1;
    }
    if (low === size - 1) {
      values.push([re[low * n + low], im[low * n + low]]);
      size -= 1;
    } else {
      qrStep(re, im, n, low, size, count);
    }
  }
  while (values.length < n) values.push([NaN, NaN]);
  return values;
}

const abs1 = (re, im, p) => Math.abs(re[p]) + Math.abs(im[p]);

/** Similar to A with zeros below the first subdiagonal, by elimination with pivots, in place. */
function hessenberg(A, n) {
  for (let m = 1; m < n - 1; m++) {
    let pivot = m;
    for (let i = m; i < n; i++) if (Math.abs(A[i * n + m - 1]) > Math.abs(A[pivot * n + m - 1])) pivot = i;
    if (A[pivot * n + m - 1] === 0) continue;
    for (let k = 0; pivot !== m && k < n; k++) {
      [A[pivot * n + k], A[m * n + k]] = [A[m * n + k], A[pivot * n + k]];
    }
    for (let k = 0; pivot !== m && k < n; k++) {
      [A[k * n + pivot], A[k * n + m]] = [A[k * n + m], A[k * n + pivot]];
    }
    for (let i = m + 1; i < n; i++) {
      const factor = A[i * n + m - 1] / A[m * n + m - 1];
      if (factor === 0) continue;
      for (let k = 0; k < n; k++) A[i * n + k] -= factor * A[m * n + k];
      for (let k = 0; k < n; k++) A[k * n + m] += factor * A[k * n + i];
    }
  }
  return A;
}

/** The eigenvalue of the last 2 x 2 block that is nearest to its last entry. */
function shiftOf(re, im, n, size) {
  const [p, q] = [(size - 2) * n + size - 2, (size - 1) * n + size - 2];
  const half = [(re[p] - re[q + 1]) / 2, (im[p] - im[q + 1]) / 2];
  const bc = [re[p + 1] * re[q] - im[p + 1] * im[q], re[p + 1] * im[q] + im[p + 1] * re[q]];
  const inside = [half[0] ** 2 - half[1] ** 2 + bc[0], 2 * half[0] * half[1] + bc[1]];
  const size2 = Math.hypot(...inside);
  let root = [Math.sqrt(Math.max(0, (size2 + inside[0]) / 2)), Math.sqrt(Math.max(0, (size2 - inside[0]) / 2))];
  if (inside[1] < 0) root = [root[0], -root[1]];
  const sign = half[0] * root[0] + half[1] * root[1] > 0 ? -1 : 1;
  return [re[q + 1] + half[0] + sign * root[0], im[q + 1] + half[1] + sign * root[1]];
}

function qrStep(re, im, n, low, size, count) {
  let [sr, si] = shiftOf(re, im, n, size);
  if (count % 11 === 10) [sr, si] = [sr + Math.abs(re[(size - 1) * n + size - 2]), si];
  for (let i = low; i < size; i++) {
    re[i * n + i] -= sr;
    im[i * n + i] -= si;
  }
  const rotations = [];
  for (let i = low; i + 1 < size; i++) {
    const [p, q] = [i * n + i, (i + 1) * n + i];
    const length = Math.hypot(re[p], im[p], re[q], im[q]) || 1;
    const [cr, ci, tr, ti] = [re[p] / length, im[p] / length, re[q] / length, im[q] / length];
    rotations.push([cr, ci, tr, ti]);
    for (let k = i; k < size; k++) {
      const [u, v] = [i * n + k, (i + 1) * n + k];
      const [a, b, c, d] = [re[u], im[u], re[v], im[v]];
      re[u] = cr * a + ci * b + tr * c + ti * d;
      im[u] = cr * b - ci * a + tr * d - ti * c;
      re[v] = cr * c - ci * d - tr * a + ti * b;
      im[v] = cr * d + ci * c - tr * b - ti * a;
    }
  }
  rotations.forEach(([cr, ci, tr, ti], step) => {
    const i = low + step;
    for (let k = low; k <= Math.min(i + 1, size - 1); k++) {
      const [u, v] = [k * n + i, k * n + i + 1];
      const [a, b, c, d] = [re[u], im[u], re[v], im[v]];
      re[u] = cr * a - ci * b + tr * c - ti * d;
      im[u] = cr * b + ci * a + tr * d + ti * c;
      re[v] = cr * c + ci * d - tr * a - ti * b;
      im[v] = cr * d - ci * c - tr * b + ti * a;
    }
  });
  for (let i = low; i < size; i++) {
    re[i * n + i] += sr;
    im[i * n + i] += si;
  }
}

/** d f / d y of a layer at a state: J K' D K, D K where J K' = I, and for baselines. */
export function velocityJacobian(network, j, y) {
  const { n, J, activation } = network;
  const { K, b } = network.layer(j);
  const { f, d } = ACTIVATIONS[activation];
  const DK = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    let z = b[i];
    for (let k = 0; k < n; k++) z += K[i * n + k] * y[k];
    const slope = d(z, f(z));
    for (let k = 0; k < n; k++) DK[i * n + k] = slope * K[i * n + k];
  }
  return J ? product(J, product(transposed(K, n), DK, n), n) : DK;
}

function transposed(A, n) {
  return Float64Array.from(A, (_, p) => A[(p % n) * n + Math.floor(p / n)]);
}

function product(A, B, n) {
  return Float64Array.from(A, (_, p) => {
    let sum = 0;
    for (let k = 0; k < n; k++) sum += A[Math.floor(p / n) * n + k] * B[k * n + (p % n)];
    return sum;
  });
}

/**
 * H(y_j) = 1' E(K_j y_j + b_j) along a trajectory of B samples; the last uses K_{N-1}.
 * @returns {Float64Array} (depths, samples); by default all of both.
 */
export function energies(network, states, B, depths = null, samples = B) {
  const { n, layers, activation } = network;
  const { energy } = ACTIVATIONS[activation];
  const shown = depths ?? Array.from({ length: layers + 1 }, (_, j) => j);
  const few = Math.min(samples, B);
  const out = new Float64Array(shown.length * few);
  shown.forEach((j, d) => {
    const { K, b } = network.layer(Math.min(j, layers - 1));
    for (let s = 0; s < few; s++) {
      let total = 0;
      for (let i = 0; i < n; i++) {
        let z = b[i];
        for (let k = 0; k < n; k++) z += K[i * n + k] * states[(j * n + k) * B + s];
        total += energy(z);
      }
      out[d * few + s] = total;
    }
  });
  return out;
}
