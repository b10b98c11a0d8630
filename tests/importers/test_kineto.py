"""Kineto traces: what torch.profiler wrote, as records; what only some files say."""

import msgspec
import numpy as np
import pytest

from evenstep.importers import draft
from evenstep.importers.kineto.calls import CallArguments, GroupKey, address
from evenstep.importers.kineto.names import element_type
from evenstep.importers.opening import open_trace
from evenstep.importers.trace_events import Args
from evenstep.trace.clocks.clocks import align
from evenstep.trace.spool.layout import DType, Flag, Kind, Op, ReduceOp
from tests.importers.profiles import Profile, two_steps

FIRST_NS = 3_000_000 - draft.FIRST_NS  # what to add for the profile's own times


@pytest.fixture
def opened(tmp_path):
    """Write profiles and read them back as one trace."""

    def read(*profiles, name="rank-{}.json"):
        return open_trace(
            [profile.write(tmp_path / name.format(i)) for i, profile in enumerate(profiles)]
        )

    return read


def collectives(trace):
    return trace.of_kind(Kind.COLLECTIVE)


def test_a_collective_is_its_call_and_its_kernel(opened):
    row = collectives(opened(two_steps())).select(slice(0, 1))
    assert (row.op[0], row.dtype[0], row.reduce_op[0]) == (
        Op.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM,
    )  # fmt: skip
    assert (row.bytes_in[0], row.bytes_out[0], row.device[0]) == (4000, 4000, 0)
    assert row.enter_ns[0] + FIRST_NS == 3_400_000  # issued at 3,310 µs, before it could begin
    assert (row.device_enter_ns[0] + FIRST_NS, row.device_exit_ns[0] + FIRST_NS) == (
        3_400_000, 3_600_000,
    )  # fmt: skip
    assert row.flags[0] & Flag.ON_DEVICE


def test_ranks_agree_on_which_collectives_are_one(opened):
    trace = opened(two_steps(0), two_steps(1, late=50))
    numbers = collectives(trace).group_seq.reshape(2, 2)
    assert (numbers[0] == numbers[1]).all()
    assert trace.groups[0].ranks == (0, 1)
    assert trace.limits == []


def test_a_stated_number_counts_and_one_that_comes_twice_is_coalesced(opened):
    profile = Profile()
    profile.step(0, 0, 1000)
    for number, called in ((8, 10), (8, 100), (9, 200)):
        profile.collective(called, called + 20, 50, Seq=number)
    rows = collectives(opened(profile))
    assert list(rows.group_seq) == [8, 9]
    assert rows.bytes_in[0] == 8000
    assert rows.device_exit_ns[0] - rows.device_enter_ns[0] == 140_000  # 30 to 170 µs
    assert rows.flags[0] & Flag.COALESCED


def test_a_kernel_launched_before_the_profile_does_not_disturb_the_numbers(opened):
    profile = Profile()
    profile.step(0, 0, 1000)
    profile.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 0, 1, 5)
    profile.events[-2]["args"] = {}  # its launch is not in the file
    profile.collective(10, 20, 5, Seq=8)
    rows = collectives(opened(profile))
    assert list(zip(rows.group, rows.group_seq, strict=True))[-1] == (0, 8)
    assert sorted(rows.group) == [-1, 0]


def test_steps_in_which_ranks_issued_something_else_are_not_matched(opened):
    other = two_steps(1)
    other.events[-2]["args"]["In msg nelems"] = 1  # the launch's arguments say nothing of it
    next(e for e in reversed(other.events) if e["name"] == "record_param_comms")["args"][
        "In msg nelems"
    ] = 7
    trace = opened(two_steps(0), other)
    rows = collectives(trace)
    assert list(rows.group[rows.step == 3]) == [0, 0]
    assert list(rows.group[rows.step == 4]) == [-1, -1]
    assert trace.limits == [
        "2 collectives have no number in the files and are not the same on all ranks of a step: "
        "they are not matched between ranks"
    ]


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", Op.ALL_REDUCE),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Op.ALL_GATHER),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", Op.REDUCE_SCATTER),
        ("ncclDevKernel_Broadcast_RING_LL(x)", Op.BROADCAST),
        ("ncclSymkDevKernel_AllReduce_AGxLLMC_R(ncclSymkDevWorkArgs)", Op.ALL_REDUCE),
        ("ncclDevKernel_SendRecv(x)", Op.OTHER), ("ncclDevKernel_Generic_4(x)", Op.OTHER),
        ("rcclGenericKernel<1, false>(x)", Op.OTHER), ("mscclKernel_Sum_half_LL(x)", Op.OTHER),
    ],
)  # fmt: skip
def test_a_kernel_without_its_call_is_a_collective_of_its_own(opened, kernel, op):
    profile = Profile()
    profile.step(0, 0, 100)
    profile.kernel(kernel, 10, 20, 30)
    assert list(collectives(opened(profile)).op) == [op]


