// @ts-check
// Cells as colours: the ramp, a picture of many cells, and the scale beside it.

/** @typedef {(share: number) => number[]} Ramp red, green and blue for 0 to 1 */

/** @returns {Ramp} */
function heatRamp() {
  return rampOf(["heat-0", "heat-1", "heat-2"]);
}

/** Between three colours of the page. @param {string[]} names @returns {Ramp} */
function rampOf(names) {
  const stops = names.map((name) => rgb(color(name)));
  return (share) => {
    const at = Math.max(0, Math.min(share, 1)) * 2;
    const low = Math.min(Math.floor(at), 1);
    return stops[low].map((value, channel) => value + (stops[low + 1][channel] - value) * (at - low));
  };
}

/**
 * One pixel a cell; what is unknown has a colour of its own.
 * @param {number} columns @param {number} rows @param {(at: number) => number} valueAt @param {number} high
 */
function cellPicture(columns, rows, valueAt, high) {
  const image = document.createElement("canvas");
  image.width = columns;
  image.height = rows;
  const inside = context2d(image);
  const pixels = inside.createImageData(columns, rows);
  const words = new Uint32Array(pixels.data.buffer);
  const paint = heatRamp();
  /** @param {number[]} parts */
  const packed = (parts) => (255 << 24) | (Math.round(parts[2]) << 16) | (Math.round(parts[1]) << 8) | Math.round(parts[0]);
  const shades = Array.from({ length: 256 }, (_, share) => packed(paint(share / 255)));
  const none = packed(rgb(color("heat-none")));
  for (let at = 0; at < words.length; at += 1) {
    const value = valueAt(at);
    words[at] = Number.isFinite(value) ? shades[Math.max(0, Math.min(255, Math.round((value / high) * 255)))] : none;
  }
  inside.putImageData(pixels, 0, 0);
  return image;
}

/** The largest value but for the top half percent, so that one outlier does not pale the rest. @param {Numbers} values */
function robustTop(values) {
  const known = Float32Array.from(values).filter((value) => Number.isFinite(value)).sort();
  return known.length ? Math.max(known[Math.floor((known.length - 1) * 0.995)], 1e-3) : 1;
}

/** @param {string} id of the chart; its scale and the scale's end are named after it @param {string} text */
function colorScale(id, text, paint = heatRamp()) {
  const { context, width, height } = surface(byId(`${id}-scale`));
  for (let x = 0; x < width; x += 1) {
    context.fillStyle = `rgb(${paint(x / (width - 1)).map(Math.round).join(" ")})`;
    context.fillRect(x, 0, 1, height);
  }
  byId(`${id}-high`).textContent = text;
}

/** Two lines around a cell, visible on dark and on light. @param {Context} context @param {number} left @param {number} top @param {number} width @param {number} height */
function outlineCell(context, left, top, width, height) {
  for (const [name, out] of /** @type {[string, number][]} */ ([["card", 1], ["ink", 2.5]])) {
    context.strokeStyle = color(name);
    context.lineWidth = 1.5;
    context.strokeRect(left - out, top - out, width + 2 * out, height + 2 * out);
  }
}

/** Of dark and white text the one that stands out more: WCAG 2.2, relative luminance. @param {number[]} parts red, green, blue */
function inkOn(parts) {
  const [red, green, blue] = parts.map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#1d2126" : "#ffffff";
}
