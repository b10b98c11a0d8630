"""Loading Kineto traces beside Holistic Trace Analysis: what it takes, and what both make of them.

The long file is the short one over and over: later, with other step numbers and other ids.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, spread
from benchmarks.ranks import ROOT, run_alone

JOB = "benchmarks.jobs.profile_loading"
COMMAND = "python -m benchmarks kineto_loading --hta-python PATH"
DATA = ROOT.parent / "shared" / "data" / "kineto"
BAR = 5.0
AGREEMENT = 0.01  # percentage points of overlap; HTA rounds to two digits, and all times to µs
_IDS = ("correlation", "External id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--copies", type=int, default=25, help="of the events, in the long file")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the Kineto files")
    parser.add_argument("--hta-python", help="interpreter with HolisticTraceAnalysis")


def run(args: argparse.Namespace) -> list[Row]:
    """Rows for the two ranks, the single one, and the long file."""
    if not args.hta_python or not args.data.is_dir():
        why = "no --hta-python" if args.data.is_dir() else f"no {args.data}"
        return [
            Row("Kineto loading beside HTA", f"≥ {BAR:.0f} ×", f"skipped: {why}", None, COMMAND)
        ]
    single, two = args.data / "nccl_data.json.gz", args.data / "sampled_rank-{}.json.gz"
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        long, events = repeated(single, Path(folder) / "long.json", args.copies)
        cases = {
            "one rank, 40,573 events": [f"0={single}"],
            "two ranks, 9,575 events": [f"{rank}={str(two).format(rank)}" for rank in (0, 1)],
            f"one rank, {events:,} events, {long.stat().st_size / 1e6:.0f} MB": [f"0={long}"],
        }
        return [row for name, files in cases.items() for row in _rows(name, files, args)]


def repeated(source: Path, target: Path, copies: int) -> tuple[Path, int]:
    """A profile that goes on for so many times as long; and how many events that makes."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = document["traceEvents"]
    timed = [event for event in events if event["ph"] == "X" and event["cat"] != "Trace"]
    begin = min(event["ts"] for event in timed)
    length = max(event["ts"] + event["dur"] for event in timed) - begin
    steps = sum(
        event["name"].startswith("ProfilerStep#") and "gpu" not in event["cat"] for event in timed
    )
    most = max(max(_ids(event), default=0) for event in events) + 1
    document["traceEvents"] = [
        _moved(event, copy * length, copy * most, copy * steps)
        for copy in range(copies)
        for event in events
    ]
    target.write_text(json.dumps(document))
    return target, len(document["traceEvents"])


def _ids(event: dict[str, Any]) -> list[int]:
    return [event["args"][key] for key in _IDS if key in event.get("args", {})]


def _moved(event: dict[str, Any], later_us: float, ids: int, steps: int) -> dict[str, Any]:
    moved = {**event, "ts": round(event["ts"] + later_us, 3)}
    if "args" in event:
        moved["args"] = {k: v + ids if k in _IDS else v for k, v in event["args"].items()}
    name, mark, number = event["name"].partition("ProfilerStep#")
    if mark and not name:
        moved["name"] = f"{mark}{int(number) + steps}"
    return moved


def _rows(name: str, files: list[str], args: argparse.Namespace) -> list[Row]:
    """What a tool's loading takes, pair by pair."""
    pairs = [
        (run_alone(JOB, "evenstep", *files), run_alone(JOB, "hta", *files, python=args.hta_python))
        for _ in range(args.pairs)
    ]
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    faster = statistics.median(hta["wall_s"] / own["wall_s"] for own, hta in pairs)
    smaller = statistics.median(hta["peak_bytes"] / own["peak_bytes"] for own, hta in pairs)
    seconds = [spread([run["wall_s"] for run in side]).text("s", 3) for side in (ours, theirs)]
    memory = [statistics.median(run["peak_bytes"] for run in side) / 1e6 for side in (ours, theirs)]
    overlap = [side[0]["overlap"] for side in (ours, theirs)]
    shown = [", ".join(f"{share:.2f}" for share in each.values()) for each in overlap]
    apart = max(abs(overlap[0][rank] - share) for rank, share in overlap[1].items())
    return [
        Row(
            f"Kineto loading beside HTA: {name}",
            f"≥ {BAR:.0f} × faster, less memory",
            f"{faster:.1f} × faster: {seconds[0]} against {seconds[1]}; peak {memory[0]:.0f} MB "
            f"against {memory[1]:.0f} MB, {smaller:.1f} × less",
            faster >= BAR and smaller > 1,
            COMMAND,
        ),
        Row(
            f"Kineto communication hidden behind compute: {name}",
            "as HTA where times are whole µs, to which it rounds them",
            f"{shown[0]} %, HTA {shown[1]} %",
            apart <= AGREEMENT if "two" in name else None,
            COMMAND,
        ),
    ]
