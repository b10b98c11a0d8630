"""All-to-alls and ports that carry unequal loads, beside what was put into them."""

import json
import struct
from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.graph.structure import by_step_and_lane
from evenstep.diagnose.measure import transfers
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.measure.hosts import ports
from evenstep.importers.draft import Draft
from evenstep.importers.opening import open_trace
from evenstep.report.terminal.sentences import movement
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.diagnose.synthetic import MS, World
from tests.importers.profiles import Profile

TOKENS = {0: 1000, 1: 1000, 2: 4000}  # elements that each rank receives
STEPS = 4


def experts(rank, tokens):
    """Steps with an all-to-all whose sizes differ from rank to rank."""
    profile = Profile(rank, len(TOKENS))
    for step in range(STEPS):
        begin = 10_000 * step
        profile.step(step, begin, 10_000)
        profile.kernel("gemm", begin + 1, begin + 1, 2_000)
        said = {
            "Collective name": "all_to_allv", "dtype": "BFloat16", "In msg nelems": 2000,
            "Out msg nelems": tokens, "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]",
        }  # fmt: skip
        profile.host("record_param_comms", begin + 3_000, 100, **said)
        profile.kernel("ncclDevKernel_SendRecv(args)", begin + 3_010, begin + 4_000, 500)
    return profile


def test_the_fullest_rank_is_told_with_how_much_more_it_receives(tmp_path):
    for rank, tokens in TOKENS.items():
        experts(rank, tokens).write(tmp_path / f"rank-{rank}.json")
    summary = diagnose(open_trace([tmp_path])).summary
    found = summary["all_to_all"]
    assert found["imbalance"] == pytest.approx(4000 / 2000)
    assert found["fullest"] == [{"rank": 2, "share": 1.0}]
    assert found["calls"] == STEPS
    assert any("receives 2 times the mean" in sentence for sentence in movement(summary))
    json.dumps(summary)


def test_even_sizes_say_nothing(tmp_path):
    for rank in TOKENS:
        experts(rank, 1000).write(tmp_path / f"rank-{rank}.json")
    assert diagnose(open_trace([tmp_path])).summary["all_to_all"] is None


def test_a_port_carries_what_its_counter_grew_by():
    draft = Draft()
    for rank in (0, 1):
        draft.rank(rank, hostname="gpu01")
    seconds = np.arange(5)
    for port, per_s in ((0, 12.5e9), (1, 3e9)):
        bits = [struct.unpack("<Q", struct.pack("<d", per_s * s))[0] for s in seconds]
        for rank, samples in ((0, 1), (1, 5)):  # rank 0 has ended before its second one
            draft.rows(rank, **{
                "kind": int(Kind.SAMPLE), "name": draft.name("ib.sent_bytes"), "device": port,
                "enter_ns": 10**9 * (1 + seconds[:samples]),
                "bytes_in": np.array(bits[:samples], np.uint64),
            })  # fmt: skip
    found = ports(draft.trace({}))
    assert [(each["port"], each["sent_gBps"]) for each in found] == [(0, 12.5), (1, 3.0)]
    assert not list(movement({"ports": found}))  # of one host: they carry nothing of the job
    (sentence,) = movement({"ports": [found[1], {**found[0], "node": "gpu02"}]})
    assert "send 3 to 12.5 GB/s; least: port 1 of gpu01" in sentence


def test_a_rank_that_receives_nothing_counts_among_those_that_share_the_tokens():
    trace = World(ranks=4, after_backward=((Op.ALL_TO_ALL, 4000),)).trace()
    calls = trace.events.op == int(Op.ALL_TO_ALL)
    received = np.where(calls & (trace.events["rank"] > 0), 0, trace.events.bytes_out)
    received = np.where(calls & (trace.events["rank"] == 0), 4000, received)
    trace = replace(trace, events=trace.events.with_column("bytes_out", received))
    found = transfers.tokens(trace, step_grid(trace))
    assert (found["imbalance"], found["fullest"]) == (4.0, [{"rank": 0, "share": 1.0}])


@pytest.mark.parametrize(
    ("phase", "late_ns", "hot"),
    [
        (Phase.FORWARD, 5 * MS, True), (Phase.FORWARD, 500 * MS, False),
        (Phase.OPTIMIZER, 5 * MS, False), (Phase.OTHER, 5 * MS, False),
    ],
)  # fmt: skip
def test_a_rank_that_computes_longer_as_it_receives_more_has_a_hot_expert(phase, late_ns, hot):
    """Twice the mean, thrice the others': that explains three times their work of 64 ms, where
    experts compute."""
    world = World(ranks=4, noise=0.005, after_backward=((Op.ALL_TO_ALL, 4000),))
    trace = world.slow(1, phase, late_ns, computing=True).trace()
    calls = trace.events.op == int(Op.ALL_TO_ALL)
    received = np.where(trace.events["rank"] == 1, 12000, 4000)
    received = np.where(calls, received, trace.events.bytes_out)
    trace = replace(trace, events=trace.events.with_column("bytes_out", received))
    finding = diagnose(trace).findings[0]
    assert finding.where.ranks == [1]
    assert ("hot expert: rank 1 (node node0) receives 2 times the mean" in finding.cause) == hot
    assert ("hot expert" in finding.options[0].action) == hot


