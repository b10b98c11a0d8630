import gzip
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.errors import EvenstepError, TraceError
from evenstep.importers.draft import LATEST_NS
from evenstep.importers.kineto.calls import GroupKey
from evenstep.importers.nsys import database as nsys_database
from evenstep.importers.nsys import nsys, tables
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.trace import match_messages
from tests.importers.profiled_session import MS, SLOW_MS, Session, read, source, training


@pytest.fixture
def pair(tmp_path):
    """Two ranks of one host, the second slower in every step."""
    return [
        training(0).write(tmp_path / "report_a.sqlite"),
        training(1, slow_ms=SLOW_MS).write(tmp_path / "report_b.sqlite"),
    ]


def test_an_export_is_recognised_as_a_database(pair):
    assert nsys.recognises(source(pair[0]))


def test_the_rank_is_the_one_nccl_set_up(pair):
    trace = read(*reversed(pair))
    assert list(trace.ranks) == [0, 1]
    assert trace.groups[0].ranks == (0, 1)


def test_kernels_of_nccl_become_collectives_with_the_size_of_their_range(pair):
    rows = read(*pair).of_kind(Kind.COLLECTIVE)
    first = rows.select(rows["rank"] == 0).select(slice(0, 1))
    assert first.op.tolist() == [int(Op.ALL_REDUCE)]
    assert first.bytes_in.tolist() == [4096]
    assert (first.device_exit_ns - first.device_enter_ns).tolist() == [6 * MS]  # 5 of them waiting
    assert (rows.flags & int(Flag.ON_DEVICE)).all()


def test_collectives_of_both_ranks_are_matched_step_by_step(pair):
    rows = read(*pair).of_kind(Kind.COLLECTIVE)
    both = [rows.group_seq[rows["rank"] == rank].tolist() for rank in (0, 1)]
    assert both[0] == both[1]
    assert len(set(both[0])) == 20


def test_ranges_with_a_number_are_steps(pair):
    steps = read(*pair).of_kind(Kind.STEP)
    assert steps.step[steps["rank"] == 0].tolist() == list(range(20))
    assert set((steps.exit_ns - steps.enter_ns).tolist()) == {15 * MS}


def test_other_kernels_are_united_into_compute(pair):
    trace = read(*pair)
    spans = trace.of_kind(Kind.SPAN)
    assert {trace.names[name] for name in spans.name} == {"compute"}
    length = (spans.device_exit_ns - spans.device_enter_ns)[spans["rank"] == 1]
    assert set(length.tolist()) == {round((6 + SLOW_MS) * MS)}
    assert (spans.device >= 0).all()


def test_files_of_one_host_share_its_clock(tmp_path, pair):
    assert len({info.clock for info in read(*pair).ranks.values()}) == 1
    other = training(1, host="gpu02").write(tmp_path / "other.sqlite")
    assert len({info.clock for info in read(pair[0], other).ranks.values()}) == 2


def test_the_slow_rank_is_found(pair):
    finding = diagnose(read(*pair)).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])


def test_a_rank_waits_from_when_its_compute_came_to_a_call_though_its_stream_was_taken(tmp_path):
    """Two calls a step, the second launched while the first waits for the slow rank, whose first
    lateness is from before the trace."""
    paths, length = [], 7 + SLOW_MS
    for rank in (0, 1):
        session, late = Session(rank, pid=70 + rank), SLOW_MS * rank
        session.init()
        for step in range(20):
            begin = 10 + length * step
            session.range(f"iteration {step}", begin, begin + length)
            for half, (own, over) in enumerate(((3, 4), (6, 7))):
                session.kernel("gemm", begin + half, begin + own - 3 + late, begin + own + late)
                free = begin + 4 + SLOW_MS if half else 0  # its stream
                entered = max(begin + own + late, free)
                session.all_reduce(begin + half + 0.5, entered, begin + over + SLOW_MS)
        paths.append(session.write(tmp_path / f"{rank}.sqlite"))
    finding = diagnose(read(*paths)).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.severity == pytest.approx(19 / 20 * SLOW_MS / length, rel=0.01)


