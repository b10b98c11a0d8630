import gzip
import json
import os
import pickle
import time
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.errors import EvenstepError, TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.flight_recorder import flight_recorder
from evenstep.importers.flight_recorder.dump import _last_issued
from evenstep.importers.flight_recorder.flight_recorder import _messages_more
from evenstep.trace.spool.layout import DType, Flag, Kind, Op
from tests.importers.recorded_ring import (
    MS,
    START_NS,
    dump,
    entry,
    given_up,
    in_flight,
    message,
    read,
    source,
    write,
)


@pytest.fixture
def both(tmp_path):
    """Two ranks that went through three collectives."""
    return write(tmp_path, {rank: dump([entry(n) for n in range(3)]) for rank in range(2)})


def test_a_dump_is_recognised_by_its_content(tmp_path, both):
    renamed = both[0].rename(tmp_path / "anything.bin")
    assert flight_recorder.recognises(source(renamed))
    assert flight_recorder.recognises(SourceFile(tmp_path, b'{"version":"2.10","pg_config":{}}'))
    assert not flight_recorder.recognises(SourceFile(tmp_path, b'{"traceEvents": []}'))


@pytest.mark.parametrize("as_json", [False, True])
def test_entries_become_collectives_with_their_sizes_and_times(tmp_path, as_json):
    paths = write(tmp_path, {r: dump([entry(0), entry(1)]) for r in range(2)}, as_json=as_json)
    rows = read(paths).of_kind(Kind.COLLECTIVE)
    assert rows["rank"].tolist() == [0, 0, 1, 1]
    assert rows.group_seq.tolist() == [1, 2, 1, 2]
    assert set(rows.bytes_in.tolist()) == {256 * 4}  # 256 float32
    assert set(rows.dtype.tolist()) == {int(DType.FLOAT32)}
    assert rows.enter_ns[0] == START_NS
    assert rows.exit_ns[0] == START_NS + MS // 2


@pytest.mark.parametrize("as_json", [False, True])
def test_more_entries_than_a_ring_holds_are_not_read(tmp_path, as_json):
    paths = write(tmp_path, {0: {"version": "2.10", "entries": [0] * 65_537}}, as_json=as_json)
    with pytest.raises(TraceError, match="65537 entries, more than any ring"):
        read(paths)


def test_json_of_more_lists_than_a_ring_has_is_not_decoded(tmp_path):
    path = tmp_path / "dump_0"
    path.write_bytes(b'{"pg_config":{},"entries":[' + b"[]," * 2_000_001 + b"0]}")
    with pytest.raises(TraceError, match="more lists and objects"):
        read([path])


def test_dumps_may_be_compressed(both):
    for path in both:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read(both).ranks) == 2


def test_a_group_has_the_name_the_program_gave_it(tmp_path):
    item = entry(0, process_group=("5", "tensor_parallel"))
    trace = read(write(tmp_path, {rank: dump([item]) for rank in range(2)}))
    assert (trace.groups[0].name, trace.groups[0].ranks) == ("tensor_parallel", (0, 1))


def test_groups_of_one_name_and_other_members_are_kept_apart(tmp_path):
    dumps = {}
    for rank in range(4):
        ranks = str([0, 1] if rank < 2 else [2, 3])
        dumps[rank] = dump([entry(0)], pg_config={"0": {"ranks": ranks}})
    members = [group.ranks for group in read(write(tmp_path, dumps)).groups]
    assert members == [(0, 1), (2, 3)]


def test_two_groups_that_the_program_calls_the_same_are_kept_apart(tmp_path):
    config = {name: {"ranks": "[0, 1]"} for name in ("3", "4")}
    ring = [entry(n, process_group=(name, "dp")) for n, name in enumerate(("3", "4"))]
    trace = read(write(tmp_path, {rank: dump(ring, pg_config=config) for rank in range(2)}))
    assert sorted(group.name for group in trace.groups) == ["dp", "dp (4)"]


def test_the_rank_comes_from_the_file_name_or_from_the_groups(tmp_path):
    named = tmp_path / "dump.rank-7.pickle"
    named.write_bytes(pickle.dumps(dump([entry(0)], world=9)))
    grouped = tmp_path / "other.pickle"
    config = {"1": {"ranks": "[2, 5]"}, "2": {"ranks": "[5, 6]"}}
    grouped.write_bytes(pickle.dumps(dump([entry(0)], pg_config=config)))
    assert sorted(read([named, grouped]).ranks) == [5, 7]


