// Networks as files: safetensors with hdnn's JSON description (hdnn/models/files.py). A file
// holds names and numbers only; what it says is compared with the shapes of its tensors.

import { ARCHITECTURES, PlaygroundError, SCHEMES, describe } from "./architectures.js";

const LIMITS = { bytes: 50e6, width: 32, layers: 1000 };
const FORMAT = 1;
const TYPES = { F32: [4, Float32Array], F64: [8, Float64Array] };

const short = (value) => String(value).slice(0, 60);

const made = (name, given = {}) => ({ class: name, arguments: given });
const PREFIX = "blocks.0.";

// --- writing --------------------------------------------------------------------------------------

function schemeOf(network) {
  const { scheme, first, coefficients } = network;
  return coefficients ? made("Splitting", { coefficients, first, name: scheme }) : made(scheme);
}

function fieldOf(network) {
  const { row, n, layers, timeInvariant, activation } = network;
  const bias = row.bias === "ms1" ? made("Pattern", { code: { tensor: "arguments.0" } }) : null;
  const weights = made("Weights", {
    structure: row.structure, features: n, bias, ensemble: null, init: "zeros", kernel: 1, layers,
    time_invariant: timeInvariant, dtype: { dtype: "float32" },
  });
  if (row.J === null) return made("ActivationField", { weights, activation });
  const fixed = { J: { tensor: `${PREFIX}field.interconnection.J` }, name: row.J };
  const J = row.J === "inverse" ? made("InverseTranspose") : made("Fixed", fixed);
  return made("HamiltonianField", { J, weights, activation, dissipation: null });
}

/** Tensors by name: shape, dtype as torch and safetensors call it, values. */
function tensorsOf(network, V, outputs) {
  const { n, rows, parameters, biases, J, row } = network;
  const weight = Float32Array.from({ length: outputs * n }, (_, p) => V[Math.floor(p / n) * (n + 1) + (p % n)]);
  const bias = Float32Array.from({ length: outputs }, (_, o) => V[o * (n + 1) + n]);
  const tensors = {
    "head.bias": [[outputs], bias],
    "head.weight": [[outputs, n], weight],
    [`${PREFIX}field.weights.beta`]: [[rows, biases], network.beta],
    [`${PREFIX}field.weights.theta`]: [[rows, parameters], network.theta],
  };
  if (J) tensors[`${PREFIX}field.interconnection.J`] = [[n, n], Float32Array.from(J)];
  if (row.bias === "ms1") tensors["arguments.0"] = [[n], BigInt64Array.from(network.bias, BigInt)];
  return tensors;
}

/**
 * The bytes of a model that `hdnn.load` reads.
 * @param {Network} network
 * @param {Float64Array} V the output layer, (outputs, n + 1).
 * @param {{augmentation: string, labels: ?string[]}} given
 */
export function write(network, V, given) {
  const outputs = V.length / (network.n + 1);
  const tensors = tensorsOf(network, V, outputs);
  const net = made("HamiltonianNetwork", {
    field: fieldOf(network), scheme: schemeOf(network), layers: network.layers, learn_steps: false,
    backend: "auto", memory: "fast", name: network.architecture,
    step: network.usesStep ? network.h : null,
  });
  const augmentation = made("Augmentation", { features: 2, width: network.n, mode: given.augmentation });
  const model = made("Model", {
    network: made("Blocks", { modules: [net], features: network.n }), outputs,
    stem: made("TableStem", { width: network.n, augmentation, scaler: null, projection: null }),
    task: "classification", classes: given.labels ?? null, feature_names: null, target_names: null,
    columns: null,
  });
  const names = Object.keys(tensors).sort();
  // The widest numbers first, so that all are aligned.
  names.sort((a, b) => tensors[b][1].BYTES_PER_ELEMENT - tensors[a][1].BYTES_PER_ELEMENT);
  const header = { __metadata__: { hdnn: JSON.stringify({ format: FORMAT, thing: model }) } };
  let end = 0;
  for (const name of names) {
    const [shape, values] = tensors[name];
    const dtype = values.BYTES_PER_ELEMENT === 8 ? "I64" : "F32";
    header[name] = { dtype, shape, data_offsets: [end, (end += values.byteLength)] };
  }
  let text = JSON.stringify(header);
  text = text.padEnd(Math.ceil(text.length / 8) * 8);
  const head = new TextEncoder().encode(text);
  const bytes = new Uint8Array(8 + head.length + end);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(head.length), true);
  bytes.set(head, 8);
  for (const name of names) {
    const values = tensors[name][1];
    const start = 8 + head.length + header[name].data_offsets[0];
    bytes.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), start);
  }
  return bytes;
}

// --- reading --------------------------------------------------------------------------------------

/** The header and a function that gives the values of a tensor. */
function open(buffer) {
  if (buffer.byteLength > LIMITS.bytes) throw new PlaygroundError(`the file has ${Math.round(buffer.byteLength / 1e6)} MB; the playground takes up to 50`);
  if (buffer.byteLength < 8) throw new PlaygroundError("the file is no safetensors file");
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > buffer.byteLength - 8) throw new PlaygroundError("the file is truncated, or no safetensors file");
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(buffer, 8, length)));
  } catch {
    throw new PlaygroundError("the file is damaged, or no safetensors file");
  }
  const tensor = (name, ...shape) => {
    const entry = Object.hasOwn(header, name) ? header[name] : null;
    const [size, Kind] = TYPES[entry?.dtype] ?? [];
    if (!Kind) throw new PlaygroundError(`the tensor ${short(name)} is absent, or not of float32 or float64`);
    const count = shape.reduce((a, b) => a * b, 1);
    const [from, to] = entry.data_offsets ?? [];
    const fits = JSON.stringify(entry.shape) === JSON.stringify(shape) && to - from === count * size;
    if (!fits || !(from >= 0) || !(8 + length + to <= buffer.byteLength)) {
      throw new PlaygroundError(`the tensor ${short(name)} has shape ${short(entry.shape)}, expected ${shape}`);
    }
    const values = new Kind(buffer.slice(8 + length + from, 8 + length + to));
    if (!values.every(Number.isFinite)) throw new PlaygroundError(`the tensor ${short(name)} has numbers that are not finite`);
    return values;
  };
  return { header, tensor, has: (name) => Object.hasOwn(header, name) };
}

