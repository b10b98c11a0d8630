// @ts-check
"use strict";
// The live page: every frame from the server replaces the last one. Its words are those
// of the terminal, made by the server. Text is never parsed as HTML.

(() => {
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

  /** @typedef {[name: string, words: string, share: number][]} Shares the parts of a step */

  /** @param {Shares} shares @returns {HTMLElement} */
  function bar(shares) {
    const node = made("div", "", "bar");
    for (const [name, words, share] of shares) {
      const part = made("span", "", name);
      part.style.flexGrow = String(share);
      part.title = words;
      node.append(part);
    }
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", shares.map(([, words]) => words).join(", "));
    return node;
  }

  /** @param {[Shares, string[]]} row its cells: rank, host, step, lateness, why it has stopped @returns {HTMLElement} */
  function rankRow([shares, texts]) {
    const line = document.createElement("tr");
    line.append(...texts.map((text, at) => made("td", text, ["n", "", "n", "n", text && "state"][at])));
    if (!texts[4]) line.cells[4].append(bar(shares));
    return line;
  }

  /** @param {[string, string, number]} part @returns {HTMLElement} */
  function legend([name, words]) {
    const item = made("li", "");
    item.append(made("span", "", `swatch ${name}`), made("span", words));
    return item;
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

  /** @param {any} frame */
  function show(frame) {
    for (const [id, text] of Object.entries(frame.texts)) element(id).textContent = text;
    curve(frame.curve_ns);
    element("legend").replaceChildren(...frame.shares.map(legend));
    element("ranks").replaceChildren(...frame.rows.map(rankRow));
    for (const id of ["found", "past"]) {
      element(id).replaceChildren(...frame[id].map((/** @type {string} */ text) => made("li", text)));
    }
    document.title = `${frame.texts.verdict} · evenstep watch`;
  }

  const events = new EventSource(`events${window.location.search}`);
  events.onmessage = (message) => {
    element("line").hidden = true;
    show(JSON.parse(message.data));
  };
  events.onerror = () => { element("line").hidden = false; };
  events.addEventListener("ended", () => {
    events.close();
    element("line").textContent = "evenstep watch has ended: this is its last view.";
    element("line").hidden = false;
  });
})();
