// @ts-check
// Shared by all charts: a canvas in screen resolution, colours, pointer positions, arrow keys.

/** @param {string} id @returns {any} the element, which the page's own template has */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** @param {HTMLCanvasElement} canvas @returns {CanvasRenderingContext2D} */
function context2d(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser does not support canvas");
  return context;
}

/**
 * Arrow keys as steps to the right and down; Home and End go all the way.
 * @param {(right: number, down: number) => void} move
 * @param {HTMLCanvasElement | SVGSVGElement} canvas
 */
function walkable(canvas, move, { enter = () => {} } = {}) {
  /** @type {Record<string, [number, number]>} */
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [-10, 0], PageDown: [10, 0], Home: [-1e9, 0], End: [1e9, 0] };
  canvas.addEventListener("keydown", (pressed) => {
    const event = /** @type {KeyboardEvent} */ (pressed);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") enter();
    else if (moves[event.key]) move(moves[event.key][0], moves[event.key][1]);
    else return;
    event.preventDefault();
  });
}

/** @type {Map<string, string>} colours as the browser has worked them out, until they change */
const inks = new Map();

/** @param {string} name of a custom property, without its dashes @returns {string} rgb(red, green, blue) */
function color(name) {
  let found = inks.get(name);
  if (found === undefined) {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    found = getComputedStyle(probe).color;
    probe.remove();
    inks.set(name, found);
  }
  return found;
}

/** @param {string} text as `color` has it @returns {number[]} red, green, blue */
function rgb(text) {
  return (text.match(/\d+/g) ?? []).slice(0, 3).map(Number);
}

/**
 * A context in CSS pixels, cleared, at the screen's own resolution.
 * @param {HTMLCanvasElement} canvas @param {number} [height]
 */
function surface(canvas, height) {
  if (height) canvas.style.height = `${height}px`;
  const ratio = window.devicePixelRatio || 1;
  const box = { width: canvas.clientWidth, height: canvas.clientHeight };
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  const context = context2d(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return { context, ...box };
}

/** An entry of a legend: a colour of the page, and what it stands for. @param {string} name @param {string} text */
function swatch(name, text, tag = "li") {
  const item = document.createElement(tag);
  const patch = document.createElement("span");
  patch.className = name === "wait" ? "swatch wait" : "swatch";
  if (name !== "wait") patch.style.background = `var(--${name})`;
  item.append(patch, text);
  return item;
}

/** @param {HTMLCanvasElement | SVGSVGElement} canvas @param {MouseEvent} event */
function pointer(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left - canvas.clientLeft, y: event.clientY - box.top - canvas.clientTop };
}

/** Shorten text to a width, with an ellipsis. @param {Context} context @param {string} text @param {number} width */
function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 0 && context.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}

/** Diagonal stripes for waits, so that colour is not the only mark. @param {Context} context */
function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const inside = context2d(tile);
  inside.fillStyle = color("wait");
  inside.globalAlpha = 0.45;
  inside.fillRect(0, 0, 6, 6);
  inside.globalAlpha = 1;
  inside.strokeStyle = color("wait");
  inside.lineWidth = 2;
  inside.beginPath();
  for (const shift of [-6, 0, 6]) { inside.moveTo(shift - 1, 7); inside.lineTo(shift + 7, -1); }
  inside.stroke();
  return context.createPattern(tile, "repeat") ?? color("wait");
}

/** Axis of steps along the bottom of a chart. @param {Context} context @param {Plot} plot @param {number} first @param {number} last @param {(step: number) => number} place */
function stepAxis(context, plot, first, last, place) {
  context.fillStyle = color("soft");
  context.textAlign = "center";
  for (const step of ticks(first, last, Math.max(2, plot.width / 70))) {
    if (Number.isInteger(step)) context.fillText(step.toLocaleString("en-US"), place(step), plot.bottom + 11);
  }
}

/** Lines across a chart at some values, each named at its left. @param {Context} context @param {{left: number, width: number}} plot @param {number[]} values @param {(value: number) => number} y @param {(value: number) => string} words */
function valueAxis(context, plot, values, y, words) {
  context.textAlign = "right";
  for (const value of values) {
    context.fillStyle = color("line");
    context.fillRect(plot.left, Math.round(y(value)), plot.width, 1);
    context.fillStyle = color("soft");
    context.fillText(words(value), plot.left - 8, y(value));
  }
}

/** Stretches of steps as bars. @param {Context} context @param {number[][]} stretches @param {[number, number]} ends of the axis @param {(step: number) => number} x @param {{top: number, height: number}} bar */
function stepBars(context, stretches, [first, last], x, { top, height }) {
  context.fillStyle = color("wait");
  for (const [from, to] of stretches) {
    const left = x(Math.max(from, first));
    context.fillRect(left, top, Math.max(x(Math.min(to, last)) - left, 2), height);
  }
}

/** A ring around the point that is read. @param {Context} context @param {number} x @param {number} y */
function ring(context, x, y) {
  context.strokeStyle = color("ink");
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(x, y, 6, 0, 2 * Math.PI);
  context.stroke();
}

/** Axis titles: below the right end of one, above the top of the other. @param {Context} context @param {Plot} plot @param {string} across @param {string} up */
function axisTitles(context, plot, across, up) {
  context.fillStyle = color("soft");
  context.textAlign = "right";
  context.fillText(across, plot.left + plot.width, plot.bottom + 25);
  context.textAlign = "left";
  context.fillText(up, 4, plot.top - 11);
}

let repaint = () => {};

/**
 * Draw now, and again when size or colours change. Before printing the page takes the width of
 * paper, so that charts have their height when pages are laid out.
 * @param {() => void} draw
 */
function redrawAlways(draw) {
  const redraw = () => { inks.clear(); draw(); };
  repaint = redraw;
  redraw();
  window.addEventListener("resize", redraw);
  document.addEventListener("toggle", redraw, true); // what was folded had no size
  for (const [name, paper] of /** @type {[string, boolean][]} */ ([["beforeprint", true], ["afterprint", false]])) {
    window.addEventListener(name, () => { document.documentElement.classList.toggle("paper", paper); redraw(); });
  }
  for (const query of ["(prefers-color-scheme: dark)", "print"]) window.matchMedia(query).addEventListener("change", redraw);
}

/** Starts a page; why it could not be drawn stands on it. @param {() => void | Promise<void>} start */
async function started(start) {
  try {
    await start();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    byId("trouble").textContent = `The charts could not be drawn: ${error instanceof Error ? error.message : error}`;
    byId("trouble").hidden = false;
  }
}
