// @ts-check
// Which rank bounds each step, and in which phase: the critical path over the run.

/** @param {{pick: (step: number, rank?: number) => void}} hooks @param {HTMLCanvasElement} canvas @param {HTMLElement} read @param {Table} table @param {Facts} facts */
function boundsChart(canvas, read, table, facts, hooks) {
  const phaseNames = nameOf(facts.phases);
  const steps = table.step;
  const first = steps[0];
  const last = steps[steps.length - 1];
  let cursor = -1;
  let plot = { left: 66, top: 8, width: 1, height: 1, bottom: 1 };

  /** @param {number} step */
  const x = (step) => plot.left + ((step - first) / (last - first + 1)) * plot.width;
  /** @param {number} rank */
  const y = (rank) => plot.top + (rank / facts.world) * plot.height;

  function draw() {
    const tall = Math.max(56, Math.min(facts.world * 14, 260));
    const { context, width } = surface(canvas, tall + 54);
    plot = { left: 66, top: 20, width: width - 66 - 16, height: tall, bottom: 20 + tall };
    const wide = Math.ceil(plot.width / (last - first + 1));
    const each = Math.max(plot.height / facts.world, 3);
    context.fillStyle = color("soft");
    context.textAlign = "right";
    const shown = ticks(0, facts.world - 1, plot.height / 20).filter(Number.isInteger);
    shown.forEach((rank) => context.fillText(`${rank}`, plot.left - 8, Math.max(y(rank + 0.5), plot.top + 5)));
    for (let at = 0; at < steps.length; at += 1) {
      if (table.rank[at] < 0) continue;
      context.fillStyle = color(phaseNames[table.phase[at]] ?? "other");
      context.fillRect(Math.floor(x(steps[at])), y(table.rank[at] + 0.5) - each / 2, wide, each);
    }
    context.strokeStyle = color("line");
    context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
    stepAxis(context, plot, first, last, (step) => x(step + 0.5));
    axisTitles(context, plot, "step", "rank that bounds it");
    if (cursor >= 0) { context.fillStyle = color("ink"); context.fillRect(Math.round(x(steps[cursor] + 0.5)), plot.top, 1, plot.height); }
  }

  /** @param {number} at */
  function move(at) {
    cursor = Math.max(0, Math.min(steps.length - 1, at));
    const rank = table.rank[cursor];
    const node = facts.nodes[rank] ? ` on ${facts.nodes[rank]}` : "";
    read.textContent = rank < 0
      ? `step ${steps[cursor]}: bounded by no rank`
      : `step ${steps[cursor]}: bounded by rank ${rank}${node}, in ${phaseNames[table.phase[cursor]] ?? "an unknown phase"}`;
    draw();
  }

  /** @param {PointerEvent | MouseEvent} event */
  const nearest = (event) => {
    const share = (pointer(canvas, event).x - plot.left) / plot.width;
    return Math.min(lowerBound(steps, Math.floor(first + share * (last - first + 1))), steps.length - 1);
  };
  /** The phases that bound any step, each with its colour. */
  function legend() {
    const used = new Set();
    table.phase.forEach((phase, at) => { if (table.rank[at] >= 0) used.add(phaseNames[phase] ?? "other"); });
    for (const name of used) byId("bounds-legend").append(swatch(name, name));
  }

  const pick = () => hooks.pick(steps[cursor], table.rank[cursor] >= 0 ? table.rank[cursor] : undefined);
  canvas.addEventListener("pointermove", (event) => move(nearest(event)));
  canvas.addEventListener("click", (event) => { move(nearest(event)); pick(); });
  walkable(canvas, (right) => move(cursor + right), { enter: () => { if (cursor >= 0) pick(); } });
  legend();
  return { draw };
}
