// @ts-check
// Layout of a sweep: one field in columns, one in rows, and a matrix for each value of the others.

/** Values of a field in the order of the sweep; those that were finished. @param {SweepRow[]} rows @param {string} field @returns {any[]} */
function valuesOf(rows, field) {
  return [...new Set(rows.map((row) => row.varied[field]))];
}

/**
 * Matrices of a sweep, one for each combination of the fields that run neither across nor down.
 * @param {any[]} rows @param {string} across @param {string} down "" for a single line
 * @returns {{fixed: [string, any][], lines: {value: any, cells: any[]}[]}[]} cells are rows or null
 */
function matricesOf(rows, across, down) {
  if (!rows.length) return [];
  const rest = Object.keys(rows[0].varied).filter((field) => field !== across && field !== down);
  const columns = valuesOf(rows, across);
  const found = new Map();
  for (const row of rows) {
    const key = JSON.stringify(rest.map((field) => row.varied[field]));
    if (!found.has(key)) found.set(key, { fixed: rest.map((field) => [field, row.varied[field]]), rows: [] });
    found.get(key).rows.push(row);
  }
  /** @param {SweepRow[]} part @param {number} value */
  const lineOf = (part, value) => ({
    value,
    cells: columns.map((column) => part.find((row) => row.varied[across] === column && (!down || row.varied[down] === value)) ?? null),
  });
  return [...found.values()].map(({ fixed, rows: part }) => ({
    fixed, lines: (down ? valuesOf(rows, down) : [null]).map((value) => lineOf(part, value)),
  }));
}

/** Lowest and highest value of a measure over all combinations. @param {SweepRow[]} rows @param {Measure} measure @returns {[number, number]} */
function rangeOf(rows, measure) {
  const values = rows.map((row) => row[measure.name]?.value).filter(Number.isFinite);
  return [Math.min(...values), Math.max(...values)];
}

/** A field's own name without its table's. @param {string} field */
function shortName(field) {
  return printable(field.slice(field.lastIndexOf(".") + 1));
}

/** Render the value of a measure, with the rules of evenstep.words. @param {Measure} measure @param {number} value */
function measureWords(measure, value) {
  if (!Number.isFinite(value)) return "unknown";
  if (measure.kind === "duration") return duration(value / 1e3);
  return measure.kind === "share" ? percent(value) : number(value);
}

/** Describe a combination in words. @param {SweepRow} row @param {Measure} measure */
function rowWords(row, measure) {
  const found = row[measure.name];
  const varied = Object.entries(row.varied).map(([field, value]) => `${shortName(field)} ${value}`).join(", ");
  if (!found) return `${varied}: ${measure.label} unknown`;
  const span = found.low === null ? "" : ` (${measureWords(measure, found.low)} to ${measureWords(measure, found.high)})`;
  return `${varied}: ${measure.label} ${measureWords(measure, found.value)}${span}`;
}
