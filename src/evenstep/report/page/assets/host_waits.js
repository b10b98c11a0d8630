// @ts-check
// Hosts around a circle, a line between two for the time that one waited for the other.

/** @param {SVGSVGElement} picture @param {HTMLElement} read @param {Table} pairs @param {HostFacts} facts */
function hostWaitsChart(picture, read, pairs, facts) {
  const count = facts.places.length;
  const lost = Array.from({ length: count }, () => new Float64Array(count));
  pairs.lost_us.forEach((value, row) => { lost[pairs.waiting[row]][pairs.awaited[row]] = value; });
  /** @type {{one: number, other: number, both: number}[]} */
  const edges = [];
  for (let one = 0; one < count; one += 1) {
    for (let other = one + 1; other < count; other += 1) {
      const both = lost[one][other] + lost[other][one];
      if (both > 0) edges.push({ one, other, both });
    }
  }
  edges.sort((a, b) => b.both - a.both);
  const most = Math.max(...edges.map((edge) => edge.both), ...lost.map((row, at) => row[at]), 1e-3);
  let spots = /** @type {Spot[]} */ ([]);

  /** @param {{one: number, other: number}} edge @returns {Segment[]} */
  const line = ({ one, other }) => [[spots[one].x, spots[one].y, spots[other].x, spots[other].y]];

  function draw() {
    const width = widthOf(picture);
    const side = Math.min(width, 460);
    emptied(picture, side);
    const radius = Math.min(side / 2 - 46, width / 2 - 84);
    const size = Math.max(5, Math.min(18, (4 * radius) / count));
    spots = aroundCircle(count, 1).map((angle) => ({ x: width / 2 + radius * Math.cos(angle), y: side / 2 + radius * Math.sin(angle), size }));
    const paint = lineRamp();
    for (const edge of [...edges].reverse()) {
      const [[x1, y1, x2, y2]] = line(edge);
      picture.append(svgElement("line", { x1, y1, x2, y2, stroke: cssColor(paint(edge.both / most)), "stroke-width": 1 + (4 * edge.both) / most }));
    }
    const every = Math.max(1, Math.ceil((count * 16) / (2 * Math.PI * radius)));
    spots.forEach((spot, at) => {
      const fill = lost[at][at] > 0 ? cssColor(paint(lost[at][at] / most)) : color("card");
      picture.append(svgElement("rect", { x: spot.x - size / 2, y: spot.y - size / 2, width: size, height: size, rx: 2, fill, stroke: color("ink"), "stroke-width": 1 }));
      if (at % every === 0) picture.append(label(spot, facts.places[at].name, width, side));
    });
    colorScale("host-waits", duration(most), paint);
    mark();
  }

  /** @param {Spot} spot @param {string} name @param {number} width @param {number} side */
  function label({ x, y, size }, name, width, side) {
    const right = x >= width / 2 - 1;
    const upright = Math.abs(x - width / 2) < 30;
    const room = Math.floor((right ? width - x : x) / 7.2) - 3;
    const short = name.length > room ? `…${name.slice(-Math.max(room - 1, 1))}` : name; // hosts differ at the end
    const away = size / 2 + 6;
    if (upright) return svgElement("text", { x, y: y < side / 2 ? y - away : y + away + 9, class: "tick", "text-anchor": "middle" }, name.slice(-28));
    return svgElement("text", { x: right ? x + away : x - away, y: y + 4, class: "tick", "text-anchor": right ? "start" : "end" }, short);
  }

  /** @param {number} waiting @param {number} awaited */
  const said = (waiting, awaited) => `${facts.places[waiting].name} waited ${duration(lost[waiting][awaited])} for ${facts.places[awaited].name}`;

  /** @param {number} at */
  function ofPlace(at) {
    const { name, ranks, groups } = facts.places[at];
    const all = lost[at].reduce((sum, value) => sum + value, 0);
    return [name, `ranks ${ranks}`, groups && `in ${groups}`, `waited ${duration(all)} in total, ${duration(lost[at][at])} of it for its own ranks`].filter(Boolean).join(" · ");
  }

  const mark = readable(picture, read, {
    spots: () => spots, edges: () => edges, line, ofPlace,
    ofEdge: ({ one, other }) => `${said(one, other)} · ${said(other, one)}`,
  });
  return { draw };
}
