// @ts-check
// Rank × step as colours. Drag over a part, or press + at a cell, to zoom to full detail.

const SMALLEST_VIEW = 4; // ranks and steps
const DRAG_PX = 5;

/**
 * @typedef {{first_step: number, last_step: number, steps_per_bin: number, ranks: number, ranks_per_bin: number, rows: number, columns: number}} Shape
 * @typedef {{rank: [number, number], step: [number, number]}} View
 */

/** Values of one metric in one resolution. */
function heatLayer(shape, valueAt) {
  const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
  const row = (rank) => clamp(Math.floor(rank / shape.ranks_per_bin), shape.rows);
  const column = (step) => clamp(Math.floor((step - shape.first_step) / shape.steps_per_bin), shape.columns);
  return { shape, valueAt, row, column, at: (rank, step) => row(rank) * shape.columns + column(step), pictures: new Map() };
}

/** Codes of a byte as numbers again: see evenstep.report.detail. */
function decoder(codes, [low, high]) {
  const values = Float32Array.from({ length: 256 }, (_, code) => (code === 0 ? NaN : code === 1 ? 0 : low * (high / low) ** ((code - 2) / 253)));
  return (at) => values[codes[at]];
}

/** The part of the heat maps on screen, one for all of them. @param {Shape} shape */
function heatView(shape) {
  const all = () => /** @type {View} */ ({ rank: [0, shape.ranks], step: [shape.first_step, shape.last_step + 1] });
  const listeners = [];
  const view = {
    now: all(),
    zoomed: () => view.now.rank[1] - view.now.rank[0] < shape.ranks || view.now.step[1] - view.now.step[0] < shape.last_step + 1 - shape.first_step,
    listen: (redraw) => listeners.push(redraw),
    /** @param {View} wanted */
    set: (wanted) => {
      const whole = all();
      for (const side of /** @type {("rank" | "step")[]} */ (["rank", "step"])) {
        const [low, high] = whole[side];
        const size = Math.min(Math.max(wanted[side][1] - wanted[side][0], SMALLEST_VIEW), high - low);
        const from = Math.max(low, Math.min(wanted[side][0], high - size));
        view.now[side] = [from, from + size];
      }
      listeners.forEach((redraw) => redraw());
    },
    whole: () => view.set(all()),
    zoom: (factor, rank, step) => {
      const around = ([low, high], at) => /** @type {[number, number]} */ ([at - (at - low) * factor, at + (high - at) * factor]);
      view.set({ rank: around(view.now.rank, rank), step: around(view.now.step, step) });
    },
  };
  return view;
}

/**
 * @param {string} id @param {string} metric
 * @param {{coarse: any, fine: any}} data layers by metric; fine is null where coarse has every cell
 * @param {{pick: (step: number, rank: number) => void}} hooks
 */
