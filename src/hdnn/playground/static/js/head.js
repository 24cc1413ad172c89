// The output layer, solved given the hidden layers (hdnn/training/output_solver.py): damped Newton on
//
//   f(V) = mean_i loss(V z_i, label_i) + alpha_c ||V||^2,    z = (y_N, 1),  V = (W, mu)
//
// logistic loss for two classes (one output), softmax for more.

const LINE_SEARCH = 40;
const ROUNDING = 1e-14; // of the objective: a sum over samples

/** Logits to residuals in place, sample by sample; returns the mean loss and the hits. */
export function residuals(R, labels, outputs, B) {
  let [loss, hits] = [0, 0];
  for (let i = 0; i < B; i++) {
    if (outputs === 1) {
      const z = R[i];
      const e = Math.exp(-Math.abs(z));
      const margin = labels[i] ? z : -z;
      loss += Math.log(1 + e) + (margin > 0 ? 0 : -margin);
      if (z > 0 === labels[i] > 0) hits++;
      R[i] = ((z > 0 ? 1 / (1 + e) : e / (1 + e)) - labels[i]) / B;
      continue;
    }
    const [row, label] = [i * outputs, labels[i]];
    let top = -Infinity;
    let best = 0;
    for (let o = 0; o < outputs; o++) if (R[row + o] > top) [top, best] = [R[row + o], o];
    if (best === label) hits++;
    const logit = R[row + label];
    let total = 0;
    for (let o = 0; o < outputs; o++) total += R[row + o] = Math.exp(R[row + o] - top);
    for (let o = 0; o < outputs; o++) R[row + o] /= total * B;
    R[row + label] -= 1 / B;
    loss += Math.log(total) + top - logit;
  }
  return { loss: loss / B, hits };
}

/** The logits of features Y, (n, B) from y0 on, into R, (B, outputs). */
export function logits(V, outputs, n, Y, y0, B, R) {
  for (let o = 0; o < outputs; o++) {
    const v = o * (n + 1);
    for (let i = 0; i < B; i++) {
      let z = V[v + n];
      for (let k = 0; k < n; k++) z += V[v + k] * Y[y0 + k * B + i];
      R[i * outputs + o] = z;
    }
  }
}

const squares = (V) => V.reduce((sum, v) => sum + v * v, 0);

/** G = R' Z + 2 alpha_c V; returns its largest entry. */
export function gradient(V, outputs, n, Y, y0, B, R, alphaC, G) {
  let most = 0;
  for (let o = 0; o < outputs; o++) {
    for (let k = 0; k <= n; k++) {
      let sum = 2 * alphaC * V[o * (n + 1) + k];
      for (let i = 0; i < B; i++) sum += R[i * outputs + o] * (k < n ? Y[y0 + k * B + i] : 1);
      G[o * (n + 1) + k] = sum;
      most = Math.max(most, Math.abs(sum));
    }
  }
  return most;
}

/** The lower triangle of the Hessian, size (outputs (n + 1))^2. */
function hessian(outputs, n, Y, y0, B, R, labels, ridge, H) {
  const q = n + 1;
  const size = outputs * q;
  H.fill(0);
  const z = new Float64Array(q).fill(1);
  const p = new Float64Array(outputs);
  for (let i = 0; i < B; i++) {
    for (let k = 0; k < n; k++) z[k] = Y[y0 + k * B + i];
    for (let o = 0; o < outputs; o++) {
      p[o] = R[i * outputs + o] * B + (outputs === 1 ? labels[i] : labels[i] === o ? 1 : 0);
    }
    for (let o = 0; o < outputs; o++) {
      for (let u = 0; u <= o; u++) {
        const curvature = (p[o] * ((o === u ? 1 : 0) - p[u])) / B;
        for (let a = 0; a < q; a++) {
          const scaled = curvature * z[a];
          const row = (o * q + a) * size + u * q;
          const stop = u < o ? q : a + 1;
          for (let c = 0; c < stop; c++) H[row + c] += scaled * z[c];
        }
      }
    }
  }
  for (let a = 0; a < size; a++) H[a * size + a] += ridge;
}

/** x = H^{-1} x by Cholesky, in place; false where H is not positive definite. */
export function cholesky(H, x) {
  const n = x.length;
  for (let j = 0; j < n; j++) {
    for (let i = j; i < n; i++) {
      let total = H[i * n + j];
      for (let k = 0; k < j; k++) total -= H[i * n + k] * H[j * n + k];
      if (i > j) H[i * n + j] = total / H[j * n + j];
      else if (total > 0) H[j * n + j] = Math.sqrt(total);
      else return false;
    }
  }
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < i; k++) x[i] -= H[i * n + k] * x[k];
    x[i] /= H[i * n + i];
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let k = i + 1; k < n; k++) x[i] -= H[k * n + i] * x[k];
    x[i] /= H[i * n + i];
  }
  return true;
}

/** Improve V in place; R is room for the residuals. */
export function newton(V, outputs, n, Y, y0, B, labels, alphaC, R, iterations = 10, tolerance = 1e-9) {
  const G = new Float64Array(V.length);
  const H = new Float64Array(V.length * V.length);
  const tried = new Float64Array(V.length);
  const at = (point) => {
    logits(point, outputs, n, Y, y0, B, R);
    return residuals(R, labels, outputs, B).loss + alphaC * squares(point);
  };
  let value = at(V);
  for (let iteration = 0; iteration < iterations; iteration++) {
    if (!(gradient(V, outputs, n, Y, y0, B, R, alphaC, G) > tolerance)) return;
    let ridge = 2 * alphaC;
    const step = G.slice();
    hessian(outputs, n, Y, y0, B, R, labels, ridge, H);
    while (!cholesky(H, step)) {
      ridge = Math.max(10 * ridge, 1e-10);
      if (!(ridge < 1e30)) return;
      step.set(G);
      hessian(outputs, n, Y, y0, B, R, labels, ridge, H);
    }
    const slope = step.reduce((sum, s, k) => sum + s * G[k], 0);
    // A line search could not measure such a decrease, and would halve the step at random.
    if (slope >= 0 && slope <= ROUNDING * Math.abs(value)) {
      for (let k = 0; k < V.length; k++) V[k] -= step[k];
      return;
    }
    let [length, accepted] = [1, false];
    for (let halving = 0; halving < LINE_SEARCH && !accepted; halving++, length /= 2) {
      for (let k = 0; k < V.length; k++) tried[k] = V[k] - length * step[k];
      const reached = at(tried);
      // Armijo's condition, with room for the rounding of the objective.
      if (reached <= value - 1e-4 * length * slope + 1e-15 * Math.abs(value)) {
        V.set(tried);
        [value, accepted] = [reached, true];
      }
    }
    if (!accepted) return;
  }
}
