// Rank × step as colours: wait, lateness or step time.

/** @param {{pick: (step: number, rank: number) => void}} hooks */
function heatChart(canvas, read, shape, table, facts, hooks) {
  const culprits = new Set(facts.culprits);
  const marked = (row) => {
    for (let rank = row * shape.ranks_per_bin; rank < (row + 1) * shape.ranks_per_bin; rank += 1) {
      if (culprits.has(rank)) return true;
    }
    return false;
  };
  let metric = "wait_us";
  let cell = null;
  let plot = null;
  let painted = null; // {image, high} for the metric and colours of the moment

  function height() {
    return Math.max(60, Math.min(shape.rows * Math.max(3, Math.min(26, 360 / shape.rows)), 420));
  }

  /** The largest value but for the top half percent, so that one outlier does not pale the rest. */
  function top() {
    const known = Float32Array.from(table[metric]).filter((value) => Number.isFinite(value)).sort();
    return known.length ? Math.max(known[Math.floor((known.length - 1) * 0.995)], 1e-3) : 1;
  }

  function ramp() {
    const stops = ["heat-0", "heat-1", "heat-2"].map((name) => rgb(color(name)));
    return (share) => {
      const at = Math.max(0, Math.min(share, 1)) * 2;
      const low = Math.min(Math.floor(at), 1);
      return stops[low].map((value, channel) => value + (stops[low + 1][channel] - value) * (at - low));
    };
  }

  function picture(high) {
    const image = document.createElement("canvas");
    image.width = shape.columns;
    image.height = shape.rows;
    const inside = image.getContext("2d");
    const pixels = inside.createImageData(shape.columns, shape.rows);
    const paint = ramp();
    const none = rgb(color("heat-none"));
    table[metric].forEach((value, at) => {
      const [red, green, blue] = Number.isFinite(value) ? paint(value / high) : none;
      pixels.data.set([red, green, blue, 255], 4 * at);
    });
    inside.putImageData(pixels, 0, 0);
    return image;
  }

  function draw() {
    const high = top();
    painted = { high, image: picture(high) };
    legend(high);
    show();
  }

  function show() {
    const tall = height();
    const { context, width } = surface(canvas, tall + 38);
    plot = { left: 66, width: width - 66 - 16, top: 10, bottom: 10 + tall, height: tall };
    context.imageSmoothingEnabled = false;
    context.drawImage(painted.image, plot.left, plot.top, plot.width, plot.height);
    labels(context);
    const place = (step) => plot.left + ((step + 0.5 - shape.first_step) / (shape.columns * shape.steps_per_bin)) * plot.width;
    stepAxis(context, plot, shape.first_step, shape.last_step, place);
    if (cell) outline(context);
  }

  function labels(context) {
    const each = plot.height / shape.rows;
    const every = Math.max(1, Math.ceil(14 / each));
    context.textAlign = "right";
    for (let row = 0; row < shape.rows; row += 1) {
      const middle = plot.top + (row + 0.5) * each;
      const name = `${row * shape.ranks_per_bin}`;
      if (marked(row) && (each >= 9 || culprits.size <= 8)) {
        context.fillStyle = color("pause");
        context.fillText("▸", plot.left - 4, middle);
      }
      if (row % every === 0) {
        context.fillStyle = color("soft");
        context.fillText(row === 0 ? `rank ${name}` : name, plot.left - 15, middle);
      }
    }
  }

  function outline(context) {
    const [wide, tall] = [plot.width / shape.columns, plot.height / shape.rows];
    const [left, top_] = [plot.left + cell.column * wide, plot.top + cell.row * tall];
    [["card", 1], ["ink", 2.5]].forEach(([name, out]) => {
      context.strokeStyle = color(name);
      context.lineWidth = 1.5;
      context.strokeRect(left - out, top_ - out, wide + 2 * out, tall + 2 * out);
    });
  }

  function legend(high) {
    const scale = document.getElementById("heat-scale");
    const { context, width, height: tall } = surface(scale);
    const paint = ramp();
    for (let x = 0; x < width; x += 1) {
      context.fillStyle = `rgb(${paint(x / (width - 1)).map(Math.round).join(" ")})`;
      context.fillRect(x, 0, 1, tall);
    }
    document.getElementById("heat-high").textContent = `${duration(high)} or more`;
  }

  function select(row, column) {
    cell = { row: Math.max(0, Math.min(shape.rows - 1, row)), column: Math.max(0, Math.min(shape.columns - 1, column)) };
    const rank = cell.row * shape.ranks_per_bin;
    const step = shape.first_step + cell.column * shape.steps_per_bin;
    const until = (from, count, end) => (count > 1 ? `s ${from}-${Math.min(from + count - 1, end)}` : ` ${from}`);
    const node = shape.ranks_per_bin === 1 && facts.nodes[rank] ? ` on ${facts.nodes[rank]}` : "";
    const at = cell.row * shape.columns + cell.column;
    read.textContent = `rank${until(rank, shape.ranks_per_bin, shape.ranks - 1)}${node}, `
      + `step${until(step, shape.steps_per_bin, shape.last_step)}: wait ${duration(table.wait_us[at])}, `
      + `lateness ${duration(table.lateness_us[at])}, step ${duration(table.step_us[at])}`
      + (shape.ranks_per_bin * shape.steps_per_bin > 1 ? " (means)" : "");
    show();
  }

  function locate(event) {
    const at = pointer(canvas, event);
    select(
      Math.floor(((at.y - plot.top) / plot.height) * shape.rows),
      Math.floor(((at.x - plot.left) / plot.width) * shape.columns),
    );
  }

  function pick() {
    hooks.pick(shape.first_step + cell.column * shape.steps_per_bin, cell.row * shape.ranks_per_bin);
  }

  canvas.addEventListener("pointermove", locate);
  canvas.addEventListener("click", (event) => { locate(event); pick(); });
  canvas.addEventListener("keydown", (event) => {
    const { row, column } = cell ?? { row: 0, column: 0 };
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
    if (moves[event.key]) select(row + moves[event.key][0], column + moves[event.key][1]);
    else if (event.key === "Enter" && cell) pick();
    else return;
    event.preventDefault();
  });
  document.getElementById("heat-metric").addEventListener("change", (event) => { metric = event.target.value; draw(); });
  return { draw };
}
