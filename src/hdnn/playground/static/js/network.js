// A network in typed arrays: parameters in float32, as PyTorch holds them, everything else in double.

import { activate } from "./activations.js";
import { describe } from "./architectures.js";
import { multiply, outer } from "./products.js";
import { Random } from "./random.js";

export class Network {
  /**
   * @param {object} settings see `describe`; also the seed of the initial weights, or theta and beta
   *   themselves, (layers or 1) x parameters.
   */
  constructor(settings) {
    const spec = describe(settings);
    this.n = spec.n;
    this.layers = spec.layers;
    this.h = spec.h;
    this.usesStep = spec.usesStep;
    this.activation = spec.activation;
    this.timeInvariant = spec.timeInvariant;
    this.row = spec.row;
    this.J = spec.J;
    this.codes = spec.codes;
    this.bias = spec.bias;
    this.stages = spec.stages;
    this.parameters = spec.parameters;
    this.biases = spec.biases;
    this.rows = this.timeInvariant ? 1 : this.layers;
    const [P, Q] = [this.parameters, this.biases];
    this.theta = new Float32Array(this.rows * P);
    this.beta = new Float32Array(this.rows * Q);
    if (settings.theta) {
      this.theta.set(settings.theta);
      this.beta.set(settings.beta);
    } else {
      this.initialize(new Random(settings.seed ?? 0));
    }
    // How often a parameter stands in K: the smoothness penalty counts entries.
    this.multiplicity = new Float64Array(P);
    for (const code of this.codes) if (code) this.multiplicity[Math.abs(code) - 1] += 1;
    this.weights = this.stages.map(({ m, r, w, S }) => ({
      W: new Float64Array(this.layers * m * r),
      b: new Float64Array(this.layers * m),
      A: S ? new Float64Array(this.layers * w * m) : null,
    }));
    this.spaces = new Map();
    const most = (size) => new Float64Array(Math.max(...this.stages.map(size)));
    this.scratch = { dW: most((s) => s.m * s.r), dA: most((s) => s.m * s.w), db: most((s) => s.m) };
    this.grads = { theta: new Float64Array(this.theta.length), beta: new Float64Array(this.beta.length) };
  }

  /** Hamiltonian networks as in the paper, K and b standard normal; baselines as Glorot does it. */
  initialize(random) {
    const baseline = this.row.J === null;
    const scale = baseline ? 1 / Math.sqrt(this.n) : 1;
    for (let p = 0; p < this.theta.length; p++) this.theta[p] = scale * random.normal();
    for (let p = 0; p < this.beta.length; p++) this.beta[p] = baseline ? 0 : random.normal();
  }

  /** Write the parameters into the matrices of every stage. */
  assemble() {
    const { theta, beta, parameters: P, biases: Q, h } = this;
    this.stages.forEach((stage, t) => {
      const { m, r, w, S, c } = stage;
      const { W, b, A } = this.weights[t];
      for (let j = 0; j < this.layers; j++) {
        const row = this.timeInvariant ? 0 : j;
        const at = j * m * r;
        for (let p = 0; p < m * r; p++) {
          const code = stage.W[p];
          W[at + p] = code > 0 ? theta[row * P + code - 1] : code < 0 ? -theta[row * P - code - 1] : 0;
        }
        for (let i = 0; i < m; i++) {
          const code = stage.b[i];
          b[j * m + i] = code > 0 ? beta[row * Q + code - 1] : -beta[row * Q - code - 1];
        }
        for (let i = 0; S && i < w; i++) {
          for (let u = 0; u < m; u++) {
            let sum = 0;
            for (let k = 0; k < r; k++) sum += S[i * r + k] * W[at + u * r + k];
            A[(j * w + i) * m + u] = c * h * sum;
          }
        }
      }
    });
  }

  /** Room for the states of a batch; of the largest stage for the activations. */
  workspace(B) {
    const steps = this.layers * this.stages.length;
    const units = Math.max(...this.stages.map((s) => s.m));
    return {
      B,
      units,
      X: new Float64Array((steps + 1) * this.n * B),
      Z: new Float64Array(steps * units * B),
      D: new Float64Array(steps * units * B),
      G: new Float64Array(this.n * B),
      E: new Float64Array(units * B),
    };
  }

  /** The workspace of this size, made once: arrays of megabytes are not to be made at every look. */
  space(B) {
    if (!this.spaces.has(B)) this.spaces.set(B, this.workspace(B));
    return this.spaces.get(B);
  }

  /** States and activations of every stage, from ws.X's first slot; the weights are assembled. */
  forward(ws) {
    const { B, X, Z, D, units } = ws;
    const { n, stages, weights, activation, h } = this;
    const size = n * B;
    let q = 0;
    for (let j = 0; j < this.layers; j++) {
      for (let t = 0; t < stages.length; t++, q++) {
        const { read, r, write, w, m, S, c, carry } = stages[t];
        const { W, b, A } = weights[t];
        const [from, to, z] = [q * size, (q + 1) * size, q * units * B];
        for (let i = 0; i < m; i++) Z.fill(b[j * m + i], z + i * B, z + (i + 1) * B);
        multiply(W, j * m * r, r, 1, m, r, X, from + read * B, Z, z, B);
        activate(activation, Z, D, z, m * B);
        if (carry) X.copyWithin(to, from, to);
        else X.fill(0, to, to + size);
        const y = to + write * B;
        if (S) multiply(A, j * w * m, m, 1, w, m, Z, z, X, y, B);
        else for (let p = 0, a = c * h; p < m * B; p++) X[y + p] += (carry ? a : 1) * Z[z + p];
      }
    }
    return q * size;
  }

