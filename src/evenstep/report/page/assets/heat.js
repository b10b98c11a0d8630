// @ts-check
// Heat map of ranks and steps. Ranks named in findings have their own rows on top; the others follow,
// latest first, and share rows if there are too many: shared cells show extremes. Drag, or press + at
// a cell, to zoom in.

const SMALLEST_VIEW = 4; // rows and steps
const DRAG_PX = 5;
const PINNED = { most: 8, height: 15, gap: 7 };
const BODY = { height: 400, least: 3, most: 26 }; // px, of all rows and of one

/**
 * @typedef {[number, number]} Ends
 * @typedef {{rank: Ends, step: Ends}} View places in the list of rows, and steps
 * @typedef {"wait_us" | "lateness_us" | "step_us"} Metric
 * @typedef {{valueAt: (metric: Metric, row: number, column: number) => number, shape: Shape, ranksOf: (row: number) => number[]}} Cells
 */

/** Decode bytes to numbers: see evenstep.report.page.overview. @param {Column} codes @param {Ends} scale */
function decoder(codes, [low, high]) {
  const values = Float32Array.from({ length: 256 }, (_, code) => (code === 0 ? NaN : code === 1 ? 0 : low * (high / low) ** ((code - 2) / 253)));
  return (/** @type {number} */ at) => values[codes[at]];
}

/** The numbers of the map by metric, row and column. @param {Shape} shape @param {Table} table @returns {Cells} */
function mapCells(shape, table) {
  /** @type {Record<string, (at: number) => number>} */
  const read = {};
  for (const name of Object.keys(table)) read[name] = shape.scales[name] ? decoder(table[name], shape.scales[name]) : (at) => table[name][at];
  return {
    shape,
    valueAt: (metric, row, column) => read[metric](row * shape.columns + column),
    ranksOf: (row) => shape.order.slice(row * shape.ranks_per_bin, (row + 1) * shape.ranks_per_bin),
  };
}

/**
 * Value of a block of cells: the smallest wait (of means over the steps), the greatest of the others.
 * @param {Cells} cells @param {Metric} metric @param {number[]} rows @param {Ends} columns from, until
 */
function extreme(cells, metric, rows, [from, until]) {
  let found = NaN;
  for (const row of rows) {
    let [sum, known, most] = [0, 0, -Infinity];
    for (let column = from; column < until; column += 1) {
      const value = cells.valueAt(metric, row, column);
      if (value !== value) continue; // NaN
      sum += value;
      known += 1;
      if (value > most) most = value;
    }
    if (!known) continue;
    const value = metric === "wait_us" ? sum / known : most;
    if (!(metric === "wait_us" ? found <= value : found >= value)) found = value;
  }
  return found;
}

/** Rows in the order asked for, of one node or all. @param {Cells} cells @param {Facts} facts @param {Column | undefined} lateness by rank @param {{order: string, node: string, more: number[]}} asked */
function arrangedRows(cells, facts, lateness, { order, node, more }) {
  const { shape } = cells;
  const named = [...more, ...facts.culprits];
  const pins = /** @type {number[]} */ ([]);
  const body = [];
  const crowded = shape.rows * BODY.least > BODY.height;
  const place = new Map(shape.order.map((rank, at) => [rank, Math.floor(at / shape.ranks_per_bin)]));
  for (const rank of crowded || more.length ? named : []) {
    const row = place.get(rank);
    if (row !== undefined && !pins.includes(row) && pins.length < PINNED.most) pins.push(row);
  }
  for (let row = 0; row < shape.rows; row += 1) {
    if (!pins.includes(row) && (!node || cells.ranksOf(row).some((rank) => facts.nodes[rank] === node))) body.push(row);
  }
  const late = (/** @type {number} */ row) => Math.max(...cells.ranksOf(row).map((rank) => lateness?.[rank] ?? -1));
  if (order === "lateness" && shape.ranks_per_bin === 1) body.sort((a, b) => late(b) - late(a) || a - b);
  return { pins, body, crowded };
}

