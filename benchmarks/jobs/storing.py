"""Store a run in this process and its helpers: how long it took, what came of it."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.jobs.diagnosing import Memory
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind
from evenstep.trace.store.writing import write_store


def main() -> None:
    """Read and store; print seconds, the largest memory seen, records and bytes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("store", type=Path)
    args = parser.parse_args()
    memory = Memory()
    memory.start()
    started = time.perf_counter()
    trace = load(args.run)
    written = write_store(trace, args.store)
    elapsed_s = time.perf_counter() - started
    memory.ended.set()
    memory.join()
    found = {"seconds": elapsed_s, "peak_bytes": memory.peak_bytes, **written._asdict()}
    found["collectives"] = len(trace.of_kind(Kind.COLLECTIVE))
    print(json.dumps({**found, "path": str(written.path)}))


if __name__ == "__main__":
    main()
