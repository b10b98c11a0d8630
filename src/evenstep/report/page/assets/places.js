// @ts-check
// Where ranks run: a box per node, a tile per rank, coloured by its mean wait or lateness.

/**
 * @typedef {{name: string, rows: number[]}} Host
 * @typedef {{row: number, x: number, y: number}} Tile
 * @typedef {{node: Host, left: number, top: number, width: number, height: number}} Frame
 */

const TILE = { most: 34, gap: 3 };
const NAMED = 64; // nodes, of which each has room for its name

/** @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {Table} table @param {Facts} facts */
function placesChart(canvas, read, table, facts) {
  const chooser = /** @type {HTMLSelectElement} */ (byId("places-metric"));
  const nodes = /** @type {Host[]} */ ([]);
  const byName = new Map();
  table.rank.forEach((rank, row) => {
    const name = facts.nodes[rank] ?? "";
    if (!byName.has(name)) { byName.set(name, { name, rows: [] }); nodes.push(byName.get(name)); }
    byName.get(name).rows.push(row);
  });
  let focus = -1;
  let boxes = /** @type {Tile[]} */ ([]);
  let size = TILE.most;

  function draw() {
    const width = canvas.clientWidth;
    const ranks = table.rank.length;
    size = ranks > 2048 ? 8 : ranks > 512 ? 16 : ranks > 128 ? 24 : TILE.most;
    const across = Math.min(8, Math.max(...nodes.map((node) => node.rows.length)));
    const named = nodes.length <= NAMED;
    const single = !named && across === 1; // a tile is a node: no frame around it
    const [head, inset, foot] = named ? [22, 6, 12] : single ? [0, 0, 0] : [4, 4, 10];
    const wide = across * (size + TILE.gap) < 96 && named ? 118 : across * (size + TILE.gap) + (named ? 22 : 3 * inset);
    const columns = Math.max(1, Math.floor((width - 8) / wide));
    /** @param {Host} node */
    const deep = (node) => Math.ceil(node.rows.length / across) * (size + TILE.gap) + head + foot;
    boxes = [];
    const frames = /** @type {Frame[]} */ ([]);
    let [top, tallest] = [10, 0];
    nodes.forEach((node, at) => {
      if (at && at % columns === 0) { top += tallest; tallest = 0; }
      const left = 10 + (at % columns) * wide;
      frames.push({ node, left, top, height: deep(node) - 8, width: wide - (named ? 10 : 6) });
      node.rows.forEach((row, place) => boxes.push({ row, x: left + inset + (place % across) * (size + TILE.gap), y: top + head + Math.floor(place / across) * (size + TILE.gap) }));
      tallest = Math.max(tallest, deep(node));
    });
    const { context } = surface(canvas, top + tallest + 4);
    const values = table[chooser.value];
    const high = Math.max(...Array.from(values).filter(Number.isFinite), 1e-3);
    for (const frame of single ? [] : frames) outer(context, frame, named);
    const paint = heatRamp();
    for (const box of boxes) tile(context, box, values[box.row], high, paint);
    colorScale("places", high > 1e-3 ? duration(high) : "0");
    const chosen = boxes.find((box) => box.row === focus);
    if (chosen) outlineCell(context, chosen.x, chosen.y, size, size);
  }

  /** @param {Context} context @param {Frame} frame @param {boolean} named */
  function outer(context, { node, left, top, width, height }, named) {
    context.strokeStyle = color("line");
    context.lineWidth = 1;
    context.strokeRect(left + 0.5, top + 0.5, width, height);
    if (!named) return;
    context.fillStyle = color("soft");
    context.textAlign = "left";
    context.fillText(clipped(context, node.name || "unknown node", width - 12), left + 6, top + 11);
  }

  /** @param {Context} context @param {Tile} box @param {number} value @param {number} high @param {Ramp} paint */
  function tile(context, box, value, high, paint) {
    const parts = Number.isFinite(value) ? paint(value / high) : rgb(color("heat-none"));
    context.fillStyle = `rgb(${parts.map(Math.round).join(" ")})`;
    context.fillRect(box.x, box.y, size, size);
    context.strokeStyle = color("line");
    context.strokeRect(box.x + 0.5, box.y + 0.5, size - 1, size - 1);
    if (size < 20) return;
    context.fillStyle = inkOn(parts);
    context.textAlign = "center";
    context.font = "11px system-ui, sans-serif";
    context.fillText(`${table.rank[box.row]}`, box.x + size / 2, box.y + size / 2 + 0.5);
    context.font = "12px system-ui, sans-serif";
  }

  /** @param {number} row */
  function select(row) {
    focus = Math.max(0, Math.min(table.rank.length - 1, row));
    const rank = table.rank[focus];
    const place = facts.places[rank] ?? {};
    const parts = [
      `rank ${rank}${place.node ? ` on ${place.node}` : ""}`,
      place.rack && `rack ${place.rack}`, place.gpu, place.nic && `adapter ${place.nic}`,
      place.numa && `NUMA ${place.numa}`, place.cpus && `CPUs ${place.cpus}`,
      `waits ${duration(table.wait_us[focus])} a step`, `late by ${duration(table.lateness_us[focus])}`,
    ];
    read.textContent = parts.filter(Boolean).join(" · ");
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = pointer(canvas, event);
    const found = boxes.find((box) => at.x >= box.x && at.x <= box.x + size + TILE.gap && at.y >= box.y && at.y <= box.y + size + TILE.gap);
    if (found && found.row !== focus) select(found.row);
  });
  walkable(canvas, (right, down) => select(focus < 0 && Math.abs(right) < 2 ? 0 : focus + right + 8 * down));
  chooser.addEventListener("change", draw);
  return { draw };
}