def test_dumps_that_nothing_tells_the_rank_of_get_the_first_free_ones_and_that_is_said(tmp_path):
    paths = [tmp_path / name for name in ("dump.rank-1.pickle", "one.pickle", "other.pickle")]
    for path in paths:
        path.write_bytes(pickle.dumps(dump([entry(0)])))  # whose group has both its ranks
    trace = read(paths)
    assert sorted(trace.ranks) == [0, 1, 2]
    said = [limit for limit in trace.limits if "does not say of which rank it is" in limit]
    assert [limit.rpartition(" rank ")[2] for limit in said] == ["0 here", "2 here"]


def test_a_wrapped_ring_says_how_much_it_has_lost(tmp_path):
    trace = read(write(tmp_path, {0: dump([entry(n) for n in range(40, 50)], world=1)}))
    assert trace.ranks[0].dropped == 40


def test_a_second_dump_of_a_rank_is_left_out(tmp_path, both):
    twice = both[0].with_name("again_rank_0")
    twice.write_bytes(both[0].read_bytes())
    trace = read([*both, twice])
    assert len(trace.ranks) == 2
    assert any("second dump of rank 0" in limit for limit in trace.limits)


def test_a_broken_file_leaves_the_other_ranks(both):
    both[1].write_bytes(both[1].read_bytes()[:100])
    trace = read(both)
    assert list(trace.ranks) == [0]
    assert any(f"left out: {both[1]} is a damaged pickle" in limit for limit in trace.limits)


def test_a_dump_of_another_day_is_left_out(tmp_path):
    day = 86_400_000 * MS
    old = [entry(0, time_created_ns=START_NS - day, time_discovered_completed_ns=None)]
    dumps = {0: dump([entry(0)], world=3), 1: dump([entry(0)], world=3), 2: dump(old, world=3)}
    trace = read(write(tmp_path, dumps))
    assert list(trace.ranks) == [0, 1]
    assert any("24 h away" in limit for limit in trace.limits)


def test_a_dump_of_a_run_of_another_size_is_left_out_and_accuses_nobody(tmp_path):
    stuck, other = dump([entry(0), in_flight(1)], world=3), dump([entry(0)], world=2)
    trace = read(write(tmp_path, {0: stuck, 2: stuck, 1: other}))
    assert list(trace.ranks) == [0, 2]
    assert any("of a run of 2 ranks" in limit for limit in trace.limits)


def test_a_malicious_dump_is_refused_with_a_sentence_and_runs_nothing(tmp_path, both):
    trap = tmp_path / "sprung"
    code = f"cos\nsystem\n(S'touch {trap}'\ntR."  # protocol 0
    both[1].write_bytes(b"\x80\x02" + code.encode())
    trace = read(both)
    assert any("asks to run os.system" in limit for limit in trace.limits)
    assert not trap.exists()


# -- what becomes of coalesced groups and messages -------------------------------------------------


def test_a_coalesced_collective_is_one_record_with_the_state_of_its_end(tmp_path):
    same = {"collective_seq_id": 1}
    parts = [
        in_flight(0, "nccl:_all_gather_base", **same),
        in_flight(1, "nccl:_all_gather_base", **same),
        entry(2, "nccl:ALLGATHER_coalesced", input_sizes=[], output_sizes=[], **same),
    ]
    trace = read(write(tmp_path, {0: dump(parts, world=1)}))
    assert len(trace.events) == 1
    assert trace.events.op[0] == int(Op.ALL_GATHER)
    assert trace.events.bytes_in[0] == 2 * 256 * 4
    assert trace.events.exit_ns[0] == START_NS + 2 * MS + MS // 2
    assert trace.events.flags[0] & int(Flag.COALESCED)


def test_messages_know_their_peer_by_its_global_rank(tmp_path):
    config = {"0": {"ranks": "[2, 5]"}}
    trace = read(write(tmp_path, {2: dump([message(0, "send 0->1")], pg_config=config)}))
    assert trace.events.kind.tolist() == [int(Kind.POINT_TO_POINT)]
    assert trace.events.peer_or_root.tolist() == [5]


@pytest.mark.parametrize("name", ["send", "recv", "send to the next"])
def test_a_message_that_does_not_name_its_peer_has_none(tmp_path, name):
    trace = read(write(tmp_path, {0: dump([message(0, name)]), 1: dump([message(0, "recv 1<-0")])}))
    peer = dict(zip(trace.events["rank"].tolist(), trace.events.peer_or_root.tolist(), strict=True))
    assert peer == {0: -1, 1: 0}


