// @ts-check
// Inside one step: what each rank did, with waits and transfers apart; pan, zoom, choose.

/**
 * @typedef {{rank: number, list: number[], lanes: {at: number, lane: number}[], pitch: number, top: number, height: number}} Lane
 * @typedef {{at: number, x: number, y: number, width: number, height: number}} Mark a record as it is drawn
 */

const RANKS_AT_FIRST = 10;
const RANKS_AT_ONCE = 64;
const LANES = 10;

/** @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {Table} records @param {Table} kept @param {Facts} facts */
function spansChart(canvas, read, records, kept, facts) {
  const kind = facts.kinds;
  const phaseNames = nameOf(facts.phases);
  const communication = communicates(records, facts);
  const describe = recordWords(records, facts);
  const available = [...new Set(records.rank)].sort((a, b) => a - b);
  let chosen = firstRanks();
  let current = firstStep();
  let step = stepRecords(records, kept.step[0]); // the current one
  let view = { from: 0, to: 1 }; // µs
  let rows = /** @type {Lane[]} */ ([]);
  let boxes = /** @type {Mark[]} */ ([]); // last on top
  let plot = /** @type {any} */ (null);
  let focus = /** @type {any} */ (null); // record the reader points at

  function firstRanks() {
    const culprits = facts.culprits.filter((rank) => available.includes(rank));
    return [...new Set([...culprits.slice(0, RANKS_AT_FIRST - 1), ...available])].slice(0, RANKS_AT_FIRST).sort((a, b) => a - b);
  }

  /** The last step, unless it has only just begun: ranks may hang in an unfinished step. */
  function firstStep() {
    const last = kept.step.length - 1;
    const hangs = records.step.some((step, at) => step === kept.step[last] && communication(at) && !Number.isFinite(records.exit_us[at]));
    if (Number.isFinite(kept.longest_us[last]) || hangs) return last;
    return Math.max(0, kept.longest_us.findLastIndex((time) => Number.isFinite(time)));
  }

  /** @param {number} index */
  function open(index) {
    current = Math.max(0, Math.min(kept.step.length - 1, index));
    step = stepRecords(records, kept.step[current]);
    focus = null;
    whole();
    read.textContent = clockNote();
  }

  function clockNote() {
    const notes = [];
    if (facts.clock_error_us > 0) notes.push(`Clocks of different hosts agree within ± ${duration(facts.clock_error_us)}.`);
    if (facts.unplaced.length) notes.push(`The clocks of ranks ${formatRanks(facts.unplaced)} are not aligned: their times start at their own step.`);
    return notes.join(" ");
  }

  function whole() {
    const end = Math.max(step.end, Number.isFinite(kept.longest_us[current]) ? kept.longest_us[current] : 0, 1);
    view = { from: -0.01 * end, to: 1.02 * end };
    draw();
  }

  /** Sub-lanes for collectives in flight together. @param {number[]} list */
  function lanesOf(list) {
    const ends = /** @type {number[]} */ ([]);
    return list.filter(communication).map((at) => {
      const exit = Number.isFinite(records.exit_us[at]) ? records.exit_us[at] : Infinity;
      let lane = ends.findIndex((end) => end <= records.enter_us[at]);
      if (lane < 0) lane = Math.min(ends.length, LANES - 1);
      ends[lane] = Math.max(ends[lane] ?? -Infinity, exit);
      return { at, lane };
    });
  }

  function arrange() {
    let top = 26;
    rows = chosen.map((rank) => {
      const list = step.byRank.get(rank) ?? [];
      const lanes = lanesOf(list);
      const depth = lanes.reduce((most, { lane }) => Math.max(most, lane + 1), 1);
      const pitch = depth <= 4 ? 10 : Math.max(5, 40 / depth);
      const row = { rank, list, lanes, pitch, top, height: Math.max(18 + depth * pitch, 28) + 10 };
      top += row.height;
      return row;
    });
    return top + 6;
  }

  /** @param {number} us */
  const x = (us) => plot.left + ((us - view.from) / (view.to - view.from)) * plot.width;

  function draw() {
    const tall = arrange();
    const { context, width, height } = surface(canvas, Math.max(tall, 80));
    plot = { left: 120, width: width - 120 - 10, top: 22, bottom: height - 4 };
    boxes = [];
    axis(context);
    const wait = hatching(context);
    for (const row of rows) {
      label(context, row);
      context.save();
      context.beginPath();
      context.rect(plot.left, row.top - 6, plot.width, row.height);
      context.clip();
      for (const at of row.list) if (!communication(at)) local(context, row, at);
      for (const { at, lane } of row.lanes) flight(context, row, at, lane, wait);
      context.restore();
    }
    if (focus !== null) outline(context);
  }

  /** @param {Context} context */
  function axis(context) {
    context.textAlign = "center";
    for (const us of ticks(view.from, view.to, plot.width / 110)) {
      context.fillStyle = color("line");
      context.fillRect(Math.round(x(us)), plot.top - 4, 1, plot.bottom - plot.top + 4);
      context.fillStyle = color("soft");
      context.fillText(duration(Math.round(us * 1e3) / 1e3), x(us), 10);
    }
    context.textAlign = "left";
    context.fillStyle = color("soft");
    context.fillText("time in the step", 4, 10);
  }

  /** @param {Context} context @param {Lane} row */
  function label(context, row) {
    context.textAlign = "left";
    context.fillStyle = color(facts.culprits.includes(row.rank) ? "pause" : "ink");
    const name = `${facts.culprits.includes(row.rank) ? "▸ " : ""}rank ${row.rank}`;
    context.fillText(clipped(context, name, 104), 10, row.top + 8);
    context.fillStyle = color("soft");
    context.fillText(clipped(context, facts.nodes[row.rank] ?? "no trace", 104), 10, row.top + 22);
    context.fillStyle = color("line");
    context.fillRect(0, row.top + row.height - 6, plot.left + plot.width + 10, 1);
  }

  /** @param {number} at */
  function extent(at) {
    const left = Math.max(x(records.enter_us[at]), plot.left - 5);
    let exit = records.exit_us[at];
    if (!Number.isFinite(exit)) exit = Math.max(view.to, step.end);
    if (records.kind[at] === kind.pacing && exit <= records.enter_us[at]) exit = records.enter_us[at] + records.held_us[at];
    return { left, width: Math.max(Math.min(x(exit), plot.left + plot.width + 5) - left, 1) };
  }

  /** @param {Context} context @param {Lane} row @param {number} at */
  function local(context, row, at) {
    const style = {
      [kind.phase]: { fill: phaseNames[records.op[at]] ?? "other", y: 0, height: 16 },
      [kind.span]: { fill: "span", y: 12, height: 4 },
      [kind.pause]: { fill: "pause", y: -5, height: 4 },
      [kind.pacing]: { fill: "pacing", y: 10, height: 6 },
    }[records.kind[at]];
    const applied = records.kind[at] !== kind.pacing || (records.flags[at] & facts.flags.applied);
    if (!style || (records.kind[at] === kind.pacing && !records.held_us[at])) return;
    const { left, width } = extent(at);
    context.fillStyle = context.strokeStyle = color(style.fill);
    if (applied) context.fillRect(left, row.top + style.y, width, style.height);
    else context.strokeRect(left + 0.5, row.top + style.y + 0.5, width, style.height - 1);
    if (records.kind[at] === kind.phase && width > 50) {
      context.fillStyle = color("card");
      if (style.fill === "sync") context.fillStyle = color("ink");
      context.textAlign = "left";
      context.font = "11px system-ui, sans-serif";
      context.fillText(clipped(context, style.fill, width - 8), left + 4, row.top + 8.5);
      context.font = "12px system-ui, sans-serif";
    }
    boxes.push({ at, x: left, y: row.top + style.y, width, height: style.height });
  }

  /** @param {Context} context @param {Lane} row @param {number} at @param {number} lane @param {string | CanvasPattern} wait */
  function flight(context, row, at, lane, wait) {
    const { left, width } = extent(at);
    const top = row.top + 18 + lane * row.pitch;
    const tall = row.pitch - 2;
    const known = Number.isFinite(records.wait_us[at]);
    const split = known ? Math.min(Math.max(x(records.enter_us[at] + records.wait_us[at]) - left, 0), width) : 0;
    context.fillStyle = color(known ? "transfer" : "unsplit");
    context.fillRect(left + split, top, Math.max(width - split, 1), tall);
    if (split > 0) {
      context.fillStyle = wait;
      context.fillRect(left, top, split, tall);
    }
    const open_ = !Number.isFinite(records.exit_us[at]);
    context.fillStyle = color(open_ ? "pause" : "card");
    const end = Math.min(left + width, plot.left + plot.width);
    if (open_) context.fillRect(end - 4, top - 1, 4, tall + 2);
    else context.fillRect(left + width - 0.5, top, 0.5, tall);
    boxes.push({ at, x: left, y: top, width, height: tall });
  }

  /** @param {Context} context */
  function outline(context) {
    const box = boxes.find((candidate) => candidate.at === focus);
    if (!box) return;
    context.strokeStyle = color("ink");
    context.lineWidth = 1.5;
    context.strokeRect(box.x - 1, box.y - 1, box.width + 2, box.height + 2);
  }

  /** @param {PointerEvent} event */
  function hit(event) {
    const at = pointer(canvas, event);
    return boxes.findLast((box) => at.x >= box.x - 1 && at.x <= box.x + box.width + 1 && at.y >= box.y && at.y <= box.y + box.height);
  }

  /** @param {number | null} at */
  function point(at) {
    focus = at;
    if (at !== null) read.textContent = describe(at);
    draw();
  }

  /** @param {number} factor */
  function zoom(factor, anchor = (view.from + view.to) / 2) {
    const limit = 4 * Math.max(step.end, 1);
    const width = Math.min(Math.max((view.to - view.from) * factor, 0.05), limit);
    const share = (anchor - view.from) / (view.to - view.from);
    view = { from: anchor - share * width, to: anchor + (1 - share) * width };
    draw();
  }

  /** @param {number} share */
  function pan(share) {
    const shift = (view.to - view.from) * share;
    view = { from: view.from + shift, to: view.to + shift };
    draw();
  }

  /** Next or previous record on screen, for the keyboard. @param {number} direction */
  function walk(direction) {
    if (!boxes.length) return;
    const place = boxes.findIndex((box) => box.at === focus);
    point(boxes[(place + direction + boxes.length) % boxes.length].at);
  }

  let drag = /** @type {any} */ (null);
  canvas.addEventListener("pointerdown", (event) => { drag = pointer(canvas, event).x; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (drag === null) { const box = hit(event); if ((box?.at ?? null) !== focus) point(box?.at ?? null); return; }
    const at = pointer(canvas, event).x;
    pan((drag - at) / plot.width);
    drag = at;
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = pointer(canvas, event).x;
    zoom(event.deltaY > 0 ? 1.25 : 0.8, view.from + ((at - plot.left) / plot.width) * (view.to - view.from));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.7), "=": () => zoom(0.7),
      "-": () => zoom(1.4), 0: whole, n: () => walk(1), p: () => walk(-1), "[": () => go(-1), "]": () => go(1),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    acts[event.key]();
    event.preventDefault();
  });

  const chooser = byId("spans-step");
  kept.step.forEach((number_, at) => {
    const time = Number.isFinite(kept.longest_us[at]) ? duration(kept.longest_us[at]) : "never ended";
    chooser.add(new Option(`${number_} (${time})`, `${at}`));
  });
  /** @param {number} direction */
  function go(direction) { show(current + direction); }
  /** @param {number} index */
  function show(index) {
    open(index);
    chooser.value = `${current}`;
    history.replaceState(null, "", `#step-${kept.step[current]}`); // a link to this step
  }
  chooser.addEventListener("change", () => show(Number(chooser.value)));
  byId("spans-previous").addEventListener("click", () => go(-1));
  byId("spans-next").addEventListener("click", () => go(1));
  byId("spans-in").addEventListener("click", () => zoom(0.7));
  byId("spans-out").addEventListener("click", () => zoom(1.4));
  byId("spans-all").addEventListener("click", whole);

  const input = byId("spans-ranks");
  input.value = formatRanks(chosen);
  input.addEventListener("change", () => choose(parseRanks(input.value)));

  /** @param {number[] | null} wanted */
  function choose(wanted) {
    const found = (wanted ?? []).filter((rank) => available.includes(rank));
    if (found.length) {
      chosen = found.slice(0, RANKS_AT_ONCE);
      read.textContent = found.length > RANKS_AT_ONCE ? `Showing the first ${RANKS_AT_ONCE}.` : "";
    } else {
      read.textContent = `Give ranks as in 0-3,8; this page has ${formatRanks(available)}.`;
    }
    input.value = formatRanks(chosen);
    focus = null;
    draw();
  }

  /** Open the kept step nearest to the one asked for, with a rank of interest among those shown. @param {number} wanted @param {number | undefined} rank */
  function reach(wanted, rank) {
    let best = 0;
    kept.step.forEach((number_, at) => { if (Math.abs(number_ - wanted) < Math.abs(kept.step[best] - wanted)) best = at; });
    if (rank !== undefined && available.includes(rank) && !chosen.includes(rank)) {
      chosen = [...chosen.slice(0, RANKS_AT_ONCE - 1), rank].sort((a, b) => a - b);
      input.value = formatRanks(chosen);
    }
    show(best);
    if (kept.step[best] !== wanted) {
      read.textContent = `Step ${wanted} is not in this page; showing the nearest, step ${kept.step[best]}.`;
    }
  }

  open(current);
  chooser.value = `${current}`;
  return { draw, reach };
}
