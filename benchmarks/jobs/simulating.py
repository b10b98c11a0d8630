"""One simulation in a process of its own: its time, its memory, and what it came to."""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

STARTED = time.perf_counter()


def main() -> None:
    """Simulate a scenario; print seconds since the start of this module, and megabytes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--trace", action="store_true", help="write the trace as well")
    args = parser.parse_args()
    from evenstep.scenario import scenario
    from evenstep.simulate import simulation

    asked = scenario.load(args.scenario, args.set)
    if args.trace:
        with tempfile.TemporaryDirectory() as folder:
            result = simulation.simulate_to(Path(folder) / "run", asked)
    else:
        result = simulation.simulate(asked)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - STARTED,
                "cpu": time.process_time(),
                "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
                "mean_ns": result.step_time.mean_ns,
                "rank_steps": result.ranks * result.steps,
            }
        )
    )


if __name__ == "__main__":
    main()
