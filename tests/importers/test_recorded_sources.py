"""Files that other tools wrote, read here and counted by those tools' own readers.

recorded/: two JAX processes on gloo (0.10.2, rank 1 sleeps 20 ms before each of 6 steps), three MPI
processes under EZTrace 2.0 (rank 1 sleeps 8 ms before each of 12 all-reduces), a metric of 120 ms
that tensorboardX wrote in 12 steps.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.errors import TraceError
from evenstep.importers.opening import load, open_trace
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.trace import match_messages

RECORDED = Path(__file__).parent / "recorded"
JAX = [RECORDED / f"jax-rank{rank}.xplane.pb.gz" for rank in range(2)]


def milliseconds(rows):
    return (rows.exit_ns - rows.enter_ns) / 1e6


# -- XPlane ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jax():
    pytest.importorskip("google.protobuf")
    return open_trace(JAX)


def test_a_collective_is_told_by_the_program_whatever_it_is_called(jax):
    rows = jax.of_kind(Kind.COLLECTIVE)
    assert set(rows.op.tolist()) == {Op.ALL_REDUCE}  # "psum_invariant.7"
    assert set(rows.bytes_in.tolist()) == {64 * 4}
    assert jax.groups[0].ranks == (0, 1)
    assert [int((rows["rank"] == rank).sum()) for rank in (0, 1)] == [6, 6]


def test_events_are_those_that_jax_itself_reads(jax):
    profiler = pytest.importorskip("jax.profiler")
    if not hasattr(profiler, "ProfileData"):
        pytest.skip("this JAX has no ProfileData")
    rows = jax.of_kind(Kind.COLLECTIVE)
    for rank, path in enumerate(JAX):
        own = profiler.ProfileData.from_serialized_xspace(gzip.decompress(path.read_bytes()))
        told = [
            event.duration_ns / 1e6
            for plane in own.planes for line in plane.lines for event in line.events
            if event.name.startswith("psum")
        ]  # fmt: skip
        mine = milliseconds(rows.select(rows["rank"] == rank))
        assert sorted(mine) == pytest.approx(sorted(told), abs=1e-5)


def test_ranks_of_one_host_leave_a_collective_together(jax):
    rows = jax.of_kind(Kind.COLLECTIVE).sorted_by("rank", "group_seq")
    ends = rows.exit_ns.reshape(2, -1)
    assert np.median(np.abs(np.diff(ends, axis=0))) < 1e6  # of steps of 20 ms


def test_the_rank_that_sleeps_is_named(jax):
    found = diagnose(jax).to_json()["findings"][0]
    assert (found["mode"], found["where"]["ranks"]) == ("straggler", [1])


def test_steps_are_those_the_host_marks(jax):
    steps = jax.of_kind(Kind.STEP)
    assert steps.step.tolist() == [*range(6)] * 2
    assert not (steps.flags & Flag.INFERRED).any()


def test_the_copy_for_viewers_beside_a_profile_is_left_alone(tmp_path):
    folder = tmp_path / "plugins" / "profile" / "2026_01_01"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(gzip.decompress(JAX[0].read_bytes()))
    copy = b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M"}]}'
    (folder / "host.trace.json.gz").write_bytes(gzip.compress(copy))
    assert sorted(load(tmp_path).ranks) == [0]


# -- OTF2 ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def otf2():
    pytest.importorskip("otf2")
    return load(RECORDED / "eztrace.tar.gz")


def test_an_archive_holds_as_many_calls_as_otf2_print_shows(otf2):
    calls = otf2.of_kind(Kind.COLLECTIVE)
    kinds, counts = np.unique(calls.op, return_counts=True)
    # otf2-print eztrace_log.otf2 | grep -c: 75 ends of collectives, 12 MPI_SEND, 12 MPI_RECV
    assert dict(zip(kinds.tolist(), counts.tolist(), strict=True)) == {
        Op.BARRIER: 3, Op.ALL_REDUCE: 36, Op.BROADCAST: 36
    }  # fmt: skip
    messages = otf2.of_kind(Kind.POINT_TO_POINT)
    assert len(messages) == 24
    assert len(match_messages(messages).send) == 12
    assert set(messages.bytes_in.tolist()) == {0, 8000}
    assert set(messages.payload.tolist()) == set(range(12))  # tags


def test_the_process_that_sleeps_is_named(otf2):
    found = diagnose(otf2).to_json()["findings"][0]
    assert (found["mode"], found["where"]["ranks"]) == ("straggler", [1])


def test_an_archive_whose_library_gives_up_is_told_in_a_sentence(tmp_path):
    pytest.importorskip("otf2")
    anchor = tmp_path / "traces.otf2"
    anchor.write_bytes(b"\x03BOTF2" + bytes(60))
    with pytest.raises(TraceError, match="cannot be read"):
        load(anchor)


# -- TensorBoard -----------------------------------------------------------------------------------


def test_a_metric_of_step_times_is_its_steps():
    pytest.importorskip("google.protobuf")
    trace = load(RECORDED / "tensorboardx.tfevents.gz")
    steps = trace.of_kind(Kind.STEP)
    assert steps.step.tolist() == [*range(12)]
    assert milliseconds(steps) == pytest.approx([120.0] * 12)


def test_event_files_cut_anywhere_are_read_as_far_as_they_are_whole(tmp_path):
    pytest.importorskip("google.protobuf")
    whole = gzip.decompress((RECORDED / "tensorboardx.tfevents.gz").read_bytes())
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(whole[:-60])
    trace = load(path)
    assert trace.of_kind(Kind.STEP).step.tolist() == [*range(11)]
    assert any("cut short" in limit for limit in trace.limits)