def test_a_phase_lasts_until_the_device_has_done_what_it_launched(tmp_path):
    session = Session()
    for step in range(3):
        session.range(f"iteration {step}", 10 * step, 10 * step + 9.9)
        session.range("forward", 10 * step + 1, 10 * step + 2)
        session.kernel("gemm", 10 * step + 1.5, 10 * step + 1.54, 10 * step + 8)
    phases = read(session.write(tmp_path / "export")).of_kind(Kind.PHASE)
    assert (phases.exit_ns - phases.enter_ns).tolist() == [7 * MS] * 3  # from 1 to 8 ms
    assert phases.group_seq.tolist() == [7 * MS] * 3


def test_steps_that_touch_by_a_rounding_are_steps_all_the_same(tmp_path):
    session = Session()
    for step in range(5):
        session.range(f"iteration {step}", 10 * step, 10 * (step + 1) + 1e-6)  # 1 ns into the next
        session.kernel("gemm", 10 * step + 1, 10 * step + 1, 10 * step + 8)
    assert read(session.write(tmp_path / "export")).of_kind(Kind.STEP).step.tolist() == [*range(5)]


def test_optimizer_ranges_stand_in_for_steps(tmp_path):
    session = Session()
    for step in range(5):
        session.kernel("gemm", 10 * step + 1, 10 * step + 1, 10 * step + 2)
        session.range("Optimizer.step#SGD.step", 10 * step + 8, 10 * step + 9)
    trace = read(session.write(tmp_path / "export"))
    steps = trace.of_kind(Kind.STEP)
    assert (steps.exit_ns - steps.enter_ns).tolist() == [10 * MS] * 4
    assert any("what lies between two ends of SGD.step" in limit for limit in trace.limits)


def test_without_either_the_limits_say_that_there_are_no_steps(tmp_path):
    session = Session()
    session.kernel("gemm", 1, 1, 2)
    limits = read(session.write(tmp_path / "export")).limits
    assert any("no NVTX range names a step" in limit for limit in limits)


def test_a_group_of_calls_is_one_collective_with_all_their_bytes(tmp_path):
    session = Session()
    for start in (1.0, 1.1):
        session.range("ncclAllReduce", start, start + 0.05, {"Message size [bytes]": 100})
    session.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork)", 1.2, 1.3, 1.4)
    rows = read(session.write(tmp_path / "export")).of_kind(Kind.COLLECTIVE)
    assert (rows.bytes_in.tolist(), len(rows)) == ([200], 1)
    assert rows.flags[0] & int(Flag.COALESCED)


def test_a_single_send_is_a_message_to_its_peer(tmp_path):
    session = Session(rank=0)
    session.init()
    session.range("ncclSend", 1.0, 1.1, {"Peer rank": 1, "Message size [bytes]": 8})
    session.kernel("ncclDevKernel_SendRecv(args)", 1.05, 1.2, 1.3)
    trace = read(session.write(tmp_path / "rank_0.sqlite"))
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    assert (rows.op.tolist(), rows.bytes_in.tolist()) == ([int(Op.SEND)], [8])


def test_messages_without_payloads_are_matched_by_when_they_end(tmp_path):
    """Ranges name the calls of each kernel, but neither peers nor communicator."""
    paths = []
    for rank, name in enumerate(("ncclSend", "ncclRecv")):
        session = Session(rank=rank)
        for step in range(8):
            session.range(name, 10 * step + 1.0, 10 * step + 1.1)
            end = 10 * step + 3 + step % 3
            session.kernel("ncclDevKernel_SendRecv(args)", 10 * step + 1.05, 10 * step + 2, end)
        paths.append(session.write(tmp_path / f"rank_{rank}.sqlite"))
    trace = read(*paths)
    calls = trace.of_kind(Kind.COLLECTIVE)
    assert len(calls) == 16
    assert {trace.groups[group].ranks for group in calls.group} == {(0, 1)}


