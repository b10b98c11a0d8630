// @ts-check
// A sweep as matrices whose cells are coloured by one measure.

/** Fills `box` with a table for each matrix. @param {HTMLElement} box @param {SweepRow[]} rows @param {SweepView} view */
function sweepCells(box, rows, view) {
  const [low, high] = rangeOf(rows, view.measure);
  const paint = heatRamp();
  const matrices = matricesOf(rows, view.across, view.down);
  box.replaceChildren(...matrices.map((matrix) => matrixTable(matrix, rows, view, (value) => paint(high > low ? (value - low) / (high - low) : 0))));
  colorScale("sweep", measureWords(view.measure, high));
  byId("sweep-low").textContent = measureWords(view.measure, low);
}

/** @param {string} tag @param {string} [text] @param {string} [scope] of a head */
function element(tag, text = "", scope = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (scope) made.setAttribute("scope", scope);
  return made;
}

/** @param {Matrix} matrix @param {SweepRow[]} rows @param {SweepView} view @param {(value: number) => number[]} paint */
function matrixTable(matrix, rows, view, paint) {
  const table = element("table");
  table.className = "matrix";
  if (matrix.fixed.length) table.append(element("caption", matrix.fixed.map(([field, value]) => `${shortName(field)} ${value}`).join(", ")));
  const head = element("tr");
  const corner = view.down ? `${shortName(view.down)} ↓ ` : "";
  head.append(element("th", `${corner}${shortName(view.across)} →`), ...valuesOf(rows, view.across).map((value) => element("th", `${value}`, "col")));
  const body = element("tbody");
  for (const line of matrix.lines) {
    const shown = element("tr");
    shown.append(element("th", line.value === null ? "" : `${line.value}`, "row"), ...line.cells.map((row) => matrixCell(row, view.measure, paint)));
    body.append(shown);
  }
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

/** @param {SweepRow | null} row @param {Measure} measure @param {(value: number) => number[]} paint */
function matrixCell(row, measure, paint) {
  const found = row?.[measure.name];
  if (!found) return element("td", "–");
  const cell = element("td", measureWords(measure, found.value));
  const color_ = paint(found.value);
  cell.style.background = `rgb(${color_.map(Math.round).join(" ")})`;
  cell.style.color = inkOn(color_);
  cell.title = rowWords(row, measure);
  return cell;
}
