// Runs the playground's engine on cases from standard input; test_engine.py compares.
import { readFileSync } from "node:fs";

const folder = process.argv[2];
const load = (name) => import(`${folder}/js/${name}.js`);
const { Network } = await load("network");
const { Trainer } = await load("training");
const analysis = await load("analysis");
const { schemesOf, ARCHITECTURES } = await load("architectures");
const { ACTIVATIONS } = await load("activations");
const { boundsOf, PROBLEMS, sample, split } = await load("data");
const { defaults, fromHash, networkOf, SETTINGS, toHash, trainingOf } = await load("state");
const { loopCode, pythonCode } = await load("python");
const { coordinate, extent, isCollapsed, projection } = await load("geometry");
const { newton } = await load("head");
const { makeCell, makeMlp, scrambled, simulate } = await load("statespace");
const { Random } = await load("random");

const list = (array) => Array.from(array);

const tasks = {
  /** Outputs, gradients and sensitivities of a network for states (n, B) and cotangents (n, B). */
  network({ network: given, states, cotangents }) {
    const network = new Network(given);
    network.assemble();
    const B = states.length / network.n;
    const ws = network.workspace(B);
    ws.X.set(states);
    const y = network.forward(ws);
    const out = list(ws.X.subarray(y, y + states.length));
    ws.G.set(cotangents);
    network.backward(ws);
    const M = analysis.sensitivities(network, Float64Array.from(states));
    const path = analysis.trajectory(network, Float64Array.from(states));
    const y0 = Float64Array.from({ length: network.n }, (_, k) => states[k * B]);
    return {
      out,
      theta: list(network.grads.theta),
      beta: list(network.grads.beta),
      states: list(ws.G),
      sensitivities: list(M),
      norms: [0, 1].map((s) => analysis.norm2(M, s * network.n ** 2, network.n)),
      jacobian: list(analysis.velocityJacobian(network, 0, y0)),
      eigenvalues: analysis.eigenvalues(analysis.velocityJacobian(network, 0, y0), network.n),
      energies: list(analysis.energies(network, path, B)),
    };
  },

  /** The losses of a training on given batches. */
  training({ network: given, points, labels, classes, config, batches }) {
    const network = new Network(given);
    const data = { points: Float32Array.from(points), labels: Int32Array.from(labels), classes };
    const trainer = new Trainer(network, data, config);
    const steps = batches.map((batch) => trainer.step(Int32Array.from(batch)));
    return { loss: steps.map((s) => s.loss), penalized: steps.map((s) => s.penalized) };
  },

  catalog() {
    const names = Object.keys(ARCHITECTURES);
    return {
      schemes: Object.fromEntries(names.map((name) => [name, schemesOf(name)])),
      activations: Object.keys(ACTIVATIONS),
    };
  },

  /** Norms of matrices, row by row. */
  norms({ matrices, n }) {
    return matrices.map((M) => analysis.norm2(Float64Array.from(M), 0, n));
  },

  /** The output layers that Newton's method reaches from some, for features (n, B). */
  newton({ starts, features, labels, outputs, alphaC, iterations }) {
    const [B, R] = [labels.length, new Float64Array(labels.length * outputs)];
    return starts.map((start) => {
      const V = Float64Array.from(start);
      newton(V, outputs, features.length / B, features, 0, B, labels, alphaC, R, iterations, 0);
      return list(V);
    });
  },

  /** Points of a problem, made of given uniform numbers. */
  problem({ name, size, uniforms }) {
    const random = { uniform: () => uniforms.shift() };
    return Array.from({ length: size }, (_, i) => PROBLEMS[name].draw(i, random, 2));
  },

  sample({ name, share, ...options }) {
    const { points, labels, classes } = sample(name, options);
    const { train, test } = split({ points, labels, classes }, share, options.seed);
    return { points: list(points), labels: list(labels), classes, train: list(train.points), test: list(test.points) };
  },

  bounds({ points }) {
    return boundsOf(points);
  },

  settings() {
    return Object.entries(SETTINGS).map(([name, { value, values }]) => ({ name, value, values }));
  },

  /** The link to settings, and what opens from it. */
  link({ settings, ...more }) {
    const hash = toHash({ ...defaults(), ...settings }, more);
    return { hash, ...fromHash(hash) };
  },

  open({ hash }) {
    return fromHash(hash);
  },

  python({ settings, ...more }) {
    return { code: pythonCode({ ...defaults(), ...settings }, more) };
  },

  loopCode({ scale }) {
    return { code: loopCode(scale) };
  },

  /** The flow at its ends: both planes, the coordinates of the points in them, their extent. */
  flow({ snapshot }) {
    const given = { ...snapshot, V: Float64Array.from(snapshot.V) };
    const turn = projection(given);
    const last = given.depths.length - 1;
    const look = (plane, d) => ({
      plane,
      places: plane.map((b) => Array.from({ length: given.shown }, (_, s) => coordinate(given, d, s, b))),
      extent: extent(given, d, plane),
    });
    return { first: look(turn(0), 0), middle: turn(0.5), last: look(turn(1), last), collapsed: isCollapsed(given) };
  },

  /** The states of a plant and a controller, whose weights may be scrambled first. */
  loop({ kind, weights, settings, plant, start, noise, scale, seed }) {
    const used = scale ? scrambled(weights, scale, new Random(seed)) : weights;
    const controller = kind === "mlp" ? makeMlp(used) : makeCell(used, settings);
    return { weights: used, states: simulate(plant, controller, start, noise) };
  },

  /** Test accuracies of a training with the page's default settings. */
  defaults({ architecture, seed, iterations, every }) {
    const state = { ...defaults(), seed };
    const { train, test } = split(sample(state.data, state), Number(state.test), seed);
    const trainer = new Trainer(new Network(networkOf(state, architecture)), train, trainingOf(state));
    const accuracy = [];
    for (let i = 1; i <= iterations; i++) {
      trainer.step();
      if (i % every === 0) accuracy.push(trainer.evaluate(test).accuracy);
    }
    return { accuracy };
  },
};

const cases = JSON.parse(readFileSync(0, "utf8"));
const results = [];
for (const { task, ...given } of cases) {
  try {
    results.push(tasks[task](given));
  } catch (error) {
    results.push({ error: String(error.message), kind: error.constructor.name });
  }
}
const text = JSON.stringify(results, (_, v) => (typeof v === "number" && !Number.isFinite(v) ? String(v) : v));
process.stdout.write(text);
