// @ts-check
// Step time over steps: band over ranks, median, percentiles, and the steps of findings.

/** @param {{pick: (step: number) => void}} hooks @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {Table} table @param {Diagnosis} diagnosis */
function curveChart(canvas, read, table, diagnosis, hooks) {
  const steps = table.step;
  const findings = diagnosis.findings;
  const percentiles = ["p50", "p99"].map((name) => ({ name, us: (diagnosis.summary.step_time?.[`${name}_ns`] ?? NaN) / 1e3 })).filter(({ us }) => Number.isFinite(us));
  let cursor = -1;
  let plot = /** @type {any} */ (null);

  const width = steps.length > 1 ? steps[1] - steps[0] : 1;
  const first = steps[0];
  const last = steps[steps.length - 1];
  const top = robustHigh(table.longest_us);
  const close = byId("curve-close");
  const axis = () => { // µs at its two ends
    if (!close.checked) return [0, top];
    const [low, high] = [Math.min(...table.shortest_us), Math.min(Math.max(...table.longest_us), top)];
    const room = 0.08 * (high - low) || 1;
    return [Math.max(0, low - room), high + room];
  };
  /** @param {number} step */
  const x = (step) => plot.left + ((step - first) / Math.max(last - first, 1)) * plot.width;
  /** @param {number} us */
  const y = (us) => plot.bottom - Math.min((us - plot.axis[0]) / (plot.axis[1] - plot.axis[0]), 1.02) * plot.height;

  function draw() {
    const { context, width: full, height } = surface(canvas);
    const marks = findings.filter((finding) => finding.when.steps.length).slice(0, 4);
    const widest = Math.max(110, ...marks.map(({ title }) => context.measureText(title).width + 16));
    const names = full > 560 ? Math.min(widest, full / 3) : 40; // room at the right: for findings' names, or only p50, p99
    plot = { left: 66, width: full - 66 - names, top: 22, bottom: height - 40 - 14 * marks.length, names, axis: axis() };
    plot.height = plot.bottom - plot.top;
    valueAxis(context, plot, ticks(plot.axis[0], plot.axis[1], 4), y, duration);
    band(context);
    line(context);
    nameHighest(context, plot, plot.axis[1], table.longest_us, (at) => x(steps[at]));
    levels(context, marks.length ? plot.bottom + 8 : Infinity);
    marks.forEach((finding, row) => mark(context, finding, plot.bottom + 6 + 14 * row));
    stepAxis(context, { ...plot, bottom: height - 34 }, first, last, x);
    axisTitles(context, { ...plot, bottom: height - 34 }, "step", "step time");
    if (cursor >= 0) cursorLine(context);
  }

  /** @param {Context} context */
  function band(context) {
    context.fillStyle = color("compute");
    context.globalAlpha = 0.28;
    context.beginPath();
    for (let at = 0; at < steps.length; at += 1) context.lineTo(x(steps[at]), y(table.longest_us[at]));
    for (let at = steps.length - 1; at >= 0; at -= 1) context.lineTo(x(steps[at]), y(table.shortest_us[at]));
    context.fill();
    context.globalAlpha = 1;
  }

  /** @param {Context} context */
  function line(context) {
    context.strokeStyle = color("compute");
    context.lineWidth = 1.5;
    context.beginPath();
    for (let at = 0; at < steps.length; at += 1) context.lineTo(x(steps[at]), y(table.median_us[at]));
    context.stroke();
  }

  /** The run's own percentiles, those of the summary. @param {Context} context @param {number} before the name below theirs */
  function levels(context, before) {
    context.textAlign = "left";
    for (const { name, us } of percentiles) {
      context.strokeStyle = color("soft");
      context.lineWidth = 1;
      context.setLineDash([4, 4]);
      context.beginPath();
      context.moveTo(plot.left, y(us));
      context.lineTo(plot.left + plot.width, y(us));
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = color("soft");
      before = Math.min(y(us), before - 13);
      context.fillText(plot.names > 100 ? `${name} ${duration(us)}` : name, plot.left + plot.width + 6, before);
    }
  }

  /** @param {Context} context @param {Diagnosis["findings"][number]} finding @param {number} top */
  function mark(context, finding, top) {
    context.fillStyle = color("soft");
    context.textAlign = "left";
    if (plot.names > 100) context.fillText(clipped(context, finding.title, plot.names - 10), plot.left + plot.width + 6, top + 2);
    stepBars(context, finding.when.steps, [first, last], x, { top, height: 4 });
  }

  /** @param {Context} context */
  function cursorLine(context) {
    context.fillStyle = color("ink");
    context.fillRect(Math.round(x(steps[cursor])), plot.top, 1, plot.height);
  }

  /** @param {number} at */
  function move(at) {
    cursor = Math.max(0, Math.min(steps.length - 1, at));
    const name = width > 1 ? `steps ${steps[cursor]}-${steps[cursor] + width - 1}` : `step ${steps[cursor]}`;
    read.textContent = `${name}: median ${duration(table.median_us[cursor])}, fastest rank `
      + `${duration(table.shortest_us[cursor])}, slowest ${duration(table.longest_us[cursor])}`;
    draw();
  }

  /** @param {PointerEvent | MouseEvent} event */
  function nearest(event) {
    const share = (pointer(canvas, event).x - plot.left) / plot.width;
    const step = first + share * (last - first);
    let low = 0;
    while (low < steps.length - 1 && steps[low + 1] <= step + width / 2) low += 1;
    return low;
  }

  close.addEventListener("change", draw);
  canvas.addEventListener("pointermove", (event) => move(nearest(event)));
  canvas.addEventListener("click", (event) => { move(nearest(event)); hooks.pick(steps[cursor]); });
  walkable(canvas, (right, down) => move(cursor + right + down), { enter: () => { if (cursor >= 0) hooks.pick(steps[cursor]); } });
  return { draw };
}

/** Top of the axis: the longest step, unless it dwarfs the rest (a first step compiles and loads). @param {Numbers} values */
function robustHigh(values) {
  const sorted = Float32Array.from(values).sort();
  const usual = sorted[Math.floor((sorted.length - 1) * 0.99)];
  const longest = sorted[sorted.length - 1];
  return 1.08 * (longest > 3 * usual ? 1.5 * usual : longest) || 1;
}

/** Names the highest value where the axis cuts it off. @param {Context} context @param {{left: number, width: number, top: number}} plot @param {number} top @param {Numbers} values @param {(at: number) => number} x */
function nameHighest(context, plot, top, values, x) {
  let high = 0;
  values.forEach((value, at) => { if (!(value <= values[high])) high = Number.isFinite(value) ? at : high; });
  if (!(values[high] > top)) return;
  const right = x(high) > plot.left + plot.width / 2;
  context.fillStyle = color("soft");
  context.textAlign = right ? "right" : "left";
  context.fillText(`↑ ${duration(values[high])}`, x(high) + (right ? -5 : 5), plot.top + 4);
}
