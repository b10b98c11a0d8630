"""Tapes as run folders: spools written byte by byte from `docs/layout.md`, with our own dtypes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.independent.machine import COLLECTIVE, MESSAGE, PHASE, STEP, Communicator

PAGE, TABLES, SUMMARY, RECORD = 4096, 1 << 16, 512, 112

_FIELDS = (
    ("seq", "<u8"), ("enter", "<i8"), ("exit", "<i8"), ("device_enter", "<i8"),
    ("device_exit", "<i8"), ("held", "<i8"), ("group_seq", "<u8"), ("bytes_in", "<u8"),
    ("bytes_out", "<u8"), ("step", "<u4"), ("group", "<u4"), ("parent", "<u4"),
    ("payload", "<u4"), ("thread", "<u2"), ("stream", "<u2"), ("name", "<u2"), ("flags", "<u2"),
    ("peer", "<i4"), ("device", "<i2"), ("kind", "u1"), ("op", "u1"), ("dtype", "u1"),
    ("reduce_op", "u1"),
)  # fmt: skip
_PACKED = np.dtype(list(_FIELDS))
RECORD_DTYPE = np.dtype(
    {
        "names": [name for name, _ in _FIELDS],
        "formats": [form for _, form in _FIELDS],
        "offsets": [_PACKED.fields[name][1] for name, _ in _FIELDS],
        "itemsize": RECORD,
    }
)
_DEFAULTS = {"peer": -1, "device": -1}
_TIMES = ("enter", "exit", "device_enter", "device_exit")
_PLAIN = (
    "group_seq", "bytes_in", "bytes_out", "step", "parent_us", "payload", "name", "flags", "peer",
    "device", "kind", "op", "dtype", "reduce_op", "id", "inside", "comm",
)  # fmt: skip


@dataclass
class Cluster:
    """Where ranks run, and what their clocks show at true time 0 and how fast they go."""

    node: np.ndarray  # of each rank
    local: np.ndarray
    host_epoch_ns: np.ndarray  # of each node
    host_rate: np.ndarray  # of each node, 1 ± 50 ppm
    device_epoch_ns: np.ndarray  # of each rank's device
    device_rate: np.ndarray
    poll_s: np.ndarray  # of each rank: how often its device's events are looked at
    facts: Mapping[str, object] = field(default_factory=dict)
    nic_gbps: float | None = None
    boot: str = "boot"
    names: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Hosts."""
        return int(self.node.max()) + 1

    def host_of(self, rank: int) -> str:
        """Name of a rank's host."""
        return host_name(int(self.node[rank]))


def host_name(node: int) -> str:
    """Name of a node's host."""
    return f"node{node:03d}"


def write(
    folder: Path,
    tape: Sequence[dict],
    comms: Sequence[Communicator],
    cluster: Cluster,
    *,
    backend: str,
    attempt: int = 0,
    origin_s: float = 0.0,
    unclosed: Sequence[int] = (),
    run_id: str = "independent",
    bare: bool = False,
) -> None:
    """Write one attempt of a run: every rank's spool, and `run.json` where there is none yet.

    `bare`: nothing marks steps and phases, as in a program that only communicates.
    """
    if bare:
        tape = [{**row, "step": 0} for row in tape if row["kind"] not in (PHASE, STEP)]
    world = len(cluster.node)
    place = folder / f"attempt-{attempt:03d}"
    place.mkdir(parents=True, exist_ok=True)
    facts = {"schema": "evenstep.run/1", "run_id": run_id, "world": world, "nodes": cluster.nodes}
    facts |= {"command": ["python", "train.py"], "versions": {"evenstep": "0.1.0"}}
    if not (folder / "run.json").exists():
        (folder / "run.json").write_text(json.dumps(facts))
    rank, table = _table(tape, cluster, world, origin_s)
    starts = np.searchsorted(rank, np.arange(world + 1))
    for number in range(world):
        records = table[starts[number] : starts[number + 1]]
        closed = number not in unclosed
        text = _identity(number, world, attempt, cluster, origin_s, run_id)
        tables = _tables(number, comms, cluster, backend, closed=closed)
        _spool(place / f"rank-{number:05d}.spool", text, tables, records)