# -- hangs -----------------------------------------------------------------------------------------


def hang_of(paths):
    findings = diagnose(read(paths)).findings
    assert [finding.mode for finding in findings] == ["hang"]
    return findings[0]


def test_the_rank_that_never_came_is_named_though_nobody_knows_for_how_long(tmp_path):
    stuck = dump([entry(0), in_flight(1)], world=3)
    paths = write(tmp_path, {0: stuck, 1: dump([entry(0)], world=3), 2: stuck})
    finding = hang_of(paths)
    assert finding.where.ranks == [1]
    assert "rank 1 never entered it; the last it entered was all_reduce 1" in finding.cause
    assert finding.severity == 1.0
    assert finding.evidence[0].measured is None


def test_a_rank_that_is_a_call_behind_in_a_job_that_runs_is_no_hang(tmp_path):
    """The watchdog has not yet passed over the call before: the copied dumps were written then."""
    ended = [entry(0), entry(1, retired=False)]
    ahead = dump([*ended, in_flight(2)], world=3)
    paths = write(tmp_path, {0: ahead, 1: dump(ended, world=3), 2: ahead})
    assert not diagnose(read(paths)).findings


def test_a_timeout_says_for_how_long(tmp_path):
    stuck = dump([entry(0), given_up(1)], world=2)
    finding = hang_of(write(tmp_path, {0: stuck, 1: dump([entry(0)], world=2)}))
    assert finding.evidence[0].measured == 600e9  # the entry's timeout


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (in_flight(1, "nccl:broadcast"), "broadcast of 1024 B"),
        (in_flight(1, input_sizes=[[8]]), "brought 32 B, the others 1024 B"),
        (in_flight(1, input_dtypes=["Int"]), "all_reduce of 1024 B int32"),
    ],
)
def test_who_entered_something_else_is_named_with_what_it_was(tmp_path, odd, said):
    stuck = dump([entry(0), in_flight(1)], world=3)
    finding = hang_of(write(tmp_path, {0: stuck, 1: stuck, 2: dump([entry(0), odd], world=3)}))
    assert finding.where.ranks == [2]
    assert said in finding.cause


def alternating(number: int, *, open_: bool = False) -> dict:
    """Three operations in turn, the same every time."""
    name = ("nccl:all_reduce", "nccl:broadcast", "nccl:barrier")[number % 3]
    return (in_flight if open_ else entry)(number, name)


@pytest.mark.parametrize(("called", "said"), [(8, "left that call out"), (6, "a second time")])
def test_a_rank_that_is_one_call_off_is_told(tmp_path, called, said):
    past = [alternating(number) for number in range(7)]
    usual = dump([*past, alternating(7, open_=True)], world=3)
    place = {"record_id": 7, "collective_seq_id": 8}
    odd = dump([*past, alternating(called, open_=True) | place], world=3)
    finding = hang_of(write(tmp_path, {0: usual, 1: usual, 2: odd}))
    assert finding.where.ranks == [2]
    assert said in finding.cause


def test_a_rank_that_calls_what_always_came_there_is_said_to_do_as_before(tmp_path):
    past = [alternating(number) for number in range(7)]
    news = dump([*past, in_flight(7, "nccl:all_gather")], world=3)
    usual = dump([*past, alternating(7, open_=True)], world=3)
    finding = hang_of(write(tmp_path, {0: news, 1: news, 2: usual}))
    assert finding.where.ranks == [2]
    assert finding.cause.endswith("B float32; rank 2 did as in earlier steps")


def test_a_mismatch_is_told_however_short_it_has_lasted(tmp_path):
    now = time.time_ns()
    usual = dump([in_flight(0, time_created_ns=now)], world=3)
    odd = dump([in_flight(0, "nccl:barrier", time_created_ns=now)], world=3)
    assert hang_of(write(tmp_path, {0: usual, 1: usual, 2: odd})).where.ranks == [2]


def test_a_file_stamped_a_tick_before_its_last_entry_was_written_then(tmp_path):
    path = write(tmp_path, {0: dump([entry(0)])})[0]
    last_ns = read([path]).events.exit_ns.max()
    for early_ns, known in ((4 * MS, True), (60_000 * MS, False)):
        os.utime(path, ns=(int(last_ns) - early_ns,) * 2)
        assert (read([path]).ranks[0].facts["dump"]["written_ns"] == last_ns) == known


