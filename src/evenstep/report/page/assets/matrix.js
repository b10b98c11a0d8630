// @ts-check
// Who waits for whom: rows wait, columns are waited for.

/** @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {WaitingFacts} shape @param {Table} table @param {Facts} facts */
function matrixChart(canvas, read, shape, table, facts) {
  const side = shape.ranks.length;
  const total = table.lost_us.reduce((sum, value) => sum + value, 0);
  let cell = /** @type {any} */ (null);
  let plot = { left: 66, top: 44, size: 1 };

  /** @param {number} at */
  const named = (at) => {
    const first = shape.ranks[at];
    const last = at + 1 < side ? shape.ranks[at + 1] - 1 : facts.world - 1;
    if (last > first && shape.ranks_per_bin > 1) return `ranks ${first}-${last}`;
    return `rank ${first}${facts.nodes[first] ? ` on ${facts.nodes[first]}` : ""}`;
  };

  function draw() {
    const size = Math.max(140, Math.min(side * 26, 420, canvas.clientWidth - 66 - 16));
    const { context } = surface(canvas, size + 56);
    plot = { left: 66, top: 44, size };
    const high = Math.max(...table.lost_us, 1e-3);
    context.imageSmoothingEnabled = false;
    context.drawImage(cellPicture(side, side, (at) => table.lost_us[at], high), plot.left, plot.top, size, size);
    context.strokeStyle = color("line");
    context.strokeRect(plot.left - 0.5, plot.top - 0.5, size + 1, size + 1);
    labels(context);
    colorScale("matrix", duration(high));
    if (cell) { const each = size / side; outlineCell(context, plot.left + cell.column * each, plot.top + cell.row * each, each, each); }
  }

  /** @param {Context} context */
  function labels(context) {
    const each = plot.size / side;
    const every = Math.ceil(Math.max(26 / each, 1));
    context.fillStyle = color("soft");
    for (let at = 0; at < side; at += every) {
      const middle = (at + 0.5) * each;
      context.textAlign = "right";
      context.fillText(`${shape.ranks[at]}`, plot.left - 8, plot.top + middle);
      context.textAlign = "center";
      context.fillText(`${shape.ranks[at]}`, plot.left + middle, plot.top - 9);
    }
    context.textAlign = "left";
    context.fillText("awaited rank →", plot.left, plot.top - 27);
    context.fillText("waits ↓", 8, plot.top - 9);
  }

  /** @param {number} row @param {number} column */
  function select(row, column) {
    cell = { row: Math.max(0, Math.min(side - 1, row)), column: Math.max(0, Math.min(side - 1, column)) };
    const lost = table.lost_us[cell.row * side + cell.column];
    read.textContent = lost > 0
      ? `${named(cell.row)} lost ${duration(lost)} waiting for ${named(cell.column)}: ${number((100 * lost) / total)} % of all waiting`
      : `${named(cell.row)} lost nothing to ${named(cell.column)}`;
    draw();
  }

  /** @param {PointerEvent | MouseEvent} event */
  const locate = (event) => {
    const at = pointer(canvas, event);
    select(Math.floor(((at.y - plot.top) / plot.size) * side), Math.floor(((at.x - plot.left) / plot.size) * side));
  };
  canvas.addEventListener("pointermove", locate);
  canvas.addEventListener("click", locate);
  walkable(canvas, (right, down) => select((cell?.row ?? -down) + down, (cell?.column ?? -right) + right));
  return { draw };
}
