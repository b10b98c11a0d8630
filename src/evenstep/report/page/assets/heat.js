// @ts-check
// Rank × step as colours. Drag over a part, or press + at a cell, to zoom to full detail.

const SMALLEST_VIEW = 4; // ranks and steps
const DRAG_PX = 5;

/**
 * @typedef {[number, number]} Ends
 * @typedef {{rank: Ends, step: Ends}} View
 * @typedef {ReturnType<typeof heatLayer>} Layer values of one metric in one resolution
 * @typedef {Record<string, Layer>} Layers by metric
 */

/** Values of one metric in one resolution. @param {Shape} shape @param {(at: number) => number} valueAt */
function heatLayer(shape, valueAt) {
  /** @param {number} value @param {number} most */
  const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
  /** @param {number} rank */
  const row = (rank) => clamp(Math.floor(rank / shape.ranks_per_bin), shape.rows);
  /** @param {number} step */
  const column = (step) => clamp(Math.floor((step - shape.first_step) / shape.steps_per_bin), shape.columns);
  /** @param {number} rank @param {number} step */
  const at = (rank, step) => row(rank) * shape.columns + column(step);
  return { shape, valueAt, row, column, at, pictures: /** @type {Map<string, HTMLCanvasElement>} */ (new Map()) };
}

/** Codes of a byte as numbers again: see evenstep.report.detail. @param {Column} codes @param {Ends} scale */
function decoder(codes, [low, high]) {
  const values = Float32Array.from({ length: 256 }, (_, code) => (code === 0 ? NaN : code === 1 ? 0 : low * (high / low) ** ((code - 2) / 253)));
  return (/** @type {number} */ at) => values[codes[at]];
}

/** The part of the heat maps on screen, one for all of them. @param {Shape} shape */
function heatView(shape) {
  const all = () => /** @type {View} */ ({ rank: [0, shape.ranks], step: [shape.first_step, shape.last_step + 1] });
  const listeners = /** @type {(() => void)[]} */ ([]);
  const view = {
    now: all(),
    zoomed: () => view.now.rank[1] - view.now.rank[0] < shape.ranks || view.now.step[1] - view.now.step[0] < shape.last_step + 1 - shape.first_step,
    listen: (/** @type {() => void} */ redraw) => { listeners.push(redraw); },
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
    /** @param {number} factor @param {number} rank @param {number} step */
    zoom: (factor, rank, step) => {
      /** @param {Ends} ends @param {number} at */
      const around = ([low, high], at) => /** @type {Ends} */ ([at - (at - low) * factor, at + (high - at) * factor]);
      view.set({ rank: around(view.now.rank, rank), step: around(view.now.step, step) });
    },
  };
  return view;
}

/**
 * @param {string} id @param {string} metric
 * @param {{coarse: Layers, fine: Layers | null}} data fine is null where coarse has every cell
 * @param {{pick: (step: number, rank: number) => void}} hooks
 * @param {ReturnType<typeof heatView>} view @param {Facts} facts
 */