def test_what_has_just_begun_is_not_stuck(tmp_path):
    now = time.time_ns()
    begun = [entry(0, time_created_ns=now - 10**10, time_discovered_completed_ns=now - 10**9)]
    waits = dump([*begun, in_flight(1, time_created_ns=now)])
    paths = write(tmp_path, {0: waits, 1: dump(begun)})
    for path in paths:
        os.utime(path, ns=(now + MS,) * 2)
    assert not diagnose(read(paths)).findings


def test_what_all_ranks_are_in_is_not_stuck_where_nobody_knows_for_how_long(tmp_path):
    runs = dump([entry(0), in_flight(1)], world=2)
    assert not diagnose(read(write(tmp_path, {0: runs, 1: runs}))).findings


def test_the_call_is_named_by_the_programs_own_frame(tmp_path):
    frames = [
        {"name": "all_reduce", "filename": "/x/torch/distributed/d.py", "line": 3},
        {"name": "step", "filename": "/home/me/train.py", "line": 31},
    ]
    stuck = dump([entry(0), in_flight(1, frames=frames)], world=2)
    finding = hang_of(write(tmp_path, {0: stuck, 1: dump([entry(0)], world=2)}))
    assert "called in step (train.py:31)" in finding.observation


def test_a_member_without_a_dump_is_suspected_where_all_others_entered(tmp_path):
    stuck = dump([entry(0), in_flight(1)], world=3)
    finding = hang_of(write(tmp_path, {0: stuck, 1: stuck}))
    assert finding.where.ranks == [2]
    assert "rank 2 left no trace" in finding.cause
    assert finding.options[0].action.endswith("of rank 2")


def test_a_receive_waits_for_the_rank_that_never_sent(tmp_path):
    waits = dump([entry(0), message(1, "recv 0<-1", open_=True)])
    finding = hang_of(write(tmp_path, {0: waits, 1: dump([entry(0)])}))
    assert finding.where.ranks == [1]
    assert "never called the matching send" in finding.cause


def test_a_pipeline_that_waits_leads_to_the_stage_that_does_not(tmp_path):
    dumps = {
        0: dump([entry(0), in_flight(1)], world=3),  # waits for 1, which waits for 2
        1: dump([entry(0), message(1, "recv 1<-2", open_=True)], world=3),
        2: dump([entry(0)], world=3),
    }
    assert hang_of(write(tmp_path, dumps)).where.ranks == [2]


def test_ranks_that_enter_two_groups_in_different_orders_are_told_to_wait_in_a_circle(tmp_path):
    config = {name: {"ranks": "[0, 1]"} for name in ("1", "2")}
    dumps = {
        rank: dump([in_flight(0, process_group=(name, group))], pg_config=config)
        for rank, name, group in ((0, "1", "dp"), (1, "2", "tp"))
    }
    (finding,) = diagnose(read(write(tmp_path, dumps))).findings
    assert finding.title == "Ranks 0 and 1 wait for each other"
    assert finding.cause.startswith("rank 0 in ")


def test_what_others_have_left_is_no_hang(tmp_path):
    behind = dump([entry(0), in_flight(1)])  # written a moment before the other
    ahead = dump([entry(n) for n in range(4)])
    assert not diagnose(read(write(tmp_path, {0: behind, 1: ahead}))).findings


def test_what_a_ring_has_overwritten_was_not_missed(tmp_path):
    behind = dump([entry(n) for n in range(5)] + [in_flight(5)])
    ahead = dump([entry(n) for n in range(20, 30)])
    assert not diagnose(read(write(tmp_path, {0: behind, 1: ahead}))).findings


def test_a_dump_of_what_is_in_flight_alone_does_not_accuse_those_that_had_finished(tmp_path):
    behind = dump([in_flight(5)])
    ahead = dump([in_flight(9)], pg_status={"0": {"last_enqueued_collective": 10}})
    places = [
        f.where.ranks for f in diagnose(read(write(tmp_path, {0: behind, 1: ahead}))).findings
    ]
    assert places == [[0]]  # the later collective waits for rank 0; the earlier one is over


def test_gloo_marks_what_has_ended_by_retiring_it(tmp_path):
    unknown = {"state": "scheduled", "time_discovered_completed_ns": None}
    ended = entry(0, "gloo:all_reduce", **unknown)
    trace = read(
        write(tmp_path, {r: dump([ended], pg_config={"": {"ranks": "[]"}}) for r in (0, 1)})
    )
    assert all(info.closed for info in trace.ranks.values())
    assert (trace.events.exit_ns > 0).all()
    assert trace.groups[0].ranks == (0, 1)


