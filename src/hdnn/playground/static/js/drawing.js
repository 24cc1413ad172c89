// Drawing data on the decision regions, with the pointer or the keyboard.

const MOST = 400;

/** Tools above the regions of a view; `add(x, y, label)` and `clear()` change the points. */
export function makeDrawing(view, { add, clear, active }) {
  const { canvas, figure } = view.panels.regions;
  const tools = document.createElement("span");
  tools.className = "brushes";
  let label = 0;
  const buttons = [0, 1, 2].map((k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "brush";
    button.style.setProperty("--brush", `var(--c${k})`);
    button.setAttribute("aria-label", `Draw class ${k + 1}`);
    button.addEventListener("click", () => choose(k));
    return button;
  });
  const choose = (k) => {
    label = k;
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(i === k)));
  };
  const erase = document.createElement("button");
  erase.type = "button";
  erase.textContent = "Clear";
  erase.addEventListener("click", clear);
  tools.append(...buttons, erase);
  figure.querySelector(".extra").append(tools);
  choose(0);

  const put = (event) => {
    const box = canvas.getBoundingClientRect();
    const side = Math.min(box.width, box.height);
    const x = (event.clientX - box.left - (box.width - side) / 2) / side;
    const y = 1 - (event.clientY - box.top) / side;
    if (x < 0 || x > 1 || y < 0 || y > 1) return;
    const { bounds } = view;
    add(bounds.x + x * bounds.side, bounds.y + y * bounds.side, label, MOST);
  };
  let pressed = false;
  canvas.addEventListener("pointerdown", (event) => {
    if (!active()) return;
    pressed = true;
    canvas.setPointerCapture?.(event.pointerId);
    put(event);
  });
  canvas.addEventListener("pointermove", (event) => pressed && active() && put(event));
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (pressed = false));

  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  canvas.addEventListener("keydown", (event) => {
    if (!active()) return;
    view.cursor ??= [0, 0];
    const move = moves[event.key];
    if (move) view.cursor = view.cursor.map((c, i) => Math.max(-1, Math.min(1, c + 0.08 * move[i])));
    else if (["1", "2", "3"].includes(event.key)) add(...view.cursor, Number(event.key) - 1, MOST);
    else return;
    event.preventDefault();
    event.stopPropagation();
    view.dirty(["regions"]);
  });
  return () => {
    tools.hidden = !active();
    figure.classList.toggle("drawing", active());
    if (active()) canvas.tabIndex = 0;
    else {
      canvas.removeAttribute("tabindex");
      view.cursor = null;
    }
  };
}