function heatChart(id, metric, data, view, facts, hooks) {
  const canvas = byId(id);
  const read = byId(`${id}-read`);
  const { coarse, fine } = data;
  const shape = coarse[metric].shape;
  const culprits = facts.culprits.filter((rank) => rank < shape.ranks);
  let cursor = /** @type {any} */ (null); // {rank, step}
  let plot = { left: 66, top: 10, width: 1, height: 1, bottom: 1 };
  let brush = /** @type {any} */ (null); // {from, to} in pixels
  let high = 1;

  const layers = () => (view.zoomed() && fine ? fine : coarse);
  const x = (step) => plot.left + ((step - view.now.step[0]) / (view.now.step[1] - view.now.step[0])) * plot.width;
  const y = (rank) => plot.top + ((rank - view.now.rank[0]) / (view.now.rank[1] - view.now.rank[0])) * plot.height;
  const stepAt = (place) => view.now.step[0] + ((place - plot.left) / plot.width) * (view.now.step[1] - view.now.step[0]);
  const rankAt = (place) => view.now.rank[0] + ((place - plot.top) / plot.height) * (view.now.rank[1] - view.now.rank[0]);

  function draw() {
    for (const all of [coarse, fine]) all?.[metric].pictures.clear();
    high = robustTop(Array.from({ length: shape.rows * shape.columns }, (_, at) => coarse[metric].valueAt(at)));
    colorScale(id, `${duration(high)} or more`);
    show();
  }

  function picture(layer) {
    if (!layer.pictures.has("now")) layer.pictures.set("now", cellPicture(layer.shape.columns, layer.shape.rows, layer.valueAt, high));
    return layer.pictures.get("now");
  }

  function show() {
    const tall = Math.max(60, Math.min(shape.rows * Math.max(3, Math.min(26, 360 / shape.rows)), 420));
    const { context, width } = surface(canvas, tall + 38);
    plot = { left: 66, width: width - 66 - 16, top: 10, bottom: 10 + tall, height: tall };
    context.imageSmoothingEnabled = false;
    const layer = layers()[metric];
    const part = layer.shape;
    const [fromStep, toStep] = view.now.step.map((step) => (step - part.first_step) / part.steps_per_bin);
    const [fromRank, toRank] = view.now.rank.map((rank) => rank / part.ranks_per_bin);
    context.drawImage(picture(layer), fromStep, fromRank, toStep - fromStep, toRank - fromRank, plot.left, plot.top, plot.width, plot.height);
    labels(context);
    stepAxis(context, plot, Math.ceil(view.now.step[0]), Math.floor(view.now.step[1]) - 1, (step) => x(step + 0.5));
    if (cursor) outline(context);
    if (brush) brushed(context);
  }

  function labels(context) {
    const [from, to] = view.now.rank;
    const each = plot.height / (to - from);
    context.textAlign = "right";
    const named = culprits.filter((rank) => rank + 1 > from && rank < to && (each >= 9 || culprits.length <= 8));
    const place = (rank) => Math.max(y(rank + 0.5), plot.top + 6);
    context.fillStyle = color("pause");
    for (const rank of named) context.fillText(`${rank} ▸`, plot.left - 4, place(rank));
    context.fillStyle = color("soft");
    const free = (rank) => named.every((other) => Math.abs(place(other) - place(rank)) > 12);
    const shown = ticks(Math.ceil(from), Math.ceil(to) - 1, plot.height / 18).filter((rank) => Number.isInteger(rank) && rank < to && free(rank));
    shown.forEach((rank, at) => context.fillText(at === 0 ? `rank ${rank}` : `${rank}`, plot.left - 15, place(rank)));
  }

  function box() {
    const part = layers()[metric].shape;
    const row = layers()[metric].row(cursor.rank) * part.ranks_per_bin;
    const column = part.first_step + layers()[metric].column(cursor.step) * part.steps_per_bin;
    return { left: x(column), top: y(row), width: x(column + part.steps_per_bin) - x(column), height: y(row + part.ranks_per_bin) - y(row) };
  }

  function outline(context) {
    const { left, top, width, height } = box();
    if (left + width < plot.left - 1 || left > plot.left + plot.width + 1 || top + height < plot.top - 1 || top > plot.bottom + 1) return;
    outlineCell(context, left, top, width, height);
  }

  function brushed(context) {
    context.strokeStyle = color("accent");
    context.lineWidth = 1.5;
    context.strokeRect(brush.from.x, brush.from.y, brush.to.x - brush.from.x, brush.to.y - brush.from.y);
  }

  function select(rank, step) {
    cursor = { rank: Math.max(0, Math.min(shape.ranks - 1, rank)), step: Math.max(shape.first_step, Math.min(shape.last_step, step)) };
    const values = layers();
    const { shape: part, row, column, at } = values[metric];
    const first = row(cursor.rank) * part.ranks_per_bin;
    const begin = part.first_step + column(cursor.step) * part.steps_per_bin;
    const until = (from, count, end) => (count > 1 ? `s ${from}-${Math.min(from + count - 1, end)}` : ` ${from}`);
    const node = part.ranks_per_bin === 1 && facts.nodes[first] ? ` on ${facts.nodes[first]}` : "";
    const said = (name) => duration(values[name].valueAt(at(cursor.rank, cursor.step)));
    const notes = [part.ranks_per_bin * part.steps_per_bin > 1 && "means", values === fine && "to within 2 %"].filter(Boolean);
    read.textContent = `rank${until(first, part.ranks_per_bin, part.ranks - 1)}${node}, `
      + `step${until(begin, part.steps_per_bin, part.last_step)}: wait ${said("wait_us")}, `
      + `lateness ${said("lateness_us")}, step ${said("step_us")}${notes.length ? ` (${notes.join(", ")})` : ""}`;
  }

  /** Keeps what the keyboard points at on screen. */
  function follow() {
    const moved = /** @type {View} */ ({ rank: [...view.now.rank], step: [...view.now.step] });
    for (const side of /** @type {("rank" | "step")[]} */ (["rank", "step"])) {
      const shift = Math.min(0, cursor[side] - moved[side][0]) + Math.max(0, cursor[side] + 1 - moved[side][1]);
      moved[side] = [moved[side][0] + shift, moved[side][1] + shift];
    }
    if (moved.rank[0] !== view.now.rank[0] || moved.step[0] !== view.now.step[0]) view.set(moved);
    show();
  }

  function pick() {
    const { shape: part, row, column } = layers()[metric];
    hooks.pick(part.first_step + column(cursor.step) * part.steps_per_bin, row(cursor.rank) * part.ranks_per_bin);
  }

  const point = (event) => {
    const at = pointer(canvas, event);
    select(Math.floor(rankAt(at.y)), Math.floor(stepAt(at.x)));
    return at;
  };
  const long = () => brush && Math.hypot(brush.to.x - brush.from.x, brush.to.y - brush.from.y) > DRAG_PX;
  canvas.addEventListener("pointerdown", (event) => { if (event.button === 0) { const at = point(event); brush = { from: at, to: at }; canvas.setPointerCapture(event.pointerId); } });
  canvas.addEventListener("pointermove", (event) => { const at = point(event); if (brush) brush.to = at; show(); });
  canvas.addEventListener("pointercancel", () => { brush = null; show(); });
  canvas.addEventListener("pointerup", (event) => {
    if (!brush) return;
    const [from, to, zooms] = [brush.from, brush.to, long()];
    brush = null;
    if (!zooms) { point(event); show(); pick(); return; }
    const ends = (a, b) => /** @type {[number, number]} */ ([Math.min(a, b), Math.max(a, b)]);
    view.set({ rank: ends(rankAt(from.y), rankAt(to.y)), step: ends(stepAt(from.x), stepAt(to.x)) });
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = pointer(canvas, event);
    view.zoom(event.deltaY > 0 ? 1.25 : 0.8, rankAt(at.y), stepAt(at.x));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const part = layers()[metric].shape;
    const { rank, step } = cursor ?? { rank: Math.floor(view.now.rank[0]), step: Math.floor(view.now.step[0]) };
    const moves = {
      ArrowLeft: [0, -part.steps_per_bin], ArrowRight: [0, part.steps_per_bin], ArrowUp: [-part.ranks_per_bin, 0],
      ArrowDown: [part.ranks_per_bin, 0], Home: [0, -Infinity], End: [0, Infinity],
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) { select(rank + moves[event.key][0], step + moves[event.key][1]); follow(); }
    else if (event.key === "+" || event.key === "=") view.zoom(0.5, rank + 0.5, step + 0.5);
    else if (event.key === "-") view.zoom(2, rank + 0.5, step + 0.5);
    else if (event.key === "0") view.whole();
    else if (event.key === "Enter" && cursor) pick();
    else return;
    event.preventDefault();
  });
  view.listen(show);
  return { draw };
}

/** Layers by metric of the overview and, where there is one, of the full detail. */
function heatData(facts, tables) {
  const metrics = Object.keys(tables.grid);
  const coarse = Object.fromEntries(metrics.map((name) => [name, heatLayer(facts.grid, (at) => tables.grid[name][at])]));
  if (!facts.detail) return { coarse, fine: null };
  const fine = metrics.map((name) => [name, heatLayer(facts.detail.shape, decoder(tables.detail[name], facts.detail.scales[name]))]);
  return { coarse, fine: Object.fromEntries(fine) };
}
