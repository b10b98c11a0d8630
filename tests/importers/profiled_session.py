"""SQLite exports of Nsight Systems of jobs that never ran, by NVIDIA's documented schema."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from evenstep.importers.content import SourceFile
from evenstep.importers.nsys import nsys
from evenstep.trace.trace import Trace

MS = 1_000_000
PUSH_POP = 59  # eventType of NVTX push/pop ranges
COMMUNICATOR = 0xE62DEDAA97644A
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, end INT NOT NULL,
    deviceId INT NOT NULL, contextId INT NOT NULL, streamId INT NOT NULL, correlationId INT,
    globalPid INT, demangledName INT NOT NULL, shortName INT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT NOT NULL, end INT NOT NULL,
    eventClass INT NOT NULL, globalTid INT, correlationId INT, nameId INT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INT NOT NULL, end INT, eventType INT NOT NULL, text TEXT,
    globalTid INT, textId INT, domainId INT, jsonText TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INT, name TEXT NOT NULL, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INT, utcTime TEXT, localTime TEXT);
"""


@dataclass
class Session:
    """What one process does: kernels with their launches, and ranges."""

    rank: int = 0
    world: int = 2
    host: str = "gpu01"
    began_ns: int = 1_795_000_000_000_000_000
    pid: int = 77
    strings: dict[str, int] = field(default_factory=dict)
    kernels: list[tuple] = field(default_factory=list)
    launches: list[tuple] = field(default_factory=list)
    ranges: list[tuple] = field(default_factory=list)

    @property
    def thread(self) -> int:
        return (1 << 56) | (self.pid << 24) | 1

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def range(self, text: str, start_ms: float, end_ms: float, payload: dict | None = None) -> None:
        """An NVTX range of the main thread."""
        said = None if payload is None else json.dumps(payload)
        times = (round(start_ms * MS), round(end_ms * MS))
        self.ranges.append((*times, PUSH_POP, text, self.thread, None, 0, said))

    def init(self) -> None:
        """NCCL sets up the communicator of all ranks."""
        said = {"NCCL communicator ID": COMMUNICATOR, "No. of ranks": self.world}
        self.range("ncclCommInitRankConfig", 0.1, 0.9, {**said, "Rank": self.rank})

    def kernel(
        self, name: str, issued_ms: float, start_ms: float, end_ms: float, device: int = 0,
        stream: int = 7,
    ) -> None:  # fmt: skip
        """A kernel and the call that launched it."""
        number = len(self.kernels) + 1
        issued = round(issued_ms * MS)
        times = (round(start_ms * MS), round(end_ms * MS))
        text = self.string(name)
        process = self.thread & ~0xFFFFFF
        self.kernels.append((*times, device, 1, stream, number, process, text, text))
        self.launches.append(
            (issued, issued + 5_000, 0, self.thread, number, self.string("launch"))
        )

    def all_reduce(
        self, issued_ms: float, start_ms: float, end_ms: float, size: int = 4096
    ) -> None:
        """NCCL's range with its payload, and the kernel launched within it."""
        payload = {"NCCL communicator ID": COMMUNICATOR, "Message size [bytes]": size}
        self.range("ncclAllReduce", issued_ms - 0.01, issued_ms + 0.02, payload)
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
        self.kernel(kernel, issued_ms, start_ms, end_ms, stream=20)

    def write(self, path: Path) -> Path:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(
                "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;" + SCHEMA
            )
            environment = [(0, "Hostname", self.host), (0, "CpuArchitecture", "x86_64")]
            tables = {
                "StringIds": [(number, text) for text, number in self.strings.items()],
                "CUPTI_ACTIVITY_KIND_KERNEL": self.kernels,
                "CUPTI_ACTIVITY_KIND_RUNTIME": self.launches,
                "NVTX_EVENTS": self.ranges,
                "TARGET_INFO_SYSTEM_ENV": environment,
                "TARGET_INFO_SESSION_START_TIME": [(self.began_ns, "", "")],
            }
            for table, rows in tables.items():
                for row in rows:
                    marks = ",".join("?" * len(row))
                    database.execute(f"INSERT INTO {table} VALUES ({marks})", row)
            database.commit()
        return path


def training(rank: int, *, steps: int = 20, slow_ms: float = 0.0, **identity) -> Session:
    """Steps of 10 ms: 6 ms of compute, then an all-reduce that ends together on all ranks."""
    session = Session(rank=rank, pid=70 + rank, **identity)
    session.init()
    longest = 6.0 + SLOW_MS
    for step in range(steps):
        begin = 10.0 + step * (longest + 4.0)
        session.range(f"iteration {step}", begin, begin + longest + 4.0)
        session.kernel("ampere_sgemm_128x64_nn(args)", begin, begin, begin + 6.0 + slow_ms)
        ready = begin + 6.0 + slow_ms
        session.all_reduce(ready - 0.05, ready, begin + longest + 1.0)
    return session


SLOW_MS = 5.0  # the schedule leaves room for a rank that is so much slower


def source(path: Path) -> SourceFile:
    return SourceFile(path, path.read_bytes()[: 1 << 16])


def read(*paths: Path) -> Trace:
    return nsys.read([source(path) for path in paths])
