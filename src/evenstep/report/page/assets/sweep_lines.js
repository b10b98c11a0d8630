// @ts-check
// A sweep as curves: a panel for each matrix, a line for each of its rows.

/**
 * @typedef {{x: number, y: number, row: SweepRow}} Dot
 * @typedef {{y: number, text: string, ink: string}} LineEnd
 */

const LINE_COLORS = ["compute", "wait", "exposed_communication", "input", "pause", "checkpoint", "optimizer", "pacing"];
const LINES = { height: 190, left: 74, gap: 36, narrowest: 300, right: 86 };

/** @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {SweepRow[]} rows @param {() => SweepView} state */
function sweepLines(canvas, read, rows, state) {
  let points = /** @type {Dot[]} */ ([]);
  let focus = -1;

  function draw() {
    const view = state();
    const matrices = matricesOf(rows, view.across, view.down);
    const across = Math.max(1, Math.min(matrices.length, Math.floor(canvas.clientWidth / LINES.narrowest)));
    const deep = LINES.height + LINES.gap + 26;
    const { context, width } = surface(canvas, Math.ceil(matrices.length / across) * deep + 8);
    const [low, high] = endsOf(rows, view.measure);
    points = [];
    matrices.forEach((matrix, at) => {
      const left = (at % across) * (width / across) + LINES.left;
      const top = Math.floor(at / across) * deep + 30;
      const plot = { left, top, width: width / across - LINES.left - LINES.right, height: LINES.height - 24, bottom: top + LINES.height - 24, low, high };
      panel(context, plot, matrix, view);
    });
    if (focus >= 0 && points[focus]) ring(context, points[focus].x, points[focus].y);
  }

  /** @param {Context} context @param {Scaled} plot @param {Matrix} matrix @param {SweepView} view */
  function panel(context, plot, matrix, view) {
    const values = valuesOf(rows, view.across);
    /** @param {number} at */
    const x = (at) => plot.left + (values.length > 1 ? at / (values.length - 1) : 0.5) * plot.width;
    /** @param {number} value */
    const y = (value) => plot.bottom - ((value - plot.low) / (plot.high - plot.low)) * plot.height;
    context.fillStyle = color("ink");
    context.textAlign = "left";
    context.fillText(clipped(context, matrix.fixed.map(([field, value]) => `${shortName(field)} ${value}`).join(", "), plot.width - 50), plot.left, plot.top - 16);
    valueAxis(context, plot, ticks(plot.low, plot.high, 4), y, (value) => measureWords(view.measure, value));
    context.textAlign = "center";
    context.fillStyle = color("soft");
    const every = Math.ceil(values.length / Math.max(2, plot.width / 48));
    values.forEach((value, at) => { if (at % every === 0) context.fillText(`${value}`, x(at), plot.bottom + 13); });
    context.fillText(clipped(context, `${shortName(view.across)} →`, plot.width), plot.left + plot.width / 2, plot.bottom + 29);
    const ends = matrix.lines.map((line, at) => lineOf(context, line, at, view, x, y)).filter((end) => end !== null);
    if (view.down) names(context, ends, plot, view);
  }

  /** A line with its intervals; where it ends. @param {Context} context @param {Matrix["lines"][number]} line @param {number} number_ @param {SweepView} view @param {(value: number) => number} x @param {(value: number) => number} y */
  function lineOf(context, line, number_, view, x, y) {
    const ink = color(LINE_COLORS[number_ % LINE_COLORS.length]);
    const places = line.cells.flatMap((row, at) => (row?.[view.measure.name] ? [{ x: x(at), y: y(row[view.measure.name].value), row }] : []));
    context.strokeStyle = context.fillStyle = ink;
    context.lineWidth = 1.6;
    context.setLineDash(number_ < LINE_COLORS.length ? [] : [5, 3]);
    context.beginPath();
    for (const place of places) context.lineTo(place.x, place.y);
    context.stroke();
    context.setLineDash([]);
    for (const place of places) {
      const { low, high } = place.row[view.measure.name];
      if (low !== null) context.fillRect(place.x - 0.75, y(high), 1.5, Math.max(1, y(low) - y(high)));
      context.beginPath();
      context.arc(place.x, place.y, 3, 0, 2 * Math.PI);
      context.fill();
    }
    points.push(...places);
    const last = places[places.length - 1];
    return last ? { y: last.y, text: `${line.value}`, ink } : null;
  }

  /** Beside each line's end, moved apart where they would overlap. @param {Context} context @param {LineEnd[]} ends @param {Scaled} plot @param {SweepView} view */
  function names(context, ends, plot, view) {
    context.textAlign = "left";
    let before = -Infinity;
    for (const end of [...ends].sort((a, b) => a.y - b.y)) {
      const place = Math.max(end.y, before + 13);
      before = place;
      context.fillStyle = end.ink;
      context.fillRect(plot.left + plot.width + 8, place - 1, 8, 2);
      context.fillStyle = color("ink");
      context.fillText(clipped(context, end.text, LINES.right - 24), plot.left + plot.width + 20, place);
    }
    context.fillStyle = color("soft");
    context.textAlign = "right";
    context.fillText(clipped(context, shortName(view.down), LINES.right + 40), plot.left + plot.width + LINES.right - 4, plot.top - 16);
  }

  /** @param {number} at */
  function select(at) {
    focus = Math.max(0, Math.min(points.length - 1, at));
    if (points[focus]) read.textContent = rowWords(points[focus].row, state().measure);
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = pointer(canvas, event);
    /** @param {Dot} point */
    const distance = (point) => Math.hypot(point.x - at.x, point.y - at.y);
    const nearest = points.reduce((best, point, index) => (distance(point) < distance(points[best]) ? index : best), 0);
    if (points.length && nearest !== focus) select(nearest);
  });
  walkable(canvas, (right, down) => select(focus + right + down));
  return { draw };
}

/** Ends of the axis: from nothing where the smallest is small beside the largest. @param {SweepRow[]} rows @param {Measure} measure @returns {[number, number]} */
function endsOf(rows, measure) {
  const found = rows.map((row) => row[measure.name]).filter(Boolean);
  const low = Math.min(...found.map((one) => one.low ?? one.value));
  const high = Math.max(...found.map((one) => one.high ?? one.value));
  const room = 0.06 * (high - low) || Math.abs(0.05 * high) || 1;
  return [low >= 0 && low < 0.6 * high ? 0 : low - room, high + room];
}