# -- steps -----------------------------------------------------------------------------------------


def timed(rank: int, *, late_ms: float = 0, steps: int = 24) -> list[dict]:
    """Steps of 90 ms of work, of rank 1 that much more, and two collectives of 5 ms everybody
    waits for."""
    ring = []
    for number in range(2 * steps):
        step, second = divmod(number, 2)
        begins = (100 + late_ms) * step + 90 + (late_ms + 5 if second else late_ms * (rank == 1))
        duration = 5 + (late_ms if rank != 1 and not second else 0)
        created = START_NS + round(begins * MS)
        noticed = created + round(duration * MS)
        fields = {"time_created_ns": created, "time_discovered_completed_ns": noticed}
        sizes = {"input_sizes": [[256 * (1 + second)]]}
        ring.append(entry(number, duration_ms=duration, **fields, **sizes))
    return ring


def test_collectives_that_repeat_are_steps_where_their_durations_are_known(tmp_path):
    trace = read(write(tmp_path, {rank: dump(timed(rank)) for rank in range(2)}))
    steps = trace.of_kind(Kind.STEP)
    assert set((steps.exit_ns - steps.enter_ns).tolist()) == {100 * MS}
    assert any("2 collectives that come again" in limit for limit in trace.limits)


def test_a_healthy_ring_has_no_findings(tmp_path):
    trace = read(write(tmp_path, {rank: dump(timed(rank)) for rank in range(2)}))
    assert not diagnose(trace).findings


