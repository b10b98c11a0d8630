// @ts-check
// Controls of the whole page: search, colours, copying.

const SHORTEST_SEARCH = 2; // letters; a rank's number may be one

/** Light, dark, or as the system has it; kept where the browser keeps anything for a file. */
function themeSwitch() {
  const chooser = /** @type {HTMLSelectElement} */ (byId("theme"));
  const apply = () => { document.documentElement.style.colorScheme = chooser.value; };
  try { chooser.value = localStorage.getItem("evenstep-theme") ?? ""; } catch { /* nothing is kept */ }
  if (chooser.selectedIndex < 0) chooser.value = "";
  apply();
  chooser.addEventListener("change", () => {
    try { localStorage.setItem("evenstep-theme", chooser.value); } catch { /* nothing is kept */ }
    apply();
    repaint();
  });
}

/** Puts the findings on the clipboard; where there is none, selects them. */
function copying() {
  const text = byId("markdown");
  byId("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      byId("copy").textContent = "copied";
    } catch {
      text.closest("details").open = true;
      getSelection()?.selectAllChildren(text);
    }
  });
}

/** Open the target of the address: a section, a finding, or a step (#step-120). @param {(step: number) => void} pick */
function following(pick) {
  const open = () => {
    const name = location.hash.slice(1);
    const step = /^step-(\d+)$/.exec(name);
    if (step) { pick(Number(step[1])); return; }
    const target = name && document.getElementById(name);
    if (target) { unfold(target); target.scrollIntoView(); }
  };
  window.addEventListener("hashchange", open);
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav a, .finding a"))) {
    link.addEventListener("click", () => { if (link.hash === location.hash) open(); });
  }
  open();
}

/** Opens a section and whatever it is folded into. @param {Element} section */
function unfold(section) {
  const own = /** @type {HTMLDetailsElement | null} */ (section.querySelector(":scope > details"));
  if (own) own.open = true;
  for (let at = section.closest("details"); at; at = at.parentElement?.closest("details") ?? null) at.open = true;
}

/**
 * Show only parts that contain the search text; a rank gets its own row in the map, a node fills it.
 * @param {Facts} facts @param {{pin: (rank: number) => boolean, unpin: () => void} | null} map
 */
function searching(facts, map) {
  const input = /** @type {HTMLInputElement} */ (byId("search"));
  const said = byId("search-read");
  const places = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("article.finding, main > section:not(.verdict):not(#findings)")]);
  const nodes = new Set(Object.values(facts.nodes));
  const chooser = /** @type {HTMLSelectElement} */ (byId("heat-node"));
  const look = () => {
    const words = input.value.trim().toLowerCase();
    const rank = /^(?:rank )?(\d{1,7})$/.exec(words);
    const active = words.length >= SHORTEST_SEARCH || rank !== null;
    map?.unpin();
    const node = active ? [...nodes].find((name) => name.toLowerCase() === words) : undefined;
    if (chooser.value !== (node ?? "")) { chooser.value = node ?? ""; chooser.dispatchEvent(new Event("change")); }
    const pinned = rank !== null && map?.pin(Number(rank[1]));
    let count = 0;
    for (const place of places) {
      const mapped = (pinned || node) && place.id === "waiting";
      const found = !active || mapped || holds(place, rank ? `rank ${rank[1]}` : words);
      place.hidden = !found;
      if (active && found) { count += 1; unfold(place); }
    }
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("main > section:not(#findings) tbody tr"))) {
      const table = row.closest("tbody");
      row.hidden = active && !!table && holds(table, words) && !holds(row, words);
    }
    const shown = pinned ? `; rank ${rank?.[1]} has a row of its own in the map` : node ? `; the map shows ${node} alone` : "";
    said.textContent = active ? `${count} of ${places.length} parts${shown}` : "";
    repaint();
  };
  input.addEventListener("input", look);
}

/** Whether an element says the words; numbers as a whole. @param {Element} element @param {string} words */
function holds(element, words) {
  const text = (element.textContent ?? "").toLowerCase();
  const at = text.indexOf(words);
  if (at < 0 || !/^\d|\d$/.test(words)) return at >= 0;
  return new RegExp(`(?<!\\d)${words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?!\\d)`).test(text);
}
