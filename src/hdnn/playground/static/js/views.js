// A network on the page: its worker, its history, its panels.

import { ARCHITECTURES } from "./architectures.js";
import { format, PANELS, percent, readTheme, surface } from "./draw.js";
import { isCollapsed } from "./geometry.js";
import { makeEngine } from "./worker.js";

const COLUMNS = 240; // of the history; when it is full, every second one is dropped

/** What was seen at some iterations, thinned out so that it never grows. */
class History {
  rows = [];
  every = 1;
  count = 0;

  add({ iteration, norms, loss, test }) {
    const last = this.rows.at(-1)?.iteration;
    if (last === iteration || (this.count++ % this.every && iteration - last > 1)) this.rows.pop();
    this.rows.push({ iteration, norms, loss: loss ?? NaN, accuracy: test.accuracy });
    if (this.rows.length > COLUMNS) {
      this.rows = this.rows.filter((_, i) => i % 2 === 0);
      this.every *= 2;
    }
  }
}

/** A copy of what a template of the page holds. */
export function cloned(id) {
  const template = /** @type {HTMLTemplateElement} */ (document.getElementById(id));
  return /** @type {HTMLElement} */ (template.content.firstElementChild.cloneNode(true));
}

/** An engine in a worker that runs the page's own script; where there are no workers, on the page. */
function startEngine(receive) {
  const sent = []; // before the first answer, to be said again to an engine on the page
  /** @type {(message: any) => void} */
  let engine;
  const stay = () => {
    engine = makeEngine(receive);
    for (const message of sent) engine(message);
  };
  try {
    const script = document.getElementById("script").textContent;
    const worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
    worker.onerror = stay;
    worker.onmessage = ({ data }) => {
      engine = (message) => worker.postMessage(message);
      worker.onerror = (event) => receive({ type: "error", message: `The worker failed: ${event.message}` });
      worker.onmessage = (event) => receive(event.data);
      receive(data);
    };
    engine = (message) => {
      sent.push(message);
      worker.postMessage(message);
    };
  } catch {
    stay();
  }
  return (message) => engine(message);
}

/** A titled canvas with its explanation. */
export function makePanel(name, title, why) {
  const figure = cloned("panel");
  figure.classList.add(name);
  figure.querySelector(".name").textContent = title;
  const help = /** @type {HTMLElement} */ (figure.querySelector(".why"));
  help.dataset.tip = why;
  help.setAttribute("aria-label", `What is “${title}”?`);
  const canvas = figure.querySelector("canvas");
  canvas.setAttribute("aria-label", title);
  return { figure, canvas };
}

export class View {
  /** @param {number} index 0 or 1. @param {any} app asked for data, told of snapshots. */
  constructor(index, app) {
    this.index = index;
    this.app = app;
    this.number = 0;
    this.depth = 1;
    this.history = new History();
    this.panels = {};
    /** @type {any} the last snapshot */
    this.snapshot = null;
    /** @type {any} the training and test part */
    this.data = null;
    /** @type {?View} to compare with */
    this.other = null;
    /** @type {any} of the network */
    this.settings = null;
    this.color = ({ classes }) => classes[index];
    this.element = cloned("network");
    this.element.dataset.index = String(index);
    this.element.setAttribute("aria-label", index ? "Second network" : "First network");
    for (const [name, panel] of Object.entries(PANELS)) this.addPanel(name, panel);
    this.engine = startEngine((message) => this.receive(message));
  }

  addPanel(name, { name: title, why }) {
    const { figure, canvas } = makePanel(name, title, why);
    this.element.querySelector(".panels").append(figure);
    this.panels[name] = { canvas, figure, dirty: true };
    new ResizeObserver(() => {
      this.panels[name].dirty = true;
      this.app.redraw();
    }).observe(canvas);
  }

  /** Begin anew with a network, data and settings. */
  start({ network, config, data, bounds }) {
    this.data = data;
    this.bounds = bounds;
    this.settings = network;
    this.snapshot = null;
    this.history = new History();
    this.number += 1;
    this.engine({ type: "start", number: this.number, network, config, train: data.train, test: data.test, bounds });
    this.dirty();
  }

