"""Read Kineto traces (torch.profiler, Chrome JSON), one file per rank, as one trace.

Device stamps are on the host's clock: the profiler has converted them. Times count from the first
event of any file; hosts are compared only where the files name them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.errors import TraceError, nothing_read
from evenstep.importers.content import SourceFile, usable
from evenstep.importers.draft import FIRST_NS, Draft
from evenstep.importers.file_ranks import absent
from evenstep.importers.kineto.calls import CallArguments, address, call_of, groups_of
from evenstep.importers.kineto.device import device_calls
from evenstep.importers.kineto.file import KinetoFile, read_file
from evenstep.importers.kineto.grouping import ONE_HOST_NS, group_calls
from evenstep.importers.kineto.launches import UNLAUNCHED, unroll, with_launches
from evenstep.importers.kineto.names import annotation
from evenstep.importers.kineto.places import check_one_process, info_of, join_windows, places_of
from evenstep.importers.kineto.records import FACTS, Profile, enter
from evenstep.importers.kineto.steps import StepMarks, steps_of
from evenstep.importers.kineto.table import host_calls
from evenstep.trace.clocks.bounds import crossings
from evenstep.trace.columns import Columns
from evenstep.trace.loading import renumber, shifts_in_words
from evenstep.trace.ranks import format_ranks
from evenstep.trace.repetition import with_steps
from evenstep.trace.trace import Trace

NAME = "Kineto trace"
_MARKS = re.compile(rb'"traceEvents"\s*:|"ph"\s*:\s*"[A-Za-z]"')
#: In Chrome JSON of other tools: Horovod's timeline, the viewer's copy beside an XPlane profile,
#: the Ascend profiler's, and that of NCCL's example of a profiler.
_OTHERS = re.compile(
    rb'"NEGOTIATE_|"metadata":{"highres-ticks":true}|"Ascend Hardware"|"cat": "GROUP'
)
_PREAMBLE = (b'"schemaVersion"', b'"deviceProperties"')  # may fill the head before any event


def recognises(source: SourceFile) -> bool:
    """Whether a file is Chrome JSON."""
    head = source.head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] not in (b"{", b"[") or _OTHERS.search(head):
        return False
    return _MARKS.search(head) is not None or all(mark in head for mark in _PREAMBLE)


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all files as one trace. Files that cannot be used are named in its limits.

    Raises `TraceError` where none can.
    """
    draft = Draft()
    read = list(usable(sources, draft.limits, _file))
    files, unlaunched = with_launches(unroll(join_windows(read)))
    places, left_out = places_of(files)
    draft.limits += left_out
    files = [file for file in files if file.path in places]
    origin = min((int(file.rows.start_ns.min()) for file in files), default=0)
    ranks = []
    for file in files:
        place, file = places[file.path], file.moved(FIRST_NS - origin)
        told = {
            UNLAUNCHED: file.path in unlaunched,
            f"{file.damaged} events have an impossible time or duration: left out": file.damaged,
            f"{file.unpaired} events only begin or only end, unread: left out": file.unpaired,
        }
        place.limits.extend(text for text, applies in told.items() if applies)
        announced = [annotation(name) for name in file.names]
        calls = Columns.concatenate([device_calls(file, announced), host_calls(file, announced)])
        calls = calls.sorted_by("enter_ns")
        said = _calls_of(file, calls, place.world)
        ranks.append(Profile(file, place, steps_of(file), calls, said, file.path in unlaunched))
    if not ranks:
        raise nothing_read(draft.limits, "it has no events")
    ranks, unsaid = group_calls(ranks)
    for each in ranks:
        place = each.place
        draft.rank(
            place.rank, FACTS, world=place.world, attempt=0, hostname=place.host,
            boot_id=f"host {place.host}" if place.host else "", source=str(each.file.path),
            anchor_monotonic_ns=FIRST_NS, anchor_realtime_ns=origin,
        )  # fmt: skip
    draft.limits += spoken(ranks) + unsaid
    enter(draft, ranks)
    return repeating(_finish(draft, ranks), ranks, StepMarks())


