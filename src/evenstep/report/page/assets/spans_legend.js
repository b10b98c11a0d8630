// @ts-check
// Legend of the timeline: only the colours that occur in it.

/** @typedef {(kind: number, at: number) => boolean} Test of a record */

/** Swatches of what occurs in the timeline. @param {HTMLElement} list @param {Facts} facts @param {Table} records */
function spansLegend(list, facts, records) {
  const { kinds, phases } = facts;
  /** @param {number} kind */
  const communication = (kind) => kind === kinds.collective || kind === kinds.point_to_point;
  /** @param {Test} test */
  const some = (test) => records.kind.some((kind, at) => test(kind, at));
  /** @param {number} at */
  const known = (at) => Number.isFinite(records.wait_us[at]);
  /** @type {[string, string, Test][]} */
  const entries = [
    ...Object.keys(phases).map((name) => /** @type {[string, string, Test]} */ ([name, name, (kind, at) => kind === kinds.phase && records.op[at] === phases[name]])),
    ["wait", "waiting for the last rank", (kind, at) => communication(kind) && known(at)],
    ["transfer", "transfer", (kind, at) => communication(kind) && known(at)],
    ["unsplit", "in flight, not separable", (kind, at) => communication(kind) && !known(at)],
    ["pause", "red end: never ended", (kind, at) => communication(kind) && !Number.isFinite(records.exit_us[at])],
    ["pause", "garbage collection", (kind) => kind === kinds.pause],
    ["pacing", "pacing delay (outlined: only observed)", (kind) => kind === kinds.pacing],
    ["span", "your spans", (kind) => kind === kinds.span],
  ];
  for (const [name, text] of entries.filter(([, , test]) => some(test))) list.append(swatch(name, text));
}