def _table(
    tape: Sequence[dict], cluster: Cluster, world: int, origin_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """All records by rank and time of entry: the rank of each, and the records."""
    sizes = [len(row["ranks"]) for row in tape]
    columns: dict[str, np.ndarray] = {"rank": np.concatenate([row["ranks"] for row in tape])}
    for name in (*_TIMES, *_PLAIN, "polled"):
        default = {"comm": -1, "id": -1, "inside": -1, **_DEFAULTS}.get(name, 0)
        default = np.nan if name in _TIMES else default
        columns[name] = np.concatenate(
            [_column(row.get(name), default, n) for row, n in zip(tape, sizes, strict=True)]
        )
    order = np.lexsort([columns["id"], columns["enter"], columns["rank"]])
    columns = {name: column[order] for name, column in columns.items()}
    rank = columns["rank"]
    first = np.searchsorted(rank, np.arange(world))
    table = np.zeros(len(rank), RECORD_DTYPE)
    table["seq"] = np.arange(len(rank)) - first[rank] + 1
    for name in _PLAIN[:4] + _PLAIN[5:14]:
        table[name] = columns[name]
    _stamp(table, columns, cluster, origin_s)
    table["group"] = columns["comm"] + 1
    table["parent"] = np.where(
        columns["kind"] == STEP, columns["parent_us"], _parents(table, columns, world)
    )
    return rank, table


def _column(value: object, default: float, length: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(default if value is None else value), (length,))


def _stamp(
    table: np.ndarray, columns: Mapping[str, np.ndarray], cluster: Cluster, origin_s: float
) -> None:
    """Each time as the clock showed it that it was read from; 0 where it is not known."""
    rank = columns["rank"]
    node = cluster.node[rank]
    polled = columns["polled"].astype(bool)
    for name in _TIMES:
        true_ns = (columns[name] + origin_s) * 1e9
        if name == "exit":  # the background thread sees a device's events at its next look
            every = cluster.poll_s[rank] * 1e9
            true_ns = np.where(polled, np.ceil(true_ns / every) * every, true_ns)
        device = name.startswith("device")
        rate = cluster.device_rate[rank] if device else cluster.host_rate[node]
        epoch = cluster.device_epoch_ns[rank] if device else cluster.host_epoch_ns[node]
        known = np.isfinite(true_ns)
        shown = epoch + np.round(np.where(known, true_ns, 0.0) * rate).astype(np.int64)
        table[name] = np.where(known, shown, 0)


def _parents(table: np.ndarray, columns: Mapping[str, np.ndarray], world: int) -> np.ndarray:
    """Sequence number of the phase that each record lies in, on its own rank."""
    rank, inside = columns["rank"].astype(np.int64), columns["inside"].astype(np.int64)
    phase = columns["kind"] == PHASE
    key = columns["id"][phase].astype(np.int64) * world + rank[phase]
    seq = table["seq"][phase].astype(np.int64)
    order = np.argsort(key)
    key, seq = key[order], seq[order]
    wanted = inside * world + rank
    if not len(key):
        return np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where((inside >= 0) & (key[at] == wanted), seq[at], 0)


def _identity(
    rank: int, world: int, attempt: int, cluster: Cluster, origin_s: float, run_id: str
) -> bytes:
    node = int(cluster.node[rank])
    began = int(cluster.host_epoch_ns[node] + origin_s * 1e9 * cluster.host_rate[node])
    text = {
        "run_id": run_id, "attempt": attempt, "rank": rank,
        "local_rank": int(cluster.local[rank]), "world": world, "node": node,
        "nodes": cluster.nodes, "launcher": "torchrun", "hostname": cluster.host_of(rank),
        "boot_id": f"{cluster.boot}-{node:03d}", "pid": 1000 + 64 * attempt + rank,
        "started_ticks": 100 + rank,
        "versions": {"evenstep": "0.1.0", "python": "3.12.0", "torch": "2.13.0"},
        "anchor_monotonic_ns": began,
        "anchor_realtime_ns": 1_790_000_000_000_000_000 + int(origin_s * 1e9) + 137_000 * node,
    }  # fmt: skip
    return json.dumps(text).encode()


def _tables(
    rank: int, comms: Sequence[Communicator], cluster: Cluster, backend: str, *, closed: bool
) -> bytes:
    parts = [_entry(1, number, name) for number, name in enumerate(cluster.names, start=1)]
    for comm in comms:
        mine = [row for row in comm.members.tolist() if rank in row]
        if mine:
            ranks = ",".join(str(each) for each in mine[0])
            uid = hashlib.sha256(f"{comm.name}:{ranks}".encode()).hexdigest()[:16]
            text = {"uid": uid, "name": comm.name, "ranks": ranks, "base": 0, "backend": backend}
            parts.append(_entry(2, comm.number + 1, json.dumps(text)))
    nics = []
    if cluster.nic_gbps is not None:
        nics = [{"name": "eth0", "index": 0, "pci": None, "numa_node": None, "driver": "mlx5_core",
                 "speed_gbps": cluster.nic_gbps, "ib_device": None}]  # fmt: skip
    host = cluster.host_of(rank)
    locality = {
        "hostname": host, "boot_id": f"{cluster.boot}-{int(cluster.node[rank]):03d}",
        "cpu": {"model": None, "online": "0-127", "allowed": "0-127", "quota_cores": None},
        "numa": [], "nics": nics, "ib_ports": [], "gpus": [], "device": None, "gpu": None,
        "gpu_nic": {}, "gpu_gpu": {}, "unknown": {},
    }  # fmt: skip
    facts: dict[str, object] = {"locality": locality, **cluster.facts}
    if closed:
        facts["closed"] = {"monotonic_ns": 0, "reason": "exit"}
    parts += [_entry(3, 0, json.dumps({"key": key, "value": v})) for key, v in facts.items()]
    return b"".join(parts)


def _entry(kind: int, number: int, text: str) -> bytes:
    body = text.encode()
    padding = -len(body) % 8
    return (
        struct.pack("<IBBH", 8 + len(body) + padding, kind, padding, number) + body + bytes(padding)
    )


def _spool(path: Path, identity: bytes, tables: bytes, records: np.ndarray) -> None:
    tables_bytes = max(TABLES, -(-len(tables) // PAGE + 1) * PAGE)
    steps = records[records["kind"] == STEP]
    capacity = max(2 * len(steps) + 10, len(steps) + 96)  # level 0 holds every step
    summaries = PAGE + tables_bytes
    ring = summaries + capacity * SUMMARY
    header = struct.pack(
        "<8sIIIIQQQQQQI", b"EVNSTEP\0", 1, PAGE, RECORD, SUMMARY, ring, len(records) + 1, summaries,
        capacity, PAGE, tables_bytes, len(identity),
    )  # fmt: skip
    with path.open("wb") as file:
        file.write(header.ljust(96, b"\0") + identity)
        file.seek(PAGE)
        file.write(tables)
        file.seek(summaries)
        file.write(_summaries(records, steps))
        file.seek(ring)
        file.write(records.tobytes())
        file.truncate(ring + (len(records) + 1) * RECORD)


_SUMMARY_DTYPE = np.dtype(
    {
        "names": ["seq", "first", "last", "count", "level", "start", "end", "realtime", "sum",
                  "min", "max", "square", "phase", "counters", "sketch"],
        "formats": ["<u8", "<u4", "<u4", "<u4", "<u4", "<i8", "<i8", "<i8", "<u8", "<u8", "<u8",
                    "<f8", "(8,)<u8", "(15,)<u8", "(60,)<u4"],
        "offsets": [0, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 72, 80, 144, 264],
        "itemsize": SUMMARY,
    }
)  # fmt: skip


def _summaries(records: np.ndarray, steps: np.ndarray) -> bytes:
    """The finest level alone: one summary a step, of what the records say."""
    out = np.zeros(len(steps), _SUMMARY_DTYPE)
    took = steps["exit"] - steps["enter"]
    out["seq"] = np.arange(1, len(steps) + 1)
    out["first"] = out["last"] = steps["step"]
    out["count"] = 1
    out["start"], out["end"], out["realtime"] = steps["enter"], steps["exit"], steps["exit"]
    out["sum"] = out["min"] = out["max"] = took
    out["square"] = (took / 1e9) ** 2
    place = {int(step): index for index, step in enumerate(steps["step"].tolist())}
    for kind, slot in ((PHASE, None), (COLLECTIVE, 12), (MESSAGE, 12)):
        rows = records[records["kind"] == kind]
        at = np.array([place.get(step, -1) for step in rows["step"].tolist()], np.int64)
        rows, at = rows[at >= 0], at[at >= 0]
        if slot is None:
            np.add.at(out["phase"], (at, rows["op"].astype(np.int64)), rows["group_seq"])
        else:
            np.add.at(out["counters"], (at, slot), 1)
            np.add.at(out["counters"], (at, slot + 1), rows["bytes_in"])
    leaf = out["phase"][:, 1:].sum(axis=1).astype(np.int64)
    out["phase"][:, 0] = np.maximum(took - leaf, 0)
    out["counters"][:, 6] = steps["group_seq"]
    out["counters"][:, 11] = steps["payload"]
    bins = np.log2(np.maximum(took, 1) / float(1 << 20)) * 4
    out["sketch"][np.arange(len(steps)), np.clip(bins.astype(np.int64), 0, 59)] = 1
    return out.tobytes()
