// @ts-check
// Where the machines and switches of a fabric are drawn: rows of tiers, a circle, or a grid.

/**
 * @typedef {{x: number, y: number, size: number}} Spot
 * @typedef {{height: number, spots: Spot[], texts: {x: number, y: number, text: string, anchor: string}[], line: (one: number, other: number) => Segment[]}} Layout
 */

const ROW = { high: 108, narrow: 560, most: 22 };

/** @param {Fabric} fabric @param {number} width @param {Map<number, number>} above the place a node hangs on @returns {Layout} */
function fabricLayout(fabric, width, above) {
  if (fabric.shape.length) return gridLayout(fabric.shape, width);
  if (fabric.fabric === "dragonfly") return circleLayout(fabric, width, above);
  return rowLayout(fabric, width);
}

/** Straight lines between two spots. @param {Spot[]} spots @returns {(one: number, other: number) => Segment[]} */
function straight(spots) {
  return (one, other) => [[spots[one].x, spots[one].y, spots[other].x, spots[other].y]];
}

/** What is counted in a name: 3 of "leaf 3". @param {string} name */
function numberOf(name) {
  return name.slice(name.lastIndexOf(" ") + 1);
}

/** The highest tier on top, machines at the bottom. @param {Fabric} fabric @param {number} width @returns {Layout} */
function rowLayout(fabric, width) {
  const titles = fabric.tiers.map((tier) => (tier.size === 1 ? tier.name : `${tier.size.toLocaleString("en-US")} ${tier.plural}`));
  const left = width < ROW.narrow ? 8 : 24 + 6.6 * Math.max(...titles.map((title) => title.length));
  /** @type {Spot[]} */
  const spots = [];
  /** @type {Layout["texts"]} */
  const texts = [];
  fabric.tiers.forEach((tier, level) => {
    const top = level > 0 && level === fabric.tiers.length - 1;
    const y = 44 + (fabric.tiers.length - 1 - level) * ROW.high;
    const each = (width - left - 8) / tier.places;
    const size = Math.max(3, Math.min(ROW.most, each * 0.7));
    const first = spots.length;
    for (let at = 0; at < tier.places; at += 1) spots.push({ x: left + (at + 0.5) * each, y, size });
    texts.push({ x: 8, y: left > 8 ? y : y - size / 2 - (top ? 24 : 9), text: titles[level], anchor: "start" });
    const names = fabric.places.slice(first, first + tier.places).map((place) => numberOf(place.name));
    const wide = Math.max(...names.map((name) => name.length)) * 7 + 8;
    const every = Math.max(1, Math.ceil(wide / each));
    if (tier.size > 1) names.forEach((text, at) => { if (at % every === 0) texts.push({ x: spots[first + at].x, y: top ? y - size / 2 - 9 : y + size / 2 + 10, text, anchor: "middle" }); });
  });
  return { height: 44 + (fabric.tiers.length - 1) * ROW.high + 40, spots, texts, line: straight(spots) };
}

