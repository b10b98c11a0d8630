// @ts-check
// Brings a sweep's matrices, curves and table together.

function startSweep() {
  const { combinations } = parsedToShow(byId("sweep").textContent);
  const measures = /** @type {Measure[]} */ (parsedToShow(byId("facts").textContent));
  for (const table of document.querySelectorAll("table.sortable")) sortable(/** @type {HTMLTableElement} */ (table));
  if (!combinations.length) return;
  const [measure, across, down] = ["sweep-measure", "sweep-across", "sweep-down"].map(byId);
  if (down.options.length > 2) down.selectedIndex = 1;
  else down.value = "";
  const state = () => ({
    measure: measures.find((one) => one.name === measure.value) ?? measures[0], across: across.value, down: down.value === across.value ? "" : down.value,
  });
  const curves = sweepLines(byId("sweep-lines"), byId("sweep-lines-read"), combinations, state);
  const redraw = () => { sweepCells(byId("sweep-cells"), combinations, state()); curves.draw(); };
  for (const one of [measure, across, down]) one.addEventListener("change", redraw);
  redrawAlways(redraw);
}

started(startSweep);