function heatChart(id, metric, data, view, facts, hooks) {
  const canvas = /** @type {HTMLCanvasElement} */ (byId(id));
  const read = byId(`${id}-read`);
  const { coarse, fine } = data;
  const shape = coarse[metric].shape;
  const culprits = facts.culprits.filter((rank) => rank < shape.ranks);
  let cursor = /** @type {{rank: number, step: number} | null} */ (null);
  let plot = { left: 76, top: 10, width: 1, height: 1, bottom: 1 };
  let brush = /** @type {{from: Point, to: Point} | null} */ (null); // in pixels
  let high = 1;

  const layers = () => (view.zoomed() && fine ? fine : coarse);
  /** @param {number} step */
  const x = (step) => plot.left + ((step - view.now.step[0]) / (view.now.step[1] - view.now.step[0])) * plot.width;
  /** @param {number} rank */
  const y = (rank) => plot.top + ((rank - view.now.rank[0]) / (view.now.rank[1] - view.now.rank[0])) * plot.height;
  /** @param {number} place */
  const stepAt = (place) => view.now.step[0] + ((place - plot.left) / plot.width) * (view.now.step[1] - view.now.step[0]);
  /** @param {number} place */
  const rankAt = (place) => view.now.rank[0] + ((place - plot.top) / plot.height) * (view.now.rank[1] - view.now.rank[0]);

  function draw() {
    for (const all of [coarse, fine]) all?.[metric].pictures.clear();
    high = robustTop(Array.from({ length: shape.rows * shape.columns }, (_, at) => coarse[metric].valueAt(at)));
    colorScale(id, `${duration(high)} or more`);
    show();
  }

  /** @param {Layer} layer */
  function picture(layer) {
    const found = layer.pictures.get("now") ?? cellPicture(layer.shape.columns, layer.shape.rows, layer.valueAt, high);
    layer.pictures.set("now", found);
    return found;
  }

  function show() {
    const tall = Math.max(60, Math.min(shape.rows * Math.max(3, Math.min(26, 360 / shape.rows)), 420));
    const { context, width } = surface(canvas, tall + 38);
    plot = { left: 76, width: width - 76 - 16, top: 10, bottom: 10 + tall, height: tall };
    context.imageSmoothingEnabled = false;
    const layer = layers()[metric];
    const part = layer.shape;
    const [fromStep, toStep] = view.now.step.map((step) => (step - part.first_step) / part.steps_per_bin);
    const [fromRank, toRank] = view.now.rank.map((rank) => rank / part.ranks_per_bin);
    context.drawImage(picture(layer), fromStep, fromRank, toStep - fromStep, toRank - fromRank, plot.left, plot.top, plot.width, plot.height);
    labels(context);
    stepAxis(context, plot, Math.ceil(view.now.step[0]), Math.floor(view.now.step[1]) - 1, (step) => x(step + 0.5));
    if (cursor) outline(context, cursor.rank, cursor.step);
    if (brush) brushed(context, brush.from, brush.to);
  }

  /** @param {Context} context */
  function labels(context) {
    const [from, to] = view.now.rank;
    const each = plot.height / (to - from);
    context.textAlign = "right";
    const named = culprits.filter((rank) => rank + 1 > from && rank < to && (each >= 9 || culprits.length <= 8));
    /** @param {number} rank */
    const place = (rank) => Math.max(y(rank + 0.5), plot.top + 6);
    context.fillStyle = color("pause");
    for (const rank of named) context.fillText(`${rank} ▸`, plot.left - 4, place(rank));
    context.fillStyle = color("soft");
    /** @param {number} rank */
    const free = (rank) => named.every((other) => Math.abs(place(other) - place(rank)) > 12);
    const shown = ticks(Math.ceil(from), Math.ceil(to) - 1, plot.height / 18).filter((rank) => Number.isInteger(rank) && rank < to && free(rank));
    const first = (/** @type {number} */ rank) => (rank < 10000 ? `rank ${rank}` : `${rank}`);
    shown.forEach((rank, at) => context.fillText(at === 0 ? first(rank) : `${rank}`, plot.left - 15, place(rank)));
  }

  /** @param {number} rank @param {number} step */
  function box(rank, step) {
    const part = layers()[metric].shape;
    const row = layers()[metric].row(rank) * part.ranks_per_bin;
    const column = part.first_step + layers()[metric].column(step) * part.steps_per_bin;
    return { left: x(column), top: y(row), width: x(column + part.steps_per_bin) - x(column), height: y(row + part.ranks_per_bin) - y(row) };
  }

  /** @param {Context} context @param {number} rank @param {number} step */
  function outline(context, rank, step) {
    const { left, top, width, height } = box(rank, step);
    if (left + width < plot.left - 1 || left > plot.left + plot.width + 1 || top + height < plot.top - 1 || top > plot.bottom + 1) return;
    const [right, bottom] = [Math.min(left + width, plot.left + plot.width), Math.min(top + height, plot.bottom)];
    const [from, upper] = [Math.max(left, plot.left), Math.max(top, plot.top)];
    outlineCell(context, from, upper, Math.max(right - from, 1), Math.max(bottom - upper, 1));
  }

  /** @param {Context} context @param {Point} from @param {Point} to */
  function brushed(context, from, to) {
    context.strokeStyle = color("accent");
    context.lineWidth = 1.5;
    context.strokeRect(from.x, from.y, to.x - from.x, to.y - from.y);
  }

  /** @param {number} rank @param {number} step */
  function select(rank, step) {
    const now = { rank: Math.max(0, Math.min(shape.ranks - 1, rank)), step: Math.max(shape.first_step, Math.min(shape.last_step, step)) };
    cursor = now;
    const values = layers();
    const { shape: part, row, column, at } = values[metric];
    const first = row(now.rank) * part.ranks_per_bin;
    const begin = part.first_step + column(now.step) * part.steps_per_bin;
    /** @param {number} from @param {number} count @param {number} end */
    const until = (from, count, end) => (count > 1 ? `s ${from}-${Math.min(from + count - 1, end)}` : ` ${from}`);
    const node = part.ranks_per_bin === 1 && facts.nodes[first] ? ` on ${facts.nodes[first]}` : "";
    /** @param {string} name */
    const said = (name) => duration(values[name].valueAt(at(now.rank, now.step)));
    const notes = [part.ranks_per_bin * part.steps_per_bin > 1 && "extremes", values === fine && "to within 2 %"].filter(Boolean);
    read.textContent = `rank${until(first, part.ranks_per_bin, part.ranks - 1)}${node}, `
      + `step${until(begin, part.steps_per_bin, part.last_step)}: wait ${said("wait_us")}, `
      + `lateness ${said("lateness_us")}, step ${said("step_us")}${notes.length ? ` (${notes.join(", ")})` : ""}`;
  }

  /** Keeps what the keyboard points at on screen. */
  function follow() {
    if (!cursor) return;
    const moved = /** @type {View} */ ({ rank: [...view.now.rank], step: [...view.now.step] });
    for (const side of /** @type {("rank" | "step")[]} */ (["rank", "step"])) {
      const shift = Math.min(0, cursor[side] - moved[side][0]) + Math.max(0, cursor[side] + 1 - moved[side][1]);
      moved[side] = [moved[side][0] + shift, moved[side][1] + shift];
    }
    if (moved.rank[0] !== view.now.rank[0] || moved.step[0] !== view.now.step[0]) view.set(moved);
    show();
  }

  function pick() {
    if (!cursor) return;
    const { shape: part, row, column } = layers()[metric];
    hooks.pick(part.first_step + column(cursor.step) * part.steps_per_bin, row(cursor.rank) * part.ranks_per_bin);
  }

  /** @param {PointerEvent} event */
  const point = (event) => {
    const at = pointer(canvas, event);
    select(Math.floor(rankAt(at.y)), Math.floor(stepAt(at.x)));
    return at;
  };
  canvas.addEventListener("pointerdown", (event) => { if (event.button === 0) { const at = point(event); brush = { from: at, to: at }; canvas.setPointerCapture(event.pointerId); } });
  canvas.addEventListener("pointermove", (event) => { const at = point(event); if (brush) brush.to = at; show(); });
  canvas.addEventListener("pointercancel", () => { brush = null; show(); });
  canvas.addEventListener("pointerup", (event) => {
    if (!brush) return;
    const { from, to } = brush;
    const zooms = Math.hypot(to.x - from.x, to.y - from.y) > DRAG_PX;
    brush = null;
    if (!zooms) { point(event); show(); pick(); return; }
    /** @param {number} a @param {number} b */
    const ends = (a, b) => /** @type {Ends} */ ([Math.min(a, b), Math.max(a, b)]);
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
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [0, -part.steps_per_bin], ArrowRight: [0, part.steps_per_bin], ArrowUp: [-part.ranks_per_bin, 0],
      ArrowDown: [part.ranks_per_bin, 0], Home: [0, -Infinity], End: [0, Infinity],
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) { select(rank + moves[event.key][0], step + moves[event.key][1]); follow(); }
    else if (event.key === "+" || event.key === "=") view.zoom(0.5, rank + 0.5, step + 0.5);
    else if (event.key === "-") view.zoom(2, rank + 0.5, step + 0.5);
    else if (event.key === "0") view.whole();
    else if (event.key === "Enter") pick();
    else return;
    event.preventDefault();
  });
  view.listen(() => { if (cursor) select(cursor.rank, cursor.step); show(); });
  return { draw };
}

/** Layers by metric of the overview and, where there is one, of the full detail. @param {Facts} facts @param {Record<string, Table>} tables */
function heatData({ grid, detail }, tables) {
  const metrics = Object.keys(tables.grid);
  /** @param {(name: string) => Layer} layer @returns {Layers} */
  const all = (layer) => Object.fromEntries(metrics.map((name) => [name, layer(name)]));
  return {
    coarse: all((name) => heatLayer(/** @type {Shape} */ (grid), (at) => tables.grid[name][at])),
    fine: detail && all((name) => heatLayer(detail.shape, decoder(tables.detail[name], detail.scales[name]))),
  };
}
