// The form of settings, made from their one definition; tooltips.

import { GROUPS, HELP, SETTINGS } from "./state.js";

/** Fill the form; `changed(name, value)` is called with what the user chooses. */
export function makeControls(form, changed) {
  for (const [title, names] of Object.entries(GROUPS)) {
    makeGroup(form, title).append(...names.map((name) => control(name, SETTINGS[name], changed)));
  }
}

/** A titled group; what few people change is folded away. */
function makeGroup(form, title) {
  const folded = title === "More settings";
  const group = document.createElement(folded ? "details" : "fieldset");
  const heading = document.createElement(folded ? "summary" : "legend");
  heading.textContent = title;
  group.append(heading);
  form.append(group);
  return group;
}

/** A slider or a list to choose from. */
export function control(name, setting, changed) {
  const label = document.createElement("label");
  label.dataset.tip = HELP[name];
  label.dataset.name = name;
  const words = document.createElement("span");
  words.textContent = setting.label;
  const input = document.createElement(setting.slider ? "input" : "select");
  input.name = name;
  input.id = `setting-${name}`;
  label.append(words);
  if (setting.slider) {
    // The position of the slider is the number of the value in its list.
    Object.assign(input, { type: "range", min: 0, max: setting.values.length - 1, step: 1 });
    label.className = "slider";
    label.append(document.createElement("b")); // not an output, which the label would name instead
    input.addEventListener("input", () => showValue(input, setting, setting.values[input.value]));
  } else {
    input.append(...setting.values.map((value) => new Option(setting.title(value), value)));
  }
  input.addEventListener("change", () => changed(name, setting.slider ? setting.values[input.value] : input.value));
  label.append(input);
  return label;
}

export function showValue(input, setting, value) {
  if (!setting.slider) {
    input.value = value;
    return;
  }
  input.value = setting.values.indexOf(value);
  input.setAttribute("aria-valuetext", setting.title(value));
  input.previousElementSibling.textContent = setting.title(value);
}

/** Write the state into the form. */
export function showState(form, state) {
  for (const [name, setting] of Object.entries(SETTINGS)) {
    if (form.elements[name]) showValue(form.elements[name], setting, state[name]);
  }
  form.querySelector("[data-name=arms]").hidden = state.data !== "spirals";
  form.querySelector("[data-name=noise]").hidden = state.data === "drawn";
  form.querySelector("[data-name=test]").hidden = state.data === "drawn"; // too few to keep some
}

/** @returns {?HTMLElement} what the event is on or in */
const closest = ({ target }, selector) => (target instanceof Element ? target.closest(selector) : null);

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
  document.addEventListener("pointerover", (event) => {
    clearTimeout(timer);
    const holder = closest(event, "[data-tip]");
    if (!holder) hide();
    else timer = setTimeout(show, holder.classList.contains("why") ? 60 : 450, holder);
  });
  for (const name of ["focusin", "click"]) {
    document.addEventListener(name, (event) => {
      const holder = closest(event, ".why");
      if (holder) show(holder);
      else hide();
    });
  }
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
}
