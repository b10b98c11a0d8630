// @ts-check
// Find the records of a step, and describe them in words.

/** Tables of one step: records by rank, in order of entry, and the end of the last. @param {Table} records @param {number} step */
function stepRecords(records, step) {
  const byRank = new Map();
  let end = 0;
  for (let at = lowerBound(records.step, step); at < records.step.length && records.step[at] === step; at += 1) {
    const rank = records.rank[at];
    if (!byRank.has(rank)) byRank.set(rank, []);
    byRank.get(rank).push(at);
    end = Math.max(end, records.enter_us[at], Number.isFinite(records.exit_us[at]) ? records.exit_us[at] : 0);
  }
  return { byRank, end };
}

/** @param {Numbers} sorted @param {number} wanted */
function lowerBound(sorted, wanted) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low;
}

/** Names by number. @param {Named} numbers @returns {Record<number, string>} */
function nameOf(numbers) {
  return Object.fromEntries(Object.entries(numbers).map(([name, value]) => [value, name]));
}

/** @param {Table} records @param {Facts} facts @returns {(at: number) => boolean} whether a record is a collective or point to point */
function communicates(records, { kinds }) {
  return (at) => records.kind[at] === kinds.collective || records.kind[at] === kinds.point_to_point;
}

/** @param {Table} records @param {Facts} facts @returns {(at: number) => string} one line on a record: who, what, how long, waiting for whom */
function recordWords(records, facts) {
  const kind = facts.kinds;
  const kindNames = nameOf(facts.kinds);
  const opNames = nameOf(facts.ops);
  const phaseNames = nameOf(facts.phases);
  const communication = communicates(records, facts);

  /** @param {number} at */
  function describe(at) {
    const open_ = !Number.isFinite(records.exit_us[at]);
    const length = open_ ? "never ended" : duration(records.exit_us[at] - records.enter_us[at]);
    const start = `rank ${records.rank[at]}: ${title(at)}, ${length}, from ${duration(records.enter_us[at])}`;
    const parts = [start];
    if (communication(at)) {
      parts.push(volume(records.bytes[at]));
      if (Number.isFinite(records.wait_us[at])) {
        parts.push(`waits ${duration(records.wait_us[at])} for the last rank`);
        if (!open_) parts.push(`then transfers ${duration(records.exit_us[at] - records.enter_us[at] - records.wait_us[at])}`);
      }
      if (records.flags[at] & facts.flags.exit_upper_bound) parts.push("its end is an upper bound");
      const group = facts.groups[records.group[at]];
      if (group) parts.push(`group ${group.name || records.group[at]} (ranks ${group.ranks})`);
    }
    return parts.join(" · ");
  }

  /** @param {number} at */
  function title(at) {
    const name = facts.names[records.name[at]];
    const suffix = name ? ` “${name}”` : "";
    switch (records.kind[at]) {
      case kind.phase: return (phaseNames[records.op[at]] ?? "phase") + suffix;
      case kind.pause: return `garbage collection of generation ${records.op[at]}`;
      case kind.pacing: {
        const applied = records.flags[at] & facts.flags.applied;
        return `pacing ${applied ? "delayed" : "would have delayed"} this rank by ${duration(records.held_us[at])}${suffix}`;
      }
      case kind.span: return `span${suffix}`;
      default: return (opNames[records.op[at]] ?? kindNames[records.kind[at]]).replaceAll("_", "-") + suffix;
    }
  }

  return describe;
}