function integer(value, name, low, high) {
  if (!Number.isInteger(value) || value < low || value > high) {
    throw new PlaygroundError(`${name} is ${short(value)}; the playground takes ${low} to ${high}`);
  }
  return value;
}

function readScheme(described) {
  const [kind, scheme] = [described?.class, described?.arguments ?? {}];
  if (kind !== "Splitting") {
    if (["ForwardEuler", "DirectMap"].includes(kind)) return { scheme: kind };
    throw new PlaygroundError(`the playground has no scheme ${short(kind)}; it has forward Euler and splittings`);
  }
  const known = Object.keys(SCHEMES).find(
    (name) => name === scheme.name && JSON.stringify(SCHEMES[name]) === JSON.stringify(scheme.coefficients),
  );
  if (!known || !["y", "z"].includes(scheme.first)) throw new PlaygroundError(`the playground has no splitting ${short(scheme.name)}`);
  return { scheme: known, first: scheme.first };
}

function architectureOf(name, field, structure) {
  const row = Object.hasOwn(ARCHITECTURES, name ?? "") ? ARCHITECTURES[name] : null;
  const kinds = { Fixed: field.J?.arguments?.name, InverseTranspose: "inverse" };
  const J = field.J ? kinds[field.J.class] : null;
  if (!row || row.structure !== structure || row.J !== J) {
    throw new PlaygroundError(`the playground has no network ${short(name)} with K ${short(structure)} and J ${short(J)}`);
  }
  return row;
}

/**
 * What a file holds that hdnn (or this page) wrote.
 * @returns {{network: object, V: ?Float64Array, classes: number, augmentation: string, scaler: ?object}}
 */
export function read(buffer) {
  const { header, tensor, has } = open(buffer);
  let description;
  try {
    description = JSON.parse(header.__metadata__.hdnn);
  } catch {
    throw new PlaygroundError("it is a safetensors file, but hdnn did not write it");
  }
  if (description.format !== FORMAT) throw new PlaygroundError(`the file has format ${short(description.format)}, this page reads ${FORMAT}`);
  const thing = description.thing ?? {};
  const model = thing.class === "Model" ? thing.arguments ?? {} : null;
  if (!model) return { network: readNetwork(thing, tensor), V: null, classes: 2, augmentation: "append", scaler: null, labels: null };
  if (model.stem?.class !== "TableStem") throw new PlaygroundError("the playground takes networks over features, not image classifiers");
  const net = model.network?.arguments?.modules?.[0];
  const network = readNetwork(net, (name, ...shape) => tensor(PREFIX + name, ...shape));
  if (model.task !== "classification") throw new PlaygroundError("the playground classifies; this model does regression");
  const augmentation = model.stem.arguments?.augmentation?.arguments;
  const features = augmentation ? augmentation.features : network.width;
  if (features !== 2) throw new PlaygroundError(`the model takes ${short(features)} features; the playground shows points in the plane, 2`);
  const outputs = integer(model.outputs, "outputs", 1, 10);
  const weight = tensor("head.weight", outputs, network.width);
  const bias = tensor("head.bias", outputs);
  const n = network.width;
  const V = Float64Array.from({ length: outputs * (n + 1) }, (_, p) => {
    const [o, k] = [Math.floor(p / (n + 1)), p % (n + 1)];
    return k < n ? weight[o * n + k] : bias[o];
  });
  const scaler = has("stem.scaler.mean") ? { mean: tensor("stem.scaler.mean", 2), scale: tensor("stem.scaler.scale", 2) } : null;
  const mode = augmentation?.mode === "spread" ? "spread" : "append";
  return { network, V, classes: Math.max(2, outputs), augmentation: mode, scaler, labels: model.classes };
}

function readNetwork(described, tensor) {
  if (described?.class !== "HamiltonianNetwork") throw new PlaygroundError(`the playground takes networks, not a ${short(described?.class)}`);
  const { name, step, scheme, field } = described.arguments ?? {};
  const dynamics = field?.arguments ?? {};
  const weights = dynamics.weights?.arguments ?? {};
  const row = architectureOf(name, dynamics, weights.structure);
  if (weights.ensemble !== null || weights.kernel !== 1 || !Number.isInteger(weights.features)) {
    throw new PlaygroundError("the playground takes single networks over features");
  }
  const width = integer(weights.features, "the width", 2, LIMITS.width);
  const layers = integer(weights.layers, "the number of layers", 1, LIMITS.layers);
  const given = {
    architecture: name, width, layers, step, ...readScheme(scheme),
    activation: dynamics.activation, timeInvariant: weights.time_invariant === true,
  };
  const timed = given.scheme !== "DirectMap";
  if (timed ? !(step > 0) : step !== null) throw new PlaygroundError("the playground takes one step size for all layers");
  if (row.J && row.J !== "inverse") given.J = Float64Array.from(tensor("field.interconnection.J", width, width));
  const { parameters, biases } = describe(given);
  const rows = given.timeInvariant ? 1 : layers;
  given.theta = tensor("field.weights.theta", rows, parameters);
  given.beta = tensor("field.weights.beta", rows, biases);
  return given;
}
