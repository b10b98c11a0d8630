"""The Perfetto trace, read by the format's own package and by a reader of our own."""

import dataclasses

import numpy as np
import pytest

from evenstep.export.perfetto.document import encode
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.trace import Group
from tests.report.perfetto_reader import Reader
from tests.report.small_run import (
    BOOT_NS,
    FIRST_STEP,
    HOSTILE,
    LATE_NS,
    LATE_RANK,
    MS,
    RANKS,
    STEP_NS,
    STEPS,
)

WAITED_NS = LATE_NS  # all enter both buckets on time but the late rank, 40 ms later


@pytest.fixture
def data(trace, diagnosis):
    return encode(trace, diagnosis)[0]


@pytest.fixture
def read(data):
    return Reader(data)


def test_the_perfetto_package_parses_every_packet(data, trace):
    proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    parsed = proto.Trace.FromString(data)
    kinds = [packet.track_event.type for packet in parsed.packet if packet.HasField("track_event")]
    begin, end = (
        kinds.count(proto.TrackEvent.Type.Value(f"TYPE_SLICE_{w}")) for w in ("BEGIN", "END")
    )
    assert begin == end > len(trace.of_kind(Kind.STEP, Kind.PHASE, Kind.COLLECTIVE))
    unknown = pytest.importorskip("google.protobuf.unknown_fields").UnknownFieldSet
    assert not any(len(unknown(packet)) for packet in parsed.packet)
    assert not any(len(unknown(packet.track_event)) for packet in parsed.packet)


def test_the_package_and_our_reader_see_the_same_arrows(data, read):
    proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    parsed = proto.Trace.FromString(data)
    flows = {int(flow) for packet in parsed.packet for flow in packet.track_event.flow_ids}
    assert flows == {int.from_bytes(flow, "little") for flow in read.begins}


def test_ranks_are_processes_with_their_node(read):
    names = [read.processes[rank + 1] for rank in range(RANKS)]
    assert names == ["rank 0 (gpu011)", "rank 1 (gpu011)", "rank 2 (gpu012)", "rank 3 (gpu012)"]


def test_every_step_is_a_slice_of_its_length(read):
    steps = [one for one in read.on("steps") if one["name"].startswith("step ")]
    assert len(steps) == RANKS * STEPS
    assert {one["end"] - one["start"] for one in steps} == {STEP_NS}
    assert min(one["start"] for one in steps) == BOOT_NS


def test_phases_nest_in_their_step(read):
    sync = [one for one in read.on("steps") if one["name"] == "sync"]
    assert {one["depth"] for one in sync} == {2}  # step, backward, sync


def test_a_wait_lasts_until_the_last_rank_has_entered(read):
    waits = [one for one in read.on("collectives") if one["name"] == "wait"]
    assert len(waits) == 2 * (RANKS - 1) * STEPS
    assert {one["end"] - one["start"] for one in waits} == {WAITED_NS}
    assert f"rank {LATE_RANK} (gpu012)" not in {read.rank(one) for one in waits}


def test_arrows_lead_from_the_late_rank_to_everybody_who_waited(read):
    assert read.begins.keys() == read.arrives.keys()
    assert len(read.begins) == 2 * (RANKS - 1) * STEPS
    assert {read.rank(read.begins[flow]) for flow in read.begins} == {"rank 3 (gpu012)"}
    assert all(read.begins[f]["start"] <= read.arrives[f]["start"] for f in read.begins)


def test_who_needs_the_roots_data_waits_for_the_root_and_not_for_the_last(trace, diagnosis):
    events = trace.events
    collective = events.kind == int(Kind.COLLECTIVE)
    root = collective & (events["rank"] == 0)  # which hands its data over and leaves
    enter = events.enter_ns + np.where(root, 10 * MS, 0)
    events = events.with_column("enter_ns", enter)
    events = events.with_column("exit_ns", np.where(root, enter + MS, events.exit_ns))
    events = events.with_column("op", np.where(collective, int(Op.BROADCAST), events.op))
    events = events.with_column("peer_or_root", np.where(collective, 0, events.peer_or_root))
    read = Reader(encode(dataclasses.replace(trace, events=events), diagnosis)[0])
    assert {read.rank(one) for one in read.begins.values()} == {"rank 0 (gpu011)"}
    arrived = {read.rank(one) for one in read.arrives.values()}
    assert arrived == {"rank 1 (gpu011)", "rank 2 (gpu012)"}  # rank 3 enters after the root


def test_collectives_in_flight_together_lie_on_tracks_of_their_own(read):
    whole = [one for one in read.on("collectives") if one["name"].startswith("all_reduce")]
    assert {one["depth"] for one in whole} == {0}
    assert all(one["name"] == "all_reduce 25 MB" for one in whole)
    assert len({one["track"] for one in whole}) == 2 * RANKS


def test_pacing_and_findings_are_instants(read):
    names = [one["name"] for one in read.instants]
    assert names.count("slack above the threshold") == STEPS
    finding = next(one for one in read.instants if one["name"] == "straggler")
    assert finding["time"] == BOOT_NS  # its first step is the first of the trace
    assert read.rank(finding) == "rank 3 (gpu012)"


def test_only_the_steps_asked_for_are_written(trace, diagnosis):
    data, partial = encode(trace, diagnosis, steps=(FIRST_STEP + 5, FIRST_STEP + 6))
    steps = {one["name"] for one in Reader(data).on("steps") if one["name"].startswith("step ")}
    assert steps == {f"step {FIRST_STEP + 5}", f"step {FIRST_STEP + 6}"}
    whole = f"{FIRST_STEP} to {FIRST_STEP + STEPS - 1}"
    assert partial == f"steps {FIRST_STEP + 5} to {FIRST_STEP + 6} of {whole}"


def test_a_collective_nobody_left_stays_open(trace, diagnosis):
    last = (trace.events.kind == int(Kind.COLLECTIVE)) & (
        trace.events.group_seq == 2 * (FIRST_STEP + STEPS - 1) + 1
    )
    leave = np.where(last, 0, trace.events.exit_ns)
    hung = dataclasses.replace(trace, events=trace.events.with_column("exit_ns", leave))
    still = [one for one in Reader(encode(hung, diagnosis)[0]).slices if one["end"] is None]
    assert [one["name"] for one in still].count("all_reduce 25 MB") == RANKS


def test_times_of_two_hosts_are_on_one_clock(trace, diagnosis, read):
    shift = 5_000 * MS  # the second host booted earlier
    ranks = {
        rank: dataclasses.replace(info, identity={**info.identity, "boot_id": info.node})
        for rank, info in trace.ranks.items()
    }
    events = trace.events
    for name in ("enter_ns", "exit_ns"):
        events = events.with_column(name, events[name] + np.where(events["rank"] >= 2, shift, 0))
    moved = Reader(encode(dataclasses.replace(trace, ranks=ranks, events=events), diagnosis)[0])
    steps = [one["start"] for one in moved.on("steps") if one["name"] == f"step {FIRST_STEP}"]
    assert max(steps) - min(steps) < 45 * MS  # the clocks' error bar: the time all are inside


def test_hostile_strings_are_names_and_nothing_else(trace, diagnosis):
    groups = (Group("uid", HOSTILE, tuple(range(RANKS)), "gloo"),)
    data, _ = encode(dataclasses.replace(trace, groups=groups), diagnosis)
    assert HOSTILE in Reader(data).names.values()
