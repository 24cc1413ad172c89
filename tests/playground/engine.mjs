// Runs the playground's engine on cases from standard input; test_engine.py compares.
import { readFileSync } from "node:fs";

const folder = process.argv[2];
const load = (name) => import(`${folder}/js/${name}.js`);
const { Network } = await load("network");
const { Trainer } = await load("training");
const analysis = await load("analysis");
const { schemesOf, ARCHITECTURES } = await load("architectures");
const { ACTIVATIONS } = await load("activations");
const { sample, split } = await load("data");
const { defaults, networkOf, trainingOf } = await load("state");

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