def test_a_ring_with_durations_tells_who_is_waited_for(tmp_path):
    dumps = {rank: dump(timed(rank, late_ms=50), world=4) for rank in range(4)}
    finding = diagnose(read(write(tmp_path, dumps))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.severity == pytest.approx(50 / 150, rel=0.1)  # ms of a step


def ahead(rank: int) -> list[dict]:
    """Steps of 110 ms whose hosts issue both calls in the first millisecond, by clocks that are a
    second apart. Rank 2 reaches the first call, which takes 5 ms, 20 ms after the others."""
    ring = []
    for number in range(48):
        step, second = divmod(number, 2)
        issued = START_NS + 1000 * MS * rank + 110 * MS * step + second * MS
        noticed = issued + 200 * MS
        waited = 0 if rank == 2 or second else 20
        fields = {"time_created_ns": issued, "time_discovered_completed_ns": noticed}
        sizes = {"input_sizes": [[256 * (1 + second)]]}
        ring.append(entry(number, duration_ms=5 + waited, **fields, **sizes))
    return ring


def test_hosts_that_are_ahead_of_their_devices_hide_no_slow_rank(tmp_path):
    dumps = {rank: dump(ahead(rank), world=4) for rank in range(4)}
    for rank in (0, 3):  # their watchdogs have not noticed the last ends
        for item in dumps[rank]["entries"][-3:]:
            item |= {"state": "scheduled", "retired": False, "duration_ms": None}
            item["time_discovered_completed_ns"] = None
    trace = read(write(tmp_path, dumps))
    finding = next(each for each in diagnose(trace).findings if each.mode != "hang")
    assert (finding.mode, finding.where.ranks) == ("straggler", [2])
    assert finding.severity == pytest.approx(20 / 110, rel=0.1)  # ms of a step
    assert any("costs are rough" in limit for limit in trace.limits)


def test_rounds_of_the_watchdog_tell_when_calls_ended_within_a_step(tmp_path):
    """Both calls of a step of 97 ms are issued in its first millisecond, reached 40 and 70 ms into
    it, and last 5 ms; a watchdog looks every 100 ms, so that 40 rounds meet all of a step."""
    ring = []
    for number in range(80):
        step, second = divmod(number, 2)
        issued, over = 97 * step + second, 97 * step + (75 if second else 45)
        fields = {
            "time_created_ns": START_NS + issued * MS,
            "time_discovered_completed_ns": START_NS + (over // 100 + 1) * 100 * MS,
        }
        ring.append(entry(number, duration_ms=5, input_sizes=[[256 * (1 + second)]], **fields))
    trace = read(write(tmp_path, {rank: dump(ring) for rank in range(2)}))
    calls = trace.of_kind(Kind.COLLECTIVE)
    calls = calls.select((calls["rank"] == 0) & (calls.step > 0))
    assert np.diff(calls.exit_ns) / MS == pytest.approx([30, 67] * 38 + [30], abs=100 / 40)


def buckets(pace=1.0, loaded_ms=0.0):
    """The rings of four ranks and their step: 60 ms of work, then four buckets, 20 ms apart, that
    take 5, for all of which compute waits, and hosts for that. Rank 2 works at this pace, and its
    host issues a step so much later."""
    rings, work, over = [[] for _ in range(4)], np.array([1.0, 1.01, pace, 0.99]), 0.0
    for _ in range(40):
        issued = over + np.where(np.arange(4) == 2, loaded_ms, 0.0)
        free = reached = issued.copy()
        for bucket in range(4):
            reached = reached + work * (20 if bucket else 60)
            begun = np.maximum(reached, free)
            over = float(begun.max()) + 5
            free = np.full(4, over)
            for rank, ring in enumerate(rings):
                noticed = 37 * rank + ((over - 37 * rank) // 100 + 1) * 100
                fields = {
                    "duration_ms": float(over - begun[rank]),
                    "input_sizes": [[256 * (1 + bucket)]],
                    "time_created_ns": START_NS + round((issued[rank] + 1 + bucket) * MS),
                    "time_discovered_completed_ns": START_NS + round(noticed * MS),
                }
                ring.append(entry(len(ring), **fields))
    return rings, over / 40


@pytest.mark.parametrize("fault", [{"pace": 1.4}, {"loaded_ms": 40.0}])
def test_a_queue_of_buckets_hides_neither_a_slow_device_nor_a_slow_loader(tmp_path, fault):
    """Behind a slow rank the others' kernels begin as their queue is free, whenever compute came to
    them: in proportion to a slow device's work; just like it where its host alone is late."""
    (rings, length_ms), (_, usual_ms) = buckets(**fault), buckets()
    dumps = {rank: dump(ring, world=4) for rank, ring in enumerate(rings)}
    finding = diagnose(read(write(tmp_path, dumps))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [2])
    assert finding.severity == pytest.approx(1 - usual_ms / length_ms, rel=0.1)


def exchanging(rank: int) -> list[dict]:
    """Steps of 40 ms of three ranks: each sends to the next and receives from the one before by one
    kernel of 5 ms, for which rank 1 comes 10 ms late; all reduce 5 ms from the 20th on."""
    ring = []
    for step in range(30):
        waited, begun = (0, 10) if rank == 1 else (10, 0)
        to, of = (rank + 1) % 3, (rank - 1) % 3
        for name, at, length_ms in (
            (f"send {rank}->{to}", begun, 5 + waited),
            (f"recv {rank}<-{of}", begun, 5 + waited),
            ("", 20, 5),
        ):
            fields = {"time_created_ns": START_NS + (40 * step + at) * MS, "duration_ms": length_ms}
            fields["time_discovered_completed_ns"] = START_NS + 40 * (step + 3) * MS
            number = len(ring)
            ring.append(message(number, name, **fields) if name else entry(number, **fields))
    return ring


def test_durations_of_kernels_that_send_and_receive_in_a_circle_name_nobody(tmp_path):
    trace = read(write(tmp_path, {rank: dump(exchanging(rank), world=3) for rank in range(3)}))
    assert any("rings of messages cannot be told" in limit for limit in trace.limits)
    ring = trace.of_kind(Kind.POINT_TO_POINT)
    assert set(ring.group.tolist()) | set(ring.peer_or_root.tolist()) == {-1}
    found = diagnose(trace)
    assert not any(len(finding.where.ranks) for finding in found.findings)
    assert "healthy" not in found.summary["verdict"]


STAGES = 3


def pipeline(slower_ms):
    """The rings of all stages and their mean step: four micro-batches go forward in 8 ms a stage,
    then back in 16, in the second stage so much slower; messages take 1 ms, kernels meet. Hosts
    issue a step as soon as their device has ended the one before."""
    rings, device = [[] for _ in range(STAGES)], [0.0] * STAGES

    def passed(source, target):
        begun = {rank: device[rank] for rank in (source, target)}
        over = max(begun.values()) + 1
        for rank, way, peer in ((source, "->", target), (target, "<-", source)):
            noticed = 37 * rank + ((over - 37 * rank) // 100 + 1) * 100
            name = f"{'send' if rank == source else 'recv'} {rank}{way}{peer}"
            fields = {
                "duration_ms": over - begun[rank],
                "time_created_ns": START_NS + round((began[rank] + len(rings[rank]) % 16 / 4) * MS),
                "time_discovered_completed_ns": START_NS + round(noticed * MS),
            }
            rings[rank].append(message(len(rings[rank]), name, **fields))
        device[target] = over  # the sender's compute goes on

    for _ in range(50):
        began = tuple(device)
        for way, length_ms in ((1, 8), (-1, 16)):
            stages = range(STAGES)[::way]
            for _ in range(4):
                for stage in stages:
                    device[stage] += length_ms + slower_ms * (way < 0 and stage == 1)
                    if stage != stages[-1]:
                        passed(stage, stage + way)
    return rings, max(device) / 50


def test_a_slow_stage_costs_what_it_does_in_dumps_of_its_last_steps(tmp_path):
    """The ring of the middle stage, which has twice as many messages, has overwritten the first."""
    (rings, length_ms), (_, usual_ms) = pipeline(6), pipeline(0)
    trace = read(
        write(tmp_path, {rank: dump(ring[-760:], world=STAGES) for rank, ring in enumerate(rings)})
    )
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("workload_imbalance", [1])
    cost = 1 - usual_ms / length_ms
    # rounds meet a step every 4 ms, and the first step shows no wait of the last stage
    assert finding.severity == pytest.approx(cost, rel=0.25)


@pytest.mark.parametrize("lost", [(0, 0), (3, 0), (0, 3), (7, 2)])
def test_messages_are_counted_so_that_both_ends_have_them_at_about_the_same_times(lost):
    ends = 10 * np.arange(20) + np.array([[4, 0, -3, 2] * 5, [0, 3, 1, -4] * 5])
    sent, came = (times[first:] for times, first in zip(ends, lost, strict=True))
    assert _messages_more(sent[:-1], came) == lost[1] - lost[0]  # one has not been seen to end


def test_without_durations_no_steps_are_claimed(tmp_path):
    trace = read(write(tmp_path, {r: dump([entry(n) for n in range(40)]) for r in range(2)}))
    assert not len(trace.of_kind(Kind.STEP))
    assert any("holds no steps" in limit for limit in trace.limits)


# -- anything at all -------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([-1, 2**63, 10**30, "nccl:send 9->8", "[0, 1]", "[[[["])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from([*sorted(entry(0)), "frames", "duration_ms"])


def survives(paths):
    with suppress(EvenstepError):  # its message is the sentence
        diagnose(read(paths)).to_json()


@settings(max_examples=40)
@given(st.lists(st.sampled_from([5.0, 1e-9, 4e12, 4e8, -1.0, float("inf")]), max_size=30))
def test_durations_of_any_length_give_a_trace_or_a_sentence(tmp_path_factory, lengths):
    folder = tmp_path_factory.mktemp("durations")
    ring = [entry(number, duration_ms=length) for number, length in enumerate(lengths)]
    survives(write(folder, {rank: dump(ring or [entry(0)]) for rank in (0, 1)}))


def test_durations_that_exceed_all_time_together_are_left_out(tmp_path):
    ring = [entry(0), entry(1, duration_ms=4e12), entry(2)]
    trace = read(write(tmp_path, {rank: dump(ring) for rank in (0, 1)}))
    assert len(trace.events) == 4
    assert any("`$.duration_ms`" in one for one in trace.limits)


@given(st.dictionaries(FIELDS, VALUES, max_size=6), st.booleans(), VALUES)
def test_entries_of_any_content_give_a_trace_or_a_sentence(
    tmp_path_factory, fields, as_json, other
):
    folder = tmp_path_factory.mktemp("dump")
    dumps = {0: dump([entry(0), entry(1) | fields]), 1: dump([entry(0)], pg_config=other)}
    survives(write(folder, dumps, as_json=as_json))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_trace_or_a_sentence(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "nccl_trace_rank_0"
    path.write_bytes(data)
    survives([path])


@given(st.integers(0, 2_000), st.booleans())
def test_a_file_cut_at_any_byte_gives_a_trace_or_a_sentence(tmp_path_factory, length, as_json):
    folder = tmp_path_factory.mktemp("cut")
    paths = write(folder, {r: dump([entry(0), in_flight(1)]) for r in (0, 1)}, as_json=as_json)
    paths[0].write_bytes(paths[0].read_bytes()[:length])
    survives(paths)


def test_json_that_is_cut_names_the_byte(tmp_path, both):
    text = json.dumps(dump([entry(0)]))[:200]
    both[0].write_text(text)
    with pytest.raises(TraceError, match=r"is not whole JSON: .* at byte"):
        read(both[:1])


def test_an_empty_list_of_files_is_a_sentence():
    with pytest.raises(TraceError, match="nothing to read"):
        read([])


@pytest.mark.parametrize(
    ("said", "reached"),
    [
        (7, {"0": 7}),
        ("7", {"0": 7}),
        (0, {"0": 0}),
        ("-1", {}),
        ("9" * 4500, {}),
        ("7 or so", {}),
        (True, {}),
        (None, {}),
    ],
)
def test_the_last_call_of_a_group_is_a_number_or_not_known(said, reached):
    assert _last_issued({"0": {"last_enqueued_collective": said}}, []) == reached
    assert _last_issued([said], []) == {}


@pytest.mark.parametrize(("version", "told"), [("2.10", False), ("3.0", True)])
def test_a_format_that_is_newer_than_this_is_told(tmp_path, version, told):
    limits = read(write(tmp_path, {0: dump([entry(0)], world=1, version=version)})).limits
    assert any(f"format version '{version}'" in limit for limit in limits) == told


GUESSED = "the dumps do not say who is in which group"


def test_a_group_nobody_describes_is_of_those_that_use_it_and_the_default_one_of_all(tmp_path):
    default = [entry(0, process_group=("0", "default_pg"))]
    both = [*default, entry(1, process_group=("7", "tp"))]
    dumps = {rank: dump(both if rank else default, pg_config={}) for rank in range(3)}
    trace = read(write(tmp_path, dumps))
    assert {group.name: group.ranks for group in trace.groups} == {
        "default_pg": (0, 1, 2), "tp": (1, 2),
    }  # fmt: skip
    assert any(GUESSED in limit for limit in trace.limits)


def test_of_dumps_that_say_all_only_the_steps_are_missing(both):
    assert [limit.partition(":")[0] for limit in read(both).limits] == [
        "a flight recorder holds no steps"
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"entries": []}, "the dumps of ranks 1 have no entries"),
        ({"entries": [entry(0), entry(2)]}, "the dumps of ranks 1 leave out what had completed"),
        (
            {"entries": [entry(0, time_discovered_completed_ns=None)]},
            "the dumps of ranks 1 do not say when operations ended",
        ),
        ({"pg_config": {"0": {"ranks": "[0, 1, 2]"}}}, "there is no dump of these ranks: 2"),
        ({"entries": [entry(0), {"record_id": "x"}]}, "1 entries were left out (entry 1: "),
    ],
)
def test_what_a_dump_cannot_tell_is_said(tmp_path, changed, said):
    dumps = {rank: dump([entry(n) for n in range(3)]) for rank in range(2)}
    dumps[1] |= changed
    if "pg_config" in changed:
        dumps[0] |= changed
    limits = read(write(tmp_path, dumps)).limits
    assert [said in limit for limit in limits].count(True) == 1


@pytest.mark.parametrize(
    ("last", "copied", "said"),
    [(in_flight(1), True, True), (in_flight(1), False, False), (entry(1), True, False)],
)
def test_how_long_a_call_has_been_in_flight_is_unknown_of_copied_dumps_alone(
    tmp_path, last, copied, said
):
    paths = write(tmp_path, {rank: dump([entry(0), last]) for rank in range(2)})
    for path in paths:
        os.utime(path, ns=(START_NS + (3_600_000 if copied else 10) * MS,) * 2)
    assert any("copied after" in limit for limit in read(paths).limits) == said


def test_groups_whose_members_nobody_says_are_those_that_used_them_but_the_default_one(tmp_path):
    """As gloo's dumps: the default group is torch's first, where the program calls none so."""
    names = [("0", "default_pg"), ("1", "tp"), ("0", "dp"), ("2", "")]
    using = {0: names, 1: names[:2], 2: [names[0], names[3]]}
    dumps = {
        rank: dump([entry(n, process_group=name) for n, name in enumerate(used)], pg_config={})
        for rank, used in using.items()
    }
    trace = read(write(tmp_path, dumps))
    assert {(group.name, group.ranks) for group in trace.groups} == {
        ("default_pg", (0, 1, 2)), ("tp", (0, 1)), ("dp", (0,)), ("2", (0, 2)),
    }  # fmt: skip
    nameless = {rank: dump([entry(0, process_group=("0", ""))], pg_config={}) for rank in (0, 2)}
    folder = tmp_path / "nameless"
    folder.mkdir()
    assert [group.ranks for group in read(write(folder, nameless)).groups] == [(0, 1, 2)]
