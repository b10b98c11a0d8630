// @ts-check
// Step times of jobs over the blocks of a comparison, a panel for each job.

const ARM_COLORS = ["curve", "other", "compute", "pause", "exposed_communication", "input", "checkpoint", "optimizer"];
const BLOCKS = { left: 66, right: 20, strip: 8, height: 150, gap: 46 };

/** The colour of an arm: the baseline is grey, so is the baseline again. @param {number} at */
function armColor(at) {
  return ARM_COLORS[at < ARM_COLORS.length ? at : 2 + ((at - 2) % (ARM_COLORS.length - 2))];
}

/** The block that is on at a time; -1 before the first. @param {{from: number, to: number}[]} blocks @param {number} seconds */
function blockAt(blocks, seconds) {
  return blocks.findIndex((block) => seconds >= block.from && seconds < block.to);
}

/** Median of the steps of each block that count; NaN where there is none. @param {Table} table @param {Block[]} blocks */
function blockMedians(table, blocks) {
  const times = blocks.map(() => /** @type {number[]} */ ([]));
  table.start_s.forEach((start, at) => {
    const block = table.counts[at] ? blockAt(blocks, start) : -1;
    if (block >= 0) times[block].push(table.step_ms[at]);
  });
  return times.map((each) => (each.length ? each.sort((a, b) => a - b)[Math.floor(each.length / 2)] : NaN));
}

/** @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {Table[]} tables @param {LabFacts} facts */
function blocksChart(canvas, read, tables, facts) {
  const medians = tables.map((table) => blockMedians(table, facts.blocks));
  const end = Math.max(...facts.blocks.map((block) => block.to));
  let cursor = /** @type {{job: number, at: number} | null} */ (null);
  let plots = /** @type {Scaled[]} */ ([]);

  function draw() {
    const { context, width } = surface(canvas, tables.length * (BLOCKS.height + BLOCKS.gap) + 6);
    plots = tables.map((table, at) => {
      const top = at * (BLOCKS.height + BLOCKS.gap) + 30;
      const [low, high] = stepEnds(table.step_ms);
      return { left: BLOCKS.left, width: width - BLOCKS.left - BLOCKS.right, top, height: BLOCKS.height - 6, bottom: top + BLOCKS.height - 6, low, high };
    });
    tables.forEach((table, at) => panel(context, table, plots[at], at));
    if (cursor) ring(context, x(plots[cursor.job], tables[cursor.job].start_s[cursor.at]), y(plots[cursor.job], tables[cursor.job].step_ms[cursor.at]));
  }

  /** @param {Scaled} plot @param {number} seconds */
  const x = (plot, seconds) => plot.left + (seconds / end) * plot.width;
  /** @param {Scaled} plot @param {number} ms */
  const y = (plot, ms) => plot.bottom - Math.max(0, Math.min((ms - plot.low) / (plot.high - plot.low), 1)) * (plot.bottom - plot.top);

  /** @param {Context} context @param {Table} table @param {Scaled} plot @param {number} job */
  function panel(context, table, plot, job) {
    context.fillStyle = color("ink");
    context.textAlign = "left";
    context.fillText(facts.jobs[job], plot.left, plot.top - 20);
    valueAxis(context, plot, ticks(plot.low, plot.high, 4), (ms) => y(plot, ms), (ms) => duration(ms * 1e3));
    dots(context, table, plot);
    facts.blocks.forEach((block, at) => turn(context, plot, block, medians[job][at]));
    context.fillStyle = color("soft");
    context.textAlign = "center";
    for (const seconds of ticks(0, end, plot.width / 90)) context.fillText(`${number(seconds)} s`, x(plot, seconds), plot.bottom + 13);
  }

  /** @param {Context} context @param {Table} table @param {Scaled} plot */
  function dots(context, table, plot) {
    const inks = facts.arms.map((_, at) => color(armColor(at)));
    let block = 0;
    for (let at = 0; at < table.start_s.length; at += 1) {
      while (block + 1 < facts.blocks.length && table.start_s[at] >= facts.blocks[block].to) block += 1;
      context.globalAlpha = table.counts[at] ? 0.75 : 0.18;
      context.fillStyle = inks[facts.blocks[block].arm];
      context.fillRect(x(plot, table.start_s[at]) - 1, y(plot, table.step_ms[at]) - 1, 2, 2);
    }
    context.globalAlpha = 1;
  }

  /** @param {Context} context @param {Scaled} plot @param {Block} block @param {number} median */
  function turn(context, plot, block, median) {
    const [left, right] = [x(plot, block.from), x(plot, block.to)];
    context.globalAlpha = block.counts ? 1 : 0.35;
    context.fillStyle = color(armColor(block.arm));
    context.fillRect(left, plot.top - 10, right - left - 1, BLOCKS.strip);
    context.globalAlpha = 1;
    if (!Number.isFinite(median)) return;
    context.fillStyle = color("ink");
    context.fillRect(left, y(plot, median) - 0.75, right - left - 1, 1.5);
  }

  /** @param {number} job @param {number} at */
  function select(job, at) {
    const chosen = Math.max(0, Math.min(tables.length - 1, job));
    const table = tables[chosen];
    if (!table.start_s.length) return;
    cursor = { job: chosen, at: Math.max(0, Math.min(table.start_s.length - 1, at)) };
    const block = blockAt(facts.blocks, table.start_s[cursor.at]);
    const where = block < 0 ? "outside the blocks" : `block ${block}, ${facts.arms[facts.blocks[block].arm]}`;
    const median = block < 0 ? NaN : medians[chosen][block];
    read.textContent = `${facts.jobs[chosen]} at ${number(table.start_s[cursor.at])} s (${where}): step ${duration(table.step_ms[cursor.at] * 1e3)}`
      + `${Number.isFinite(median) ? `, median of the block ${duration(median * 1e3)}` : ""}${table.counts[cursor.at] ? "" : "; not counted"}`;
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = pointer(canvas, event);
    const job = plots.findIndex((plot) => at.y >= plot.top - 24 && at.y <= plot.bottom + 18);
    if (job < 0) return;
    const seconds = ((at.x - plots[job].left) / plots[job].width) * end;
    const found = tables[job].start_s.findIndex((start) => start >= seconds);
    select(job, found < 0 ? tables[job].start_s.length - 1 : found);
  });
  walkable(canvas, (right, down) => select((cursor?.job ?? 0) + down, (cursor?.at ?? -1) + right));
  return { draw };
}

/** Ends of a panel's axis: around the steps, the few fastest and slowest stay at its edges. @param {Numbers} values @returns {[number, number]} */
function stepEnds(values) {
  const sorted = Float32Array.from(values).sort();
  if (!sorted.length) return [0, 1];
  const [low, high] = [0.002, 0.985].map((share) => sorted[Math.floor((sorted.length - 1) * share)]);
  const room = 0.08 * (high - low) || 0.05 * high || 1;
  return [Math.max(0, low - room), high + room];
}