/** The part of the map on screen. @param {Shape} shape @param {number} rows */
function heatView(shape, rows) {
  const all = () => /** @type {View} */ ({ rank: [0, rows], step: [shape.first_step, shape.last_step + 1] });
  const view = {
    now: all(),
    /** @param {View} wanted */
    set: (wanted) => {
      const whole = all();
      for (const side of /** @type {("rank" | "step")[]} */ (["rank", "step"])) {
        const [low, high] = whole[side];
        const begin = Math.floor(wanted[side][0]); // no row or step is cut
        const size = Math.min(Math.max(Math.ceil(wanted[side][1]) - begin, SMALLEST_VIEW), high - low);
        const from = Math.max(low, Math.min(begin, high - size));
        view.now[side] = [from, from + size];
      }
    },
    whole: () => { view.now = all(); },
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
 * @param {Cells} cells @param {Facts} facts @param {Table | undefined} means of each rank
 * @param {{pick: (step: number, rank: number) => void}} hooks
 */
function heatChart(cells, facts, means, hooks) {
  const { shape } = cells;
  const canvas = /** @type {HTMLCanvasElement} */ (byId("heat"));
  const read = byId("heat-read");
  const [metric, order, node] = ["heat-metric", "heat-order", "heat-node"].map(byId);
  const lateness = means && lateByRank(means);
  const more = /** @type {number[]} */ ([]); // pinned by whoever reads
  let rows = arrangedRows(cells, facts, lateness, { order: order.value, node: "", more });
  let view = heatView(shape, rows.body.length);
  let cursor = /** @type {{row: number, step: number} | null} */ (null); // row: negative is pinned
  let plot = { left: 92, top: 10, body: 10, width: 1, height: 1, bottom: 1, columns: 1, rows: 1 };
  let brush = /** @type {{from: Point, to: Point} | null} */ (null); // in pixels
  let pictures = /** @type {{pins: HTMLCanvasElement, body: HTMLCanvasElement} | null} */ (null);

  /** @param {number} step */
  const x = (step) => plot.left + ((step - view.now.step[0]) / (view.now.step[1] - view.now.step[0])) * plot.width;
  /** @param {number} row */
  const y = (row) => (row < 0 ? plot.top + (rows.pins.length + row) * PINNED.height : plot.body + ((row - view.now.rank[0]) / (view.now.rank[1] - view.now.rank[0])) * plot.height);
  /** @param {number} place */
  const stepAt = (place) => view.now.step[0] + ((place - plot.left) / plot.width) * (view.now.step[1] - view.now.step[0]);
  /** @param {number} place */
  const rowAt = (place) => (rows.pins.length && place < plot.body - PINNED.gap
    ? Math.max(0, Math.floor((place - plot.top) / PINNED.height)) - rows.pins.length
    : Math.max(0, view.now.rank[0] + ((place - plot.body) / plot.height) * (view.now.rank[1] - view.now.rank[0])));

  /** Rows of the map that share a row on screen. @param {number} row */
  function together(row) {
    if (row < 0) return [rows.pins[rows.pins.length + row]];
    const each = (view.now.rank[1] - view.now.rank[0]) / plot.rows;
    const at = Math.floor((row - view.now.rank[0]) / each + 1e-9);
    const [from, until] = [view.now.rank[0] + at * each, view.now.rank[0] + (at + 1) * each];
    return rows.body.slice(Math.floor(from + 1e-9), Math.max(Math.ceil(until - 1e-9), Math.floor(from + 1e-9) + 1));
  }

  /** Columns that share one on screen: from, until. @param {number} at on screen @returns {Ends} */
  function columnsAt(at) {
    const [from, until] = view.now.step.map((step) => (step - shape.first_step) / shape.steps_per_bin);
    const each = (until - from) / plot.columns;
    const first = Math.floor(from + at * each + 1e-9);
    return [first, Math.min(Math.max(Math.ceil(from + (at + 1) * each - 1e-9), first + 1), shape.columns)];
  }

  function measure() {
    const visible = view.now.rank[1] - view.now.rank[0];
    const height = Math.max(24, Math.min(visible * Math.max(BODY.least, Math.min(BODY.most, 360 / visible)), BODY.height));
    const pinned = rows.pins.length ? rows.pins.length * PINNED.height + PINNED.gap : 0;
    const made = surface(canvas, height + pinned + 54);
    const width = made.width - 92 - 16;
    plot = {
      left: 92, width, top: 20, body: 20 + pinned, bottom: 20 + pinned + height, height,
      columns: Math.max(1, Math.min(Math.ceil((view.now.step[1] - view.now.step[0]) / shape.steps_per_bin), Math.floor(width))),
      rows: Math.max(1, Math.min(Math.round(visible), Math.floor(height / BODY.least))),
    };
    return made;
  }

  /** Both pictures in one scale, whose top is not that of a single outlier. */
  function painted() {
    const columns = Array.from({ length: plot.columns }, (_, at) => columnsAt(at));
    const each = (view.now.rank[1] - view.now.rank[0]) / plot.rows;
    /** @param {number[][]} parts */
    const values = (parts) => Float32Array.from(parts.flatMap((part) => columns.map((ends) => extreme(cells, metric.value, part, ends))));
    const pins = values(rows.pins.map((row) => [row]));
    const body = values(Array.from({ length: plot.rows }, (_, at) => together(view.now.rank[0] + (at + 0.5) * each)));
    const high = Math.max(robustTop(body), pins.length ? middleOf(pins) : 0);
    colorScale("heat", `${duration(high)} or more`);
    /** @param {Float32Array} all @param {number} count */
    const picture = (all, count) => cellPicture(plot.columns, Math.max(count, 1), (at) => all[at], high);
    return { pins: picture(pins, rows.pins.length), body: picture(body, plot.rows) };
  }

  function draw() {
    pictures = null;
    show();
  }

  function show() {
    const { context } = measure();
    pictures ??= painted();
    context.imageSmoothingEnabled = false;
    if (rows.pins.length) context.drawImage(pictures.pins, plot.left, plot.top, plot.width, rows.pins.length * PINNED.height);
    if (rows.body.length) context.drawImage(pictures.body, plot.left, plot.body, plot.width, plot.height);
    labels(context);
    stepAxis(context, plot, Math.ceil(view.now.step[0]), Math.floor(view.now.step[1]) - 1, (step) => x(step + 0.5));
    axisTitles(context, plot, "step", rows.crowded && order.value === "lateness" ? "rank, latest first" : "rank");
    if (cursor) outline(context, cursor);
    if (brush) brushed(context, brush.from, brush.to);
  }

  /** @param {number[]} bins rows of the map */
  const ranksOf = (bins) => bins.flatMap(cells.ranksOf).sort((a, b) => a - b);

  /** @param {Context} context */
  function labels(context) {
    context.textAlign = "right";
    context.fillStyle = color("pause");
    rows.pins.forEach((row, at) => context.fillText(`${clipped(context, formatRanks(cells.ranksOf(row)), 70)} ▸`, plot.left - 4, plot.top + (at + 0.5) * PINNED.height));
    const each = plot.height / plot.rows;
    const every = Math.ceil(Math.max(22 / each, 1));
    const size = (view.now.rank[1] - view.now.rank[0]) / plot.rows;
    for (let at = 0; at < plot.rows; at += 1) {
      const ranks = ranksOf(together(view.now.rank[0] + (at + 0.5) * size));
      const named = each >= 9 && ranks.length === 1 && facts.culprits.includes(ranks[0]);
      if (!named && at % every) continue;
      context.fillStyle = color(named ? "pause" : "soft");
      context.fillText(clipped(context, `${formatRanks(ranks)}${named ? " ▸" : ""}`, 84), plot.left - (named ? 4 : 8), plot.body + (at + 0.5) * each);
    }
  }

  /** @param {Context} context @param {{row: number, step: number}} at */
  function outline(context, { row, step }) {
    const wide = plot.width / plot.columns;
    const [left] = [plot.left + Math.floor((x(step + 0.5) - plot.left) / wide) * wide];
    const tall = row < 0 ? PINNED.height : plot.height / plot.rows;
    const top = row < 0 ? y(row) : plot.body + Math.floor((y(row + 0.5) - plot.body) / tall) * tall;
    if (top + tall <= plot.bottom + 1 && left >= plot.left) outlineCell(context, left, top, wide, tall);
  }

  /** @param {Context} context @param {Point} from @param {Point} to */
  function brushed(context, from, to) {
    context.fillStyle = color("accent");
    context.globalAlpha = 0.25;
    context.fillRect(Math.min(from.x, to.x), Math.min(from.y, to.y), Math.abs(to.x - from.x), Math.abs(to.y - from.y));
    context.globalAlpha = 1;
  }

  /** @param {number} row @param {number} step */
  function select(row, step) {
    if (!rows.pins.length && !rows.body.length) return;
    const now = {
      row: Math.max(-rows.pins.length, Math.min(rows.body.length - 1, Math.floor(row))),
      step: Math.max(shape.first_step, Math.min(shape.last_step, step)),
    };
    cursor = now;
    const bins = together(now.row);
    const ranks = ranksOf(bins);
    const ends = columnsAt(Math.floor(((x(now.step + 0.5) - plot.left) / plot.width) * plot.columns));
    const [first, last] = [shape.first_step + ends[0] * shape.steps_per_bin, Math.min(shape.first_step + ends[1] * shape.steps_per_bin - 1, shape.last_step)];
    /** @param {Metric} name */
    const said = (name) => duration(extreme(cells, name, bins, ends));
    const merged = ranks.length > 1 || last > first;
    const notes = [merged && "extremes", Object.keys(shape.scales).length && "to within 2 %"].filter(Boolean);
    const host = ranks.length === 1 && facts.nodes[ranks[0]] ? ` on ${facts.nodes[ranks[0]]}` : "";
    read.textContent = `rank${ranks.length > 1 ? "s" : ""} ${formatRanks(ranks)}${host}, step${last > first ? `s ${first}-${last}` : ` ${first}`}: `
      + `wait ${said("wait_us")}, lateness ${said("lateness_us")}, step ${said("step_us")}${notes.length ? ` (${notes.join(", ")})` : ""}`;
  }

  /** Keeps what the keyboard points at on screen. */
  function follow() {
    if (!cursor) return;
    const at = { rank: cursor.row, step: cursor.step };
    const moved = /** @type {View} */ ({ rank: [...view.now.rank], step: [...view.now.step] });
    for (const side of /** @type {("rank" | "step")[]} */ (["rank", "step"])) {
      if (at[side] < 0) continue;
      const shift = Math.min(0, at[side] - moved[side][0]) + Math.max(0, at[side] + 1 - moved[side][1]);
      moved[side] = [moved[side][0] + shift, moved[side][1] + shift];
    }
    if (moved.rank[0] !== view.now.rank[0] || moved.step[0] !== view.now.step[0]) { view.set(moved); pictures = null; }
    show();
  }

  function pick() {
    if (cursor) hooks.pick(cursor.step, ranksOf(together(cursor.row))[0]);
  }

  /** The rows anew, as the controls say. */
  function arrange() {
    rows = arrangedRows(cells, facts, lateness, { order: order.value, node: node.value, more });
    view = heatView(shape, rows.body.length);
    cursor = null;
    draw();
  }

  /** @param {() => void} change of the view */
  function zoomed(change) {
    change();
    draw();
    if (cursor) select(cursor.row, cursor.step);
  }

  const middle = (/** @type {keyof View} */ side) => (view.now[side][0] + view.now[side][1]) / 2;
  byId("heat-in").addEventListener("click", () => zoomed(() => view.zoom(0.5, middle("rank"), middle("step"))));
  byId("heat-out").addEventListener("click", () => zoomed(() => view.zoom(2, middle("rank"), middle("step"))));
  byId("heat-all").addEventListener("click", () => zoomed(view.whole));
  for (const one of [order, node]) one.addEventListener("change", arrange);
  metric.addEventListener("change", draw);

  /** @param {PointerEvent} event */
  const point = (event) => {
    const at = pointer(canvas, event);
    select(rowAt(at.y), Math.floor(stepAt(at.x)));
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
    zoomed(() => view.set({ rank: ends(Math.max(0, rowAt(from.y)), Math.max(0, rowAt(to.y))), step: ends(stepAt(from.x), stepAt(to.x)) }));
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = pointer(canvas, event);
    zoomed(() => view.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, rowAt(at.y)), stepAt(at.x)));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const { row, step } = cursor ?? { row: -rows.pins.length || Math.floor(view.now.rank[0]), step: Math.floor(view.now.step[0]) };
    const size = Math.max(1, Math.round((view.now.rank[1] - view.now.rank[0]) / plot.rows));
    const wide = Math.max(1, Math.round((view.now.step[1] - view.now.step[0]) / plot.columns));
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [0, -wide], ArrowRight: [0, wide], ArrowUp: [row <= 0 ? -1 : -size, 0],
      ArrowDown: [row < 0 ? 1 : size, 0], Home: [0, -Infinity], End: [0, Infinity],
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) { select(row + moves[event.key][0], step + moves[event.key][1]); follow(); }
    else if (event.key === "+" || event.key === "=") zoomed(() => view.zoom(0.5, Math.max(0, row) + 0.5, step + 0.5));
    else if (event.key === "-") zoomed(() => view.zoom(2, Math.max(0, row) + 0.5, step + 0.5));
    else if (event.key === "0") zoomed(view.whole);
    else if (event.key === "Enter") pick();
    else return;
    event.preventDefault();
  });
  return {
    draw,
    /** Gives a rank a row of its own; false where the map has no such rank. @param {number} rank */
    pin: (rank) => {
      if (!shape.order.includes(rank)) return false;
      more.splice(0, more.length, rank);
      arrange();
      return true;
    },
    unpin: () => { if (more.splice(0).length) arrange(); },
  };
}

