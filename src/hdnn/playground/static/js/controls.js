// The form of settings, made from their one definition; tooltips.

import { SETTINGS, checked } from "./state.js";

/** Fill the form; `changed(name, value)` is called with what the user chooses. */
export function makeControls(form, changed, refused) {
  const groups = new Map();
  for (const [name, setting] of Object.entries(SETTINGS)) {
    if (setting.group === "hidden") continue;
    if (!groups.has(setting.group)) {
      const fieldset = document.createElement("fieldset");
      const legend = document.createElement("legend");
      legend.textContent = setting.group;
      fieldset.append(legend);
      form.append(fieldset);
      groups.set(setting.group, fieldset);
    }
    groups.get(setting.group).append(control(name, setting, changed, refused));
  }
}

function control(name, setting, changed, refused) {
  const label = document.createElement("label");
  label.dataset.tip = setting.help;
  label.dataset.name = name;
  const words = document.createElement("span");
  words.textContent = setting.label;
  const input = document.createElement(setting.kind === "choice" ? "select" : "input");
  input.name = name;
  input.id = `setting-${name}`;
  if (setting.kind === "choice") input.append(...setting.options.map(({ value, title }) => new Option(title, value)));
  else Object.assign(input, { type: "number", min: setting.low, max: setting.high, step: "any", inputMode: "decimal" });
  if (setting.value === null) input.placeholder = "own";
  input.addEventListener("change", () => {
    const value = checked(setting, input.value);
    if (value === undefined) refused(name, setting, input);
    else changed(name, value);
  });
  // The arrows of a number move by a sensible step, from any value.
  input.addEventListener("keydown", (event) => {
    const up = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!up || setting.kind === "choice") return;
    event.preventDefault();
    const next = Number(input.value || 0) + up * setting.step;
    input.value = String(Number(Math.max(setting.low, Math.min(setting.high, next)).toPrecision(6)));
    input.dispatchEvent(new Event("change"));
  });
  label.append(words, input);
  return label;
}

/** Write the state into the form. */
export function showState(form, state) {
  for (const name of Object.keys(SETTINGS)) {
    const input = form.elements[name];
    if (input && document.activeElement !== input) input.value = state[name] ?? "";
  }
  form.querySelector("[data-name=arms]").hidden = state.data !== "spirals";
  const made = state.data === "drawn" || state.data === "table";
  form.querySelector("[data-name=noise]").hidden = made;
  form.querySelector("[data-name=test]").hidden = state.data === "drawn"; // too few to keep some
}

/** Show what data-tip says beside whatever has it, on hover and on focus. */
export function makeTips() {
  const tip = document.getElementById("tip");
  const show = (target) => {
    tip.textContent = target.dataset.tip;
    tip.hidden = !target.dataset.tip;
    const box = target.getBoundingClientRect();
    const [w, h] = [tip.offsetWidth, tip.offsetHeight];
    const top = box.bottom + h + 10 > innerHeight ? box.top - h - 6 : box.bottom + 6;
    tip.style.left = `${Math.max(8, Math.min(innerWidth - w - 8, box.left))}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  };
  const hide = () => (tip.hidden = true);
  let timer = 0;
  document.addEventListener("pointerover", ({ target }) => {
    clearTimeout(timer);
    const holder = target.closest?.("[data-tip]");
    if (!holder) hide();
    else timer = setTimeout(show, holder.classList.contains("why") ? 60 : 450, holder);
  });
  document.addEventListener("focusin", ({ target }) => (target.matches(".why") ? show(target) : hide()));
  document.addEventListener("click", ({ target }) => (target.matches(".why") ? show(target) : hide()));
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
}
