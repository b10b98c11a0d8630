"""XPlane profiles of several devices, made of their own messages."""

import pytest

pytest.importorskip("google.protobuf")

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.xplane import xplane
from evenstep.trace.spool.layout import DType, Kind, Op

STEPS, DEVICES = 8, 4
US = 1_000
BEGAN_NS = 10**18
MOVES = (Kind.COLLECTIVE, Kind.POINT_TO_POINT)
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
    spans, moved = len(trace.of_kind(Kind.SPAN)), len(trace.of_kind(*MOVES))
    assert (spans, moved) == (3, 6)  # of the first device: two steps and a product


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


def read_groups(groups, devices, dims=(), order=()):
    made = xplane._PROGRAM.kind().hlo_module.computations.add().instructions.add()
    iota = made.devices.iota
    iota.groups, iota.devices = groups, devices
    iota.dims.extend(dims)
    iota.order.extend(order)
    return xplane._groups(made)


@pytest.mark.parametrize(
    ("groups", "devices", "dims", "order", "found"),
    [
        (2, 2, (), (), ((0, 1), (2, 3))),
        (2, 2, (2, 2), (1, 0), ((0, 2), (1, 3))),
        (2, 4, (2, 2, 2), (2, 0, 1), ((0, 2, 4, 6), (1, 3, 5, 7))),
        (1, 3, (3,), (), ((0, 1, 2),)),
        (2, 2, (2, 3), (), ()),
        (2, 2, (2, 2), (0, 0), ()),
        (2, 2, (1,) * 16 + (4,), (), ()),
        (-2, -2, (), (), ()),
    ],
)
def test_groups_are_written_as_a_table_of_devices_that_is_turned(
    groups, devices, dims, order, found
):
    """As HLO writes [groups,devices]<=[dims]T(order): a transposed array of all numbers."""
    assert read_groups(groups, devices, dims, order) == found


@pytest.mark.parametrize("host_keeps", [True, False])
def test_steps_are_the_hosts_where_no_instruction_crosses_their_ends(profile, host_keeps):
    """Each of 1,000 us; where the host does not keep to them, each ends in the middle."""
    space = xplane._SPACE.kind()
    space.ParseFromString(profile.path.read_bytes())
    plane = space.planes.add(name="/host:CPU")
    plane.stat_metadata.add(key=1).value.name = "step_num"
    line = plane.lines.add(timestamp_ns=BEGAN_NS)
    for step in range(STEPS):
        event = line.events.add(offset_ps=step * 1000 * US * 1000)
        event.duration_ps = (1000 if host_keeps else 650) * US * 1000
        event.stats.add(metadata_id=1, int64_value=step + 5)
    profile.path.write_bytes(space.SerializeToString())
    trace = xplane.read([profile])
    steps = trace.of_kind(Kind.STEP)
    if not host_keeps:
        assert any(limit.startswith("steps were inferred") for limit in trace.limits)
        return
    assert len(steps) == STEPS * DEVICES
    assert set((steps.exit_ns - steps.enter_ns).tolist()) == {1000 * US}
    calls = rows_of(trace, 2, Op.ALL_REDUCE)
    assert calls.step.tolist() == list(range(5, 5 + STEPS))
    first = steps.enter_ns[steps.step == 5].min()
    assert (calls.enter_ns - first).tolist() == [(1000 * n + 500) * US for n in range(STEPS)]


