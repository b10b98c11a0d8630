"""Record layout 1: the bytes of a spool.

A spool is one file per rank and attempt, little-endian throughout:

    0       header page, 4,096 bytes (`HEADER`, then the identity as JSON)
    4096    tables, append-only: names, process groups, facts (`TABLE_ENTRY`, then UTF-8 text)
    ...     summaries, 512 bytes each (see `evenstep.trace.spool.summary`)
    ...     ring of records, 112 bytes each (`RECORD`)

`docs/layout.md` draws it. The layout is frozen with the first release and versioned by `VERSION`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag

MAGIC = b"EVNSTEP\0"
VERSION = 1

RECORD_BYTES = 112
SUMMARY_BYTES = 512
PAGE_BYTES = 4096

#: magic, version, header bytes, record bytes, summary bytes, ring offset, ring capacity (records),
#: summary offset, summary capacity (records), tables offset, tables bytes, identity length (bytes).
HEADER = struct.Struct("<8sIIIIQQQQQQI")
#: `time.monotonic_ns()` when the rank was last alive, i64, renewed several times a second; or 0.
HEARTBEAT_OFFSET = 80
HEADER_TEXT_OFFSET = 96  # the identity, JSON, follows here

#: entry length including this head (multiple of 8, written last), kind, padding, id
TABLE_ENTRY = struct.Struct("<IBBH")
TABLE_NAME = 1  # text is the name
TABLE_GROUP = 2  # text is JSON: {"uid", "name", "ranks", "base", "backend"}
TABLE_FACT = 3  # text is JSON: {"key", "value"}; a later entry of the same key wins


def pack_entry(kind: int, number: int, text: bytes) -> bytes:
    length = -(-(TABLE_ENTRY.size + len(text)) // 8) * 8
    padding = length - TABLE_ENTRY.size - len(text)
    return TABLE_ENTRY.pack(length, kind, padding, number) + text + bytes(padding)


def unpack_entries(tables: bytes | memoryview) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield each whole entry: its end, kind, id and text. The first invalid one ends the table."""
    start = 0
    while start + TABLE_ENTRY.size <= len(tables):
        length, kind, padding, number = TABLE_ENTRY.unpack_from(tables, start)
        if length < TABLE_ENTRY.size or start + length > len(tables):
            return
        text = bytes(tables[start + TABLE_ENTRY.size : start + length - padding])
        start += length
        yield start, kind, number, text


#: Everything of a record after its sequence number; `RECORD_FIELDS` names the columns.
RECORD_BODY = struct.Struct("<qqqqqQQQIIIIHHHHihBBBB")
#: The same for a collective that has just begun: fields that are still zero are padding.
BEGUN_BODY = struct.Struct("<q32xQQQIII4xH4xHihBBBx")
RECORD_WORDS = RECORD_BYTES // 8

RECORD_FIELDS: tuple[tuple[str, str], ...] = (
    ("seq", "<u8"),  # 1, 2, 3 … in order of entry; 0 while the slot is being written
    ("enter_ns", "<i8"),  # time.monotonic_ns() at the start
    ("exit_ns", "<i8"),  # the same at the end; 0 while open
    ("device_enter_ns", "<i8"),  # since the device's reference event; 0 unknown
    ("device_exit_ns", "<i8"),
    ("held_ns", "<i8"),  # delay added by pacing
    ("group_seq", "<u8"),  # position in the group's order of collectives
    ("bytes_in", "<u8"),
    ("bytes_out", "<u8"),
    ("step", "<u4"),
    ("group", "<u4"),  # index into the group table
    ("parent", "<u4"),  # low 32 bits of a seq: of the record a wait was for, else of the enclosing
    ("payload", "<u4"),
    ("thread", "<u2"),
    ("stream", "<u2"),
    ("name", "<u2"),  # index into the name table; 0 none
    ("flags", "<u2"),
    ("peer_or_root", "<i4"),  # global rank; -1 none
    ("device", "<i2"),  # -1 is the host
    ("kind", "u1"),
    ("op", "u1"),
    ("dtype", "u1"),
    ("reduce_op", "u1"),
)

