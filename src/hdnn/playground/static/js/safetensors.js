// Networks as files: safetensors with hdnn's JSON description (hdnn/models/persistence). A file
// holds names and numbers only; what it says is compared with the shapes of its tensors.

import { ARCHITECTURES, PlaygroundError, SCHEMES, describe } from "./architectures.js";

const LIMITS = { bytes: 50e6, width: 32, layers: 1000 };
const FORMAT = 1;
const TYPES = { F32: [4, Float32Array], F64: [8, Float64Array] };

const short = (value) => String(value).slice(0, 60);

/** A number that Python's JSON writes as a float: 1 is "1.0". */
class Float {
  constructor(value) {
    this.value = value;
  }

  toString() {
    let text = String(this.value);
    if (this.value !== 0 && Math.abs(this.value) < 1e-4 && !text.includes("e")) text = this.value.toExponential();
    if (/^-?\d+$/.test(text)) return `${text}.0`;
    return text.replace(/e([+-])(\d)$/, "e$10$2").replace(".0e", "e");
  }
}

/** A value as `json.dumps` writes it, keys sorted where the checksum wants them. */
function dumps(value, sort = false) {
  if (value instanceof Float) return value.toString();
  if (Array.isArray(value)) return `[${value.map((v) => dumps(v, sort)).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    const keys = sort ? Object.keys(value).sort() : Object.keys(value);
    return `{${keys.map((k) => `${dumps(k)}: ${dumps(value[k], sort)}`).join(", ")}}`;
  }
  return JSON.stringify(value).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// --- writing --------------------------------------------------------------------------------------

function schemeOf(network) {
  const { scheme, first, coefficients } = network;
  if (!coefficients) return { type: scheme };
  return { type: "Splitting", coefficients: coefficients.map((c) => new Float(c)), first, name: scheme };
}

function fieldOf(network) {
  const { row, n, layers, timeInvariant, activation } = network;
  const weighted = {
    activation, structure: row.structure, features: n, kernel: 1, layers,
    time_invariant: timeInvariant, ensemble: null,
  };
  if (row.J === null) return { type: "activation", ...weighted };
  const J = row.J === "inverse" ? { type: "inverse" } : { type: "fixed", name: row.J };
  return { type: "hamiltonian", ...weighted, J };
}

/** Tensors by name: shape, dtype as torch and safetensors call it, values. */
function tensorsOf(network, V, outputs) {
  const { n, rows, parameters, biases, J, row } = network;
  const weight = Float32Array.from({ length: outputs * n }, (_, p) => V[Math.floor(p / n) * (n + 1) + (p % n)]);
  const bias = Float32Array.from({ length: outputs }, (_, o) => V[o * (n + 1) + n]);
  const tensors = {
    "head.bias": [[outputs], bias],
    "head.weight": [[outputs, n], weight],
    "network.field.weights.beta": [[rows, biases], network.beta],
    "network.field.weights.theta": [[rows, parameters], network.theta],
  };
  if (J) tensors["network.field.interconnection.J"] = [[n, n], Float32Array.from(J)];
  if (row.bias === "ms1") tensors["pattern.b"] = [[n], BigInt64Array.from(network.bias, BigInt)];
  return tensors;
}

/**
 * The bytes of a model that `hdnn.load` reads.
 * @param {Network} network
 * @param {Float64Array} V the output layer, (outputs, n + 1).
 * @param {{augmentation: string, labels: ?string[]}} given
 */
export async function write(network, V, given) {
  const outputs = V.length / (network.n + 1);
  const tensors = tensorsOf(network, V, outputs);
  const description = {
    format: FORMAT, kind: "model",
    network: {
      name: network.architecture, layers: network.layers,
      step: network.usesStep ? new Float(network.h) : null,
      learn_steps: false, backend: "auto", memory: "fast",
      scheme: schemeOf(network), field: fieldOf(network),
    },
    outputs, task: "classification", classes: given.labels ?? null, feature_names: null,
    augmentation: { features: 2, width: network.n, mode: given.augmentation },
  };
  const names = Object.keys(tensors).sort();
  const digest = await checksum(description, tensors, names);
  if (digest) description.sha256 = digest;
  // The widest numbers first, so that all are aligned.
  names.sort((a, b) => tensors[b][1].BYTES_PER_ELEMENT - tensors[a][1].BYTES_PER_ELEMENT);
  const header = { __metadata__: { hdnn: dumps(description) } };
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

/** SHA-256 of description and tensors as hdnn computes it; null where no crypto is to be had. */
async function checksum(description, tensors, names) {
  if (!globalThis.crypto?.subtle) return null; // an insecure context: hdnn reads files without, too
  const encoder = new TextEncoder();
  const parts = [encoder.encode(dumps(description, true))];
  for (const name of names) {
    const [shape, values] = tensors[name];
    const dtype = values.BYTES_PER_ELEMENT === 8 ? "torch.int64" : "torch.float32";
    const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
    parts.push(encoder.encode(`\n${name} ${dtype} ${tuple}\n`));
    parts.push(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
  }
  const whole = new Uint8Array(await new Blob(parts).arrayBuffer());
  const hash = await crypto.subtle.digest("SHA-256", whole);
  return Array.from(new Uint8Array(hash), (b) => b.toString(16).padStart(2, "0")).join("");
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

function readScheme(scheme) {
  if (scheme?.type !== "Splitting") {
    if (["ForwardEuler", "DirectMap"].includes(scheme?.type)) return { scheme: scheme.type };
    throw new PlaygroundError(`the playground has no scheme ${short(scheme?.type)}; it has forward Euler and splittings`);
  }
  const known = Object.keys(SCHEMES).find(
    (name) => name === scheme.name && JSON.stringify(SCHEMES[name]) === JSON.stringify(scheme.coefficients),
  );
  if (!known || !["y", "z"].includes(scheme.first)) throw new PlaygroundError(`the playground has no splitting ${short(scheme.name)}`);
  return { scheme: known, first: scheme.first };
}

function architectureOf(name, field) {
  const row = Object.hasOwn(ARCHITECTURES, name ?? "") ? ARCHITECTURES[name] : null;
  const J = field.type === "activation" ? null : field.J?.type === "inverse" ? "inverse" : field.J?.name;
  if (!row || row.structure !== field.structure || row.J !== J || field.J?.type === "learned") {
    throw new PlaygroundError(`the playground has no network ${short(name)} with K ${short(field.structure)} and J ${short(J)}`);
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
  const model = description.kind === "model";
  if (!model && description.kind !== "network") throw new PlaygroundError("the playground takes networks over features, not image classifiers");
  const prefix = model ? "network." : "";
  const network = readNetwork(model ? description.network : description, (name, ...shape) => tensor(prefix + name, ...shape));
  if (!model) return { network, V: null, classes: 2, augmentation: "append", scaler: null, labels: null };
  if (description.task !== "classification") throw new PlaygroundError("the playground classifies; this model does regression");
  const augmentation = description.augmentation;
  const features = augmentation ? augmentation.features : network.width;
  if (features !== 2) throw new PlaygroundError(`the model takes ${short(features)} features; the playground shows points in the plane, 2`);
  const outputs = integer(description.outputs, "outputs", 1, 10);
  const weight = tensor("head.weight", outputs, network.width);
  const bias = tensor("head.bias", outputs);
  const n = network.width;
  const V = Float64Array.from({ length: outputs * (n + 1) }, (_, p) => {
    const [o, k] = [Math.floor(p / (n + 1)), p % (n + 1)];
    return k < n ? weight[o * n + k] : bias[o];
  });
  const scaler = has("scaler.mean") ? { mean: tensor("scaler.mean", 2), scale: tensor("scaler.scale", 2) } : null;
  const mode = augmentation?.mode === "spread" ? "spread" : "append";
  return { network, V, classes: Math.max(2, outputs), augmentation: mode, scaler, labels: description.classes };
}

function readNetwork(description, tensor) {
  const field = description?.field ?? {};
  const name = description?.name;
  const row = architectureOf(name, field);
  if (field.ensemble !== null || (field.kernel ?? 1) !== 1 || !Number.isInteger(field.features)) {
    throw new PlaygroundError("the playground takes single networks over features");
  }
  const width = integer(field.features, "the width", 2, LIMITS.width);
  const layers = integer(field.layers, "the number of layers", 1, LIMITS.layers);
  const step = description.step;
  if (step !== null && !(step > 0)) throw new PlaygroundError("the playground takes one step size for all layers");
  const given = {
    architecture: name, width, layers, step, ...readScheme(description.scheme),
    activation: field.activation, timeInvariant: field.time_invariant === true,
  };
  if (given.scheme !== "DirectMap" && step === null) throw new PlaygroundError("the playground takes one step size for all layers");
  if (row.J && row.J !== "inverse") given.J = Float64Array.from(tensor("field.interconnection.J", width, width));
  const { parameters, biases } = describe(given);
  const rows = given.timeInvariant ? 1 : layers;
  given.theta = tensor("field.weights.theta", rows, parameters);
  given.beta = tensor("field.weights.beta", rows, biases);
  return given;
}
