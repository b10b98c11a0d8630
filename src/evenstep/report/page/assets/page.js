// @ts-check
// Brings the charts of the page together and redraws them when size or colours change.

/** Hides what a chart would need, and says why it is not there. @param {string} id @param {string} text */
function explainEmpty(id, text) {
  for (const part of byId(id).parentElement.querySelectorAll("canvas, .controls, .legend")) part.hidden = true;
  byId(`${id}-read`).textContent = text;
}

/** @param {Diagnosis} diagnosis @param {Facts} facts @param {Record<string, Table>} tables @returns {{draw: () => void}[]} */
function build(diagnosis, facts, tables) {
  const charts = [];
  let spans = /** @type {any} */ (null);
  /** @param {number} step @param {number | undefined} rank */
  const pick = (step, rank) => {
    if (!spans) return;
    spans.reach(step, rank);
    byId("spans-title").scrollIntoView({ behavior: "auto", block: "start" });
  };
  /** @param {string} id @param {(...parts: any[]) => Chart} chart @param {any[]} rest */
  const place = (id, chart, ...rest) => charts.push(chart(byId(id), byId(`${id}-read`), ...rest));
  if (tables.records.step.length) {
    spans = spansChart(byId("spans"), byId("spans-read"), tables.records, tables.kept, facts);
    spansLegend(byId("spans-legend"), facts, tables.records);
    charts.push(spans);
  } else {
    explainEmpty("spans", "The trace holds no records of single steps.");
  }
  if (facts.grid) {
    place("curve", curveChart, tables.curve, diagnosis, { pick });
    charts.push(...heatCharts(facts, tables, pick));
  } else {
    for (const id of ["curve", "heat", "late"]) explainEmpty(id, "No step was completed.");
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
  return charts;
}

/** Wait and lateness, one part of them on screen in both. @param {Facts} facts @param {Record<string, Table>} tables @param {(step: number, rank: number) => void} pick */
function heatCharts(facts, tables, pick) {
  const view = heatView(/** @type {Shape} */ (facts.grid));
  const data = heatData(facts, tables);
  const middle = (/** @type {keyof View} */ side) => (view.now[side][0] + view.now[side][1]) / 2;
  byId("heat-in").addEventListener("click", () => view.zoom(0.5, middle("rank"), middle("step")));
  byId("heat-out").addEventListener("click", () => view.zoom(2, middle("rank"), middle("step")));
  byId("heat-all").addEventListener("click", view.whole);
  const maps = [
    { id: "heat", metric: "wait_us", none: "No waiting was seen in this trace." },
    { id: "late", metric: "lateness_us", none: "No collective that all ranks took part in was seen in this trace." },
  ];
  const charts = [];
  for (const { id, metric, none } of maps) {
    if (tables.grid[metric].some((value) => value > 0)) charts.push(heatChart(id, metric, data, view, facts, { pick }));
    else explainEmpty(id, none);
  }
  return charts;
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
  const facts = embeddedJson("facts");
  const charts = build(embeddedJson("diagnosis"), facts, await unpackColumns(facts.directory));
  redrawAlways(() => { for (const chart of charts) chart.draw(); });
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("trouble").textContent = `The charts could not be drawn: ${error instanceof Error ? error.message : error}`;
  byId("trouble").hidden = false;
});
