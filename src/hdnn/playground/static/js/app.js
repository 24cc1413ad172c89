// The page: settings, two networks, playing, data, links.

import { ControlPage } from "./control.js";
import { makeControls, makeTips, showState } from "./controls.js";
import { boundsOf, sample, split } from "./data.js";
import { percent } from "./draw.js";
import { makeDrawing } from "./drawing.js";
import { makeFlowControls } from "./flow.js";
import { pythonCode } from "./python.js";
import { fromHash, networkOf, SETTINGS, toHash, trainingOf } from "./state.js";
import { TOUR } from "./tour.js";
import { View } from "./views.js";

/** @type {(id: string) => any} */
const $ = (id) => document.getElementById(id);
const DRAWING = 8; // ms of a frame for drawing; the rest waits for the next one
const LEAD = 150; // iterations that the faster network may be ahead
const ALONE = 1500; // iterations of a training that began by itself
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export class App {
  constructor() {
    this.playing = false;
    this.unasked = false; // whether the training began by itself
    this.drawn = [];
    this.state = fromHash("").state;
    /** @type {?ControlPage} made when it is first seen */
    this.control = null;
    /** @type {?number} */
    this.tour = null;
    this.frames = 0;
    this.turn = false;
    this.views = [0, 1].map((index) => new View(index, this));
    $("main").prepend(...this.views.map((view) => view.element));
    this.flow = makeFlowControls(this.views);
    makeControls($("controls"), (name, value) => this.set({ [name]: value }));
    makeTips();
    const active = () => this.state.data === "drawn";
    this.drawings = this.views.map((view) =>
      makeDrawing(view, { active, add: (...p) => this.addPoint(...p), clear: () => this.clearPoints() }),
    );
    this.wire();
    this.open(location.hash);
  }

  // --- settings -----------------------------------------------------------------------------------

  /** Take over a link. */
  open(hash) {
    const second = hash === "#control";
    document.body.classList.toggle("statespace", second);
    for (const link of document.querySelectorAll(".tabs a")) {
      if ((link.getAttribute("href") === "#control") === second) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (second) {
      if (this.playing) this.play(false);
      this.control ??= new ControlPage();
      return;
    }
    const { state, tour, drawn, message } = fromHash(hash);
    this.state = state;
    this.drawn = drawn;
    this.say(message);
    if (tour !== null) this.showTour(tour);
    else {
      this.closeTour();
      this.restart();
      if (!still()) this.play(true, true);
    }
  }

  /** Change settings, and begin anew with them. */
  set(changes) {
    this.state = { ...this.state, ...changes };
    this.restart();
  }

  makeData() {
    const { state } = this;
    if (state.data !== "drawn") return sample(state.data, state);
    const points = this.drawn.length ? this.drawn : [-0.5, 0.5].map((x, label) => [x, 0, label]);
    return {
      points: Float32Array.from(points.flatMap((p) => p.slice(0, 2))),
      labels: Int32Array.from(points, (p) => p[2]),
      classes: Math.max(2, ...points.map((p) => p[2] + 1)),
    };
  }

  /** New data and new networks from the settings. */
  restart() {
    const { state } = this;
    const data = this.makeData();
    this.data = split(data, Number(state.test), state.seed);
    if (state.data === "drawn") this.data.test = this.data.train = split(data, 0, state.seed).train;
    const bounds = state.data === "drawn" ? { x: -1, y: -1, side: 2 } : boundsOf(data.points);
    this.shown().forEach((view) => {
      const network = networkOf(state, view.index ? state.second : state.first);
      view.start({ network, config: trainingOf(state), data: this.data, bounds });
      view.post("limit", { value: LEAD });
    });
    this.show();
    if (this.playing) for (const view of this.shown()) view.post("play");
  }

  shown() {
    return this.views.filter((view) => view.index === 0 || this.state.second !== "none");
  }

  /** Bring the page in line with the settings. */
  show() {
    const { state, views } = this;
    showState($("controls"), state);
    views[0].choices(SETTINGS.first, state.first);
    views[1].choices(SETTINGS.second, state.second);
    const alone = state.second === "none";
    views[1].element.classList.toggle("off", alone);
    $("main").classList.toggle("alone", alone);
    views[0].other = alone ? null : views[1];
    views[1].other = views[0];
    document.body.classList.toggle("all", state.panels === "all");
    $("more").setAttribute("aria-expanded", String(state.panels === "all"));
    for (const update of this.drawings) update();
    const hash = toHash(state, { tour: this.tour, drawn: this.drawn });
    history.replaceState(null, "", hash);
    document.querySelector(".tabs a").setAttribute("href", hash); // the way back to these settings
  }

  // --- training -----------------------------------------------------------------------------------

  play(on = !this.playing, unasked = false) {
    Object.assign(this, { playing: on, unasked });
    const button = $("play");
    button.setAttribute("aria-pressed", String(on));
    button.querySelector("b").textContent = on ? "Pause" : "Play";
    button.querySelector("span").textContent = on ? "❚❚" : "▶";
    for (const view of this.shown()) view.post(on ? "play" : "pause");
    if (!on) this.announce();
  }

  step() {
    if (this.playing) this.play(false);
    for (const view of this.shown()) view.post("step");
  }

  reset() {
    if (this.playing) this.play(false);
    this.restart();
  }

  /** A snapshot has come: the slower network says how far the other may go. */
  progressed(view) {
    const going = this.shown().filter((v) => !v.snapshot?.diverged);
    const slowest = Math.min(...going.map((v) => v.snapshot?.iteration ?? 0));
    for (const other of this.shown()) other.post("limit", { value: slowest + LEAD });
    if (this.unasked && slowest >= ALONE) this.play(false);
    if (view.index === 0) $("iteration").textContent = `iteration ${view.snapshot.iteration}`;
    view.other?.dirty(["curves"]);
  }

  redraw() {
    if (this.frames) return;
    this.frames = requestAnimationFrame(() => {
      this.frames = 0;
      const began = performance.now();
      this.turn = !this.turn; // the views take turns in being first
      const views = this.turn ? this.shown() : this.shown().reverse();
      const done = views.map((view) => view.render(began + DRAWING));
      if (!done.every(Boolean)) this.redraw();
    });
  }

  /** Tell a screen reader where things stand. */
  announce() {
    const words = ({ settings, snapshot }) =>
      `${settings.architecture}: iteration ${snapshot.iteration}, test accuracy ${percent(snapshot.test.accuracy)}.`;
    const known = this.shown().filter((view) => view.snapshot);
    $("status").textContent = known.map((view) => `${words(view)} ${view.verdict()[1]}`).join(" ");
  }

  say(text) {
    $("message").hidden = !text;
    $("message").firstElementChild.textContent = text ?? "";
  }

  // --- drawn points -----------------------------------------------------------------------------

  addPoint(x, y, label, most) {
    if (this.drawn.length >= most) return this.say(`${most} points are the most that can be drawn.`);
    this.drawn.push([Math.max(-1, Math.min(1, x)), Math.max(-1, Math.min(1, y)), label]);
    clearTimeout(this.drawTimer);
    this.drawTimer = setTimeout(() => this.restart(), 120);
    const { train } = this.data;
    const points = this.drawn;
    for (const view of this.views) {
      if (!view.data) continue;
      view.data = {
        ...view.data,
        test: {
          ...train,
          points: Float32Array.from(points.flatMap((p) => p.slice(0, 2))),
          labels: Int32Array.from(points, (p) => p[2]),
        },
      };
      view.dirty(["regions"]);
    }
    return undefined;
  }

  clearPoints() {
    this.drawn = [];
    this.restart();
  }

  // --- tour ---------------------------------------------------------------------------------------

  showTour(step) {
    this.tour = step;
    const { title, text, state, focus } = TOUR[step];
    const tour = $("tour");
    tour.hidden = false;
    tour.querySelector(".step").textContent = `${step + 1} / ${TOUR.length}`;
    tour.querySelector("h2").textContent = title;
    tour.querySelector(".text").textContent = text;
    tour.querySelector(".back").disabled = step === 0;
    tour.querySelector(".next").textContent = step === TOUR.length - 1 ? "Finish" : "Next";
    document.body.dataset.focus = focus;
    this.state = { ...fromHash("").state, ...state };
    this.restart();
    if (!still()) this.play(true, true);
    tour.querySelector("h2").focus({ preventScroll: true });
  }

  closeTour() {
    $("tour").hidden = true;
    delete document.body.dataset.focus;
    this.tour = null;
  }

  // --- wiring -------------------------------------------------------------------------------------

  wire() {
    const click = (id, action) => $(id).addEventListener("click", action);
    click("play", () => this.play());
    click("step", () => this.step());
    click("reset", () => this.reset());
    click("tour-open", () => this.showTour(this.tour ?? 0));
    click("more", () => {
      this.state.panels = this.state.panels === "all" ? "three" : "all";
      this.show();
    });
    click("link", async () => {
      const copied = await copy(location.href);
      this.say(copied ? "The link to these settings is copied." : "Copy the address of this page to link to it.");
    });
    const code = $("code");
    click("python", () => {
      code.querySelector("code").textContent = this.python();
      code.querySelector(".copy").textContent = "Copy";
      code.showModal();
    });
    code.querySelector(".copy").onclick = async ({ target }) => {
      const copied = await copy(code.querySelector("code").textContent);
      target.textContent = copied ? "Copied" : "Not allowed: select the text";
    };
    code.querySelector(".close").onclick = () => code.close();
    click("scramble", () => this.control.scramble());
    click("scramble-many", () => this.control.scramble(100));
    click("trained", () => this.control.trained());
    click("theme", () => this.switchTheme());
    $("message").querySelector("button").onclick = () => this.say(null);
    const setSpeed = () => {
      for (const view of this.views) view.post("speed", { value: Number($("speed").value) });
    };
    $("speed").addEventListener("change", setSpeed);
    setSpeed();
    for (const view of this.views) {
      const select = view.select();
      select.addEventListener("change", () => this.set({ [view.index ? "second" : "first"]: select.value }));
    }
    const tour = $("tour");
    tour.querySelector(".back").onclick = () => this.showTour(this.tour - 1);
    tour.querySelector(".next").onclick = () => {
      if (this.tour === TOUR.length - 1) this.endTour();
      else this.showTour(this.tour + 1);
    };
    tour.querySelector(".close").onclick = () => this.endTour();
    addEventListener("hashchange", () => this.open(location.hash));
    addEventListener("keydown", (event) => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.views.forEach((v) => v.dirty()));
    const narrow = matchMedia("(max-width: 760px)");
    const fold = () => {
      $("settings").open = !narrow.matches;
    };
    narrow.addEventListener("change", fold);
    fold();
  }

  endTour() {
    this.closeTour();
    this.show();
    $("tour-open").focus();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, dialog *")) return;
    const held = event.target.matches("button, summary");
    if (document.body.classList.contains("statespace")) {
      ({ s: () => this.control.scramble(), r: () => this.control.trained() })[event.key]?.();
      return;
    }
    const actions = { s: () => this.step(), r: () => this.reset(), t: () => this.showTour(this.tour ?? 0) };
    if (event.key === " " && !held) {
      event.preventDefault();
      this.play();
    } else actions[event.key]?.();
  }

  switchTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    this.views.forEach((v) => v.dirty());
    this.control?.redraw();
  }

  python() {
    if (document.body.classList.contains("statespace")) return this.control.python();
    const steps = Math.ceil(this.data.train.labels.length / this.state.batch);
    const epochs = Math.max(50, Math.ceil((this.views[0].snapshot?.iteration ?? 0) / steps));
    return pythonCode(this.state, { drawn: this.drawn, classes: this.data.classes, epochs });
  }
}

/** Whether the browser let the page copy a text. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