def test_a_launch_that_seems_to_begin_before_its_call_is_of_that_call(opened):
    profile = Profile()
    profile.step(0, 0, 1000)
    for number, called in enumerate((20, 200), start=1):
        kernel = profile.collective(called, called + 50, 5)
        call, launch = profile.events[-3:-1]
        launch["ts"] = called - 0.01  # the clocks of operators and of launches differ
        for event in (call, launch, kernel):
            event["args"]["External id"] = number
    rows = collectives(opened(profile))
    assert (rows.device_exit_ns - rows.device_enter_ns).tolist() == [5_000, 5_000]
    assert (rows.group >= 0).all()


@pytest.mark.parametrize("name", ["void gemm_kernel(x)", "nccl_free_gemm(x)", "reduce_kernel<512>"])
def test_other_kernels_are_compute(opened, name):
    profile = Profile()
    profile.step(0, 0, 100)
    profile.kernel(name, 10, 20, 30)
    trace = opened(profile)
    spans = trace.of_kind(Kind.SPAN)
    assert (len(collectives(trace)), trace.names[spans.name[0]]) == (0, "compute")
    assert spans.device_exit_ns[0] - spans.device_enter_ns[0] == 30_000


def test_a_kernel_that_does_not_name_its_device_is_on_that_of_its_process(opened):
    profile = Profile()
    profile.step(0, 0, 100)
    del profile.kernel("gemm", 10, 20, 30, device=3)["args"]["device"]
    assert list(opened(profile).of_kind(Kind.SPAN).device) == [3]


def test_kernels_that_overlap_are_one_span(opened):
    profile = Profile()
    profile.step(0, 0, 200)
    for begin, stream in ((20, 7), (40, 8), (80, 7), (130, 7)):
        profile.kernel("gemm", 10, begin, 40, stream=stream)
    spans = opened(profile).of_kind(Kind.SPAN)
    assert list(spans.exit_ns - spans.enter_ns) == [100_000, 40_000]  # 20-120 and 130-170 µs


def test_a_call_without_arguments_is_what_its_annotation_says(opened):
    profile = Profile()
    profile.step(0, 0, 100)
    profile.host("record_param_comms", 10, 20)
    said = {"Input Dims": [[256, 2]], "Input type": ["c10::BFloat16"]}
    profile.note("nccl:all_to_all", 11, 10, **said)
    profile.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 15, 30, 5)
    rows = collectives(opened(profile))
    assert (list(rows.op), list(rows.bytes_in)) == ([Op.ALL_TO_ALL], [1024])


def test_messages_name_their_peer(opened):
    profile = Profile()
    profile.step(0, 0, 100)
    profile.collective(10, 20, 5, "send", **{"Dst Rank": 1})
    profile.collective(40, 60, 5, "recv", **{"Src Rank": 1})
    rows = opened(profile).of_kind(Kind.POINT_TO_POINT)
    assert (list(rows.op), list(rows.peer_or_root)) == ([Op.SEND, Op.RECV], [1, 1])


def test_messages_of_a_batch_share_the_kernel_that_is_launched_after_them(opened):
    profile = Profile(world=3)
    profile.step(0, 0, 100)
    said = {"dtype": "Float", "In msg nelems": 10, "Process Group Ranks": "[0, 1, 2]"}
    profile.host("record_param_comms", 10, 1, **said, **{"Collective name": "send", "Dst Rank": 1})
    profile.host("record_param_comms", 12, 1, **said, **{"Collective name": "recv", "Src Rank": 2})
    profile.note("nccl:coalesced", 14, 8)
    profile.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 15, 40, 20)
    profile.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 30, 70, 5)
    trace = opened(profile)
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    assert (list(rows.op), list(rows.peer_or_root)) == ([Op.SEND, Op.RECV], [1, 2])
    assert len(set(rows.device_enter_ns.tolist())) == 1
    assert (rows.device_exit_ns - rows.device_enter_ns).tolist() == [20_000, 20_000]
    assert collectives(trace).op.tolist() == [Op.OTHER]  # nobody has announced the second kernel


