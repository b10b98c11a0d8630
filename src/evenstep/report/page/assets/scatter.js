// @ts-check
// Collectives by size and time on logarithmic axes, with their floor and the times of algorithms.

/** @type {Record<string, number[]>} */
const DASHES = { ring: [], tree: [7, 4], hierarchical: [2, 3] };

/** @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {Record<string, Table>} tables @param {Facts} facts */
function scatterChart(canvas, read, tables, facts) {
  const { points, floors, curves } = tables;
  const note = byId("scatter-note");
  const chooser = /** @type {HTMLSelectElement} */ (byId("scatter-shape"));
  const shapes = facts.sizes ?? [];
  let shape = 0;
  let focus = /** @type {any} */ (null); // {table, at}
  let plot = { left: 66, top: 12, width: 1, height: 1, bottom: 1 };
  let bounds = { size: [1, 2], time: [1, 2] };

  /** @param {Table} table */
  const mine = (table) => { const rows = /** @type {number[]} */ ([]); table.shape.forEach((value, at) => { if (value === shape) rows.push(at); }); return rows; };
  /** @param {number[]} values @param {number} room */
  const spread = (values, room) => [Math.min(...values) / room, Math.max(...values) * room];
  /** @param {number} value */
  const share = (value, /** @type {number[]} */ [low, high]) => Math.log(value / low) / Math.log(high / low);
  /** @param {number} bytes */
  const x = (bytes) => plot.left + share(bytes, bounds.size) * plot.width;
  /** @param {number} us */
  const y = (us) => plot.bottom - share(us, bounds.time) * plot.height;

  function measure() {
    const rows = mine(points);
    const drawn = mine(curves);
    bounds.size = spread(drawn.length ? drawn.map((at) => curves.size_bytes[at]) : rows.map((at) => points.size_bytes[at]), drawn.length ? 1 : 2);
    bounds.time = spread([...rows.map((at) => points.time_us[at]), ...drawn.map((at) => Math.max(curves.time_us[at], 1e-3))], 1.3);
    // one odd transfer, or a curve that is far off, must not flatten the rest
    const usual = rows.map((at) => points.time_us[at]).sort((a, b) => a - b);
    bounds.time[0] = Math.max(bounds.time[0], usual[0] / 1000);
    bounds.time[1] = Math.min(bounds.time[1], usual[usual.length - 1] * 1000);
  }

  function draw() {
    measure();
    const { context, width, height } = surface(canvas);
    plot = { left: 66, top: 22, width: width - 66 - 96, bottom: height - 36, height: height - 58 };
    axes(context);
    axisTitles(context, plot, "size", "time of the transfer");
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top, plot.width + 96, plot.height);
    context.clip();
    expected(context);
    context.fillStyle = color("transfer");
    context.globalAlpha = 0.4;
    for (const at of mine(points)) context.fillRect(x(points.size_bytes[at]) - 1.5, y(points.time_us[at]) - 1.5, 3, 3);
    context.globalAlpha = 1;
    for (const at of mine(floors)) diamond(context, x(floors.size_bytes[at]), y(floors.time_us[at]));
    context.restore();
    if (focus) ring(context, x(focus.table.size_bytes[focus.at]), y(focus.table.time_us[focus.at]));
    note.textContent = shapes[shape].rests_on;
  }

  /** @param {Context} context */
  function axes(context) {
    context.strokeStyle = color("line");
    context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
    for (const bytes of decades(bounds.size, plot.width / 80)) {
      context.fillStyle = color("line");
      context.fillRect(Math.round(x(bytes)), plot.top, 1, plot.height);
      context.fillStyle = color("soft");
      context.textAlign = "center";
      context.fillText(volume(bytes), x(bytes), plot.bottom + 12);
    }
    valueAxis(context, plot, decades(bounds.time, plot.height / 36), y, duration);
  }

  /** @param {Context} context */
  function expected(context) {
    const ends = /** @type {{name: string, y: number}[]} */ ([]);
    facts.algorithms.forEach((name, number_) => {
      const rows = mine(curves).filter((at) => curves.algorithm[at] === number_);
      if (!rows.length) return;
      context.strokeStyle = color("curve");
      context.setLineDash(DASHES[name] ?? []);
      context.lineWidth = 1.3;
      context.beginPath();
      for (const at of rows) context.lineTo(x(curves.size_bytes[at]), y(Math.max(curves.time_us[at], bounds.time[0] / 10)));
      context.stroke();
      context.setLineDash([]);
      ends.push({ name, y: Math.max(y(curves.time_us[rows[rows.length - 1]]), plot.top + 6) });
    });
    context.fillStyle = color("soft");
    context.textAlign = "left";
    let before = -Infinity;
    for (const end of ends.sort((a, b) => a.y - b.y)) {
      before = Math.max(end.y, before + 14);
      context.fillText(end.name, plot.left + plot.width + 6, before);
    }
  }

  /** @param {Context} context @param {number} left @param {number} top */
  function diamond(context, left, top) {
    context.fillStyle = color("ink");
    context.beginPath();
    for (const [right, down] of [[0, -5], [5, 0], [0, 5], [-5, 0]]) context.lineTo(left + right, top + down);
    context.fill();
  }

  /** @param {Table} table @param {number} at */
  function point(table, at) {
    focus = { table, at };
    const floor = mine(floors).find((row) => floors.size_bytes[row] === table.size_bytes[at]);
    const what = table === floors ? "floor of" : "one of";
    const rate = number(table.size_bytes[at] / table.time_us[at] / 1e3);
    const beside = table === points && floor !== undefined ? `, ${number(table.time_us[at] / floors.time_us[floor])} × its floor` : "";
    read.textContent = `${what} ${volume(table.size_bytes[at])}: ${duration(table.time_us[at])}, ${rate} GB/s${beside}`;
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = pointer(canvas, event);
    let best = { far: 20, table: /** @type {Table | null} */ (null), at: 0 };
    for (const table of [floors, points]) {
      for (const row of mine(table)) {
        const far = Math.hypot(x(table.size_bytes[row]) - at.x, y(table.time_us[row]) - at.y);
        if (far < best.far) best = { far, table, at: row };
      }
    }
    if (best.table) point(best.table, best.at);
  });
  walkable(canvas, (right) => {
    const rows = mine(floors);
    if (!rows.length || !right) return;
    const now = focus?.table === floors ? rows.indexOf(focus.at) : right > 0 ? -1 : rows.length;
    point(floors, rows[Math.max(0, Math.min(rows.length - 1, now + Math.sign(right)))]);
  });
  shapes.forEach((one, at) => chooser.add(new Option(one.name, `${at}`)));
  chooser.addEventListener("change", () => { shape = Number(chooser.value); focus = null; read.textContent = ""; draw(); });
  return { draw };
}
