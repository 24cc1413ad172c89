(() => {
  const scene = JSON.parse(document.getElementById("scene").textContent);
  const numbers = bytes(scene.numbers);
  const inputs = scene.inputs ? floats(scene.inputs) : null;
  const flows = scene.flows.map((flow) => ({ ...flow, points: floats(flow.points), drawn: [] }));
  const slider = document.getElementById("layer");
  const output = document.getElementById("depth");
  const play = document.getElementById("play");
  const canvases = [...document.querySelectorAll("canvas[data-flow]")];
  const frames = Math.max(...flows.map((flow) => flow.depths.length));

  let look = {}, depth = 0;
  const restyle = () => {
    look = { ink: css("--ink"), muted: css("--muted"), grid: css("--grid") };
    look.classes = scene.colors || Array.from({ length: 10 }, (_, k) => css(`--c${k}`));
  };
  const color = (k) => look.classes[k % look.classes.length];

  // Where a network of fewer layers is, when the deepest one is at this moment.
  const own = (flow, moment) => (moment / Math.max(frames - 1, 1)) * (flow.depths.length - 1);
  const layer = (flow, moment) => flow.depths[Math.round(own(flow, moment))];

  // Points between two depths, at a moment that need not be a whole frame.
  const at = (flow, moment) => {
    const first = Math.floor(moment);
    const second = Math.min(first + 1, flow.depths.length - 1);
    const share = moment - first, size = 2 * scene.samples, found = new Float32Array(size);
    for (let k = 0; k < size; k += 1) {
      const a = flow.points[first * size + k], b = flow.points[second * size + k];
      found[k] = share > 0 ? a + share * (b - a) : a;
    }
    return found;
  };

  const regionImage = (flow, frame) => {
    const side = scene.resolution, runs = bytes(flow.regions[frame]);
    const image = new ImageData(side, side);
    const shades = look.classes.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
    let cell = 0;
    for (let k = 0; k < runs.length; k += 2) {
      const shade = shades[runs[k] % shades.length];
      for (let n = runs[k + 1]; n > 0; n -= 1, cell += 1) {
        // Rows of the data go from the bottom, those of an image from the top.
        const place = 4 * ((side - 1 - Math.floor(cell / side)) * side + (cell % side));
        image.data.set([...shade, 62], place);
      }
    }
    const sheet = document.createElement("canvas");
    sheet.width = sheet.height = side;
    sheet.getContext("2d").putImageData(image, 0, 0);
    return sheet;
  };

  const scatter = (context, side, points, box) => {
    const [left, right, bottom, top] = box;
    const radius = Math.max(1.4, side / 230);
    const place = (k) => [
      ((points[2 * k] - left) / (right - left)) * side,
      (1 - (points[2 * k + 1] - bottom) / (top - bottom)) * side,
    ];
    for (let k = 0; k < scene.samples; k += 1) {
      const [x, y] = place(k);
      if (!Number.isFinite(x + y)) continue;
      context.fillStyle = color(numbers[k]);
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fill();
    }
    return place;
  };

  const ring = (context, side, place) => {
    let low = [Infinity, Infinity], high = [-Infinity, -Infinity];
    for (let k = 0; k < scene.samples; k += 1) {
      place(k).forEach((v, i) => { low[i] = Math.min(low[i], v); high[i] = Math.max(high[i], v); });
    }
    if (Math.max(high[0] - low[0], high[1] - low[1]) > 0.02 * side || scene.samples < 2) return;
    const [x, y] = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
    context.strokeStyle = context.fillStyle = look.muted;
    context.lineWidth = side / 300;
    context.beginPath();
    context.arc(x, y, side / 32, 0, 2 * Math.PI);
    context.stroke();
    context.font = `${Math.max(Math.round(side / 26), 11 * (devicePixelRatio || 1))}px system-ui, sans-serif`;
    context.textAlign = x < side / 4 ? "left" : x > 0.75 * side ? "right" : "center";
    context.fillText(`all ${scene.samples} points`, x, y < side / 8 ? y + side / 11 : y - side / 20);
  };

  const draw = (canvas, moment) => {
    const flow = flows[Number(canvas.dataset.flow)], place = own(flow, moment);
    const frame = Math.round(place);
    const [context, side] = blank(canvas);
    if (canvas.dataset.kind === "input") {
      context.imageSmoothingEnabled = true;
      context.drawImage(regionImage(flow, frame), 0, 0, side, side);
      scatter(context, side, inputs, scene.box);
      return;
    }
    if (flow.boundary) {
      const [left, right] = flow.box, x = (-left / (right - left)) * side;
      context.strokeStyle = frame === flow.depths.length - 1 ? look.ink : look.grid;
      context.lineWidth = side / 300;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, side);
      context.stroke();
    }
    flow.drawn = at(flow, place);
    ring(context, side, scatter(context, side, flow.drawn, flow.box));
  };

  const show = (moment) => {
    restyle();
    const texts = flows.map((flow) => `layer ${layer(flow, moment)} of ${flow.last}`);
    const text = [...new Set(texts)].join(", ");
    output.textContent = text;
    depth = layer(flows[0], moment);
    canvases.forEach((canvas) => draw(canvas, moment));
    return text;
  };
  player({ slider, play, last: frames - 1, seconds: 6, show });

  // What is drawn now, for whoever wants the numbers.
  window.hdnnReport = { drawn: (k) => Array.from(flows[k].drawn), depth: () => depth };
})();
