"""The spools of a large job that never ran, written column by column.

Data-parallel training with overlapped buckets: every rank computes with 2 % of noise, a collective
ends when its last member has entered and the transfer is over, and one rank is slow in backward.
Hosts of eight ranks have clocks of their own. What the spools hold is what the agent would write.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.trace.reader import RECORD, SUMMARY
from evenstep.trace.spool.layout import RECORD_BYTES, SUMMARY_BYTES, DType, Flag, Kind, Op, Phase
from evenstep.trace.spool.spool import Regions, Spool
from evenstep.trace.spool.summary import SKETCH_BINS

Array = npt.NDArray[Any]

MS = 1_000_000
BEGUN_NS = 7_000_000 * MS
INPUT, FORWARD, BACKWARD, OPTIMIZER, TRANSFER = 0.2 * MS, 20 * MS, 40 * MS, 4 * MS, 0.3 * MS
NOISE = 0.02
SLOWER_NS = 8 * MS
RANKS_PER_HOST = 8
OTHERS = 6  # records of a step besides its collectives


def main() -> None:
    """Write the spools; print how many records, and who is slow."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--collectives", type=int, default=20)
    args = parser.parse_args()
    run = Run(args.ranks, args.steps, args.collectives)
    args.folder.mkdir(parents=True, exist_ok=True)
    for rank in range(args.ranks):
        run.write(args.folder / f"rank-{rank:05d}.spool", rank)
    collectives = args.ranks * args.steps * args.collectives
    records = collectives + args.ranks * args.steps * OTHERS
    print(json.dumps({"collectives": collectives, "records": records, "slow": run.slow}))


class Run:
    """When every rank did what, in ns since the run began; `enter` is (ranks, steps, buckets)."""

    def __init__(self, ranks: int, steps: int, buckets: int) -> None:
        self.ranks, self.slow = ranks, ranks // 3
        random = np.random.default_rng(ranks * steps)
        self.offsets = random.uniform(-3e9, 3e9, ranks // RANKS_PER_HOST + 1)
        self.rates = random.uniform(-20e-6, 20e-6, ranks // RANKS_PER_HOST + 1)
        self.enter = np.zeros((ranks, steps, buckets), np.int64)
        self.done = np.zeros((steps, buckets), np.int64)
        self.start = np.zeros((steps + 1, ranks), np.int64)
        self.forward = np.zeros((steps, ranks), np.int64)
        self.backward = np.zeros((steps, ranks), np.int64)
        now = np.zeros(ranks)
        for step in range(steps):
            self.start[step] = now
            spread = 1 + NOISE * random.standard_normal((3, ranks))
            begun = now + INPUT + FORWARD * spread[0]
            work = BACKWARD * spread[1] + SLOWER_NS * (np.arange(ranks) == self.slow)
            entered = begun[:, None] + work[:, None] * np.arange(1, buckets + 1) / buckets
            end = 0.0
            for bucket, last in enumerate(entered.max(axis=0)):
                end = max(last, end) + TRANSFER
                self.done[step, bucket] = end
            self.enter[:, step] = entered
            self.forward[step], self.backward[step] = begun, begun + work
            now = end + OPTIMIZER * spread[2]
        self.start[steps] = now

    def write(self, path: Path, rank: int) -> None:
        """The spool of one rank."""
        steps, buckets = self.done.shape
        count = steps * (buckets + OTHERS)
        ring, summaries = count * RECORD_BYTES, 2 * steps * SUMMARY_BYTES
        spool = Spool.create(path, self._identity(rank), ring_bytes=ring, summary_bytes=summaries)
        everybody = f"0-{self.ranks - 1}"
        spool.add_group({"uid": "all", "name": "default_pg", "ranks": everybody, "backend": "gloo"})
        spool.add_fact("closed", "exit")
        spool.shut()
        regions = Regions(ring_bytes=ring, summary_bytes=summaries)
        for offset, data in (
            (regions.ring_offset, self._records(rank)),
            (regions.summary_offset, self._summaries(rank)),
        ):
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(data.tobytes())

    def _identity(self, rank: int) -> dict[str, Any]:
        host = rank // RANKS_PER_HOST
        return {
            "run_id": "large", "rank": rank, "world": self.ranks, "attempt": 0,
            "hostname": f"node{host:03d}", "boot_id": f"boot-{host}",
        }  # fmt: skip

    def _own(self, rank: int, times: Array) -> Array:
        """These times on the clock of the rank's host."""
        host = rank // RANKS_PER_HOST
        return np.asarray(BEGUN_NS + times + self.offsets[host] + times * self.rates[host])

    def _records(self, rank: int) -> Array:
        steps, buckets = self.done.shape
        found = np.zeros((steps, buckets + OTHERS), RECORD)
        found["step"] = np.arange(steps)[:, None]
        found["seq"] = np.arange(1, found.size + 1).reshape(found.shape)
        found["peer_or_root"], found["device"] = -1, -1
        begun, forward = self.start[:-1, rank], self.forward[:, rank]
        backward, end = self.backward[:, rank], self.done[:, -1]
        moments = [begun, begun + int(INPUT), forward, backward]
        for place, phase in enumerate((Phase.INPUT, Phase.FORWARD, Phase.BACKWARD)):
            self._phase(found[:, place], rank, phase, moments[place], moments[place + 1])
        self._phase(found[:, buckets + 3], rank, Phase.SYNC, backward, end)
        self._phase(found[:, buckets + 4], rank, Phase.OPTIMIZER, end, self.start[1:, rank])
        whole = found[:, buckets + 5]
        whole["kind"] = int(Kind.STEP)
        whole["enter_ns"] = self._own(rank, begun)
        whole["exit_ns"] = self._own(rank, self.start[1:, rank])
        whole["group_seq"] = backward - begun
        whole["peer_or_root"] = 0
        reduces = found[:, 3 : buckets + 3]
        reduces["kind"], reduces["op"] = int(Kind.COLLECTIVE), int(Op.ALL_REDUCE)
        reduces["flags"], reduces["group"] = int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND), 1
        reduces["group_seq"] = np.arange(steps * buckets).reshape(steps, buckets)
        reduces["bytes_in"], reduces["dtype"] = 25_000_000, int(DType.BFLOAT16)
        reduces["enter_ns"] = self._own(rank, self.enter[rank])
        reduces["exit_ns"] = self._own(rank, self.done)
        return found.reshape(-1)

    def _phase(self, rows: Array, rank: int, phase: Phase, begin: Array, end: Array) -> None:
        rows["kind"], rows["op"] = int(Kind.PHASE), int(phase)
        rows["enter_ns"], rows["exit_ns"] = self._own(rank, begin), self._own(rank, end)
        rows["group_seq"] = end - begin

    def _summaries(self, rank: int) -> Array:
        steps = len(self.done)
        found = np.zeros(steps, SUMMARY)
        begin, end = self.start[:-1, rank], self.start[1:, rank]
        found["seq"] = np.arange(1, steps + 1)
        found["first_step"] = found["last_step"] = np.arange(steps)
        found["count"] = 1
        found["start_ns"], found["end_ns"] = self._own(rank, begin), self._own(rank, end)
        for name in ("step_sum_ns", "step_min_ns", "step_max_ns"):
            found[name] = end - begin
        found["step_square_sum"] = ((end - begin) * 1e-9) ** 2
        found["sketch"][:, SKETCH_BINS // 2] = 1
        found["agent_ns"] = 30_000
        return found


if __name__ == "__main__":
    main()
