"""A process that loads Kineto traces with one tool, and says what that took.

    python -m benchmarks.jobs.profile_loading evenstep|hta RANK=FILE…

Nothing of evenstep is imported where the tool is another.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Load with the tool named first; print seconds, memory and the overlap found."""
    tool, *files = sys.argv[1:]
    paths = {int(item.partition("=")[0]): item.partition("=")[2] for item in files}
    load, overlap = TOOLS[tool]()
    began, spent = time.perf_counter(), _processor_s()
    trace = load(paths)
    took = {
        "wall_s": time.perf_counter() - began,
        "processor_s": _processor_s() - spent,
        "peak_bytes": _memory_bytes(),
    }
    print(json.dumps({**took, "overlap": overlap(trace)}))


def _evenstep() -> tuple[Callable[[dict[int, str]], Any], Callable[[Any], dict[int, float]]]:
    import evenstep.importers.kineto.kineto  # noqa: F401 - as with HTA, importing is not loading
    from evenstep.importers.opening import open_trace

    def shares(trace: Any) -> dict[int, float]:
        from evenstep.diagnose.measure.overview import device_times

        found = device_times(trace)
        return {
            rank: 100 * each.hidden_ns / max(each.communication_ns, 1)
            for rank, each in found.items()
        }

    return lambda paths: open_trace(list(paths.values())), shares


def _hta() -> tuple[Callable[[dict[int, str]], Any], Callable[[Any], dict[int, float]]]:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis

    def shares(trace: Any) -> dict[int, float]:
        table = trace.get_comm_comp_overlap(visualize=False)
        column = "comp_comm_overlap_pctg"
        return dict(zip(table["rank"].tolist(), table[column].tolist(), strict=True))

    def load(paths: dict[int, str]) -> Any:
        return TraceAnalysis(trace_files=paths, trace_dir="", include_last_profiler_step=True)

    return load, shares


TOOLS = {"evenstep": _evenstep, "hta": _hta}


def _processor_s() -> float:
    """Of this process and of those it has started and waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _memory_bytes() -> int:
    """The most this process, or one it has started, has had resident.

    The kernel's own mark, because what `getrusage` says of this process began before its `exec`.
    """
    status = Path("/proc/self/status").read_text()
    own = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmHWM"))
    return 1024 * max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


if __name__ == "__main__":
    main()
