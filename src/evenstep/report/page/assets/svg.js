// @ts-check
// Charts of lines and boxes as SVG: elements, colours, hit testing.

/** @typedef {[number, number, number, number]} Segment from x, y to x, y */

/** @param {string} name @param {Record<string, string | number>} given @param {string} [text] @returns {SVGElement} */
function svgElement(name, given, text) {
  const drawn = document.querySelector("svg"); // names the language of its parts
  const found = /** @type {SVGElement} */ (document.createElementNS(drawn?.namespaceURI ?? null, name));
  for (const [key, value] of Object.entries(given)) found.setAttribute(key, `${value}`);
  if (text !== undefined) found.textContent = text;
  return found;
}

/** An empty picture of that height, as wide as its place. @param {SVGSVGElement} picture @param {number} height */
function emptied(picture, height) {
  picture.replaceChildren();
  const width = widthOf(picture);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.style.height = `${height}px`;
  return width;
}

/** How wide a picture may be. @param {SVGSVGElement} picture */
function widthOf(picture) {
  return Math.max(Math.floor(picture.getBoundingClientRect().width), 240);
}

/** Colours of lines, which stand on paper: nothing is grey, not pale. @returns {Ramp} */
function lineRamp() {
  return rampOf(["span", "heat-1", "heat-2"]);
}

/** @param {number[]} parts */
function cssColor(parts) {
  return `rgb(${parts.map(Math.round).join(" ")})`;
}

/** How far a point is from the nearest of some lines. @param {Segment[]} segments @param {{x: number, y: number}} point */
function distanceTo(segments, { x, y }) {
  return Math.min(...segments.map(([fromX, fromY, toX, toY]) => {
    const [right, down] = [toX - fromX, toY - fromY];
    const along = ((x - fromX) * right + (y - fromY) * down) / Math.max(right * right + down * down, 1e-9);
    const part = Math.max(0, Math.min(1, along));
    return Math.hypot(x - fromX - part * right, y - fromY - part * down);
  }));
}

/** Where the pointer is, in the picture's own numbers. @param {SVGSVGElement} picture @param {PointerEvent} event */
function pointIn(picture, event) {
  const box = picture.getBoundingClientRect();
  const wide = picture.viewBox.baseVal.width || box.width;
  return { x: (event.clientX - box.left) * (wide / box.width), y: (event.clientY - box.top) * (wide / box.width) };
}

/** Points on a circle, so many of them, the first at the top. @param {number} count @param {number} gapEvery of the points, after which there is a gap @returns {number[]} angles */
function aroundCircle(count, gapEvery) {
  const gaps = gapEvery > 1 ? Math.ceil(count / gapEvery) : 0;
  const each = (2 * Math.PI) / (count + gaps);
  return Array.from({ length: count }, (_, at) => -Math.PI / 2 + each * (at + (gaps ? Math.floor(at / gapEvery) : 0)));
}

/**
 * Lines and boxes that are read with the pointer, and the lines, worst first, with the arrow keys.
 * @template {{one: number, other: number}} E
 * @param {SVGSVGElement} picture @param {HTMLElement} read
 * @param {{spots: () => Spot[], edges: () => E[], line: (edge: E) => Segment[], ofEdge: (edge: E) => string, ofPlace: (place: number) => string}} view
 * @returns {() => void} draws what is chosen again
 */
function readable(picture, read, view) {
  let chosen = /** @type {{edge?: E, place: number} | null} */ (null);

  function mark() {
    picture.querySelector(".chosen")?.remove();
    if (!chosen) return;
    const group = svgElement("g", { class: "chosen" });
    if (chosen.edge) for (const [x1, y1, x2, y2] of view.line(chosen.edge)) group.append(svgElement("line", { x1, y1, x2, y2 }));
    for (const at of chosen.edge ? [chosen.edge.one, chosen.edge.other] : [chosen.place]) {
      const { x, y, size } = view.spots()[at];
      group.append(svgElement("rect", { x: x - size / 2 - 3, y: y - size / 2 - 3, width: size + 6, height: size + 6, rx: 3 }));
    }
    picture.append(group);
  }

  /** @param {{edge?: E, place: number}} found */
  function choose(found) {
    chosen = found;
    read.textContent = found.edge ? view.ofEdge(found.edge) : view.ofPlace(found.place);
    mark();
  }

  picture.addEventListener("pointermove", (event) => {
    const at = pointIn(picture, event);
    const place = view.spots().findIndex(({ x, y, size }) => Math.abs(at.x - x) <= size / 2 + 1 && Math.abs(at.y - y) <= size / 2 + 1);
    if (place >= 0) { choose({ place }); return; }
    const near = view.edges().map((edge) => ({ edge, away: distanceTo(view.line(edge), at) })).filter(({ away }) => away < 8);
    if (near.length) choose({ edge: near.reduce((best, one) => (one.away < best.away ? one : best)).edge, place: -1 });
  });
  walkable(picture, (right, down) => {
    const order = view.edges();
    if (!order.length) return;
    const now = chosen?.edge ? order.indexOf(chosen.edge) : -1;
    choose({ edge: order[Math.max(0, Math.min(order.length - 1, now + right + down))], place: -1 });
  });
  return mark;
}