@pytest.mark.parametrize(("peers", "communicator"), [((1, 2), 0), ((1,), 7)])
def test_messages_that_one_kernel_carries_are_each_ones_own(tmp_path, peers, communicator):
    """Nobody was seen to set the communicator up: its members are who calls it."""
    paths = []
    for rank in range(3):
        session = Session(rank=rank)
        said = {"NCCL communicator ID": communicator, "Message size [bytes]": 8}
        calls = [(name, (rank + sign * by) % 3) for by in peers
                 for name, sign in (("ncclSend", 1), ("ncclRecv", -1))]  # fmt: skip
        for turn, (name, peer) in enumerate(calls):
            start = 1 + turn / 100
            session.range(name, start, start + 0.005, {**said, "Peer rank": peer})
        session.kernel("ncclDevKernel_SendRecv(args)", 1.05, 1.2, 1.3)
        paths.append(session.write(tmp_path / f"rank_{rank}.sqlite"))
    trace = read(*paths)
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    mine = rows.select(rows["rank"] == 0)
    assert mine.op.tolist() == [int(Op.SEND), int(Op.RECV)] * len(peers)
    assert not (mine.flags & int(Flag.COALESCED)).any()
    assert mine.peer_or_root.tolist() == [1, 2, 2, 1][: 2 * len(peers)]
    assert {trace.groups[group].ranks for group in rows.group.tolist()} == {(0, 1, 2)}
    assert len(match_messages(rows).send) == 3 * len(peers)
    assert not trace.of_kind(Kind.COLLECTIVE).op.tolist()


def test_peers_are_those_of_nccl_where_names_hold_process_numbers(tmp_path):
    """Two pairs; in the first, the file with the smaller number is NCCL's second rank."""
    paths = []
    for number, (pair, place) in enumerate(((1, 1), (1, 0), (2, 0), (2, 1))):
        session = Session(pid=90 + number)
        known = {"NCCL communicator ID": pair, "No. of ranks": 2, "Rank": place}
        session.range("ncclCommInitRankConfig", 0.1, 0.2, known)
        name = "ncclSend" if place else "ncclRecv"
        session.range(name, 1.0, 1.01, {"NCCL communicator ID": pair, "Peer rank": 1 - place})
        session.kernel("ncclDevKernel_SendRecv(args)", 1.05, 1.2, 1.3)
        paths.append(session.write(tmp_path / f"report_{4790 + number}.sqlite"))
    rows = read(*paths).of_kind(Kind.POINT_TO_POINT)
    assert dict(zip(rows["rank"].tolist(), rows.peer_or_root.tolist(), strict=True)) == {
        0: 1, 1: 0, 2: 3, 3: 2
    }  # fmt: skip


def test_a_kernel_for_any_operation_carries_what_was_announced(tmp_path):
    session = Session(rank=0)
    session.range("ncclAllReduce", 1.0, 1.01, {"Message size [bytes]": 8})
    session.kernel("ncclDevKernel_Generic(args)", 1.05, 1.2, 1.3)
    rows = read(session.write(tmp_path / "rank_0.sqlite")).of_kind(Kind.COLLECTIVE)
    assert (rows.op.tolist(), rows.bytes_in.tolist()) == ([int(Op.ALL_REDUCE)], [8])


def test_several_processes_of_a_file_are_ranks_by_themselves(tmp_path):
    both = training(0)
    other = training(1)
    both.kernels += [
        (*row[:5], row[5] + 1000, *row[6:]) for row in other.kernels
    ]  # the strings were entered in the same order
    both.launches += [(*row[:4], row[4] + 1000, row[5]) for row in other.launches]
    both.ranges += other.ranges
    assert list(read(both.write(tmp_path / "node.sqlite")).ranks) == [0, 1]


