"""Diagnose a run in this process and its helpers: how long it took, how much memory it had."""

from __future__ import annotations

import argparse
import json
import os
import resource
import threading
import time
from pathlib import Path

from evenstep.diagnose.engine import diagnose
from evenstep.trace.loading import load

SAMPLED_S = 0.1


def main() -> None:
    """Load and diagnose; print seconds (all, of processors), the largest memory, who is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    args = parser.parse_args()
    memory = Memory()
    memory.start()
    started = time.perf_counter()
    found = diagnose(load(args.run))
    elapsed_s = time.perf_counter() - started
    memory.ended.set()
    memory.join()
    first = found.findings[0] if found.findings else None
    print(
        json.dumps(
            {
                "seconds": elapsed_s,
                "cpu_seconds": _cpu_s(),
                "peak_bytes": memory.peak_bytes,
                "mode": first.mode if first else None,
                "ranks": list(first.where.ranks) if first else [],
            }
        )
    )


def _cpu_s() -> float:
    """Processor time of this process and of its helpers that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Memory(threading.Thread):
    """The largest memory of this process and its children, pages they share counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        """Look again and again until told to end."""
        while not self.ended.wait(SAMPLED_S):
            family = [os.getpid(), *_children(os.getpid())]
            self.peak_bytes = max(self.peak_bytes, sum(map(_proportional_bytes, family)))


def _children(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(text) for text in file.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return found


def _proportional_bytes(pid: int) -> int:
    """Proportional set size (proc(5), smaps_rollup): a page shared by two counts half in each."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(row.split()[1]) for row in rows if row.startswith("Pss:"))


if __name__ == "__main__":
    main()
