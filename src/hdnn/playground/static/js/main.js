// The page, or in a worker, which runs the same script, a network of it.

import { App } from "./app.js";
import { makeEngine } from "./worker.js";

if (typeof document === "undefined") {
  const receive = makeEngine((message) => postMessage(message));
  globalThis.onmessage = ({ data }) => receive(data);
} else {
  Object.assign(globalThis, { playground: { app: new App() } });
}