def test_sessions_of_a_process_one_after_the_other_are_joined(tmp_path):
    files, whole = [], []
    for rank in (0, 1):
        session = training(rank, steps=8, slow_ms=2.0 * rank)
        whole.append(session.write(tmp_path / f"rank{rank}.sqlite"))
        middle = 69 * MS  # between steps 3 and 4
        for number in (0, 1):
            began = session.began_ns + number * middle
            part = replace(session, began_ns=began, strings=dict(session.strings))
            for name in ("kernels", "launches", "ranges"):
                rows = [row for row in getattr(session, name) if (row[0] >= middle) == number]
                shift = middle * number
                setattr(part, name, [(a - shift, b - shift, *rest) for a, b, *rest in rows])
            files.append(part.write(tmp_path / f"report{rank}.{number}.sqlite"))
    joint, expected = read(*files), read(*whole)
    assert joint.limits == expected.limits
    for name in (
        "rank",
        "kind",
        "op",
        "step",
        "enter_ns",
        "exit_ns",
        "device_exit_ns",
        "group_seq",
    ):
        assert np.array_equal(joint.events[name], expected.events[name]), name


def test_an_export_may_be_compressed(tmp_path, pair):
    packed = tmp_path / "packed.sqlite.gz"
    packed.write_bytes(gzip.compress(pair[0].read_bytes()))
    trace = nsys.read([nsys.SourceFile(packed, pair[0].read_bytes()[:100])])
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 20


def test_an_export_without_kernels_is_a_sentence(tmp_path):
    with pytest.raises(TraceError, match="holds no kernel"):
        read(Session().write(tmp_path / "export"))


def test_a_database_of_something_else_is_a_sentence(tmp_path):
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE people (name TEXT)")
        database.commit()
    with pytest.raises(TraceError, match="has no table CUPTI_ACTIVITY_KIND_KERNEL"):
        read(path)


def test_a_database_of_nvprof_is_a_sentence(tmp_path):
    """Its kernels have a `name` in StringTable, by CUPTI's version 9 of the schema."""
    path = tmp_path / "nvprof.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, name INT)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 1)")
        database.commit()
    with pytest.raises(TraceError, match="of nvprof, perhaps"):
        read(path)


def test_a_missing_table_leaves_the_others(tmp_path, pair):
    with closing(sqlite3.connect(pair[0])) as database:
        database.execute("DROP TABLE NVTX_EVENTS")
        database.commit()
    trace = read(pair[0])
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 20
    assert any("no NVTX ranges" in limit for limit in trace.limits)


def test_a_kernel_of_seventy_years_is_left_out(tmp_path):
    session = training(0)
    session.kernel("gemm", 1, 2, 70 * 365 * 86_400_000)
    trace = read(session.write(tmp_path / "export"))
    assert any("1 kernels have no times that make sense" in limit for limit in trace.limits)
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 20


def test_a_view_in_place_of_a_table_is_not_computed(tmp_path, pair):
    with closing(sqlite3.connect(pair[0])) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        database.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
        database.commit()
    with pytest.raises(TraceError, match="has no table"):
        read(pair[0])


def test_the_file_is_never_written_to(pair):
    before = pair[0].read_bytes()
    read(pair[0])
    assert pair[0].read_bytes() == before


VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=6)
CELLS = st.tuples(
    st.sampled_from(
        [("CUPTI_ACTIVITY_KIND_KERNEL", name) for name in ("start", "end", "deviceId", "shortName")]
        + [("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "start")]
        + [("NVTX_EVENTS", name) for name in ("start", "end", "text", "globalTid", "jsonText")]
        + [("StringIds", "value"), ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
    ),
    VALUES,
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """The bytes of two ranks' files."""
    folder = tmp_path_factory.mktemp("exports")
    return [training(rank, steps=4).write(folder / f"rank_{rank}").read_bytes() for rank in (0, 1)]


@given(st.lists(CELLS, min_size=1, max_size=4), st.integers(1, 5))
def test_cells_of_any_content_give_a_trace_or_a_sentence(tmp_path_factory, exports, cells, every):
    folder = tmp_path_factory.mktemp("cells")
    paths = [folder / f"rank_{rank}" for rank in (0, 1)]
    for path, data in zip(paths, exports, strict=True):
        path.write_bytes(data)
    with closing(sqlite3.connect(paths[0])) as database:
        for (table, column), value in cells:
            with suppress(sqlite3.IntegrityError):
                where = f"rowid % {every} = 0"
                database.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', (value,))
        database.commit()
    with suppress(EvenstepError):
        diagnose(read(*paths)).to_json()


@given(st.integers(0, 40_000), st.binary(min_size=1, max_size=40), st.booleans())
def test_a_damaged_file_gives_a_trace_or_a_sentence(tmp_path_factory, exports, place, noise, cut):
    path, data = tmp_path_factory.mktemp("damage") / "export", exports[0]
    place %= len(data)
    tail = b"" if cut else data[place + len(noise) :]
    path.write_bytes(data[:place] + noise + tail)
    with suppress(EvenstepError):
        diagnose(read(path)).to_json()


# -- what is easily got wrong in an export ---------------------------------------------------------


def test_processes_of_a_file_that_count_their_launches_alike_keep_their_own(tmp_path):
    both, other = training(0), training(1)  # each counts its correlations from 1
    for table in ("kernels", "launches", "ranges"):
        getattr(both, table).extend(getattr(other, table))
    trace = read(both.write(tmp_path / "node.sqlite"))
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert set(rows.bytes_in.tolist()) == {4096}  # of NCCL's ranges on the launching threads
    assert trace.groups[int(rows.group[0])].ranks == (0, 1)


def test_a_kernel_without_a_time_is_left_out(tmp_path):
    session = training(0)
    session.kernel("gemm", 0, 0, 50)  # CUPTI leaves 0 where it could take no time
    trace = read(session.write(tmp_path / "export"))
    assert any("1 kernels have no times that make sense" in limit for limit in trace.limits)


def test_a_kernel_that_computes_and_speaks_of_nccl_is_no_collective(tmp_path):
    session = Session()
    session.range("iteration 1", 0, 10)
    session.range("iteration 2", 10, 20)
    session.kernel("gemm_allreduce_fused_with_ncclDevComm(args)", 11, 11, 12)
    trace = read(session.write(tmp_path / "export"))
    assert not len(trace.of_kind(Kind.COLLECTIVE))
    assert len(trace.of_kind(Kind.SPAN)) == 1


def test_the_same_kernel_on_two_streams_computes_once(tmp_path):
    session = Session()
    session.range("iteration 1", 0, 10)
    session.range("iteration 2", 10, 20)
    session.kernel("gemm", 11, 11, 14)
    session.kernel("gemm", 11, 12, 15)
    spans = read(session.write(tmp_path / "export")).of_kind(Kind.SPAN)
    assert (spans.exit_ns - spans.enter_ns).tolist() == [4 * MS]


def test_calls_of_nccl_without_a_communicator_are_of_all_ranks(tmp_path):
    paths = []
    for rank in (0, 1):
        session = Session(rank=rank)
        for call in range(30):
            begin = 5 + 8 * call
            session.kernel("gemm", begin, begin, begin + 5 + 2 * rank)
            ready = begin + 5 + 2 * rank
            session.kernel("ncclDevKernel_SendRecv(args)", begin + 0.1, ready, begin + 8)
        paths.append(session.write(tmp_path / f"rank_{rank}.sqlite"))
    trace = read(*paths)
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert trace.groups[int(rows.group[0])].ranks == (0, 1)
    finding = diagnose(trace).findings[0]
    assert finding.where.ranks == [1]  # 2 of 8 ms, in each repetition
    assert "2 ms more in kernels" in finding.cause


def silent(rank: int, host: str, ahead_ms: float = 0.0) -> Session:
    """Steps of 20 ms without any range: all-reduces of ranks 0 and 1, and of 2 and 3, which leave
    at 5 and 10 ms, and 3 ms later or a little more; then one of all at 18. Rank 2 is early."""
    session = Session(rank=rank, host=host, pid=70 + rank)
    for step in range(12):
        begin = 10.0 + 20 * step + ahead_ms + 0.1 * (step * step % 7)  # no two alike
        for part in (0, 1):
            end = begin + 5 + 5 * part + (3 + 0.2 * (step % 3)) * (rank > 1)
            ready = end - 1 if rank != 2 else end - 4
            session.kernel("gemm", begin + 0.1 * part, ready - 2, ready)
            session.kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)", begin + 0.1 * part + 0.01,
                ready, end + 0.002 * rank, stream=20,
            )  # fmt: skip
        session.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)", begin + 0.3, end, begin + 18, stream=24
        )
    return session


