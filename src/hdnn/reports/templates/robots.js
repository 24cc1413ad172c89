(() => {
  const scene = JSON.parse(document.getElementById("robots-scene").textContent);
  const paths = scene.paths.map(floats);
  const targets = floats(scene.targets);
  const canvases = [...document.querySelectorAll("canvas[data-robots]")];
  const output = document.getElementById("robots-time");
  const { robots, half, trained, step } = scene, last = scene.frames - 1;

  const draw = (canvas, moment) => {
    const path = paths[Number(canvas.dataset.robots)], [context, side] = blank(canvas);
    const at = (points, k) => [(points[k] / half + 1) * side / 2, (1 - points[k + 1] / half) * side / 2];
    const first = Math.floor(moment), second = Math.min(first + 1, last), share = moment - first;
    const colors = [css("--c0"), css("--c1")], tail = Math.max(0, first - scene.tail);
    context.lineWidth = side / 260;
    for (let k = 0; k < robots; k += 1) {
      const color = colors[Math.floor((2 * k) / robots)];
      const [x, y] = at(targets, 2 * k);
      context.strokeStyle = css("--muted");
      context.beginPath();
      context.arc(x, y, side / 50, 0, 2 * Math.PI);
      context.stroke();
      const now = [0, 1].map((i) => {
        const [a, b] = [first, second].map((frame) => path[2 * (frame * robots + k) + i]);
        return a + share * (b - a);
      });
      context.strokeStyle = context.fillStyle = color;
      context.beginPath();
      for (let frame = tail; frame <= first; frame += 1) context.lineTo(...at(path, 2 * (frame * robots + k)));
      context.lineTo(...at(now, 0));
      context.stroke();
      context.beginPath();
      context.arc(...at(now, 0), side / 65, 0, 2 * Math.PI);
      context.fill();
    }
  };

  const show = (moment) => {
    const time = moment * step, text = `${time.toFixed(1)} s, ${time > trained ? "beyond training" : "as in training"}`;
    output.textContent = text;
    output.classList.toggle("beyond", time > trained);
    canvases.forEach((canvas) => draw(canvas, moment));
    return text;
  };
  player({
    slider: document.getElementById("robots-slider"),
    play: document.getElementById("robots-play"),
    last,
    seconds: scene.seconds,
    show,
  });
})();