  /**
   * Carry ws.G = d loss / d y_N back to d loss / d y_0, and add to the gradients.
   * @param {?((layer: number) => void)} visit called with l when ws.G is d loss / d y_l.
   */
  backward(ws, visit = null, parameters = true) {
    const { B, X, Z, G, E, units } = ws;
    const { n, stages, weights, h } = this;
    const { dW, dA, db } = this.scratch;
    if (visit) visit(this.layers);
    let q = this.layers * stages.length - 1;
    for (let j = this.layers - 1; j >= 0; j--) {
      for (let t = stages.length - 1; t >= 0; t--, q--) {
        const stage = stages[t];
        const { read, r, write, w, m, S } = stage;
        const [x, z, g] = [(q * n + read) * B, q * units * B, write * B];
        if (S && parameters) {
          dA.fill(0);
          outer(G, g, w, Z, z, m, dA, 0, B);
        }
        this.backwardStage(stage, weights[t], j, ws, z);
        if (parameters) {
          dW.fill(0);
          outer(E, 0, m, X, x, r, dW, 0, B);
          if (S) throughGain(stage, h, dA, dW);
          this.scatter(stage, j, dW, db);
        }
      }
      if (visit) visit(j);
    }
  }

  /** E = (A' G[write]) D, and G[read] += W' E; the sums of E are the gradient of b. */
  backwardStage({ read, r, write, w, m, S, c, carry }, { W, A }, j, { B, D, G, E }, z) {
    const { db } = this.scratch;
    const g = write * B;
    if (S) {
      E.fill(0, 0, m * B);
      multiply(A, j * w * m, 1, m, m, w, G, g, E, 0, B);
    } else {
      const a = carry ? c * this.h : 1;
      for (let p = 0; p < m * B; p++) E[p] = a * G[g + p];
    }
    for (let i = 0; i < m; i++) {
      let sum = 0;
      for (let p = i * B; p < (i + 1) * B; p++) sum += E[p] *= D[z + p];
      db[i] = sum;
    }
    if (!carry) G.fill(0);
    multiply(W, j * m * r, 1, r, r, m, E, 0, G, read * B, B);
  }

  /** Add the gradients of a stage's W and b to those of the parameters. */
  scatter(stage, layer, dW, db) {
    const { theta, beta } = this.grads;
    const row = this.timeInvariant ? 0 : layer;
    const [p0, q0] = [row * this.parameters, row * this.biases];
    const { m, r } = stage;
    for (let p = 0; p < m * r; p++) {
      const code = stage.W[p];
      if (code > 0) theta[p0 + code - 1] += dW[p];
      else if (code < 0) theta[p0 - code - 1] -= dW[p];
    }
    for (let i = 0; i < m; i++) {
      const code = stage.b[i];
      if (code > 0) beta[q0 + code - 1] += db[i];
      else beta[q0 - code - 1] -= db[i];
    }
  }

  zeroGrads() {
    this.grads.theta.fill(0);
    this.grads.beta.fill(0);
  }

  /** h/2 sum_j ||K_j - K_{j-1}||^2 + the same for b; alpha times its gradient is added. */
  smoothness(alpha) {
    if (!this.usesStep || this.timeInvariant || alpha === 0) return 0;
    const { layers, h } = this;
    let total = 0;
    for (const [array, grads, size, multiplicity] of [
      [this.theta, this.grads.theta, this.parameters, this.multiplicity],
      [this.beta, this.grads.beta, this.biases, null],
    ]) {
      for (let j = 1; j < layers; j++) {
        for (let p = 0; p < size; p++) {
          const times = multiplicity ? multiplicity[p] : 1;
          const change = array[j * size + p] - array[(j - 1) * size + p];
          total += times * change * change;
          const g = alpha * h * times * change;
          grads[j * size + p] += g;
          grads[(j - 1) * size + p] -= g;
        }
      }
    }
    return (h / 2) * total;
  }

  /** K and b of a layer in the general form sigma(K y + b). */
  layer(j) {
    const row = this.timeInvariant ? 0 : j;
    const pick = (codes, array, size) =>
      Float64Array.from(codes, (c) => (c ? Math.sign(c) * array[row * size + Math.abs(c) - 1] : 0));
    return { K: pick(this.codes, this.theta, this.parameters), b: pick(this.bias, this.beta, this.biases) };
  }
}

/** A = c h S W' makes of dA a part of dW: dW += c h dA' S. */
function throughGain({ m, r, w, S, c }, h, dA, dW) {
  for (let u = 0; u < m; u++) {
    for (let k = 0; k < r; k++) {
      let sum = 0;
      for (let i = 0; i < w; i++) sum += dA[i * m + u] * S[i * r + k];
      dW[u * r + k] += c * h * sum;
    }
  }
}