def test_ranks_that_leave_together_are_a_group_where_no_range_tells(tmp_path):
    sessions = [silent(0, "a"), silent(1, "b", 3.0), silent(2, "a"), silent(3, "b", 3.0)]
    sessions[2].kernels.pop(6)  # a profiler drops events: the others keep their partners
    paths = [each.write(tmp_path / f"rank_{each.rank}.sqlite") for each in sessions]
    trace = read(*paths)
    assert sorted(group.ranks for group in trace.groups) == [(0, 1), (0, 1, 2, 3), (2, 3)]
    rows = trace.of_kind(Kind.COLLECTIVE)
    count = np.unique(
        np.stack([rows.group, rows.group_seq.astype(int)]), axis=1, return_counts=True
    )[1]
    assert (len(count), sorted(set(count.tolist()))) == (12 * 5, [1, 2, 4])
    assert any("ranks that left it together" in limit for limit in trace.limits)


def test_stages_that_leave_together_are_matched_in_pairs(tmp_path):
    sessions = [Session(rank=rank, pid=70 + rank) for rank in range(3)]
    for call in range(40):
        end = 10 + 7 * call + 0.3 * (call * call % 5)
        for rank in (0, 1) if call % 2 else (1, 2):
            sessions[rank].kernel("ncclDevKernel_SendRecv(a)", end - 5, end - 1 - rank, end)
    trace = read(*(each.write(tmp_path / f"rank_{each.rank}") for each in sessions))
    assert sorted(group.ranks for group in trace.groups) == [(0, 1), (1, 2)]
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert np.bincount(rows.group).tolist() == [40, 40]


def test_collectives_that_nobody_leaves_together_are_not_matched(tmp_path):
    sessions = [Session(rank=rank, pid=70 + rank) for rank in range(3)]
    for rank, session in enumerate(sessions):
        for call in range(30):
            begin = 10 + call * (7 + rank) + (call * call * (rank + 2)) % 11 / 5
            session.kernel("ncclDevKernel_SendRecv(a)", begin - 1, begin, begin + 1)
    trace = read(*(each.write(tmp_path / f"rank_{each.rank}") for each in sessions))
    assert not trace.groups
    assert any("90 of 90 were left by no ranks together" in limit for limit in trace.limits)


def test_a_session_without_any_mark_is_one_step(tmp_path):
    session = Session()
    session.kernel("gemm", 5, 10, 20)
    trace = read(session.write(tmp_path / "export"))
    (step,) = trace.of_kind(Kind.STEP).step.tolist()
    spans = trace.of_kind(Kind.SPAN)
    assert (spans.step.tolist(), (spans.exit_ns - spans.enter_ns).tolist()) == ([step], [10 * MS])
    assert any("taken as one step" in limit for limit in trace.limits)


PUBLIC = Path(__file__).parents[2] / ".." / "shared" / "data" / "nsys" / "mfu_2gpu_before.sqlite"