/** Switches around a circle, each with its machines outside it. @param {Fabric} fabric @param {number} width @param {Map<number, number>} above @returns {Layout} */
function circleLayout(fabric, width, above) {
  const side = Math.min(width, 560);
  const [x, y] = [width / 2, side / 2];
  const inner = fabric.tiers[fabric.tiers.length - 1];
  const nodes = fabric.tiers.length > 1 ? fabric.tiers[0].places : 0;
  const radius = side / 2 - (nodes ? 84 : 44);
  const turns = aroundCircle(inner.places, inner.together);
  const size = Math.max(4, Math.min(ROW.most, (4.2 * radius) / inner.places));
  /** @param {number} angle @param {number} away @param {number} wide @returns {Spot} */
  const spot = (angle, away, wide) => ({ x: x + away * Math.cos(angle), y: y + away * Math.sin(angle), size: wide });
  const each = (2 * Math.PI) / Math.max(inner.places, 1);
  /** @type {Map<number, number[]>} */
  const under = new Map();
  for (let node = 0; node < nodes; node += 1) under.set(above.get(node) ?? nodes, [...(under.get(above.get(node) ?? nodes) ?? []), node]);
  const spots = Array.from({ length: nodes }, (_, node) => {
    const router = above.get(node) ?? nodes;
    const beside = under.get(router) ?? [node];
    const shift = ((beside.indexOf(node) + 0.5) / beside.length - 0.5) * each * 0.86;
    return spot(turns[router - nodes] + shift, radius + 48, Math.max(3, Math.min(14, (4.4 * radius) / Math.max(nodes, 1))));
  });
  spots.push(...turns.map((angle) => spot(angle, radius, size)));
  const names = fabric.places.slice(nodes).map((place) => numberOf(place.name));
  const wide = Math.max(...names.map((name) => name.length)) * 7 + 4;
  const every = Math.max(1, Math.ceil((wide * inner.places) / (2 * Math.PI * (radius - size))));
  const texts = names.map((text, at) => {
    const across = Math.cos(turns[at]);
    const beside = Math.abs(across) > 0.3;
    return { ...spot(turns[at], radius - size / 2 - (beside ? 6 : 12), 0), text, anchor: beside ? (across > 0 ? "end" : "start") : "middle" };
  });
  return { height: side, spots, texts: texts.filter((_, at) => at % every === 0), line: straight(spots) };
}

/** Planes of a torus side by side; links around the edge are stubs at both of its ends. @param {number[]} shape @param {number} width @returns {Layout} */
function gridLayout(shape, width) {
  const [planes, rows, columns] = shape.length === 3 ? shape : [1, ...shape];
  const across = Math.max(1, Math.min(planes, Math.floor((width - 20) / Math.max(columns * 18 + 26, 90))));
  const cell = Math.max(8, Math.min(52, ((width - 20) / across - 26) / columns));
  const margin = (width - Math.min(across, planes) * (columns * cell + 26)) / 2;
  const deep = rows * cell + 44;
  /** @type {Spot[]} */
  const spots = [];
  /** @type {Layout["texts"]} */
  const texts = [];
  for (let plane = 0; plane < planes; plane += 1) {
    const left = margin + (plane % across) * (columns * cell + 26) + 13;
    const top = 22 + Math.floor(plane / across) * deep;
    if (planes > 1) texts.push({ x: left, y: top - 8, text: `x ${plane}`, anchor: "start" });
    for (let row = 0; row < rows; row += 1) for (let column = 0; column < columns; column += 1) spots.push({ x: left + (column + 0.5) * cell, y: top + 8 + (row + 0.5) * cell, size: Math.max(3, cell * 0.36) });
  }
  /** @param {number} at */
  const coordinates = (at) => [Math.floor(at / (rows * columns)), Math.floor(at / columns) % rows, at % columns];
  /** @param {number} one @param {number} other @returns {Segment[]} */
  const line = (one, other) => {
    const [from, to] = [coordinates(one), coordinates(other)];
    const axis = [0, 1, 2].find((side) => from[side] !== to[side]) ?? 2;
    const far = [planes, rows, columns][axis] - 1;
    const wraps = Math.abs(from[axis] - to[axis]) === far && far > 1;
    if (axis > 0 && !wraps) return [[spots[one].x, spots[one].y, spots[other].x, spots[other].y]];
    if (axis === 0) {
      const start = (from[0] < to[0]) === wraps ? other : one;
      const { x, y } = spots[start];
      return [[x, y, x + cell * 0.34, y - cell * 0.34]];
    }
    const out = cell * 0.62;
    return [one, other].map((at) => {
      const { x, y } = spots[at];
      const sign = coordinates(at)[axis] === 0 ? -1 : 1;
      return axis === 2 ? [x, y, x + sign * out, y] : [x, y, x, y + sign * out];
    });
  };
  return { height: 30 + Math.ceil(planes / across) * deep, spots, texts, line };
}
