// Where the flow stands: one slider a network, moved together, or playing by itself.

const SECONDS = 6; // from the first layer to the last
const REST = 2.5; // at the last, where the result can be seen

export function makeFlowControls(views) {
  const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let playing = !reduced;
  let began = performance.now();
  const sliders = [];
  const buttons = [];
  const show = (depth) => {
    views.forEach((view, i) => {
      view.depth = depth;
      sliders[i].value = depth;
      sliders[i].setAttribute("aria-valuetext", `layer ${Math.round(depth * (view.snapshot?.layers ?? 1))}`);
      view.dirty(["flow"]);
    });
  };
  const set = (on, depth = views[0].depth) => {
    playing = on;
    began = performance.now() - (depth < 1 ? depth : 0) * SECONDS * 1000;
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(on));
      button.textContent = on ? "❚❚" : "▶";
    }
    if (on) requestAnimationFrame(move);
  };
  for (const view of views) {
    const slider = document.createElement("input");
    Object.assign(slider, { type: "range", min: 0, max: 1, step: 0.005, value: 1 });
    slider.setAttribute("aria-label", "Depth of the flow");
    slider.addEventListener("input", () => {
      if (playing) set(false);
      show(Number(slider.value));
    });
    const button = document.createElement("button");
    button.type = "button";
    button.className = "auto";
    button.setAttribute("aria-label", "Let the flow play by itself");
    button.addEventListener("click", () => set(!playing));
    sliders.push(slider);
    buttons.push(button);
    view.panels.flow.figure.querySelector(".extra").append(slider, button);
  }
  let last = -1;
  function move() {
    if (!playing) return;
    const time = ((performance.now() - began) / 1000) % (SECONDS + REST);
    const depth = Math.round(Math.min(1, time / SECONDS) * 200) / 200;
    if (depth !== last && views[0].snapshot) show((last = depth));
    requestAnimationFrame(move);
  }
  set(playing);
  return { set, show };
}