@pytest.mark.skipif(not PUBLIC.is_file(), reason="../shared/data/nsys is not here")
def test_a_public_export_waits_as_an_independent_count_says():
    query = """SELECT k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN StringIds s ON s.id = k.shortName
        WHERE s.value LIKE 'nccl%' AND deviceId = ? ORDER BY k.start"""
    with closing(sqlite3.connect(f"file:{PUBLIC}?mode=ro", uri=True)) as database:
        pairs = list(zip(*(database.execute(query, (d,)).fetchall() for d in (0, 1)), strict=True))
    waits = [sum(max(b[0] - a[0], 0) for a, b in pairs), sum(max(a[0] - b[0], 0) for a, b in pairs)]
    assert (len(pairs), sum(b[0] > a[0] for a, b in pairs)) == (33, 22)  # as the data's README says
    trace = read(PUBLIC)
    rows = trace.of_kind(Kind.COLLECTIVE).sorted_by("group_seq", "rank")
    starts = rows.device_enter_ns.reshape(-1, 2)
    late = np.diff(starts, axis=1)[:, 0]
    assert [late[late > 0].sum(), -late[late < 0].sum()] == waits
    assert {int(Op.ALL_TO_ALL)} == set(rows.op[2:].tolist())  # each of two sends and two receives
    diagnosis = diagnose(trace)
    named = [finding.where.ranks for finding in diagnosis.findings if finding.where.ranks]
    assert named[0][0] == 1  # 10.9 of 13.4 ms are waited for it
    assert diagnosis.summary["steps"] > 1


def test_strings_of_a_database_are_held_as_far_as_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_database, "_MOST_TEXT", 5)
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as made:
        names = nsys_database.Names(made, {}, "StringIds")
    assert [names.number(text) for text in ("abc", "defg", "more")] == [1, 2, 0]
    assert names.listed == ["", "abc", "de"]


def test_a_rank_is_known_though_nccl_announced_something_else_first(tmp_path):
    made = [training(rank) for rank in (0, 1)]
    for session in made:
        session.range("ncclGroupStart", 0.01, 0.02, {"NCCL communicator ID": 5})
        session.ranges.insert(0, session.ranges.pop())
    paths = [made[rank].write(tmp_path / f"report_{name}") for rank, name in ((1, "a"), (0, "b"))]
    trace = read(*paths)
    assert [trace.ranks[rank].identity["source"][-1] for rank in (0, 1)] == ["b", "a"]


def test_a_communicator_of_some_ranks_is_a_group_of_those(tmp_path):
    paths = []
    for rank in range(3):
        session = training(rank, world=4)
        if rank:
            said = {"NCCL communicator ID": 0xAB, "No. of ranks": 2, "Rank": rank - 1}
            session.range("ncclCommSplit", 1.0, 1.1, said)
            payload = {"NCCL communicator ID": 0xAB, "Message size [bytes]": 64}
            session.range("ncclAllGather", 12.0, 12.1, payload)
            session.kernel("ncclDevKernel_AllGather_RING_LL(args)", 12.05, 13, 14, stream=21)
        paths.append(session.write(tmp_path / f"report_{rank}.sqlite"))
    trace = read(*paths)
    assert {group.name: group.ranks for group in trace.groups} == {
        "world": (0, 1, 2, 3), "communicator ab": (1, 2),
    }  # fmt: skip
    rows = trace.of_kind(Kind.COLLECTIVE)
    small = rows.select(rows.op == int(Op.ALL_GATHER))
    assert (small["rank"].tolist(), small.bytes_in.tolist()) == ([1, 2], [64, 64])
    assert any(limit.startswith("rank 3 of 4 left no file here") for limit in trace.limits)


def test_times_are_possible_within_a_session_of_a_month():
    longest, first = tables.LONGEST_NS, 7
    rows = [
        (first, first, True), (first - 1, first + 5, False), (50, 49, False), (60, 61, True),
        (60, 60 + longest - 1, True), (60, 60 + longest, False),
        (60 + longest - 1, 60 + longest, True), (60 + longest, 60 + longest, False),
        (LATEST_NS - 1, LATEST_NS, False),
    ]  # fmt: skip
    start, end, possible = zip(*rows, strict=True)
    found = tables._possible(np.array(start), np.array(end), first)  # the middle one begins at 60
    assert found.tolist() == list(possible)
    assert tables._possible(np.array([3]), np.array([9]), first).tolist() == [False]


