"""Read operation tables, Parquet or CSV: one row per operation of every worker of a job.

The form in which Lin et al. (OSDI 2025) published the traces of their what-if analysis; columns are
described in `evenstep.trace.operations`. A file `meta-X.yaml` beside `trace-X.parquet` describes
the job's layout; without it the layout follows from the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import TraceError, nothing_read
from evenstep.importers.content import SourceFile, usable
from evenstep.importers.draft import Draft
from evenstep.importers.kineto.names import MESSAGES, operation
from evenstep.importers.operations.operation_records import trace_of
from evenstep.importers.tables import read_table, table_file
from evenstep.trace.columns import Array, Columns, begins, key_numbers, positions_by_key
from evenstep.trace.operation_messages import MOST, STAMPS_S
from evenstep.trace.operations import COMPUTES, RECVS, ROLES, SENDS, Role, extent, on_one_line
from evenstep.trace.spool.layout import Op
from evenstep.trace.trace import Trace

NAME = "operation table"
REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
WHOLE = ("dp_rank", "stage", "step", "rank", "seq_id", "mc", "gmc", "mb_id")
UNKNOWN = -1
LARGEST = 2**20  # of whole numbers, except those in `COUNTED`
COUNTED = {"step": 2**31, "seq_id": 2**31}
SHORTEST_S = 1e-9  # shortest step that a trace can hold
LONGEST_S = 4e9  # fits into 64-bit nanoseconds, with room: a time until 2096


def recognises(source: SourceFile) -> bool:
    """Whether a file has the columns of an operation table."""
    file = table_file(source)
    return file is not None and set(REQUIRED) <= set(file.names)


# -- reading ---------------------------------------------------------------------------------------


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all files as one trace. Raises `TraceError` where none has a usable row."""
    draft = Draft()
    read_one = partial(_table, draft=draft)
    table = Columns.concatenate(list(usable(sources, draft.limits, read_one)))
    if len(table):
        table = _without_duplicates(table, draft.limits)
        table = _lasting(_trim_beginning(_reducing(table)), sources[0].path, draft.limits)
    if not len(table):
        raise nothing_read(draft.limits, f"{sources[0].path} has no operation")
    return trace_of(table, draft, _meta(sources[0].path, draft.limits))


def _table(source: SourceFile, draft: Draft) -> Columns:
    """The rows of one file; types of operations are entered as names."""
    file = table_file(source)
    if file is None:
        raise TraceError(f"{source.path} is not a table any more; it was changed while it was read")
    numbers = [name for name in (*WHOLE, "start_ts", "duration") if name in file.names]
    read = read_table(file, numbers, ["optype"], draft.limits)
    kinds, optype = read.texts["optype"]
    empty = np.full(len(optype), np.nan)
    rows = {name: read.numbers.get(name, empty) for name in (*WHOLE, *REQUIRED)}
    rows["optype"] = np.where(optype < 0, np.nan, optype)
    whole = _sound(rows, source.path, draft.limits)
    columns = {name: values[whole] for name, values in rows.items()}
    number = np.array([draft.name(kind) for kind in kinds], np.int64)
    roles = np.array([_role(kind) for kind in kinds], np.int64)
    optype = columns["optype"].astype(np.int64)
    return _complete(
        Columns(
            **{name: columns[name].astype(np.int64) for name in WHOLE},
            optype=number[optype], role=roles[optype], start_s=columns["start_ts"],
            duration_s=columns["duration"],
        )
    )  # fmt: skip


def _role(kind: str) -> Role:
    """What operations of a type do: as the published tables name it, or by the words in it."""
    op, words = operation(kind), set(re.findall(r"[a-z]+", kind.lower()))
    back = bool(words & {"backward", "bwd", "bw", "grad", "grads"})
    if kind in ROLES or not (op or back or words & {"forward", "fwd", "fw"}):
        return ROLES.get(kind, Role.OTHER)
    if op is None and "sync" in words:
        op = Op.ALL_REDUCE
    if op is None or op in MESSAGES:
        return (COMPUTES if op is None else SENDS if op == Op.SEND else RECVS)[back]
    if words & {"norm", "clip"}:
        return Role.CLIP
    gathered = words & {"param", "params", "parameters", "weights"}
    return Role.GRADS if "grad" in kind.lower() else Role.PARAMS if gathered else Role.MEETING


def _sound(rows: dict[str, Array], path: Path, limits: list[str]) -> Array:
    """Mask of usable rows; `limits` says what is wrong with the others, with the first of them."""
    good = np.ones(len(rows["optype"]), bool)
    for name in (*REQUIRED, *WHOLE):
        values, needed = rows[name], name in REQUIRED
        if name == "optype":
            fine, expected = ~np.isnan(values), "a name"
        elif name in WHOLE:
            fine = (values >= (0 if needed else UNKNOWN)) & (values < COUNTED.get(name, LARGEST))
            fine = (fine & (values % 1 == 0)) | (np.isnan(values) & (not needed))
            expected = "a whole number, not negative"
        else:
            fine = (np.abs(values) < LONGEST_S) & ((values >= 0) | (name != "duration"))
            expected = "seconds, not negative" if name == "duration" else "seconds"
        bad = good & ~fine
        if bad.any():
            row = int(np.argmax(bad))
            limits.append(
                f"{path}: {np.count_nonzero(bad)} rows were left out because {name} must be "
                f"{expected}; the first is row {row + 1}, with {values[row]!s}"
            )
            good &= ~bad
    for name in WHOLE:
        rows[name] = np.where(np.isnan(rows[name]), UNKNOWN, rows[name])
    return good


