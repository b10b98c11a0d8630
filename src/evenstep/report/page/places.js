// @ts-check
// Where ranks run: a box per node, a tile per rank, coloured by its mean wait or lateness.

const TILE = { most: 34, least: 9, gap: 3 };

function placesChart(canvas, read, table, facts) {
  const chooser = /** @type {HTMLSelectElement} */ (byId("places-metric"));
  const nodes = []; // {name, rows}
  const byName = new Map();
  table.rank.forEach((rank, row) => {
    const name = facts.nodes[rank] ?? "";
    if (!byName.has(name)) { byName.set(name, { name, rows: [] }); nodes.push(byName.get(name)); }
    byName.get(name).rows.push(row);
  });
  let focus = -1;
  let boxes = []; // {row, x, y}
  let size = TILE.most;

  function draw() {
    const width = canvas.clientWidth;
    size = table.rank.length > 512 ? 16 : table.rank.length > 128 ? 24 : TILE.most;
    const across = Math.min(8, Math.max(...nodes.map((node) => node.rows.length)));
    const wide = Math.max(across * (size + TILE.gap), 96) + 22;
    const columns = Math.max(1, Math.floor((width - 8) / wide));
    const deep = (node) => Math.ceil(node.rows.length / across) * (size + TILE.gap) + 34;
    boxes = [];
    const frames = [];
    let [top, tallest] = [10, 0];
    nodes.forEach((node, at) => {
      if (at && at % columns === 0) { top += tallest; tallest = 0; }
      const left = 10 + (at % columns) * wide;
      frames.push({ node, left, top, height: deep(node) - 8, width: wide - 10 });
      node.rows.forEach((row, place) => boxes.push({ row, x: left + 6 + (place % across) * (size + TILE.gap), y: top + 22 + Math.floor(place / across) * (size + TILE.gap) }));
      tallest = Math.max(tallest, deep(node));
    });
    const { context } = surface(canvas, top + tallest + 4);
    const values = table[chooser.value];
    const high = Math.max(...Array.from(values).filter(Number.isFinite), 1e-3);
    for (const frame of frames) outer(context, frame);
    const paint = heatRamp();
    for (const box of boxes) tile(context, box, values[box.row], high, paint);
    colorScale("places", high > 1e-3 ? duration(high) : "0");
    const chosen = boxes.find((box) => box.row === focus);
    if (chosen) outlineCell(context, chosen.x, chosen.y, size, size);
  }

  function outer(context, { node, left, top, width, height }) {
    context.strokeStyle = color("line");
    context.lineWidth = 1;
    context.strokeRect(left + 0.5, top + 0.5, width, height);
    context.fillStyle = color("soft");
    context.textAlign = "left";
    context.fillText(clipped(context, node.name || "unknown node", width - 12), left + 6, top + 11);
  }

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