  post(type, more = {}) {
    this.engine({ type, ...more });
  }

  receive(message) {
    if (message.type === "error") this.app.say(message.message);
    else if (message.number === this.number) {
      // else of what was there before
      if (message.flow) Object.assign(message, { turn: null, extent: null }); // derived from it
      this.snapshot = { ...this.snapshot, ...message };
      this.history.add(this.snapshot);
      this.dirty();
      this.app.progressed(this);
    }
  }

  dirty(names = Object.keys(PANELS)) {
    for (const name of names) this.panels[name].dirty = true;
    this.app.redraw();
  }

  /** Draw what has changed, as far as the time reaches; returns whether all is drawn. */
  render(deadline) {
    const colors = readTheme();
    // What waited longest comes first.
    const waiting = Object.entries(this.panels).filter(([, panel]) => panel.dirty && this.data);
    waiting.sort(([, a], [, b]) => (a.drawn ?? 0) - (b.drawn ?? 0));
    for (const [name, panel] of waiting) {
      if (performance.now() > deadline) return false;
      Object.assign(panel, { dirty: false, drawn: performance.now() });
      const [ctx, w, h] = surface(panel.canvas);
      if (!ctx) continue;
      PANELS[name].draw(ctx, w, h, this, colors);
    }
    this.describe();
    return true;
  }

  /** The figures in words, for everybody and for screen readers. */
  describe() {
    const { snapshot, element } = this;
    if (!snapshot) return;
    const accuracy = percent(snapshot.test.accuracy);
    element.querySelector(".accuracy").textContent = snapshot.iteration ? accuracy : "–";
    const verdict = /** @type {HTMLElement} */ (element.querySelector(".verdict"));
    const [kind, words] = this.verdict();
    if (verdict.textContent !== words) verdict.textContent = words;
    verdict.dataset.kind = kind;
    const { norms } = snapshot;
    const labels = {
      regions: `Decision regions of ${this.settings.architecture}: test accuracy ${accuracy}`,
      flow: `Flow: test points at layer ${Math.round(this.depth * snapshot.layers)} of ${snapshot.layers}`,
      heat: `Gradient norms over depth and iterations, now ${format(norms[0])} at layer 0`,
      curves: `Learning curves: iteration ${snapshot.iteration}, test accuracy ${accuracy}`,
      weights: `Weights of ${snapshot.layers} layers along depth`,
      spectrum: snapshot.J
        ? "Eigenvalues of the Jacobian: all on the imaginary axis"
        : "Eigenvalues of the Jacobian in the complex plane",
      energy: snapshot.J ? "Energy of some points along depth" : "No energy: the network is not Hamiltonian",
    };
    for (const [name, { canvas }] of Object.entries(this.panels)) canvas.setAttribute("aria-label", labels[name]);
  }

  verdict() {
    const { snapshot } = this;
    if (snapshot.diverged) return ["bad", "Diverged: the loss is not a number. Lower the learning rate or T."];
    const norms = Array.from(snapshot.norms);
    const [low, high] = [Math.min(...norms), Math.max(...norms)];
    if (low < 1e-3) {
      const words = `The gradient vanishes: ${format(low)} at the first layers`;
      return ["bad", isCollapsed(snapshot) ? `${words}. All points end in one place.` : `${words}.`];
    }
    if (!(high < 1e3)) return ["bad", `The gradient explodes: up to ${format(high)}.`];
    return ["good", `The gradient stays between ${format(low)} and ${format(high)}.`];
  }

  /** @returns {HTMLSelectElement} of the architecture */
  select() {
    return this.element.querySelector(".architecture");
  }

  /** Fill the list of architectures, and say what the chosen one is. */
  choices({ values, title }, value) {
    const select = this.select();
    select.replaceChildren(...values.map((v) => new Option(title(v), v, false, v === value)));
    select.dataset.tip = ARCHITECTURES[value]?.equation ?? "";
    this.element.querySelector(".about").textContent = ARCHITECTURES[value]?.about ?? "";
    select.setAttribute(
      "aria-label",
      `${this.index ? "Second" : "First"} network: ${ARCHITECTURES[value]?.equation ?? "none"}`,
    );
  }
}
