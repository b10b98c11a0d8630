// @ts-check
// The simulated fabric with the load of its links: worst first from the keyboard.

/**
 * @typedef {{one: number, other: number, rows: number[]}} Edge bundles between two places, both ways
 */

/** Bundles between the same two places, and those within one. @param {Table} bundles */
function edgesOf(bundles) {
  /** @type {Map<string, Edge>} */
  const between = new Map();
  /** @type {Map<number, number[]>} */
  const within = new Map();
  /** @type {Map<number, number>} */
  const above = new Map();
  bundles.source.forEach((source, row) => {
    const target = bundles.target[row];
    if (source === target) { within.set(source, [...(within.get(source) ?? []), row]); return; }
    const [one, other] = [Math.min(source, target), Math.max(source, target)];
    if (!above.has(one)) above.set(one, other);
    const edge = between.get(`${one} ${other}`) ?? { one, other, rows: [] };
    edge.rows.push(row);
    between.set(`${one} ${other}`, edge);
  });
  return { edges: [...between.values()], within, above };
}

/** @param {SVGSVGElement} picture @param {HTMLElement} read @param {Table} bundles @param {Fabric} fabric */
function fabricChart(picture, read, bundles, fabric) {
  const chooser = /** @type {HTMLSelectElement} */ (byId("fabric-metric"));
  const { edges, within, above } = edgesOf(bundles);
  const names = fabric.places.map((place) => place.name);
  let layout = /** @type {Layout} */ ({ height: 0, spots: [], texts: [], line: () => [] });

  /** @param {number[]} rows */
  const load = (rows) => Math.max(0, ...rows.map((row) => (chooser.value === "peak" ? bundles.peak : bundles.busiest)[row]));
  /** @param {Edge} edge */
  const line = (edge) => layout.line(edge.one, edge.other);
  const worstFirst = () => [...edges].sort((a, b) => load(b.rows) - load(a.rows));

  function draw() {
    layout = fabricLayout(fabric, widthOf(picture), above);
    emptied(picture, layout.height);
    const all = [...edges.map((edge) => edge.rows), ...within.values()].map(load);
    const top = [0.05, 0.1, 0.2, 0.5].find((share) => share >= Math.max(...all)) ?? 1;
    const ramp = lineRamp();
    /** @param {number} share */
    const paint = (share) => ramp(share / top);
    for (const edge of worstFirst().reverse()) picture.append(drawn(edge, paint, load(edge.rows) / top));
    layout.spots.forEach((spot, at) => picture.append(box(spot, at, paint)));
    for (const { x, y, text, anchor } of layout.texts) picture.append(svgElement("text", { x, y: y + 4, class: "tick clear", "text-anchor": anchor }, text));
    colorScale("fabric", percent(top), ramp);
    mark();
  }

  /** @param {Edge} edge @param {Ramp} paint @param {number} strength of the strongest */
  function drawn(edge, paint, strength) {
    const dead = edge.rows.some((row) => bundles.failed[row]);
    const path = line(edge).map(([fromX, fromY, toX, toY]) => `M${fromX} ${fromY}L${toX} ${toY}`).join("");
    return svgElement("path", { d: path, stroke: dead ? color("pause") : cssColor(paint(load(edge.rows))), "stroke-width": strength ? 1 + (edges.length > 300 ? 1.5 : 3) * strength : 0.6, fill: "none", ...(dead ? { "stroke-dasharray": "4 3" } : {}) });
  }

  /** @param {Spot} spot @param {number} at @param {Ramp} paint */
  function box({ x, y, size }, at, paint) {
    const inside = within.get(at);
    const fill = inside ? cssColor(paint(load(inside))) : color("card");
    const taken = fabric.places[at].ranks ? "ink" : "soft";
    return svgElement("rect", { x: x - size / 2, y: y - size / 2, width: size, height: size, rx: Math.min(3, size / 4), fill, stroke: color(taken), "stroke-width": fabric.places[at].ranks ? 1.5 : 0.8 });
  }

  /** @param {number} row */
  function said(row) {
    const [count, dead] = [bundles.links[row], bundles.failed[row]];
    const several = count > 1;
    const used = `${percent(bundles.mean[row])} of ${number(bundles.capacity_gBps[row])} GB/s on average`;
    return [
      several ? `${count} links, together ${used}, the busiest ${percent(bundles.busiest[row])}` : used,
      `${percent(bundles.peak[row])} at the fullest moment`,
      bundles.others_bytes[row] > 0 && `${percent(bundles.others_bytes[row] / bundles.bytes[row])} of it from other jobs`,
      dead > 0 && (several ? `${dead} failed` : "failed"),
    ].filter(Boolean).join(", ");
  }

  /** @param {Edge} edge */
  function ofEdge({ one, other, rows }) {
    const texts = rows.map(said);
    if (rows.length === 2 && texts[0] === texts[1]) return `${names[one]} and ${names[other]}, each way: ${texts[0]}`;
    return rows.map((row, at) => `${names[bundles.source[row]]} to ${names[bundles.target[row]]}: ${texts[at]}`).join(" · ");
  }

  /** @param {number} at */
  function ofPlace(at) {
    const { name, ranks, others } = fabric.places[at];
    const inside = (within.get(at) ?? []).map((row) => `${fabric.kinds[bundles.kind[row]]}: ${said(row)}`);
    return [name, ranks && `ranks ${ranks}`, others && `${others} ${others > 1 ? "nodes" : "node"} of other jobs`, ...inside].filter(Boolean).join(" · ");
  }

  const mark = readable(picture, read, { spots: () => layout.spots, edges: worstFirst, line, ofEdge, ofPlace });
  chooser.addEventListener("change", draw);
  return { draw };
}