# Words (8 bytes) and halves (2 bytes) patched in place after the record was written.
WORD_ENTER, WORD_EXIT, WORD_DEVICE_ENTER, WORD_DEVICE_EXIT = 1, 2, 3, 4
WORD_HELD, WORD_GROUP_SEQ, WORD_BYTES_IN, WORD_BYTES_OUT = 5, 6, 7, 8
WORD_STEP, WORD_PARENT = 9, 10  # each in the low half
WORD_THREAD = 11  # in its lowest two bytes
WORD_KIND = 12  # the highest two bytes are the operation and the kind, the low half the peer
HALF_NAME, HALF_FLAGS = 46, 47  # bytes 92 and 94

NO_PEER = -1
WINDOW_STEPS = 16  # consecutive steps of which ranks record all collectives, or none
FIRST_WINDOWS = 2  # windows at the start that are always recorded
HOST_DEVICE = -1


class Kind(IntEnum):
    """The kind of a record. How each kind uses the shared fields is in `docs/layout.md`."""

    COLLECTIVE = 1
    POINT_TO_POINT = 2
    PHASE = 3  # op is a `Phase`; group_seq is its leaf time in ns (nested phases taken out)
    SPAN = 4  # a user's `evenstep.span(name)`
    PAUSE = 5  # garbage collection: op is the generation, payload the objects collected
    STEP = 6  # group_seq: CPU ns; bytes_in/out: minor/major faults; peer_or_root: involuntary
    #           context switches; payload: samples of this rank (0 unknown); held_ns: pacing delay;
    #           parent: µs the training thread waited for a core
    PACING = 7  # a decision: held_ns the delay, name the reason, op the `Actuator`
    SAMPLE = 8  # name the metric, device its index, bytes_in the bits of a float64
    MARKER = 9  # `evenstep.log(name=value)`: bytes_in the bits of a float64
    STACK = 10  # a sampled stack of the training thread: name its frames, op the `Phase`, payload
    #             its samples, bytes_in samples taken in all that time (0: another thread's)
    STOP = 11  # none of the process's threads ran: stopped or frozen


class Op(IntEnum):
    """The operation of a collective or point-to-point record."""

    OTHER = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    SEND = 10
    RECV = 11


#: Operations that no rank leaves before all ranks have entered: they show which rank is waited for.
SYNCHRONIZING_OPS = Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER
#: Operations in which data goes from one rank to all, or from all to one.
FROM_ROOT, TO_ROOT = (Op.BROADCAST, Op.SCATTER), (Op.REDUCE, Op.GATHER)


class Phase(IntEnum):
    """Part of a step. Leaf times of all phases add up to the step."""

    OTHER = 0
    INPUT = 1
    FORWARD = 2
    BACKWARD = 3
    SYNC = 4  # blocked on communication
    OPTIMIZER = 5
    CHECKPOINT = 6
    EVALUATION = 7


class Actuator(IntEnum):
    """Where a pacing delay is applied."""

    NONE = 0
    BEFORE_STEP = 1
    BEFORE_EXCHANGE = 2  # waiting for other jobs of the link


class Flag(IntFlag):
    """Bits of a record's `flags`."""

    EXIT_UPPER_BOUND = 1  # the exit was seen by a callback that needed the interpreter lock
    ASYNC = 2  # issued without blocking the caller
    COALESCED = 4  # several tensors or operations counted as one
    OVERLAPPED = 8  # another collective of this rank was in flight at entry; set when the step ends
    APPLIED = 16  # pacing: the delay was really spent (mode on)
    FAILED = 32  # ended with an error
    HOST_BLOCKED = 64  # exit was seen by the thread that waited for it
    ON_DEVICE = 128  # on a device's stream: entered when issued, exit when its host saw the end
    INFERRED = 256  # not recorded: a phase between two recorded ones, or an inferred step
    CALLED = 512  # a pause of the collector in which gc.collect() was called, not begun by itself


class DType(IntEnum):
    """Element type of the tensors."""

    OTHER = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT64 = 4
    INT64 = 5
    INT32 = 6
    INT16 = 7
    INT8 = 8
    UINT8 = 9
    BOOL = 10
    FLOAT8 = 11
    COMPLEX = 12


class ReduceOp(IntEnum):
    """Reduction of an all-reduce, reduce or reduce-scatter."""

    OTHER = 0
    SUM = 1
    AVG = 2
    PRODUCT = 3
    MIN = 4
    MAX = 5
