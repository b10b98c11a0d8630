// Step time over steps: a band over the ranks, its median, and the steps findings speak of.

/** @param {{pick: (step: number) => void}} hooks */
function curveChart(canvas, read, table, findings, hooks) {
  const steps = table.step;
  let cursor = -1;
  let plot = null;

  const width = steps.length > 1 ? steps[1] - steps[0] : 1;
  const first = steps[0];
  const last = steps[steps.length - 1];
  const high = robustHigh(table.longest_us);
  const x = (step) => plot.left + ((step - first) / Math.max(last - first, 1)) * plot.width;
  const y = (us) => plot.bottom - Math.min(us / high, 1.02) * plot.height;

  function draw() {
    const { context, width: full, height } = surface(canvas);
    const marks = findings.filter((finding) => finding.when.steps.length).slice(0, 4);
    plot = { left: 66, width: full - 66 - 16, top: 12, bottom: height - 26 - 7 * marks.length };
    plot.height = plot.bottom - plot.top;
    grid(context, full);
    band(context);
    line(context);
    marks.forEach((finding, row) => mark(context, finding, plot.bottom + 5 + 7 * row));
    stepAxis(context, { ...plot, bottom: height - 20 }, first, last, x);
    if (cursor >= 0) cursorLine(context);
  }

  function grid(context, full) {
    context.textAlign = "right";
    for (const us of ticks(0, high, 4)) {
      context.fillStyle = color("line");
      context.fillRect(plot.left, Math.round(y(us)), full - 16 - plot.left, 1);
      context.fillStyle = color("soft");
      context.fillText(duration(us), plot.left - 8, y(us));
    }
  }

  function band(context) {
    context.fillStyle = color("compute");
    context.globalAlpha = 0.28;
    context.beginPath();
    for (let at = 0; at < steps.length; at += 1) context.lineTo(x(steps[at]), y(table.longest_us[at]));
    for (let at = steps.length - 1; at >= 0; at -= 1) context.lineTo(x(steps[at]), y(table.shortest_us[at]));
    context.fill();
    context.globalAlpha = 1;
  }

  function line(context) {
    context.strokeStyle = color("compute");
    context.lineWidth = 1.5;
    context.beginPath();
    for (let at = 0; at < steps.length; at += 1) context.lineTo(x(steps[at]), y(table.median_us[at]));
    context.stroke();
  }

  function mark(context, finding, top) {
    context.fillStyle = color("wait");
    for (const [from, to] of finding.when.steps) {
      const left = x(Math.max(from, first));
      context.fillRect(left, top, Math.max(x(Math.min(to, last)) - left, 2), 4);
    }
  }

  function cursorLine(context) {
    context.fillStyle = color("ink");
    context.fillRect(Math.round(x(steps[cursor])), plot.top, 1, plot.height);
  }

  function move(at) {
    cursor = Math.max(0, Math.min(steps.length - 1, at));
    const name = width > 1 ? `steps ${steps[cursor]}-${steps[cursor] + width - 1}` : `step ${steps[cursor]}`;
    read.textContent = `${name}: median ${duration(table.median_us[cursor])}, fastest rank `
      + `${duration(table.shortest_us[cursor])}, slowest ${duration(table.longest_us[cursor])}`;
    draw();
  }

  function nearest(event) {
    const share = (pointer(canvas, event).x - plot.left) / plot.width;
    const step = first + share * (last - first);
    let low = 0;
    while (low < steps.length - 1 && steps[low + 1] <= step + width / 2) low += 1;
    return low;
  }

  canvas.addEventListener("pointermove", (event) => move(nearest(event)));
  canvas.addEventListener("click", (event) => { move(nearest(event)); hooks.pick(steps[cursor]); });
  canvas.addEventListener("keydown", (event) => {
    const jump = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (jump !== undefined) move(cursor + jump);
    else if (event.key === "Enter" && cursor >= 0) hooks.pick(steps[cursor]);
    else return;
    event.preventDefault();
  });
  return { draw };
}

/** Top of the axis: the longest step, unless it dwarfs the rest (a first step compiles and loads). */
function robustHigh(values) {
  const sorted = Float32Array.from(values).sort();
  const usual = sorted[Math.floor((sorted.length - 1) * 0.99)];
  const longest = sorted[sorted.length - 1];
  return 1.08 * (longest > 3 * usual ? 1.5 * usual : longest) || 1;
}
