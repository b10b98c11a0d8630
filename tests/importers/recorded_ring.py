"""Flight recorder dumps as torch writes them, of jobs that never ran."""

import json
import pickle
from pathlib import Path

from evenstep.importers.content import SourceFile
from evenstep.importers.flight_recorder import flight_recorder
from evenstep.trace.trace import Trace

START_NS = 1_795_181_000_000_000_000
MS = 1_000_000


def entry(number: int, name: str = "nccl:all_reduce", **fields) -> dict:
    """A collective that began `number` ms after the start and took half a millisecond."""
    created = START_NS + number * MS
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": name,
        "time_created_ns": created,
        "input_sizes": [[256]],
        "input_dtypes": ["Float"],
        "output_sizes": [[256]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": created,
        "time_discovered_completed_ns": created + MS // 2,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **fields,
    }


def in_flight(number: int, name: str = "nccl:all_reduce", **fields) -> dict:
    """The same, unfinished."""
    unknown = {"state": "started", "time_discovered_completed_ns": None, "retired": False}
    return entry(number, name, **unknown, **fields)


def given_up(number: int, name: str = "nccl:all_reduce", **fields) -> dict:
    """The same, after its timeout."""
    return in_flight(number, name) | {"retired": True} | fields


def message(number: int, name: str, *, open_: bool = False, **fields) -> dict:
    """A send or a receive."""
    make = in_flight if open_ else entry
    sequence = {"collective_seq_id": 0, "p2p_seq_id": number + 1}
    return make(number, f"nccl:{name}", is_p2p=True, **sequence, **fields)


def dump(entries: list[dict], *, world: int = 2, **fields) -> dict:
    """A whole dump; the group of its first entry holds all ranks."""
    name = entries[0]["process_group"][0]
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": "", "ranks": str(list(range(world)))}},
        "comm_lib_version": "2.28.9",
        "pg_status": {},
        "entries": entries,
        **fields,
    }


def write(folder: Path, dumps: dict[int, dict], *, as_json: bool = False) -> list[Path]:
    """The files of all ranks, as the watchdog names them."""
    paths = []
    for rank, value in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(json.dumps(value).encode() if as_json else pickle.dumps(value, 2))
        paths.append(path)
    return paths


def source(path: Path) -> SourceFile:
    return SourceFile(path, path.read_bytes()[: 1 << 16])


def read(paths: list[Path]) -> Trace:
    return flight_recorder.read([source(path) for path in paths])
