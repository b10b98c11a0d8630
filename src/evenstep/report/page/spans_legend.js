// @ts-check
// What the colours of a step's timeline mean: only those that occur in it.

/** Swatches of what occurs in the timeline. */
function spansLegend(list, facts, records) {
  const { kinds, phases } = facts;
  const communication = (kind) => kind === kinds.collective || kind === kinds.point_to_point;
  const some = (test) => records.kind.some((kind, at) => test(kind, at));
  const known = (at) => Number.isFinite(records.wait_us[at]);
  const entries = [
    ...Object.keys(phases).map((name) => [name, name, (kind, at) => kind === kinds.phase && records.op[at] === phases[name]]),
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
