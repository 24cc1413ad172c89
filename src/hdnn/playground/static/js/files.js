// Files in and out: networks as safetensors, tables as CSV, by choosing or by dropping.

import { PlaygroundError } from "./architectures.js";
import { parseTable } from "./data.js";
import { Network } from "./network.js";
import { read, write } from "./safetensors.js";
import { download } from "./views.js";

const MOST_BYTES = 50e6;

/** Write the network of a view, as it stands, to a file. */
export async function saveNetwork(view, names) {
  const { theta, beta, V } = await view.request("export", "export");
  const network = new Network({ ...view.given, theta, beta });
  const bytes = write(network, V, { augmentation: view.augmentation, labels: names });
  download(`${view.given.architecture}-${view.given.layers}.safetensors`, new Blob([bytes], { type: "application/octet-stream" }));
}

/** What a file is: { table } or { network }, or a PlaygroundError that says what is wrong. */
export async function readFile(file) {
  if (file.size > MOST_BYTES) throw new PlaygroundError(`${file.name.slice(0, 60)} has ${Math.round(file.size / 1e6)} MB; the playground takes up to 50`);
  if (file.size === 0) throw new PlaygroundError(`${file.name.slice(0, 60)} is empty`);
  if (/\.safetensors$/i.test(file.name)) return { network: read(await file.arrayBuffer()) };
  return { table: parseTable(await file.text(), file.name) };
}

/** Call `take(file)` for a file that is dropped on the page or chosen. */
export function acceptFiles(take) {
  const veil = document.getElementById("drop");
  const input = document.getElementById("file");
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    veil.hidden = false;
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && (veil.hidden = true));
  addEventListener("drop", (event) => {
    veil.hidden = true;
    if (!carries(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  document.getElementById("open-file").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    if (input.files[0]) take(input.files[0]);
    input.value = "";
  });
}
