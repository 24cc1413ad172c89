// The settings as Python code that trains the same with hdnn.

import { ARCHITECTURES } from "./architectures.js";
import { PROBLEMS, SIZE } from "./data.js";
import { networkOf } from "./state.js";

const quoted = (text) => JSON.stringify(String(text));
const rounded = (v) => Number(v.toPrecision(5));

function data(state, drawn) {
  const share = Number(state.test);
  const cut = [
    `cut = round(${1 - share} * len(X))`,
    "X_train, y_train, X_test, y_test = X[:cut], y[:cut], X[cut:], y[cut:]",
  ];
  const shuffle = ["order = torch.randperm(len(X), generator=generator)", "X, y = X[order], y[order]"];
  if (state.data === "drawn") {
    return [
      `points = torch.tensor([${drawn.map((p) => `[${p.map(rounded).join(", ")}]`).join(", ")}])`,
      "X, y = points[:, :2], points[:, 2].long()",
      ...shuffle,
      ...cut,
    ];
  }
  const noise = state.noise ?? PROBLEMS[state.data].noise;
  if (state.data === "spirals") {
    return [
      `y = torch.arange(${SIZE}) % ${state.arms}`,
      `r = (0.02 + 0.98 * torch.rand(${SIZE}, generator=generator)).sqrt()`,
      `t = 2.5 * torch.pi * r + 2 * torch.pi * y / ${state.arms}`,
      "X = torch.stack([r * t.cos(), r * t.sin()], 1)",
      `X = X + ${noise} * (2 * torch.rand(X.shape, generator=generator) - 1)`,
      ...shuffle,
      ...cut,
    ];
  }
  const name = state.data.replace("-", "_");
  return [`X, y = hdnn.data.${name}(${SIZE}, generator, noise=${noise})`, ...shuffle, ...cut];
}

function network(state, architecture) {
  const settings = networkOf(state, architecture);
  const row = ARCHITECTURES[architecture];
  const options = [quoted(architecture), `features=${state.width}`, `layers=${state.layers}`];
  if (row.scheme !== "DirectMap") options.push(`T=${state.T}`);
  if (settings.scheme !== row.scheme) {
    const first = settings.scheme === "ForwardEuler" ? "" : quoted(row.first);
    options.push(`scheme=hdnn.schemes.${settings.scheme}(${first})`);
  }
  if (settings.activation !== "tanh") options.push(`activation=${quoted(settings.activation)}`);
  if (settings.timeInvariant) options.push("time_invariant=True");
  return `hdnn.network(${options.join(", ")}, generator=generator)`;
}

/** A script; `epochs` as many as the page has trained, at least one. */
export function pythonCode(state, { drawn = [], classes = 2, epochs = 50 } = {}) {
  const names = [state.first, state.second].filter((name) => name !== "none");
  const outputs = classes > 2 ? classes : 1;
  const baseline = names.some((name) => ARCHITECTURES[name].J === null);
  return `${[
    "# The settings of the hdnn playground. Random numbers and the decay of the learning rate differ.",
    "import torch",
    "import hdnn",
    "from hdnn.training import Trainer, TrainingConfig",
    "",
    `generator = torch.Generator().manual_seed(${state.seed})`,
    ...data(state, drawn),
    "",
    `train = hdnn.data.Dataset.from_arrays(X_train, y_train, classes=range(${classes}))`,
    "config = TrainingConfig(",
    `    method=${quoted(state.method)}, epochs=${epochs}, batch_size=${state.batch}, schedule="cosine",`,
    `    learning_rate=${state.learningRate}, alpha=${state.alpha}, alpha_c=${state.alphaC}, seed=${state.seed},`,
    ")",
    "networks = [",
    ...names.map((name) => `    ${network(state, name)},`),
    "]",
    "for network in networks:",
    ...(baseline
      ? [
          '    if network.name in ("ResNet", "FCNN"):  # initialized as Glorot does it, not as the paper',
          "        with torch.no_grad():",
          "            network.field.weights.theta.div_(network.features**0.5)",
          "            network.field.weights.beta.zero_()",
        ]
      : []),
    `    model = hdnn.Model(network, ${outputs}, hdnn.Padding(2, ${state.width}))`,
    "    Trainer(model, config).fit(train)",
    "    accuracy = (model.predict(X_test) == y_test).double().mean()",
    "    with torch.no_grad():",
    "        gradients = hdnn.analysis.sensitivities(network, model.preprocess(X_test[:100]))",
    "    norms = torch.linalg.matrix_norm(gradients, 2).mean(1)",
    '    print(f"{network.name}: test accuracy {accuracy:.1%}, "',
    '          f"gradient norms {norms.min():.1e} to {norms.max():.1e}")',
  ].join("\n")}\n`;
}

/** The state-space controller of the second tab: trained, then with random weights of this size. */
export function loopCode(scale) {
  return `${[
    "import torch",
    "import hdnn",
    "from hdnn.control import feedback, gain_limit, sampled",
    "",
    "h = 0.05",
    "A, B, C = [[0, 1], [-1, -0.2]], [[0], [1]], [[0, 1]]  # a mass on a spring",
    "print(gain_limit(A, B, C, step=h))  # a controller of less gain cannot make this mass unstable",
    "",
    "torch.manual_seed(0)",
    "mass = sampled(A, B, C, step=h)",
    "controller = hdnn.StateSpace(inputs=1, states=4, units=8, step=h, passive=True, gain=20.0)",
    "controller, starts = controller.double(), torch.randn(32, 2).double()",
    "optimizer = torch.optim.Adam(controller.parameters(), lr=0.02)",
    "for _ in range(100):",
    "    loop = feedback(mass, controller, starts, steps=100)  # 5 s",
    "    loss = loop.plant.square().mean() + 0.1 * loop.applied.square().mean()",
    "    optimizer.zero_grad()",
    "    loss.backward()",
    "    optimizer.step()",
    "",
    "with torch.no_grad():",
    `    controller.reset_parameters(scale=${scale})  # random weights`,
    "    loop = feedback(mass, controller, starts, steps=4000)  # 200 s",
    'print(f"largest distance after 200 s: {loop.plant[-1].abs().max():.1e}")',
  ].join("\n")}\n`;
}
