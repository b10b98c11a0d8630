// @ts-check
// Rendering of numbers, with the rules of evenstep.words.

/** To so many decimals, of two equally near the even one, as Python rounds. @param {number} value @param {number} places @returns {number} */
function rounded(value, places) {
  if (places < 0) return rounded(value * 10 ** places, 0) / 10 ** places;
  const doubled = 2 * value * 10 ** places;
  const between = Number.isInteger(value * 2 ** (places + 1)) && doubled % 2 !== 0 && Number.isInteger(doubled);
  return between ? (2 * Math.round(doubled / 4)) / 10 ** places : Number(value.toFixed(places));
}

/** Text of a trace without control characters and marks that turn its direction. @param {string} text @returns {string} */
function printable(text) {
  return text.replace(/[\p{C}\p{Z}]/gu, (character) => (/\s/.test(character) ? " " : "\ufffd"));
}

/** JSON whose texts are to be shown. @param {string} json @returns {any} */
function parsedToShow(json) {
  return JSON.parse(json, (_, value) => (typeof value === "string" ? printable(value) : value));
}

/** @param {number} value @returns {string} three significant digits, thousands grouped */
function number(value) {
  if (!Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  const places = Math.min(9, 2 - Math.floor(Math.log10(Math.abs(value))));
  return rounded(value, places).toLocaleString("en-US", { maximumFractionDigits: Math.max(0, places) });
}

/** @param {number} us @returns {string} a time in the unit that suits it */
function duration(us) {
  if (!Number.isFinite(us)) return "unknown";
  if (us === 0) return "0";
  const size = Math.abs(us);
  if (size >= 999500) return `${number(us / 1e6)} s`;
  if (size >= 999.5) return `${number(us / 1e3)} ms`;
  if (size >= 0.9995) return `${number(us)} µs`;
  return `${number(us * 1e3)} ns`;
}

/** @param {number} share of one @returns {string} in percent: 61 %, 8.4 %, 0.04 % */
function percent(share) {
  if (!Number.isFinite(share)) return "unknown";
  const value = 100 * share;
  if (value && Math.abs(value) < 0.005) return "< 0.01 %";
  const places = Math.abs(value) >= 9.95 ? 0 : Math.abs(value) >= 0.95 ? 1 : 2;
  return `${rounded(value, places)} %`;
}

/** @param {number} bytes @returns {string} in SI units */
function volume(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 999.5 && at < units.length - 1) { bytes /= 1000; at += 1; }
  return `${number(bytes)} ${units[at]}`;
}

/** @param {string} text "0-3,8" @returns {number[] | null} null when it is not a set of ranks */
function parseRanks(text) {
  const ranks = new Set();
  for (const part of text.split(",").map((piece) => piece.trim()).filter(Boolean)) {
    const match = /^(\d{1,7})(?:-(\d{1,7}))?$/.exec(part);
    if (!match) return null;
    const first = Number(match[1]);
    const last = Math.min(Number(match[2] ?? match[1]), first + 100000);
    for (let rank = first; rank <= last; rank += 1) ranks.add(rank);
  }
  return [...ranks].sort((a, b) => a - b);
}

/** @param {number[]} ranks @returns {string} the inverse of parseRanks */
function formatRanks(ranks) {
  const parts = [];
  for (let at = 0; at < ranks.length; at += 1) {
    const first = ranks[at];
    while (ranks[at + 1] === ranks[at] + 1) at += 1;
    parts.push(first === ranks[at] ? `${first}` : `${first}-${ranks[at]}`);
  }
  return parts.join(",");
}

/** 1, 2 and 5 times powers of ten between two ends, thinned to about so many. @param {number[]} ends @param {number} most @returns {number[]} */
function decades([low, high], most) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const factor of [1, 2, 5]) if (factor * power >= low && factor * power <= high) found.push(factor * power);
  }
  if (found.length <= most) return found;
  const tens = found.filter((value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9);
  return tens.filter((_, at) => at % Math.ceil(tens.length / Math.max(most, 1)) === 0);
}

/** Round positions for an axis from low to high. @param {number} low @param {number} high @param {number} most of them, about @returns {number[]} */
function ticks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw) ?? raw;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}
