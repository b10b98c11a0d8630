"""A process that starts, with or without evenstep, and says what that took."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

SETTLE_S = 0.5  # the background thread opens its sources and reads the machine's layout


def main() -> None:
    """Print processor time from the end of `import torch` on, in ns, and the modules it brought."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--attach", action="store_true")
    args = parser.parse_args()
    if not torch.distributed.is_available():
        raise RuntimeError("this torch has no torch.distributed")
    gc.collect()  # due since `import torch`, whoever allocates next
    before = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time_ns()
        if args.attach:
            import evenstep

            if not evenstep.attach(out=Path(folder) / "run"):
                raise RuntimeError("evenstep did not attach")
        attached = time.process_time_ns()
        time.sleep(SETTLE_S)
        if args.attach:
            evenstep.detach()
        ended = time.process_time_ns()
    print(
        json.dumps(
            {
                "attach_ns": attached - start,
                "all_ns": ended - start,
                "modules": sorted(set(sys.modules) - before),
            }
        )
    )


if __name__ == "__main__":
    main()
