// @ts-check
"use strict";
// The live page: every frame from the server replaces the last one. Text is never parsed as HTML.

(() => {
  const SHARES = [
    ["compute", "compute"], ["exposed_communication", "communication"], ["wait", "wait"],
    ["input", "input"], ["other", "other"],
  ];

  /** @param {string} id @returns {HTMLElement} */
  function element(id) {
    const found = document.getElementById(id);
    if (!found) throw new Error(`the page has no ${id}`);
    return found;
  }

  /** @param {string} tag @param {string} text @param {string} [className] @returns {HTMLElement} */
  function made(tag, text, className = "") {
    const node = document.createElement(tag);
    node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  /** Text without control characters and marks that turn its direction. @param {string} text @returns {string} */
  function printable(text) {
    return text.replace(/[\p{C}\p{Z}]/gu, (character) => (/\s/.test(character) ? " " : "\ufffd"));
  }

  /** @param {number | null} value @param {string} [unit] @returns {string} three digits */
  function number(value, unit = "") {
    if (value === null || !Number.isFinite(value)) return "unknown";
    const places = value === 0 ? 0 : Math.max(0, Math.min(9, 2 - Math.floor(Math.log10(Math.abs(value)))));
    return `${value.toLocaleString("en-US", { maximumFractionDigits: places })} ${unit}`.trim();
  }

  /** @param {number | null} ns @returns {string} a time in the unit that suits it */
  function duration(ns) {
    if (ns === null || !Number.isFinite(ns)) return "unknown";
    const units = /** @type {[number, string][]} */ ([[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]);
    const [scale, unit] = units.find(([size]) => Math.abs(ns) >= 0.9995 * size) ?? [1, "ns"];
    return ns === 0 ? "0" : number(ns / scale, unit);
  }

  /** @param {number | null | undefined} share @returns {string} */
  function percent(share) {
    if (share === null || share === undefined) return "unknown";
    const value = 100 * share;
    if (value && Math.abs(value) < 0.005) return "< 0.01 %";
    const places = Math.abs(value) >= 9.95 ? 0 : Math.abs(value) >= 0.95 ? 1 : 2;
    return `${Number(value.toFixed(places))} %`;
  }

  /** @param {number} count @param {string} noun @returns {string} */
  function plural(count, noun) {
    return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
  }

  /** @param {any} frame @returns {string} */
  function where(frame) {
    const parts = [frame.run];
    if (frame.attempts > 1) parts.push(`attempt ${frame.attempt} (${plural(frame.attempts, "attempt")} so far)`);
    if (frame.ranks_seen) {
      const seen = frame.world === frame.ranks_seen ? plural(frame.world, "rank")
        : `${frame.ranks_seen} of ${plural(frame.world, "rank")}`;
      parts.push(`${seen} on ${plural(frame.hosts, "node")}`);
    }
    if (frame.step !== null) parts.push(`step ${frame.step.toLocaleString("en-US")}`);
    if (frame.steps_per_s !== null && frame.state === "running") parts.push(number(frame.steps_per_s, "steps/s"));
    return parts.join(" · ");
  }

  /** @param {any} shares @returns {HTMLElement} */
  function bar(shares) {
    const node = made("div", "", "bar");
    for (const [name, label] of SHARES) {
      const part = made("span", "", name);
      part.style.flexGrow = String(shares[name] ?? 0);
      part.title = `${label} ${percent(shares[name])}`;
      node.append(part);
    }
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", SHARES.map(([name, label]) => `${label} ${percent(shares[name])}`).join(", "));
    return node;
  }

  /** @param {any} row @returns {string} the state of a rank that makes no progress */
  function state(row) {
    if (row.state === "gone") return "its process has ended";
    if (row.state === "failed") return "not recorded any more";
    if (row.state !== "silent") return "";
    return `no step for ${duration(row.silent_s * 1e9)}${row.inside ? `, in ${row.inside}` : ""}`;
  }

  /** @param {any} row @returns {HTMLElement} */
  function rankRow(row) {
    const line = document.createElement("tr");
    line.append(made("td", String(row.rank), "n"), made("td", row.host));
    line.append(made("td", row.step === null ? "-" : row.step.toLocaleString("en-US"), "n"));
    line.append(made("td", row.late_ns === null ? "-" : duration(Math.max(row.late_ns, 0)), "n"));
    const words = state(row);
    const cell = made("td", words, words ? "state" : "");
    if (!words) cell.append(bar(row.shares));
    line.append(cell);
    return line;
  }

  /** @param {any} frame @returns {HTMLElement[]} */
  function legend(frame) {
    return SHARES.map(([name, label]) => {
      const item = made("li", "");
      item.append(made("span", "", `swatch ${name}`), made("span", `${label} ${percent(frame.shares[name])}`));
      return item;
    });
  }

  /** The longest step, unless it is an outlier, as a first step is. @param {number[]} values @returns {number} */
  function topOf(values) {
    const longest = Math.max(...values);
    const usual = [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) * 0.9)];
    return longest > 3 * usual ? 1.5 * usual : 1.05 * longest;
  }

  /** @param {number[]} values in ns, oldest first */
  function curve(values) {
    const canvas = /** @type {HTMLCanvasElement} */ (element("curve"));
    const scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const context = canvas.getContext("2d");
    if (!context || values.length < 2) return;
    const top = topOf(values);
    context.scale(scale, scale);
    context.strokeStyle = getComputedStyle(canvas).getPropertyValue("--compute");
    context.lineWidth = 2;
    context.beginPath();
    values.forEach((value, at) => {
      const x = (at / (values.length - 1)) * canvas.clientWidth;
      context.lineTo(x, canvas.clientHeight * (1 - Math.min(value / top, 1)));
    });
    context.stroke();
  }

  /** @param {any} pacing @param {number} ranks @returns {string} */
  function pacingWords(pacing, ranks) {
    if (!pacing.modes) return "no rank reports a pacing state";
    const modes = Object.entries(pacing.modes);
    let text = modes.length === 1 ? modes[0][0]
      : modes.map(([mode, count]) => `${mode} on ${plural(Number(count), "rank")}`).join(", ");
    if (pacing.threshold !== null) text += ` (threshold ${percent(pacing.threshold)}, max delay ${percent(pacing.max_delay)})`;
    if (pacing.held_ranks) text += `: delays ${plural(pacing.held_ranks, "rank")} by ${percent(pacing.held)} of all step time`;
    if (pacing.note) text += `; ${pacing.note}`;
    if (pacing.followed_by !== null && pacing.followed_by < ranks) {
      text += `; requested: ${pacing.requested}; ${pacing.followed_by} of ${plural(ranks, "rank")} follow so far`;
    }
    return text;
  }

  /** @param {any} frame */
  function show(frame) {
    element("where").textContent = where(frame);
    element("verdict").textContent = frame.verdict;
    const time = frame.step_time;
    element("time").textContent = frame.step === null ? "no step yet"
      : `${duration(time.mean_ns)} mean, ${duration(time.p99_ns)} p99, CV ${percent(time.cv)}; curve: the latest ${plural(frame.curve_ns.length, "step")}, from zero`;
    curve(frame.curve_ns);
    element("legend").replaceChildren(...legend(frame));
    element("ranks").replaceChildren(...frame.rows.map(rankRow));
    element("more").textContent = frame.rows.length < frame.ranks_seen
      ? `the ${frame.rows.length} latest of ${plural(frame.ranks_seen, "rank")}` : "";
    const found = frame.findings.map((/** @type {any} */ item) =>
      made("li", `${item.mode.replaceAll("_", " ")}: ${item.text}`));
    element("found").replaceChildren(...(found.length ? found : [made("li", "none at the moment")]));
    element("past").replaceChildren(...frame.past.map((/** @type {string} */ text) => made("li", text)));
    element("pacing").textContent = pacingWords(frame.pacing, frame.ranks_seen);
    document.title = `${frame.verdict} · evenstep watch`;
  }

  const events = new EventSource(`events${window.location.search}`);
  events.onmessage = (message) => {
    element("line").hidden = true;
    show(JSON.parse(message.data, (_, value) => (typeof value === "string" ? printable(value) : value)));
  };
  events.onerror = () => { element("line").hidden = false; };
  events.addEventListener("ended", () => {
    events.close();
    element("line").textContent = "evenstep watch has ended: this is its last view.";
    element("line").hidden = false;
  });
})();