@pytest.fixture
def unequal(tmp_path):
    """Hosts launch a whole step as it begins. In turns, one of two devices receives 3 ms longer
    than the other, and both update after an all-reduce that the last of them enters."""
    for rank in (0, 1):
        profile = Profile(rank, 2)
        for step, begin in enumerate(range(0, 12 * 11_400, 11_400)):
            fuller = step % 2 == rank
            got, reduced = begin + 4_500 + 3_000 * fuller, begin + 10_000
            profile.step(step, begin, 11_400)
            profile.kernel("gemm", begin + 1, begin + 3, 3_997)
            elements = 1_000 + 6_000 * fuller
            took = got - begin - 4_000
            profile.collective(begin + 20, begin + 4_000, took, "all_to_allv", elements)
            profile.kernel("expert", begin + 40, got, 2_000)
            profile.collective(begin + 50, got + 2_000, reduced - got - 2_000)
            profile.kernel("update", begin + 70, reduced, 1_400)
        profile.write(tmp_path / f"rank-{rank}.json")
    return open_trace([tmp_path])


def test_devices_wait_for_an_all_to_all_that_brings_them_more_and_not_for_launches(unequal):
    assert "runtime_jitter" not in {finding.mode for finding in diagnose(unequal).findings}


def test_clocks_of_devices_are_not_told_by_ends_of_all_to_alls(unequal):
    """A device works 4 ms, 2 ms and 1.4 ms, and receives 3 ms longer in every other step."""
    graph = step_grid(unequal).graph
    work = by_step_and_lane(graph, graph.own_ns)[1:-1] / MS
    assert work == pytest.approx(np.array([[7.4, 10.4], [10.4, 7.4]] * 5), abs=0.01)


def exchanging(path, slower=lambda step, group: 1):
    """How long, in µs, 32 steps of eight ranks on two hosts take, written as profiles: in each,
    four layers compute 2 ms and exchange, in groups of four on both hosts, other amounts, of which
    a device's part takes .25 to 1.5 ms, or as many times that; as the final all-reduce does."""
    random, ranks, now = np.random.default_rng(0), range(8), np.zeros(8)
    profiles = [Profile(rank, 8) for rank in ranks]
    for step in range(32):
        begun, launched = now.max() + 200, now.max() + 5
        now[:] = begun
        done = []
        for _ in range(4):
            worked = now + 2_000 * random.normal(1, 0.01, 8)
            elements, entered = random.integers(2_500, 15_000, 8), np.zeros(8)
            for group in (0, 1):
                entered[group::2] = worked[group::2].max()
                took = elements[group::2] / 10 * slower(step, group) * random.normal(1, 0.01)
                now[group::2] = entered[group::2] + took
            done.append((worked, elements, now.copy()))
        update = now.max() + 1_000 + 500 * slower(step, None)
        for rank, profile in enumerate(profiles):
            profile.header["host_name"] = f"gpu{rank // 4}"
            call, free = launched, begun
            for worked, elements, over in done:
                call += 20
                profile.kernel("gemm", call, free, worked[rank] - free)
                free, group = over[rank], list(range(rank % 2, 8, 2))
                said = {
                    "Process Group Name": str(1 + rank % 2), "Process Group Ranks": str(group),
                    "Process Group Description": "experts", "Group size": 4,
                    "In msg nelems": 8_750, "Out msg nelems": int(elements[rank]),
                }  # fmt: skip
                took = free - worked[rank]
                profile.collective(call + 8, worked[rank], took, "all_to_allv", 8_750, **said)
            profile.kernel("head", call + 20, free, 1_000)
            profile.collective(call + 30, free + 1_000, update - free - 1_000)
            profile.kernel("update", call + 50, update, 1_000)
            profile.step(step, launched, update + 1_000 - launched)
        now[:] = update + 1_000
    for rank, profile in enumerate(profiles):
        profile.write(path / f"rank-{rank}.json")
    return now[0]


def test_exchanges_of_which_no_two_are_alike_tell_other_traffic_and_what_it_costs(tmp_path):
    usual = exchanging(tmp_path)
    took = exchanging(tmp_path, lambda step, group: 4 if step % 7 in (2, 3) else 1)
    first = diagnose(open_trace([tmp_path])).findings[0]
    assert first.mode == "fabric_contention"
    assert first.severity == pytest.approx(1 - usual / took, rel=0.1)


def test_a_group_whose_exchanges_take_longer_for_their_amounts_has_a_slow_link(tmp_path):
    usual = exchanging(tmp_path)
    took = exchanging(tmp_path, lambda step, group: 4 if group else 1)
    first = diagnose(open_trace([tmp_path])).findings[0]
    assert first.mode == "fabric_contention"
    assert first.where.groups == ["experts of ranks 1, 3, 5 and 7"]
    assert first.severity == pytest.approx(1 - usual / took, rel=0.1)
