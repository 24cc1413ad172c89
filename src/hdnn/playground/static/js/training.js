// Training: Adam on the hidden layers; the output layer solved by Newton in every iteration
// (coordinate, appendix B.1 of the paper) or trained along (joint, appendix B.2).

import { gradient, logits, newton, residuals } from "./head.js";
import { Random } from "./random.js";

/** torch.optim.Adam. */
export class Adam {
  constructor(size, beta1 = 0.9, beta2 = 0.999) {
    this.betas = [beta1, beta2];
    this.t = 0;
    this.first = new Float64Array(size);
    this.second = new Float64Array(size);
  }

  step(parameters, grads, rate) {
    const { first, second } = this;
    const [beta1, beta2] = this.betas;
    this.t += 1;
    const size = rate / (1 - beta1 ** this.t);
    const root = Math.sqrt(1 - beta2 ** this.t);
    for (let p = 0; p < parameters.length; p++) {
      const g = grads[p];
      const m = (first[p] = beta1 * first[p] + (1 - beta1) * g);
      const v = (second[p] = beta2 * second[p] + (1 - beta2) * g * g);
      parameters[p] -= (size * m) / (Math.sqrt(v) / root + 1e-8);
    }
  }
}

/** (x, y) to y_0 = (x, y, 0, ...) of width n. */
export function pad(points, indices, n, X, B) {
  X.fill(0, 0, n * B);
  for (let i = 0; i < B; i++) {
    const p = indices ? indices[i] : i;
    X[i] = points[2 * p];
    X[B + i] = points[2 * p + 1];
  }
}

export class Trainer {
  /**
   * @param {import("./network.js").Network} network trained in place.
   * @param {{points: Float32Array, labels: Int32Array, classes: number}} data the training part.
   * @param {any} config learningRate, decay, batch, alpha, alphaC, method, seed.
   */
  constructor(network, data, config) {
    this.network = network;
    this.data = data;
    this.config = config;
    this.size = data.labels.length;
    this.batch = Math.min(config.batch, this.size);
    this.outputs = data.classes > 2 ? data.classes : 1;
    this.V = new Float64Array(this.outputs * (network.n + 1));
    this.optimizers = [network.theta, network.beta, this.V].map((a) => new Adam(a.length));
    this.headGrads = new Float64Array(this.V.length);
    this.random = new Random((config.seed ?? 0) + 7919);
    this.order = null;
    this.next = 0;
    this.iteration = 0;
    this.spaces = new Map();
    network.assemble();
  }

  /** Arrays for a batch of this size; a smaller last batch has its own. */
  space(B) {
    if (!this.spaces.has(B)) {
      const ws = this.network.space(B);
      this.spaces.set(B, { ws, R: new Float64Array(B * this.outputs), labels: new Int32Array(B) });
    }
    return this.spaces.get(B);
  }

  /** The samples of the next iteration. */
  draw() {
    if (this.order === null || this.next >= this.size) {
      this.order = this.random.permutation(this.size);
      this.next = 0;
    }
    const rows = this.order.subarray(this.next, this.next + this.batch);
    this.next += this.batch;
    return rows;
  }

  /** One iteration; returns loss and penalized loss of the batch before the step. */
  step(rows = this.draw()) {
    const { network, data, config, outputs, V } = this;
    const B = rows.length;
    const n = network.n;
    const { ws, R, labels } = this.space(B);
    pad(data.points, rows, n, ws.X, B);
    for (let i = 0; i < B; i++) labels[i] = data.labels[rows[i]];
    const y = network.forward(ws);
    if (config.method !== "joint") {
      newton(V, outputs, n, ws.X, y, B, labels, config.alphaC, R);
      for (let k = 0; k < V.length; k++) V[k] = Math.fround(V[k]); // as PyTorch holds it
    }
    logits(V, outputs, n, ws.X, y, B, R);
    const result = residuals(R, labels, outputs, B);
    if (config.method === "joint") gradient(V, outputs, n, ws.X, y, B, R, config.alphaC, this.headGrads);
    ws.G.fill(0);
    for (let o = 0; o < outputs; o++) {
      for (let k = 0; k < n; k++) {
        const v = V[o * (n + 1) + k];
        for (let i = 0; i < B; i++) ws.G[k * B + i] += v * R[i * outputs + o];
      }
    }
    network.zeroGrads();
    network.backward(ws);
    const smooth = config.alpha * network.smoothness(config.alpha);
    const penalty = config.alphaC * V.reduce((sum, v) => sum + v * v, 0);
    const penalized = result.loss + smooth + penalty;
    if (Number.isFinite(penalized)) this.update();
    this.iteration += 1;
    return { loss: result.loss, penalized };
  }

  /** The best output layer for the first batch, with the hidden layers as they are. */
  solveOutput() {
    const { network, data, config, batch: B } = this;
    const { ws, R, labels } = this.space(B);
    pad(data.points, null, network.n, ws.X, B);
    labels.set(data.labels.subarray(0, B));
    const y = network.forward(ws);
    newton(this.V, this.outputs, network.n, ws.X, y, B, labels, Math.max(config.alphaC, 1e-4), R);
  }

  update() {
    const { network, config } = this;
    const { learningRate, decay } = config;
    const rate = decay ? learningRate / (1 + this.iteration / decay) : learningRate;
    const [theta, beta, head] = this.optimizers;
    theta.step(network.theta, network.grads.theta, rate);
    beta.step(network.beta, network.grads.beta, rate);
    if (config.method === "joint") head.step(this.V, this.headGrads, rate);
    network.assemble();
  }

  /** Logits of any points, (count, outputs). */
  predict(points, count = points.length / 2) {
    const B = Math.min(this.batch, count);
    const out = new Float64Array(count * this.outputs);
    for (let start = 0; start < count; start += B) {
      const size = Math.min(B, count - start);
      const { ws, R } = this.space(size);
      pad(points.subarray(2 * start), null, this.network.n, ws.X, size);
      const y = this.network.forward(ws);
      logits(this.V, this.outputs, this.network.n, ws.X, y, size, R);
      out.set(R, start * this.outputs);
    }
    return out;
  }

  /** Loss and accuracy on data. */
  evaluate({ points, labels }, most = Infinity) {
    const count = Math.min(labels.length, most);
    const R = this.predict(points, count);
    const { loss, hits } = residuals(R, labels, this.outputs, count);
    return { loss, accuracy: hits / count };
  }
}