def _file(source: SourceFile) -> KinetoFile:
    file = read_file(source.path)
    check_one_process(file)
    if not len(file.rows):
        raise TraceError(
            f"{source.path} holds no operator, annotation or kernel; record it with "
            "torch.profiler and activities CPU and CUDA"
        )
    return file


def _calls_of(file: KinetoFile, calls: Columns, world: int) -> list[CallArguments]:
    groups = groups_of(file.header)
    each = [call_of(args, groups, world) for args in file.calls]
    nothing = CallArguments()
    said = [each[index] if index >= 0 else nothing for index in calls.args]
    if len(groups) == 1 and not any(call.group for call in said):  # it can only be this one
        only = next(iter(groups.values()))
        said = [call if call.group else call._replace(group=only) for call in said]
    for row in np.flatnonzero(calls.asked >= 0):
        said[row] = address(said[row], int(calls.op[row]), file.calls[calls.asked[row]])
    return said


def spoken(ranks: Sequence[Profile]) -> list[str]:
    """The limits of profiles, each once, with its ranks where it does not apply to all."""
    told: dict[str, list[int]] = {}
    for each in ranks:
        for text in [*each.steps.limits, *each.place.limits]:
            told.setdefault(text, []).append(each.place.rank)
    return [
        text if len(where) == len(ranks) else f"rank {format_ranks(where)}: {text}"
        for text, where in told.items()
    ]


def _on_one_host(ranks: Sequence[Profile], trace: Trace) -> bool:
    """Whether no file names a host, no two ranks use the same device number, as ranks of several
    hosts would, and their clocks agree: nobody leaves a collective before all have entered it,
    whichever ranks take part."""
    if len(ranks) < 2 or any(each.place.host for each in ranks):
        return False
    devices = [set(each.calls.device[each.calls.device >= 0].tolist()) for each in ranks]
    if not all(devices) or sum(map(len, devices)) > len(set().union(*devices)):
        return False
    table = crossings(trace, {rank: number for number, rank in enumerate(trace.ranks)})
    base = table.base[table.clock]
    early = table.of_operation(np.maximum, table.entry + base)
    early -= table.of_operation(np.minimum, table.exit + base)
    members = table.of_operation(np.add, np.exp2(table.clock))
    several = members != np.exp2(table.clock)  # others show one clock
    apart = (np.median(early[members == each]) for each in np.unique(members[several]))
    return all(one < ONE_HOST_NS for one in apart)


def _finish(draft: Draft, ranks: list[Profile]) -> Trace:
    world = max(each.place.world for each in ranks)
    library = info_of(ranks[0].file).get("nccl_version")
    run: dict[str, Any] = {"run_id": "", "source": NAME, "world": world}
    if isinstance(library, str):
        run["versions"] = {"nccl": library}
    trace = draft.trace(run, world=world)
    trace.events, shifts = renumber(trace.events)
    trace.limits += shifts_in_words(shifts)
    if _on_one_host(ranks, trace):
        for rank in trace.ranks.values():
            rank.identity["boot_id"] = "the one host"
        trace.limits.append(
            "the files name no host; their devices are all different: they are taken to be of one"
        )
    trace.limits += absent(trace.ranks, trace.world)
    return trace


def repeating(trace: Trace, ranks: Sequence[Profile], marks: StepMarks) -> Trace:
    """The trace of these profiles; if none has marks of steps, with the steps in which its
    collectives repeat."""
    if not all(each.steps.whole for each in ranks):
        return trace
    trace, inferred = with_steps(trace)
    if inferred:
        trace.limits = [text for text in trace.limits if marks.nothing not in text]
        trace.limits.append(f"{marks.nothing}; {inferred}")
    return trace
