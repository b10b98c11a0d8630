// What all charts share: a sharp canvas, the page's colours, pointer positions.

/** @param {string} name of a custom property, without its dashes */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** @param {string} hex @returns {number[]} red, green, blue */
function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** A context in CSS pixels, cleared, at the screen's own resolution. */
function surface(canvas, height) {
  if (height) canvas.style.height = `${height}px`;
  const ratio = window.devicePixelRatio || 1;
  const box = { width: canvas.clientWidth, height: canvas.clientHeight };
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return { context, ...box };
}

function pointer(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left - canvas.clientLeft, y: event.clientY - box.top - canvas.clientTop };
}

/** Text that ends with an ellipsis where it does not fit. */
function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 0 && context.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}

/** Diagonal stripes that mark waiting, so that it is not told by colour alone. */
function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const inside = tile.getContext("2d");
  inside.fillStyle = color("wait");
  inside.globalAlpha = 0.45;
  inside.fillRect(0, 0, 6, 6);
  inside.globalAlpha = 1;
  inside.strokeStyle = color("wait");
  inside.lineWidth = 2;
  inside.beginPath();
  for (const shift of [-6, 0, 6]) { inside.moveTo(shift - 1, 7); inside.lineTo(shift + 7, -1); }
  inside.stroke();
  return context.createPattern(tile, "repeat");
}

/** Axis of steps along the bottom of a chart. */
function stepAxis(context, plot, first, last, place) {
  context.fillStyle = color("soft");
  context.textAlign = "center";
  for (const step of ticks(first, last, Math.max(2, plot.width / 90))) {
    if (Number.isInteger(step)) context.fillText(step.toLocaleString("en-US"), place(step), plot.bottom + 11);
  }
}
