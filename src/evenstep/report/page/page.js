// Brings the charts of the page together and redraws them when size or colours change.

const find = (id) => document.getElementById(id);

function explainEmpty(id, text) {
  const canvas = find(id);
  for (const part of canvas.parentElement.querySelectorAll("canvas, .controls, .legend")) part.hidden = true;
  find(`${id}-read`).textContent = text;
}

function build(diagnosis, facts, tables) {
  const charts = [];
  let spans = null;
  const pick = (step, rank) => {
    if (!spans) return;
    spans.reach(step, rank);
    find("spans-title").scrollIntoView({ behavior: "auto", block: "start" });
  };
  if (tables.records.step.length) {
    spans = spansChart(find("spans"), find("spans-read"), tables.records, tables.kept, facts);
    spansLegend(find("spans-legend"), facts, tables.records);
    charts.push(spans);
  } else {
    explainEmpty("spans", "The trace holds no records of single steps.");
  }
  if (facts.grid) {
    charts.push(curveChart(find("curve"), find("curve-read"), tables.curve, diagnosis.findings, { pick }));
    charts.push(heatChart(find("heat"), find("heat-read"), facts.grid, tables.grid, facts, { pick }));
  } else {
    explainEmpty("curve", "No step was completed.");
    explainEmpty("heat", "No step was completed.");
  }
  return charts;
}

try {
  const facts = embeddedJson("facts");
  const charts = build(embeddedJson("diagnosis"), facts, await unpackColumns(facts.directory));
  const redraw = () => { for (const chart of charts) chart.draw(); };
  redraw();
  window.addEventListener("resize", redraw);
  window.addEventListener("beforeprint", redraw);
  window.addEventListener("afterprint", redraw);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    window.matchMedia(query).addEventListener("change", redraw);
  }
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  find("trouble").textContent = `The charts could not be drawn: ${error.message}`;
  find("trouble").hidden = false;
}
