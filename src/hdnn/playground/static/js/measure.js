// The page measures itself: training steps in a frame's time, images a second, blocked input.

const FRAME = 1000 / 60;
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Milliseconds of a training step with nothing else to do, for one depth. */
async function stepTime(app, layers) {
  app.play(false);
  app.set({ first: "H1", second: "none", layers, T: 2.5, width: 4, batch: 125, learningRate: 0.001 });
  await wait(300);
  const { milliseconds, best } = await app.views[0].request("measure", "measured");
  return { layers, milliseconds, best, stepsInFrame: FRAME / milliseconds };
}

/** Train two networks for some seconds as fast as they can, and watch the page. */
async function fluency(app, layers, seconds = 4) {
  app.set({ first: "H1", second: "FCNN", layers });
  await wait(500);
  app.views.forEach((v) => v.post("speed", { value: Infinity }));
  app.play(true);
  await wait(1000); // until the code is compiled
  let blocked = 0;
  const drawing = [];
  let last = performance.now();
  const timer = setInterval(() => {
    blocked = Math.max(blocked, performance.now() - last - 5);
    last = performance.now();
    drawing.push(app.drawing);
  }, 5);
  const before = app.views.map((v) => [v.updates, v.snapshot.iteration]);
  await wait(1000 * seconds);
  clearInterval(timer);
  const updates = Math.min(...app.views.map((v, i) => (v.updates - before[i][0]) / seconds));
  const iterations = (app.views[0].snapshot.iteration - before[0][1]) / seconds;
  app.play(false);
  drawing.sort((a, b) => a - b);
  return {
    layers, updatesPerSecond: updates, iterationsPerSecond: iterations, longestBlock: blocked,
    drawing: drawing[drawing.length >> 1], longestDrawing: drawing.at(-1),
  };
}

export async function measure(app) {
  const steps = [await stepTime(app, 64), await stepTime(app, 1000)];
  const pages = [await fluency(app, 64), await fluency(app, 1000)];
  const speed = Number(document.getElementById("speed").value);
  app.views.forEach((v) => v.post("speed", { value: speed }));
  return { steps, pages };
}