def test_a_broadcast_knows_its_root(opened):
    profile = Profile(world=4)
    profile.step(0, 0, 100)
    profile.collective(10, 20, 5, "broadcast", Rank=2)
    assert list(collectives(opened(profile)).peer_or_root) == [2]


def test_a_gloo_collective_lasts_from_its_call_to_its_end(opened):
    profile = Profile(backend="gloo")
    profile.step(0, 0, 1000)
    for called, begun, done in ((10, 30, 200), (20, 210, 300)):
        profile.host("c10d::allreduce_", called, 5)
        profile.note("gloo:all_reduce", begun, done - begun, tid=2)
    trace = opened(profile)
    rows = collectives(trace)
    assert list(rows.exit_ns - rows.enter_ns) == [190_000, 280_000]
    assert not (rows.flags & Flag.ON_DEVICE).any()


def test_waits_on_the_host_are_where_no_operator_runs(opened):
    profile = Profile(backend="gloo")
    profile.step(0, 0, 1000)
    profile.host("c10d::allreduce_", 100, 5)
    profile.note("gloo:all_reduce", 110, 390, tid=2)
    profile.host("aten::mm", 200, 100)
    phases = opened(profile).of_kind(Kind.PHASE)
    times = np.stack([phases.enter_ns, phases.exit_ns], axis=1) - draft.FIRST_NS
    assert (times // 1000).tolist() == [[100, 200], [300, 500]]


def test_the_users_names_of_groups_are_kept(opened):
    profile = Profile(world=8)
    profile.step(0, 0, 100)
    cut = {"Process Group Ranks": "[1, 3, ..., 7]", "Process Group Description": "mesh_dp"}
    strided = {"Global rank start": 1, "Global rank stride": 2, "Group size": 4}
    profile.collective(10, 20, 5, **cut, **strided, **{"Process Group Name": "3"})
    groups = opened(profile).groups
    assert [(group.name, group.ranks) for group in groups] == [("mesh_dp", (1, 3, 5, 7))]


def test_a_file_that_lists_one_group_means_it(opened):
    profile = Profile(world=2, backend="gloo")
    listed = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    profile.header["distributedInfo"]["pg_config"] = [listed]
    profile.step(0, 0, 100)
    profile.note("gloo:all_reduce", 10, 20)
    trace = opened(profile)
    assert [(group.name, group.ranks) for group in trace.groups] == [("default_pg", (0, 1))]


# -- which rank ------------------------------------------------------------------------------------


def test_without_distributed_info_the_name_tells_the_rank(opened):
    profiles = [two_steps(), two_steps()]
    for profile in profiles:
        del profile.header["distributedInfo"]
    profiles[0].header["distributedInfo"] = {}
    trace = opened(*profiles, name="run-rank{}.pt.trace.json")
    assert list(trace.ranks) == [0, 1]
    assert trace.limits == ["the file does not say which rank it is: its name does"]


@pytest.mark.parametrize(
    ("ranks", "members"),
    [((0, 1), {(0, 1)}), ((1,), {(0, 1)}), ((0, 3), set()), ((2, 5, 6), set())],
)
def test_without_a_size_the_world_ends_with_the_last_rank_that_a_name_tells(
    tmp_path, ranks, members
):
    """A call that says how many take part, two, is of all where these are as many."""
    paths = []
    for rank in ranks:
        profile = two_steps()
        profile.header["distributedInfo"] = {}
        for event in profile.events:  # nor is there a group that tells
            event["args"].pop("Process Group Ranks", None)
        paths.append(profile.write(tmp_path / f"run-rank{rank}.pt.trace.json"))
    trace = open_trace(paths)
    assert (list(trace.ranks), trace.world) == (list(ranks), ranks[-1] + 1)
    calls = trace.of_kind(Kind.COLLECTIVE)
    assert {trace.groups[group].ranks for group in calls.group if group >= 0} == members


def test_a_file_that_never_says_gets_a_free_number(opened, tmp_path):
    nameless = two_steps()
    nameless.header["distributedInfo"] = {}
    trace = open_trace(
        [two_steps(0).write(tmp_path / "a.json"), nameless.write(tmp_path / "b.json")]
    )
    assert list(trace.ranks) == [0, 1]
    assert any("they are numbered in the order of their names" in text for text in trace.limits)


def test_files_that_never_say_are_numbered_as_people_number_files(tmp_path):
    for number in (9, 10, 11):
        profile = two_steps(world=3)
        profile.header["distributedInfo"] = {}
        profile.header["host_name"] = f"host {number}"
        profile.write(tmp_path / f"trace{number}.json")
    assert open_trace([tmp_path]).nodes == ("host 9", "host 10", "host 11")


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_on_the_common_time_of_hosts_half_an_hour_apart_everything_has_ended(opened, ahead):
    profiles = [two_steps(rank, world=3) for rank in range(3)]
    for rank, profile in enumerate(profiles):
        profile.header["host_name"] = f"host {rank}"
        for event in profile.events:
            event["ts"] += 1.8e9 if rank == ahead else 0
    trace = opened(*profiles)
    rows = trace.of_kind(Kind.STEP)
    clocks = align(trace)
    assert not clocks.unplaced
    assert (clocks.common(rows["rank"], rows.exit_ns) > 0).all()  # 0 stands for no end


@pytest.mark.parametrize("stated", [True, False])
def test_windows_of_a_rank_are_joined(tmp_path, stated):
    files = []
    for number in range(4):
        profile = two_steps(number % 2, late=50 * (number % 2), first=7 if number < 2 else 3)
        if not stated:
            del profile.header["distributedInfo"]
        files.append(profile.write(tmp_path / f"rank{number % 2}-{number}.json"))
    trace, alone = open_trace(files), open_trace(files[2:])
    steps, calls = trace.of_kind(Kind.STEP), collectives(trace)
    assert sorted(steps.step.tolist()) == [*[3] * 2, *[4] * 2, *[7] * 2, *[8] * 2]
    assert (len(trace.limits), len(calls)) == (not stated, 8)  # the names tell the ranks
    assert (np.diff(calls.group_seq.reshape(2, 4)) > 0).all()
    early = calls.select(calls.step < 7)
    assert np.array_equal(early.device_exit_ns, collectives(alone).device_exit_ns)


def test_a_second_file_of_a_rank_and_one_of_another_run_are_left_out(opened, tmp_path):
    trace = opened(two_steps(0), two_steps(0), two_steps(1), two_steps(1, world=64))
    assert list(trace.ranks) == [0, 1]
    reasons = " ".join(trace.limits)
    assert f"rank-1.json is a second trace of rank 0, after {tmp_path / 'rank-0.json'}" in reasons
    assert "rank-3.json is of a run of 64 ranks, not of 2" in reasons


def test_a_file_of_another_day_is_left_out(opened):
    late = two_steps(2)
    for event in late.events:
        event["ts"] += 86_400e6
    trace = opened(two_steps(0), two_steps(1), late)
    assert list(trace.ranks) == [0, 1]
    assert "rank-2.json is 24 h away from most others" in trace.limits[0]


def test_missing_ranks_are_named(opened):
    assert "ranks 1-63 of 64 left no file here" in opened(two_steps(0, world=64)).limits[0]


def test_files_of_one_host_share_a_clock(opened):
    elsewhere = two_steps(2, world=3)
    elsewhere.header["host_name"] = "there"
    trace = opened(two_steps(0, world=3), two_steps(1, world=3), elsewhere)
    assert [info.clock for info in trace.ranks.values()] == ["host here", "host here", "host there"]


def test_the_host_stands_in_a_handlers_file_name(opened):
    profile = two_steps()
    del profile.header["host_name"]
    trace = opened(profile, name="gpu012_7.17{}.pt.trace.json")
    assert trace.ranks[0].node == "gpu012"


def test_times_are_those_of_the_base_where_there_is_one(opened):
    profiles = [two_steps(0), two_steps(1)]
    profiles[1].header["baseTimeNanoseconds"] = 1_700_000_000_000_000_000
    profiles[0].header["baseTimeNanoseconds"] = 1_700_000_000_000_005_000
    first, second = collectives(opened(*profiles)).enter_ns.reshape(2, 2)
    assert list(first - second) == [5_000, 5_000]


def test_a_name_of_ones_own_is_no_host(opened):
    profile = two_steps()
    del profile.header["host_name"]
    trace = opened(profile, name="worker0_step_12.17{}.pt.trace.json")  # no process of the file
    assert trace.ranks[0].node == ""


@pytest.mark.parametrize("apart_us", [0, 2_000_000])
def test_ranks_on_devices_of_one_host_without_a_name_share_a_clock_unless_it_shows(
    opened, apart_us
):
    profiles = [two_steps(rank) for rank in (0, 1)]
    for rank, profile in enumerate(profiles):
        del profile.header["host_name"]
        own = {"Process Group Name": "own", "Process Group Ranks": f"[{rank}, {rank + 8}]"}
        for turn in range(8):  # of which no other file tells
            at = min(event["ts"] for event in profile.events) + 10 * turn
            profile.collective(at, at + 5, 3, stream=24, **own)
        for event in profile.events:
            event["ts"] += rank * apart_us  # rank 0 would leave before rank 1 has entered
            if "device" in event["args"]:
                event["args"]["device"] = rank
    trace = opened(*profiles)
    assert len({info.clock for info in trace.ranks.values()}) == (2 if apart_us else 1)
    assert any("taken to be of one" in limit for limit in trace.limits) == (not apart_us)


def test_hosts_whose_ranks_mostly_meet_among_themselves_share_no_clock(opened):
    """Two hosts of two ranks, on devices 0 to 3: eight calls within a host for each across both."""
    profiles = [two_steps(rank, world=4) for rank in range(4)]
    for rank, profile in enumerate(profiles):
        del profile.header["host_name"]
        host = rank // 2
        own = {"Process Group Name": f"of {host}",
               "Process Group Ranks": str([2 * host, 2 * host + 1])}  # fmt: skip
        for turn in range(16):
            profile.collective(3000 + 10 * turn, 3005 + 10 * turn, 3, stream=24, **own)
        for event in profile.events:
            event["ts"] += 2_000_000 * host
            if "device" in event["args"]:
                event["args"]["device"] = rank
    trace = opened(*profiles)
    assert not any("taken to be of one" in limit for limit in trace.limits)
    offset = align(trace).by_rank[3].offset_ns
    assert abs(float(np.median(offset))) == pytest.approx(2e9, abs=1e6)


def test_barriers_of_symmetric_memory_are_waits_of_those_who_leave_together(opened):
    """Rank 1 computes 300 µs longer before each; an own group ends 40 µs later on rank 1."""
    profiles = [Profile(rank) for rank in (0, 1)]
    for rank, profile in enumerate(profiles):
        own = {"Process Group Name": "own", "Process Group Ranks": f"[{rank}, {rank + 2}]"}
        for number in range(6):
            begin, late = 2000 * number + 7 * number * number, 300 * rank
            profile.step(number + 5, begin, 1990)
            profile.kernel("gemm", begin + 10, begin + 20, 400 + late)
            name = "c10d::symmetric_memory::{}barrier_kernel(unsigned int**, int, int, int)"
            place = "(anonymous namespace)::" * (number % 2)
            profile.kernel(name.format(place), begin + 30, begin + 421 + late, 330 - late)
            profile.collective(begin + 40, begin + 800, 100 + 40 * rank, stream=5, **own)
    trace = opened(*profiles)
    rows = collectives(trace)
    rows = rows.select(rows.op == int(Op.BARRIER))
    assert [trace.groups[group].ranks for group in np.unique(rows.group)] == [(0, 1)]
    spans = trace.of_kind(Kind.SPAN)
    lengths = (spans.exit_ns - spans.enter_ns).reshape(2, 6)
    assert np.diff(lengths, axis=0).tolist() == [[300_000] * 6]


def test_barriers_that_end_in_one_stretch_but_apart_are_of_no_common_group(opened):
    """Three ranks, whose partners left no files, within 50 µs, another one in between."""
    profiles = [Profile(rank, 6) for rank in range(3)]
    order = np.random.default_rng(0)
    places = [order.permutation(3).tolist() for _ in range(24)]
    for rank, profile in enumerate(profiles):
        for number, place in enumerate(places):
            begin, end = 1000 * number, 1000 * number + 500 + 25 * place[rank]
            profile.step(number + 5, begin, 990)
            profile.kernel("gemm", begin + 10, begin + 20, 300)
            name = "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int)"
            profile.kernel(name, begin + 30, begin + 321, end - begin - 321)
            profile.collective(begin + 40, begin + 600, 100)
    rows = collectives(opened(*profiles))
    assert (rows.group[rows.op == int(Op.BARRIER)] < 0).all()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("c10::BFloat16", (DType.BFLOAT16, 2)), ("Float8_e4m3fn", (DType.FLOAT8, 1)),
        ("signed char", (DType.INT8, 1)), ("Long", (DType.INT64, 8)),
        ("ComplexFloat", (DType.COMPLEX, 8)), ("struct", (DType.OTHER, 0)),
    ],
)  # fmt: skip
def test_an_element_type_has_its_bytes_and_an_unknown_one_none(name, found):
    assert element_type(name) == found