def _complete(table: Columns) -> Columns:
    """Derive missing ranks, orders and virtual stages from the other columns."""
    if not len(table):
        return table
    stages, dp_ranks = int(table.stage.max()) + 1, int(table.dp_rank.max()) + 1
    rank = np.where(table["rank"] >= 0, table["rank"], table.stage * dp_ranks + table.dp_rank)
    computes = np.isin(table.role, COMPUTES)
    mc = np.where(computes, np.maximum(table.mc, 0), table.mc)
    gmc = np.where(table.gmc < 0, mc * stages + table.stage, table.gmc)
    gmc = np.where(computes, gmc, UNKNOWN)
    table = table.with_columns(rank=rank, mc=mc, gmc=gmc)
    if (table.seq_id >= 0).all():
        return table
    order = np.argsort(table.start_s, kind="stable")
    position = np.empty(len(table), np.int64)
    position[order] = positions_by_key(table.step[order], rank[order], table.optype[order])
    return table.with_column("seq_id", position)


def _without_duplicates(table: Columns, limits: list[str]) -> Columns:
    """Keep the first of rows with the same rank, step, type and order."""
    key = [table.seq_id, table.optype, table["rank"], table.step]
    order = np.lexsort(key)
    again = ~begins(*(values[order] for values in key))
    if again.any():
        limits.append(
            f"{np.count_nonzero(again)} rows repeat an operation (the same rank, step, type and "
            "seq_id); the first of each was used"
        )
    return table.select(np.sort(order[~again]))


def _reducing(table: Columns) -> Columns:
    """With collectives of other kinds as reductions of gradients where, during most of a kind, a
    backward of its rank runs."""
    cell = key_numbers(table.step, table["rank"])
    begin, end = table.start_s, table.start_s + table.duration_s
    line = cell * (end.max() - begin.min() + 1.0) - begin.min()
    back = table.role == Role.BACKWARD
    ended = np.searchsorted(np.sort((end + line)[back]), begin + line + STAMPS_S)
    begun = np.searchsorted(np.sort((begin + line)[back]), end + line - STAMPS_S)
    during = np.bincount(table.optype, begun > ended) > MOST * np.bincount(table.optype)
    behind = (table.role == Role.MEETING) & during[table.optype]
    return table.with_column("role", np.where(behind, Role.GRADS, table.role))


def _trim_beginning(table: Columns) -> Columns:
    """Without the time before a step in which its messages were already asked for.

    A step begins with the first operation that is no receive, of those that have the first stage;
    or with a receive, if most of those that are earlier began after the step before: their ranks
    were ready, and wait for what the first stage does until then.
    """
    steps, index = np.unique(table.step, return_inverse=True)
    begin, received = np.full(len(steps), np.inf), np.isin(table.role, RECVS)
    np.minimum.at(begin, index[~received], table.start_s[~received])
    begin[~np.isin(steps, table.step[table.stage == 0])] = -np.inf
    end = table.start_s + table.duration_s
    early = received & (table.start_s < begin[index])
    before = np.full((int(table["rank"].max()) + 1, len(steps) + 1), np.nan)
    np.fmax.at(before, (table["rank"], index + 1), end)
    known = early & np.isfinite(before[table["rank"], index])
    ready = (table.start_s > before[table["rank"], index] - STAMPS_S)[known]
    if ready.any() and ready.mean() > MOST and on_one_line(table):
        return table
    asked = np.minimum(np.maximum(table.start_s, begin[index]), end)
    start = np.where(received, asked, table.start_s)
    lasted = np.where(start > table.start_s, end - start, table.duration_s)
    return table.with_columns(start_s=start, duration_s=lasted)


def _lasting(table: Columns, path: Path, limits: list[str]) -> Columns:
    """Remove steps that took no time. Raises `TraceError` where all steps exceed `LONGEST_S`."""
    index, begin, end = extent(table)
    if (end - begin).sum() > LONGEST_S:
        raise TraceError(
            f"{path}: its steps take {(end - begin).sum():.3g} seconds together; start_ts and "
            "duration must be in seconds"
        )
    empty = end - begin < SHORTEST_S
    if not empty.any():
        return table
    limits.append(f"{np.count_nonzero(empty)} steps were left out because they took no time")
    return table.select(~empty[index])


# -- the description beside the table --------------------------------------------------------------


def _meta(path: Path, limits: list[str]) -> dict[str, Any]:
    """Contents of `meta-X.yaml` beside `trace-X.…`; empty without one."""
    trial = path.name.partition(".")[0].removeprefix("trace-")
    for suffix in (".yaml", ".yml"):
        file = path.with_name(f"meta-{trial}{suffix}")
        if file.is_file():
            try:
                return _key_values(file.read_text("utf-8"), file, limits)
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                limits.append(f"{file} cannot be read ({why}); the table speaks for itself")
    return {}


def _key_values(text: str, file: Path, limits: list[str]) -> dict[str, Any]:
    """Lines of "key: value"; whole numbers become numbers."""
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition(" #")[0].strip()
        if not line or line.startswith(("#", "---")):
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.strip():
            limits.append(f'{file}, line {number}: expected "key: value", found {line[:40]!r}')
            continue
        value = value.strip().strip("\"'")
        found[key.strip()] = int(value) if value.isdecimal() and len(value) < 10 else value
    return found
