"use strict";
// A slider with a Play button, over moments from 0 to last, whole ones or between.
const player = ({ slider, play, last, seconds, show }) => {
  const slow = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const length = (slow ? 2 : 1) * 1000 * seconds;
  let moment = last, running = null;
  const set = (value) => {
    moment = value;
    slider.value = String(Math.round(value));
    slider.setAttribute("aria-valuetext", show(value));
  };
  const stop = () => {
    if (running !== null) cancelAnimationFrame(running);
    running = null;
    play.textContent = "Play";
  };
  const start = () => {
    const from = moment >= last ? 0 : moment;
    let begin = null;
    play.textContent = "Pause";
    const step = (now) => {
      begin = begin === null ? now : begin;
      const next = from + ((now - begin) / length) * last;
      if (next >= last) { set(last); stop(); return; }
      set(next);
      running = requestAnimationFrame(step);
    };
    running = requestAnimationFrame(step);
  };
  // Plays by itself once, as soon as it is seen.
  const autoplay = () => {
    if (!("autoplay" in play.dataset) || slow) return;
    const { top, bottom } = play.getBoundingClientRect();
    if (top < innerHeight && bottom > 0) { start(); return; }
    const observer = new IntersectionObserver((seen) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      if (running === null) start();
    });
    observer.observe(play);
  };
  play.addEventListener("click", () => (running === null ? start() : stop()));
  slider.addEventListener("input", () => { stop(); set(Number(slider.value)); });
  const again = () => set(moment);
  new ResizeObserver(again).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  again();
  autoplay();
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const floats = (text) => new Float32Array(bytes(text).buffer);
// The context of a square canvas, as sharp as the screen, and its side; empty.
const blank = (canvas) => {
  const side = Math.max(1, Math.round(canvas.clientWidth * Math.min(devicePixelRatio || 1, 2)));
  if (canvas.width !== side) canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  context.fillStyle = css("--paper");
  context.fillRect(0, 0, side, side);
  return [context, side];
};