@pytest.mark.parametrize(
    ("op", "given", "told"),
    [
        (Op.SEND, b"[[], 0, 1, 7]", {"source": 5, "destination": 5, "tag": 7}),
        (Op.RECV, b"[[], 0, 0]", {"source": 4, "destination": 4, "tag": 0}),
        (Op.SEND, b"[[], 0, 2, 7]", {"source": -1, "destination": -1, "tag": 7}),
        (Op.BROADCAST, b"[[], 0, 1, 7]", {"root": 5}),
        (Op.REDUCE, b"[[], 0, 1, 0]", {"root": 4}),
        (Op.REDUCE, b"[[], 0, 1]", {}),
        (Op.ALL_REDUCE, b"[[], 0, 1]", {}),
    ],
)
def test_an_operators_own_arguments_say_root_peer_and_tag_as_ranks_of_the_group(op, given, told):
    call = CallArguments(GroupKey("pp", (4, 5)))
    asked = Args(inputs=msgspec.Raw(given))
    assert address(call, int(op), asked) == call._replace(**told)


def test_groups_that_are_assumed_are_told_of_where_there_are_several_ranks(opened):
    def unnamed(rank):
        profile = Profile(rank, 2)
        for number in range(3):
            profile.step(number, 1000 * number, 900)
            profile.collective(1000 * number + 100, 1000 * number + 200, 300)
        for event in profile.events:
            for name in ("Process Group Name", "Process Group Ranks", "Process Group Description"):
                event.get("args", {}).pop(name, None)
        return profile

    assumed = "do not say which group"
    alone, both = opened(unnamed(0)), opened(unnamed(0), unnamed(1))
    assert [any(assumed in text for text in trace.limits) for trace in (alone, both)] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("kernel", "reduction"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", ReduceOp.SUM),
        ("ncclDevKernel_AllReduce_Prod_f32_RING_LL", ReduceOp.PRODUCT),
        ("ncclDevKernel_AllReduce_MinMax_f32_RING_LL", ReduceOp.OTHER),
        ("ncclKernel_AllReduce_RING_LL_Max_float", ReduceOp.MAX),
        ("ncclDevKernel_ReduceScatter_Min_f16_RING_LL", ReduceOp.MIN),
        ("ncclDevKernel_Reduce_Avg_f32(sum_of_arguments)", ReduceOp.AVG),
        ("ncclDevKernel_AllReduce_f32(_sum)", ReduceOp.OTHER),
        ("ncclDevKernel_AllGather_Sum_f32_RING_LL", ReduceOp.OTHER),  # which reduces nothing
    ],
)
def test_a_kernels_name_says_what_it_does_to_the_values(opened, kernel, reduction):
    profile = Profile()
    profile.step(0, 0, 100)
    profile.kernel(kernel, 10, 20, 30)
    row = collectives(opened(profile))
    assert row.reduce_op.tolist() == [int(reduction)]