/** Mean lateness with a rank's number as its place. @param {Table} means */
function lateByRank(means) {
  const found = new Float64Array(Math.max(...means.rank) + 1).fill(-1);
  means.rank.forEach((rank, at) => { if (Number.isFinite(means.lateness_us[at])) found[rank] = means.lateness_us[at]; });
  return found;
}

/** What the controls of the map offer: metrics that are known, orders, and nodes. @param {Cells} cells @param {Facts} facts @returns {boolean} whether there is anything to draw */
function heatControls(cells, facts) {
  const { shape } = cells;
  const rows = Array.from({ length: shape.rows }, (_, row) => row);
  const seen = [["lateness_us", "lateness"], ["wait_us", "wait for others"], ["step_us", "step time"]].filter(([name]) =>
    rows.some((row) => { for (let at = 0; at < shape.columns; at += 1) if (cells.valueAt(/** @type {Metric} */ (name), row, at) > 0) return true; return false; }));
  for (const [name, text] of seen) byId("heat-metric").add(new Option(text, name));
  const crowded = shape.rows * BODY.least > BODY.height;
  byId("heat-order").value = crowded ? "lateness" : "rank";
  byId("heat-order").parentElement.hidden = shape.ranks_per_bin > 1;
  const nodes = [...new Set(shape.order.map((rank) => facts.nodes[rank]).filter(Boolean))].sort();
  for (const name of nodes) byId("heat-node").add(new Option(name, name));
  byId("heat-node").parentElement.hidden = nodes.length < 2;
  return seen.length > 0;
}
