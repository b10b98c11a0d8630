// @ts-check
// The small chart of each finding: its ranks beside the others, or step time with its steps marked.

const POINTS = 240; // along the steps
const NAMED_IN_PICTURE = 8; // ranks drawn together

/** @typedef {{step: number[], mine: number[], others: number[]}} Lines µs at each step */

/** Half of them are below. @param {Numbers} values */
function middleOf(values) {
  const known = Float32Array.from(values).filter((value) => Number.isFinite(value)).sort();
  return known.length ? known[Math.floor((known.length - 1) / 2)] : NaN;
}

/** Lateness of some ranks, mean, beside the median of the others. @param {Cells} cells @param {number[]} ranks @returns {Lines} */
function latenessLines(cells, ranks) {
  const { shape } = cells;
  const each = Math.max(1, Math.ceil(shape.columns / POINTS));
  const found = /** @type {Lines} */ ({ step: [], mine: [], others: [] });
  const rows = Array.from({ length: shape.rows }, (_, row) => row);
  const own = rows.filter((row) => cells.ranksOf(row).some((rank) => ranks.includes(rank)));
  const rest = rows.filter((row) => !own.includes(row));
  for (let from = 0; from < shape.columns; from += each) {
    /** @param {number} row */
    const late = (row) => extreme(cells, "lateness_us", [row], [from, Math.min(from + each, shape.columns)]);
    found.step.push(shape.first_step + from * shape.steps_per_bin);
    found.mine.push(own.reduce((sum, row) => sum + late(row), 0) / own.length);
    found.others.push(middleOf(rest.map(late)));
  }
  return found;
}

/**
 * @param {HTMLCanvasElement} canvas @param {Diagnosis["findings"][number]} finding
 * @param {Cells} cells @param {Table} curve
 */
function findingPicture(canvas, finding, cells, curve) {
  const ranks = finding.where.ranks.slice(0, NAMED_IN_PICTURE);
  const late = ranks.length ? latenessLines(cells, ranks) : null;
  const told = late !== null && late.mine.some((value) => value > 0);
  const lines = told ? late : { step: [...curve.step], mine: [...curve.longest_us], others: [...curve.median_us] };
  const caption = /** @type {HTMLElement} */ (canvas.nextElementSibling);
  const who = `rank${ranks.length > 1 ? "s" : ""} ${formatRanks([...ranks].sort((a, b) => a - b))}`;
  const [mine, others] = told ? [who, "median of the others"] : ["slowest rank", "median rank"];
  const drawn = [swatch("pause", mine, "span")];
  if (lines.others.some(Number.isFinite)) drawn.push(swatch("curve", others, "span")); // none where all are its ranks
  caption.replaceChildren(...drawn);

  function draw() {
    const { context, width, height } = surface(canvas);
    const plot = { left: 62, top: 18, width: width - 62 - 10, bottom: height - 36, height: height - 54 };
    const top = robustHigh([...lines.mine, ...lines.others].filter(Number.isFinite)) || 1;
    const [first, last] = [lines.step[0], lines.step[lines.step.length - 1]];
    /** @param {number} step */
    const x = (step) => plot.left + ((step - first) / Math.max(last - first, 1)) * plot.width;
    /** @param {number} us */
    const y = (us) => plot.bottom - Math.min(us / top, 1.03) * plot.height;
    valueAxis(context, plot, ticks(0, top, 3), y, duration);
    stepBars(context, finding.when.steps, [first, last], x, { top: plot.bottom + 1, height: 3 });
    for (const [values, name] of /** @type {[number[], string][]} */ ([[lines.others, "curve"], [lines.mine, "pause"]])) {
      context.strokeStyle = color(name);
      context.lineWidth = 1.4;
      context.beginPath();
      values.forEach((value, at) => { if (Number.isFinite(value)) context.lineTo(x(lines.step[at]), y(value)); });
      context.stroke();
    }
    nameHighest(context, plot, top, lines.mine, (at) => x(lines.step[at]));
    stepAxis(context, { ...plot, bottom: plot.bottom + 2 }, first, last, x);
    axisTitles(context, { ...plot, bottom: plot.bottom + 2 }, "step", told ? "lateness" : "step time");
  }
  return { draw };
}