def test_threads_are_numbered_from_the_one_that_trains(opened):
    profile = Profile()
    profile.step(0, 0, 1000)
    for called, tid in ((10, 5), (100, 1), (200, 3), (300, 5)):
        profile.collective(called, called + 20, 30, tid=tid)
    assert collectives(opened(profile)).thread.tolist() == [1, 0, 2, 1]


def test_groups_tell_how_many_ranks_there_are_at_least(opened):
    profile = Profile()
    del profile.header["distributedInfo"]["world_size"]
    profile.step(0, 0, 100)
    profile.collective(10, 20, 30, **{"Process Group Ranks": "[0, 1, 6]"})
    assert opened(profile).world == 7


def test_what_is_copied_is_told_from_what_is_computed(opened):
    profile = Profile()
    profile.step(0, 0, 1000)
    profile.kernel("gemm", 10, 20, 100, stream=7)
    for begun, stream in ((50, 8), (60, 9), (300, 8)):
        copied = profile.kernel("Memcpy HtoD (Pinned -> Device)", 15, begun, 40, stream=stream)
        copied["cat"] = "gpu_memcpy"
    trace = opened(profile)
    spans = trace.of_kind(Kind.SPAN)
    found = [
        (trace.names[name], (begun - draft.FIRST_NS) // 1000, (ended - draft.FIRST_NS) // 1000)
        for name, begun, ended in zip(
            spans.name, spans.device_enter_ns, spans.device_exit_ns, strict=True
        )
    ]
    assert sorted(found) == [("compute", 20, 120), ("copy", 50, 100), ("copy", 300, 340)]


def test_a_kernel_of_torch_1_8_is_its_operators_by_the_older_spelling(tmp_path):
    """test_distributed_nccl of pytorch/kineto's tb_plugin: 8,196,000 bytes, from 162 to 1718 µs."""
    said = {"External id": 2513, "Input Dims": [[2049000]], "Input type": ["float"]}
    call = {"ph": "X", "cat": "Operator", "name": "nccl:all_reduce", "pid": 23803, "tid": "25166",
            "ts": 160, "dur": 75, "args": said}  # fmt: skip
    kernel = {"ph": "X", "cat": "Kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_float(Work)",
              "pid": 0, "tid": "stream 16", "ts": 162, "dur": 1556,
              "args": {"device": 0, "correlation": 33218, "external id": 2513}}  # fmt: skip
    (path := tmp_path / "worker0.pt.trace.json").write_bytes(msgspec.json.encode([call, kernel]))
    rows = collectives(open_trace([path]))
    assert rows.bytes_in.tolist() == [8_196_000]
    assert (rows.device_exit_ns - rows.device_enter_ns).tolist() == [1_556_000]


def test_launches_of_torch_1_9_and_its_operators_are_known(tmp_path):
    """gpu_metrics_input.json of pytorch/kineto's tb_plugin: 100 µs from launch to kernel."""
    rows = [
        {"cat": "Operator", "name": "aten::sum", "ts": 0, "dur": 900, "args": {"External id": 9}},
        {"cat": "Runtime", "name": "cudaLaunchKernel", "ts": 4, "dur": 25,
         "args": {"correlation": 334}},
        {"cat": "Kernel", "name": "reduce_kernel", "ts": 104, "dur": 25, "pid": 0,
         "args": {"device": 0, "stream": 7, "correlation": 334, "external id": 9}},
    ]  # fmt: skip
    events = [{"ph": "X", "pid": 24572, "tid": "24572"} | row for row in rows]
    (path := tmp_path / "worker0.pt.trace.json").write_bytes(msgspec.json.encode(events))
    trace = open_trace([path])
    assert not any("launches of kernels" in limit for limit in trace.limits)
    steps = trace.of_kind(Kind.STEP)
    assert (steps.exit_ns - steps.enter_ns).tolist() == [900_000]


def test_threads_are_numbered_in_order_of_appearance_and_the_one_that_trains_is_0(tmp_path):
    """Which marks the steps: its calls come later than those of two others."""
    profile = Profile()
    profile.step(3, 0, 2000)
    for turn, tid in enumerate((9, 4, 1, 4, 9, 1)):
        profile.collective(100 + 200 * turn, 150 + 200 * turn, 50, tid=tid)
    trace = open_trace([profile.write(tmp_path / "rank0.json")])
    rows = trace.of_kind(Kind.COLLECTIVE).sorted_by("enter_ns")
    assert rows.thread.tolist() == [1, 2, 0, 2, 1, 0]
