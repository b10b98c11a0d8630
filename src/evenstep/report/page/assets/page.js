// @ts-check
// Brings the charts of the page together and redraws them when size or colours change.

/** Hides what a chart would need, and says why it is not there. @param {string} id @param {string} text */
function explainEmpty(id, text) {
  for (const part of byId(id).parentElement.querySelectorAll("canvas, .controls, .legend")) part.hidden = true;
  byId(`${id}-read`).textContent = text;
}

/** @typedef {{of: Element, draw: () => void}} Placed a chart and the element it is drawn on */

/** @param {Diagnosis} diagnosis @param {Facts} facts @param {Record<string, Table>} tables */
function build(diagnosis, facts, tables) {
  const charts = /** @type {Placed[]} */ ([]);
  let map = /** @type {ReturnType<typeof heatChart> | null} */ (null);
  let spans = /** @type {any} */ (null);
  /** @param {number} step @param {number} [rank] */
  const pick = (step, rank) => {
    if (!spans) return;
    unfold(byId("one-step"));
    spans.reach(step, rank);
    byId("spans-title").scrollIntoView({ behavior: "auto", block: "start" });
  };
  /** @param {string} id @param {(...parts: any[]) => Chart} chart @param {any[]} rest */
  const place = (id, chart, ...rest) => charts.push({ of: byId(id), ...chart(byId(id), byId(`${id}-read`), ...rest) });
  if (tables.records.step.length) {
    spans = spansChart(byId("spans"), byId("spans-read"), tables.records, tables.kept, facts);
    spansLegend(byId("spans-legend"), facts, tables.records);
    charts.push({ of: byId("spans"), draw: spans.draw });
  } else {
    explainEmpty("spans", "The trace has no records of single steps.");
  }
  if (facts.grid) {
    place("curve", curveChart, tables.curve, diagnosis, { pick });
    const cells = mapCells(facts.grid, tables.grid);
    if (heatControls(cells, facts)) {
      map = heatChart(cells, facts, tables.places, { pick });
      charts.push({ of: byId("heat"), draw: map.draw });
    } else {
      explainEmpty("heat", "This trace has no waits.");
    }
    for (const canvas of /** @type {NodeListOf<HTMLCanvasElement>} */ (document.querySelectorAll("canvas.picture"))) {
      charts.push({ of: canvas, ...findingPicture(canvas, diagnosis.findings[Number(canvas.dataset.finding)], cells, tables.curve) });
    }
  } else {
    for (const id of ["curve", "heat"]) explainEmpty(id, "No step was completed.");
    for (const one of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".finding figure"))) one.hidden = true;
  }
  if (tables.dist?.phase.length) place("boxes", boxesChart, tables.dist, facts);
  if (tables.places?.rank.length) place("places", placesChart, tables.places, facts);
  if (facts.waiting) {
    place("matrix", matrixChart, facts.waiting, tables.matrix, facts);
    place("bounds", boundsChart, tables.bounds, facts, { pick });
  }
  if (tables.links) place("fabric", fabricChart, tables.links, facts.fabric);
  else if (facts.host_waits) place("host-waits", hostWaitsChart, tables.host_waits, facts.host_waits);
  if (facts.sizes) place("scatter", scatterChart, { points: tables.points, floors: tables.floors, curves: tables.curves }, facts);
  return { charts, map, pick };
}

/** Paper cannot be opened: what is folded away stands on it. */
function unfoldForPrint() {
  const folded = /** @type {HTMLDetailsElement[]} */ ([]);
  window.addEventListener("beforeprint", () => {
    folded.push(.../** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll("details:not([open])")));
    for (const one of folded) one.open = true;
  });
  window.addEventListener("afterprint", () => { for (const one of folded.splice(0)) one.open = false; });
}

async function start() {
  unfoldForPrint();
  themeSwitch();
  copying();
  const facts = embeddedJson("facts");
  const { charts, map, pick } = build(embeddedJson("diagnosis"), facts, await unpackColumns(facts.directory));
  redrawAlways(() => { for (const chart of charts) if (chart.of.getClientRects().length) chart.draw(); });
  searching(facts, map);
  following(pick);
}

started(start);
