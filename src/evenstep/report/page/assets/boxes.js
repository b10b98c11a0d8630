// @ts-check
// Distribution of each phase on each rank: whiskers 5 to 95 %, box 25 to 75 %, line the median.

/**
 * @typedef {{phase: string, from: number, to: number}} Panel rows of the table
 * @typedef {{left: number, right: number, top: number, bottom: number, low: number, high: number}} BoxPlot
 */

const PANEL = { height: 132, gap: 16, left: 66, narrowest: 340 };

/** @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {Table} table @param {Facts} facts */
function boxesChart(canvas, read, table, facts) {
  const phaseNames = nameOf(facts.phases);
  const panels = /** @type {Panel[]} */ ([]);
  for (let at = 0; at < table.phase.length; at += 1) {
    if (at && table.phase[at] === table.phase[at - 1]) panels[panels.length - 1].to = at + 1;
    else panels.push({ phase: phaseNames[table.phase[at]], from: at, to: at + 1 });
  }
  let cursor = /** @type {{panel: number, row: number} | null} */ (null);
  let plots = /** @type {BoxPlot[]} */ ([]);

  function draw() {
    const columns = canvas.clientWidth >= 2 * PANEL.narrowest ? 2 : 1;
    const lines = Math.ceil(panels.length / columns);
    const { context, width } = surface(canvas, lines * (PANEL.height + PANEL.gap) + 10);
    const wide = width / columns;
    plots = panels.map((panel, at) => ({
      left: (at % columns) * wide + PANEL.left, right: ((at % columns) + 1) * wide - 16,
      top: Math.floor(at / columns) * (PANEL.height + PANEL.gap) + 24,
      bottom: Math.floor(at / columns) * (PANEL.height + PANEL.gap) + PANEL.height - 6,
      ...scaleOf(panel),
    }));
    panels.forEach((panel, at) => draw1(context, panel, plots[at]));
    if (cursor) outline(context, cursor.panel, cursor.row);
  }

  /** From nothing to the longest whisker, or, where all are long, from the shortest. @param {Panel} panel */
  function scaleOf(panel) {
    const rows = Array.from({ length: panel.to - panel.from }, (_, at) => panel.from + at);
    const high = Math.max(1e-3, ...rows.map((row) => table.q95_us[row]));
    const low = Math.min(...rows.map((row) => table.q05_us[row]));
    const room = 0.06 * (high - low) || 0.05 * high;
    return { low: low > 0.5 * high ? low - room : 0, high: high + room };
  }

  /** @param {BoxPlot} plot @param {number} us */
  const y = (plot, us) => plot.bottom - ((us - plot.low) / (plot.high - plot.low)) * (plot.bottom - plot.top);
  /** @param {Panel} panel @param {BoxPlot} plot @param {number} row */
  const place = (panel, plot, row) => {
    const each = (plot.right - plot.left) / (panel.to - panel.from);
    return { middle: plot.left + (row - panel.from + 0.5) * each, wide: Math.max(1, Math.min(each * 0.7, 18)), each };
  };

  /** @param {Context} context @param {Panel} panel @param {BoxPlot} plot */
  function draw1(context, panel, plot) {
    context.fillStyle = color("ink");
    context.textAlign = "left";
    context.fillText(panel.phase, plot.left, plot.top - 12);
    valueAxis(context, { left: plot.left, width: plot.right - plot.left }, ticks(plot.low, plot.high, 4), (us) => y(plot, us), duration);
    for (let row = panel.from; row < panel.to; row += 1) box(context, panel, plot, row);
    context.fillStyle = color("soft");
    context.textAlign = "center";
    const every = Math.max(1, Math.ceil(44 / place(panel, plot, panel.from).each));
    for (let row = panel.from; row < panel.to; row += every) {
      context.fillText(row === panel.from ? `rank ${table.rank[row]}` : `${table.rank[row]}`, place(panel, plot, row).middle, plot.bottom + 10);
    }
  }

  /** @param {Context} context @param {Panel} panel @param {BoxPlot} plot @param {number} row */
  function box(context, panel, plot, row) {
    const { middle, wide } = place(panel, plot, row);
    const mine = color(panel.phase === "sync" ? "wait" : panel.phase);
    context.fillStyle = mine;
    context.fillRect(middle - 0.5, y(plot, table.q95_us[row]), 1, Math.max(y(plot, table.q05_us[row]) - y(plot, table.q95_us[row]), 1));
    context.globalAlpha = 0.55;
    const top = y(plot, table.q75_us[row]);
    context.fillRect(middle - wide / 2, top, wide, Math.max(y(plot, table.q25_us[row]) - top, 1));
    context.globalAlpha = 1;
    const named = facts.culprits.some((rank) => rank >= table.rank[row] && rank <= table.last_rank[row]);
    context.fillStyle = color(named ? "pause" : "ink");
    context.fillRect(middle - wide / 2, y(plot, table.q50_us[row]) - 0.75, wide, 1.5);
  }

  /** @param {Context} context @param {number} number_ @param {number} row */
  function outline(context, number_, row) {
    const [panel, plot] = [panels[number_], plots[number_]];
    const { middle, wide } = place(panel, plot, row);
    const top = y(plot, table.q95_us[row]);
    outlineCell(context, middle - wide / 2, top, wide, Math.max(y(plot, table.q05_us[row]) - top, 2));
  }

  /** @param {number} panel @param {number} row */
  function select(panel, row) {
    const chosen = Math.max(0, Math.min(panels.length - 1, panel));
    const { from, to, phase } = panels[chosen];
    cursor = { panel: chosen, row: Math.max(from, Math.min(to - 1, row)) };
    const at = cursor.row;
    const who = table.rank[at] === table.last_rank[at] ? `rank ${table.rank[at]}` : `ranks ${table.rank[at]}-${table.last_rank[at]}`;
    read.textContent = `${phase} on ${who}: median ${duration(table.q50_us[at])}, half of the steps from ${duration(table.q25_us[at])} to `
      + `${duration(table.q75_us[at])}, 90 % from ${duration(table.q05_us[at])} to ${duration(table.q95_us[at])}`;
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = pointer(canvas, event);
    const found = plots.findIndex((plot) => at.x >= plot.left && at.x <= plot.right && at.y >= plot.top - 20 && at.y <= plot.bottom + 16);
    if (found < 0) return;
    const { from, to } = panels[found];
    select(found, from + Math.floor(((at.x - plots[found].left) / (plots[found].right - plots[found].left)) * (to - from)));
  });
  walkable(canvas, (right, down) => {
    const now = cursor ?? { panel: 0, row: panels[0].from - right };
    const next = Math.max(0, Math.min(panels.length - 1, now.panel + down));
    select(next, now.row - panels[now.panel].from + panels[next].from + right);
  });
  return { draw };
}
