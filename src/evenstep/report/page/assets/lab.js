// @ts-check
// Draws the steps of a comparison of the laboratory.

async function startLab() {
  const facts = /** @type {LabFacts} */ (embeddedJson("facts"));
  if (facts.jobs.length) {
    const tables = await unpackColumns(facts.directory);
    const chart = blocksChart(byId("blocks"), byId("blocks-read"), facts.jobs.map((_, at) => tables[`job${at}`]), facts);
    facts.arms.forEach((name, at) => byId("blocks-legend").append(swatch(armColor(at), name)));
    redrawAlways(chart.draw);
  }
}

started(startLab);