def test_times_are_possible_around_the_middle_of_all():
    late = 5 * tables.LONGEST_NS
    start = np.array([1, late, late + 1, late + 2, 2 * late])
    assert tables._possible(start, start + 1, 1).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"Rank": 3, "No. of Ranks": 8}, {"rank": 3, "no. of ranks": 8}),
        ({"NCCL": {"Rank": 3, "more": [{"Size": 7}]}}, {"rank": 3, "size": 7}),
        ([{"Rank": 1}, {"Size": 2}], {"rank": 1, "size": 2}),
        ({"a": {"b": {"c": {"d": 1}}}}, {"d": 1}),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, {}),  # nested too deep
        ([1, 2], {}), (3, {}), (None, {}),
    ],
)  # fmt: skip
def test_a_payload_is_the_values_in_it_however_they_are_nested(payload, said):
    assert dict(tables._entries(payload)) == said


@pytest.mark.parametrize(
    ("sessions", "joined"),
    [
        # (file, host, process, begun, first and last kernel)
        ([("a", "h", 1, 100, 5, 9), ("b", "h", 1, 200, 5, 9)], ["a"]),
        ([("b", "h", 1, 200, 5, 9), ("a", "h", 1, 100, 5, 9)], ["a"]),
        ([("a", "h", 1, 100, 5, 105), ("b", "h", 1, 200, 5, 9)], ["a"]),  # one ends as it begins
        ([("a", "h", 1, 100, 5, 106), ("b", "h", 1, 200, 5, 9)], ["a", "b"]),  # at one time
        ([("a", "h", 1, 100, 5, 9), ("b", "h", 2, 200, 5, 9)], ["a", "b"]),
        ([("a", "h", 1, 100, 5, 9), ("b", "i", 1, 200, 5, 9)], ["a", "b"]),
        ([("a", "h", 1, 0, 5, 9), ("b", "h", 1, 0, 205, 209)], ["a", "b"]),  # on no known clock
    ],
)
def test_sessions_of_the_same_processes_one_after_the_other_are_one(sessions, joined):
    def export(file, host, process, began, first, last):
        one, none = np.ones(1, np.int64), np.zeros(0, np.int64)
        kernels = Columns(
            start=first * one, end=last * one, device=0 * one, stream=0 * one, correlation=4 * one,
            process=process * one, name=0 * one,
        )  # fmt: skip
        ranges = Columns(start=none, end=none, thread=none, name=none, payload=none)
        empty = Columns(dict.fromkeys(kernels, none))
        return tables.Export(
            Path(file), kernels, empty, empty.select(slice(0)), ranges, [file], [], host, began,
            [f"limit of {file}", "both"],
        )  # fmt: skip

    found = tables.join_sessions([export(*each) for each in sessions])
    assert sorted(str(each.path) for each in found) == joined
    if len(joined) == 1:
        (one,) = found
        ordered = sorted(sessions, key=lambda each: each[3] + each[4])
        began = ordered[0][3]
        assert one.began_ns == began
        assert one.names == [each[0] for each in ordered]
        assert one.kernels.start.tolist() == [each[3] - began + each[4] for each in ordered]
        assert one.kernels.end.tolist() == [each[3] - began + each[5] for each in ordered]
        assert one.kernels.name.tolist() == [0, 1]
        assert one.kernels.correlation.tolist() == [4, 9]
        assert one.limits == [
            f"limit of {ordered[0][0]}", "both", f"limit of {ordered[1][0]}"
        ]  # fmt: skip


def test_a_peer_of_a_communicator_that_nobody_set_up_is_not_known():
    group = GroupKey("nccl", (4, 6))
    said = nsys.LaunchRanges(Op.SEND, 8, communicator=7, peer=1)
    for groups, places, peer in (
        ({}, {}, -1), ({7: group}, {}, 6), ({7: group}, {(7, 1): 9}, 9), ({}, {(7, 1): 9}, 9),
    ):  # fmt: skip
        told = nsys._arguments(said, groups, places)
        assert (told.source, told.destination) == (peer, peer)