def on_a_cpu(path, host, runs, *, stamped):
    """A profile as JAX writes it of CPUs: threads of the host run instructions of the devices that
    they name, each for 10 us, at (device, launch, instruction, us since the beginning)."""
    space = xplane._SPACE.kind()
    if host:
        space.hostnames.append(host)
    about = space.planes.add(name="/host:metadata")
    about.stat_metadata.add(key=1).value.name = "Hlo Proto"
    about.event_metadata.add(key=1).value.stats.add(metadata_id=1, bytes_value=program())
    plane = space.planes.add(name="Task Environment")
    plane.stat_metadata.add(key=4).value.name = "profile_start_time"
    plane.stats.add(metadata_id=4, uint64_value=BEGAN_NS)
    plane = space.planes.add(name="/host:CPU")
    names = {3: "hlo_op", 5: "device_ordinal", 7: "run_id", 9: "all"}
    for key, name in names.items():
        plane.stat_metadata.add(key=key).value.name = name
    plane.event_metadata.add(key=1).value.display_name = "pairs"
    line = plane.lines.add(timestamp_ns=BEGAN_NS if stamped else 0)
    for device, run, name, at_us in runs:
        event = line.events.add(metadata_id=1, offset_ps=at_us * US * 1000)
        event.duration_ps = 10 * US * 1000
        if name == "all":
            event.stats.add(metadata_id=3, ref_value=9)
        elif name != "pairs":  # which its event names
            event.stats.add(metadata_id=3, str_value=name)
        event.stats.add(metadata_id=5, uint64_value=device)
        event.stats.add(metadata_id=7, uint64_value=run)
    path.parent.mkdir()
    path.write_bytes(space.SerializeToString())
    return SourceFile(path, path.read_bytes()[:100])


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("host", ["node7", ""])
def test_devices_of_several_files_are_ranks_whose_shared_launches_count(tmp_path, stamped, host):
    """The second process has the launch before and lacks the last; devices 1 come before 0."""
    runs = {0: [7, 8, 9], 1: [6, 7, 8]}
    sources = [
        on_a_cpu(
            tmp_path / f"rank{process}" / "vm.xplane.pb", host and f"{host}{process}",
            [
                (device, run, name, 1000 * run + 20 * at + device)
                for device in (1, 0)
                for run in runs[process]
                for at, name in enumerate(RUNS)
            ],
            stamped=stamped,
        )
        for process in (1, 0)
    ]  # fmt: skip
    trace = xplane.read(sources)
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    assert [trace.ranks[rank].identity["hostname"] for rank in range(4)] == (
        ["node70", "node70", "node71", "node71"] if host else ["vm"] * 4
    )
    assert trace.ranks[2].identity["source"] == str(tmp_path / "rank1" / "vm.xplane.pb")
    first = rows_of(trace, 0, Op.ALL_REDUCE).enter_ns[0]
    for rank in range(4):
        for op, at in ((Op.ALL_REDUCE, 1), (Op.ALL_GATHER, 2)):
            rows = rows_of(trace, rank, op)
            begun_us = [1000 * (run - 7) + 20 * (at - 1) + rank % 2 for run in (7, 8)]
            assert (rows.enter_ns - first).tolist() == [US * each for each in begun_us]
            assert rows.group_seq.tolist() == [0, 1]
        computed = trace.of_kind(Kind.SPAN)
        mine = computed.enter_ns[computed["rank"] == rank] - first
        runs_of = runs[rank // 2]
        assert mine.tolist() == [US * (1000 * (run - 7) - 20 + rank % 2) for run in runs_of]
    counted = 3 * 4  # of each device one launch, of three that move something
    assert [limit for limit in trace.limits if "left out" in limit] == [
        f"{counted} collectives are of programs that not all ranks' profiles show: left out"
    ]
    assert not any("no launch of a program in common" in limit for limit in trace.limits)


def test_files_without_a_common_launch_are_counted_from_the_beginning_of_each(tmp_path):
    sources = [
        on_a_cpu(
            tmp_path / f"rank{process}" / "vm.xplane.pb", "",
            [(0, run, "all", 1000 * run) for run in (10 * process + 1, 10 * process + 2)],
            stamped=True,
        )
        for process in (0, 1)
    ]  # fmt: skip
    trace = xplane.read(sources)
    assert any("no launch of a program in common" in limit for limit in trace.limits)
    for rank in (0, 1):
        assert rows_of(trace, rank, Op.ALL_GATHER).group_seq.tolist() == [0, 1]


def test_events_whose_times_are_damaged_are_left_out(profile):
    space = xplane._SPACE.kind()
    space.ParseFromString(profile.path.read_bytes())
    line = space.planes[1].lines.add(timestamp_ns=BEGAN_NS)
    line.events.add(metadata_id=1, offset_ps=10**9, duration_ps=-(10**6))
    space.planes[1].lines.add(timestamp_ns=-BEGAN_NS).events.add(metadata_id=1)
    space.planes[1].lines.add(timestamp_ns=1 << 62).events.add(metadata_id=1)
    line.events.add(metadata_id=1, offset_ps=10**9)  # of no length, which is no damage
    profile.path.write_bytes(space.SerializeToString())
    rows = rows_of(xplane.read([profile]), 0, Op.ALL_REDUCE)
    assert len(rows) == STEPS + 1
    assert (rows.exit_ns - rows.enter_ns).min() == 1


def test_a_profile_in_which_no_device_works_is_refused_with_its_name(tmp_path):
    source = on_a_cpu(tmp_path / "rank0" / "vm.xplane.pb", "", [], stamped=True)
    with pytest.raises(TraceError, match=r"vm.xplane.pb shows no device at work.*jax.profiler"):
        xplane.read([source])


@pytest.mark.parametrize(
    ("kind", "dimensions", "size", "dtype"),
    [
        (1, (5,), 5, DType.BOOL), (3, (2, 3), 12, DType.INT16), (15, (4,), 32, DType.COMPLEX),
        (18, (4,), 64, DType.COMPLEX), (16, (), 2, DType.BFLOAT16), (99, (7,), 0, DType.OTHER),
        (11, (1 << 62, 8), 1 << 62, DType.FLOAT32), (11, (-3, 8), 0, DType.FLOAT32),
        (11, (2,) * 17, 4 << 16, DType.FLOAT32),
    ],
)  # fmt: skip
def test_a_shape_is_so_many_bytes(kind, dimensions, size, dtype):
    shape = xplane._PROGRAM.kind().hlo_module.computations.add().instructions.add().shape
    shape.element_type = kind
    shape.dimensions.extend(dimensions)
    assert xplane._size(shape) == (size, dtype)
