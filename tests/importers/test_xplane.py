"""XPlane profiles of several devices, made of their own messages."""

import pytest

pytest.importorskip("google.protobuf")

from evenstep.importers.content import SourceFile
from evenstep.importers.xplane import xplane
from evenstep.trace.spool.layout import DType, Kind, Op

STEPS, DEVICES = 8, 4
US = 1_000
BEGAN_NS = 10**18
#: What each device does in a step of 1,000 µs: from and to.
RUNS = {"dot": (0, 500), "pairs": (500, 600), "all": (600, 700), "shift": (700, 750)}


def program():
    """A product, a reduction of pairs of devices, a gathering of all, a shift by one."""
    hlo = xplane._PROGRAM.kind()
    rows = hlo.hlo_module.computations.add().instructions
    rows.add(name="dot", opcode="dot")
    pairs = rows.add(name="pairs", opcode="all-reduce")
    pairs.shape.element_type = 11
    pairs.shape.dimensions.extend((16, 16))
    for pair in ((0, 1), (2, 3)):
        pairs.replica_groups.add().replica_ids.extend(pair)
    whole = rows.add(name="all", opcode="all-gather-start")
    for size in (1, DEVICES):
        part = whole.shape.tuple_shapes.add(element_type=10)
        part.dimensions.append(100 * size)
    shift = rows.add(name="shift", opcode="collective-permute")
    shift.shape.element_type = 6
    for device in range(DEVICES - 1):
        shift.source_target_pairs.add(source=device, target=device + 1)
    return hlo.SerializeToString()


@pytest.fixture
def profile(tmp_path):
    space = xplane._SPACE.kind()
    plane = space.planes.add(name="/host:metadata")
    plane.stat_metadata.add(key=1).value.name = "Hlo Proto"
    plane.event_metadata.add(key=1).value.stats.add(metadata_id=1, bytes_value=program())
    for device in range(DEVICES):
        plane = space.planes.add(name=f"/device:GPU:{device}")
        line = plane.lines.add(timestamp_ns=BEGAN_NS)
        for key, name in enumerate(RUNS):
            plane.event_metadata.add(key=key).value.name = f"%{name} = f32[]"
        for step in range(STEPS):
            for key, (begin, end) in enumerate(RUNS.values()):
                line.events.add(
                    metadata_id=key, offset_ps=(step * 1000 + begin) * US * 1000,
                    duration_ps=(end - begin) * US * 1000,
                )  # fmt: skip
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return SourceFile(path, path.read_bytes()[:100])


@pytest.fixture
def trace(profile):
    return xplane.read([profile])


def test_a_profile_of_too_many_events_is_said_to_be_read_in_part(profile, monkeypatch):
    monkeypatch.setattr(xplane, "MOST_EVENTS", 9)
    trace = xplane.read([profile])
    assert any("only the first 9 instructions" in limit for limit in trace.limits)


def rows_of(trace, rank, op):
    rows = trace.events.select((trace.events["rank"] == rank) & (trace.events.op == int(op)))
    return rows.select(rows.kind != int(Kind.PHASE))


@pytest.mark.parametrize(
    ("op", "members", "size", "dtype"),
    [
        (Op.ALL_REDUCE, {0: (0, 1), 3: (2, 3)}, 4 * 256, DType.FLOAT32),
        (Op.ALL_GATHER, {0: (0, 1, 2, 3), 3: (0, 1, 2, 3)}, 2 * 400, DType.FLOAT16),
    ],
)
def test_a_collective_is_of_its_replica_group(trace, op, members, size, dtype):
    for rank, ranks in members.items():
        rows = rows_of(trace, rank, op)
        assert {trace.groups[group].ranks for group in rows.group.tolist()} == {ranks}
        assert rows.group_seq.tolist() == list(range(STEPS))
        assert set(rows.bytes_in.tolist()) == {size}
        assert set(rows.dtype.tolist()) == {int(dtype)}
        assert set((rows.exit_ns - rows.enter_ns).tolist()) == {100 * US}


def test_a_permutation_is_messages_to_and_from_its_pairs(trace):
    for rank, op, peer in ((0, Op.SEND, 1), (1, Op.RECV, 0), (1, Op.SEND, 2), (3, Op.RECV, 2)):
        rows = rows_of(trace, rank, op)
        assert rows.peer_or_root.tolist() == [peer] * STEPS
        assert rows.group_seq.tolist() == list(range(STEPS))
    assert not len(rows_of(trace, 3, Op.SEND))


def test_a_device_computes_while_nothing_moves(trace):
    spans = trace.of_kind(Kind.SPAN)
    assert set((spans.exit_ns - spans.enter_ns).tolist()) == {500 * US}
    assert len(spans) == DEVICES * STEPS


def test_a_time_is_of_the_step_that_began_last_and_before_the_first_of_none():
    file = xplane.PlaneFile.__new__(xplane.PlaneFile)
    file.steps = {5: (20, 30), 3: (10, 20)}
    assert file.step_at([9, 10, 19, 20, 99]).tolist() == [0, 3, 3, 5, 5]
