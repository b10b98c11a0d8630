"""A spool written as a long run writes it, short of size: does the disk stay what it was?"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import FANOUT, LEVELS, StepSummary, SummaryLog

RING_BYTES = 65_536
SUMMARY_BYTES = 131_072  # from 87 kB on every level holds more than the 16 that are merged
STEP_NS = 10_000_000
PER_STEP = 10
IDENTITY = {"run_id": "day", "rank": 0, "world": 1, "boot_id": "", "hostname": ""}


def main() -> None:
    """Write steps of ten collectives; print disk before and after and what can be read back."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-00000.spool"
        spool = Spool.create(path, IDENTITY, ring_bytes=RING_BYTES, summary_bytes=SUMMARY_BYTES)
        before = path.stat().st_blocks * 512
        started = time.perf_counter_ns()
        write(spool, args.steps)
        elapsed = time.perf_counter_ns() - started
        after = path.stat().st_blocks * 512
        spool.flush()
        contents = read_spool(path)
    kept = contents.summaries
    print(
        json.dumps(
            {
                "disk_before": before,
                "disk_after": after,
                "records_written": args.steps * PER_STEP,
                "wraps": args.steps * PER_STEP // spool.regions.ring_capacity,
                "records_kept": int(contents.records.size),
                "steps_covered": int(kept["count"].sum()),
                "first_step": int(kept["first_step"][0]),
                "last_step": int(kept["last_step"][-1]),
                "coarsest_level": int(kept["level"].max()),
                "levels_reached": sum(args.steps >= FANOUT**level for level in range(LEVELS)),
                "ns_per_step": elapsed / args.steps,
            }
        )
    )


def write(spool: Spool, steps: int) -> None:
    """`steps` steps of ten collectives each."""
    log = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
    collective = int(Kind.COLLECTIVE)
    put, close = spool.put, spool.close
    now = 0
    for step in range(steps):
        for index in range(PER_STEP):
            close(put(now + index, 0, collective, step=step), now + index + 1)
        log.append(StepSummary(step, step, now, now + STEP_NS, now))
        now += STEP_NS


if __name__ == "__main__":
    main()
