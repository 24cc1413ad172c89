// One network in training: the page sends settings and data, and gets snapshots to draw.

import * as analysis from "./analysis.js";
import { Network } from "./network.js";
import { pad, Trainer } from "./training.js";

const SLICE = 10; // ms of training before messages are read
const INTERVAL = 36; // ms between snapshots
const GRID = 44; // cells a side of the decision regions
const COARSE = 26; // of deep networks while they train
const SHOWN = 49; // depths of the flow
const CARRIED = 260; // points of the flow

const now = () => performance.now();

/** Evenly spaced whole numbers from 0 to last, both included. */
function spread(last, count) {
  const most = Math.min(count - 1, last);
  return Array.from({ length: most + 1 }, (_, i) => Math.round((i * last) / Math.max(1, most)));
}

/**
 * @param {(message: object) => void} send called with snapshots and errors.
 * @returns {(message: any) => void} what takes the page's messages.
 */
export function makeEngine(send) {
  let run = null;
  let playing = false;
  let rate = Infinity;
  let limit = Infinity;
  let started = { time: 0, iteration: 0 };

  const channel = new MessageChannel();
  channel.port1.onmessage = tick;

  function start({ number, network: settings, config, train, test, bounds }) {
    playing = false;
    const network = new Network(settings);
    const trainer = new Trainer(network, train, config);
    const shown = Math.min(network.layers > 256 ? CARRIED / 2 : CARRIED, test.labels.length);
    const y0 = new Float32Array(network.n * shown);
    pad(test.points, null, network.n, y0, shown);
    run = {
      network,
      trainer,
      test,
      y0,
      shown,
      bounds,
      depths: spread(network.layers, SHOWN),
      number,
      parts: {},
      last: null,
      snapped: 0,
      diverged: false,
    };
    // So that there are regions to show before the first step.
    if (config.method !== "joint") trainer.solveOutput();
    snapshot(true);
  }

  /** Train until there is something else to do. */
  function tick() {
    if (!playing || !run) return;
    const begin = now();
    const allowed = started.iteration + (rate * (begin - started.time)) / 1000;
    const goal = Math.min(limit, allowed);
    while (run.trainer.iteration < goal && now() - begin < SLICE && !run.diverged) oneStep();
    if (now() - run.snapped > INTERVAL) snapshot(false);
    if (run.trainer.iteration < goal) channel.port2.postMessage(null);
    else setTimeout(tick, 4);
  }

  function oneStep() {
    run.last = run.trainer.step();
    if (!Number.isFinite(run.last.penalized)) run.diverged = true;
  }

  /**
   * A part of a snapshot: computed again if it is wanted whole, or if that takes no more than a
   * seventh of the time; else nothing, and the page keeps what it has.
   */
  function part(name, whole, compute) {
    const last = run.parts[name];
    if (!whole && last && now() - last.end < 6 * last.cost) return {};
    const begin = now();
    const values = compute(whole);
    run.parts[name] = { end: now(), cost: now() - begin };
    return values;
  }

  /** Logits on a grid. */
  function regions(whole) {
    const { trainer, network, bounds } = run;
    const size = whole || network.layers * network.stages.length <= 256 ? GRID : COARSE;
    const points = new Float32Array(2 * size * size);
    for (let i = 0; i < size * size; i++) {
      points[2 * i] = bounds.x + (((i % size) + 0.5) / size) * bounds.side;
      points[2 * i + 1] = bounds.y + ((Math.floor(i / size) + 0.5) / size) * bounds.side;
    }
    return { grid: Float32Array.from(trainer.predict(points)), gridSize: size };
  }

  /** The states of the carried points at the shown depths, (depths, n, shown); spectrum, energy. */
  function flow() {
    const { network, y0, shown, depths } = run;
    const states = analysis.trajectory(network, y0);
    const size = network.n * shown;
    const out = new Float32Array(depths.length * size);
    depths.forEach((j, d) => out.set(states.subarray(j * size, (j + 1) * size), d * size));
    const energy = network.row.J ? analysis.energies(network, states, shown, depths, 12) : null;
    return { flow: out, spectrum: spectrum(states), energy };
  }

  /** The mean over samples of || d y_N / d y_l ||_2, at the shown depths. */
  function gradientNorms(samples) {
    const { network, y0, shown, depths } = run;
    const { n } = network;
    const few = Math.min(samples, shown);
    const points = Float64Array.from({ length: n * few }, (_, p) => y0[Math.floor(p / few) * shown + (p % few)]);
    const M = analysis.sensitivities(network, points);
    return Float64Array.from(depths, (l) => {
      let sum = 0;
      for (let s = 0; s < few; s++) sum += analysis.norm2(M, (l * few + s) * n * n, n);
      return sum / few;
    });
  }

  function spectrum(states) {
    const { network, shown, depths } = run;
    const { n } = network;
    const few = depths.filter((_, d) => n <= 8 || d % 4 === 0);
    return few
      .filter((j) => j < network.layers)
      .flatMap((j) => {
        const y = Float64Array.from({ length: n }, (_, k) => states[(j * n + k) * shown]);
        return analysis.eigenvalues(analysis.velocityJacobian(network, j, y), n).map((v) => [...v, j]);
      });
  }

  /** Entries of K and b along the shown depths, each a line. */
  function weightLines() {
    const { network, depths } = run;
    const { n } = network;
    const used = depths.filter((j) => j < network.layers);
    const at = used.map((j) => network.layer(j));
    const lines = [];
    for (let p = 0; p < n * n; p++) if (network.codes[p]) lines.push(Float32Array.from(at, ({ K }) => K[p]));
    const biases = Array.from({ length: n }, (_, i) => Float32Array.from(at, ({ b }) => b[i]));
    return { depths: used, lines, biases };
  }

  function snapshot(whole) {
    const { network, trainer, test, depths, shown } = run;
    run.snapped = now();
    const tested = network.layers > 256 ? 125 : 500;
    send({
      type: "snapshot",
      number: run.number,
      iteration: trainer.iteration,
      diverged: run.diverged,
      loss: run.last?.loss,
      outputs: trainer.outputs,
      n: network.n,
      layers: network.layers,
      J: network.row.J,
      usesStep: network.usesStep,
      V: Float64Array.from(trainer.V),
      depths,
      shown,
      ...part("test", whole, () => ({ test: trainer.evaluate(test, whole ? Infinity : tested) })),
      ...part("norms", whole, () => ({ norms: gradientNorms(8) })),
      ...part("regions", whole, regions),
      ...part("flow", whole, flow),
      ...part("weights", whole, () => ({ weights: weightLines() })),
    });
  }

  const handlers = {
    start,
    play() {
      if (playing) return;
      playing = true;
      started = { time: now(), iteration: run.trainer.iteration };
      tick();
    },
    pause() {
      playing = false;
      snapshot(true);
    },
    step() {
      playing = false;
      if (!run.diverged) oneStep();
      snapshot(true);
    },
    speed({ value }) {
      rate = value;
      if (run) started = { time: now(), iteration: run.trainer.iteration };
    },
    limit({ value }) {
      limit = value;
    },
  };

  return (message) => {
    try {
      handlers[message.type](message);
    } catch (error) {
      send({ type: "error", message: String(error.message) });
    }
  };
}
