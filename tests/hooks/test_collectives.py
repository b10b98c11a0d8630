"""Every collective of a real job of two ranks, by every mechanism this torch has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed  # whose operations are loaded with it

from evenstep.trace.spool.layout import NO_PEER, DType, Flag, Kind, Op, Phase

BYTES = 32  # 8 elements of 4 bytes
FLOAT32, UINT8, INT64 = DType.FLOAT32, DType.UINT8, DType.INT64

# scene: (operation, bytes in, bytes out) on rank 0, from the tensors' shapes in the job
ONE_COLLECTIVE = {
    "all_reduce": (Op.ALL_REDUCE, BYTES, BYTES),
    "all_reduce async": (Op.ALL_REDUCE, BYTES, BYTES),
    "broadcast": (Op.BROADCAST, BYTES, BYTES),
    "reduce": (Op.REDUCE, BYTES, BYTES),
    "gather": (Op.GATHER, BYTES, 0),
    "scatter": (Op.SCATTER, 0, BYTES),
    "all_gather": (Op.ALL_GATHER, BYTES, 2 * BYTES),
    "all_gather_into_tensor": (Op.ALL_GATHER, BYTES, 2 * BYTES),
    "reduce_scatter_tensor": (Op.REDUCE_SCATTER, BYTES, BYTES // 2),
    "all_to_all_single": (Op.ALL_TO_ALL, BYTES, BYTES),
    "sparse": (Op.ALL_REDUCE, BYTES, BYTES),  # as dense: the same on all ranks, in every step
    "barrier": (Op.BARRIER, 0, 0),
    "monitored_barrier": (Op.BARRIER, 0, 0),
    "functional": (Op.ALL_REDUCE, BYTES, BYTES),
    "inference mode": (Op.ALL_REDUCE, BYTES, BYTES),
    "coalesced": (Op.ALL_REDUCE, BYTES + 16, BYTES + 16),  # 8 and 4 elements, one operation
    "data parallel": (Op.ALL_REDUCE, 64, 64),  # one bucket: a weight of 4 x 4
    "late group": (Op.ALL_REDUCE, BYTES, BYTES),
    "mesh": (Op.ALL_REDUCE, BYTES, BYTES),
    "after a group's end": (Op.ALL_REDUCE, BYTES, BYTES),
    "again": (Op.ALL_REDUCE, BYTES, BYTES),
}


@pytest.mark.parametrize("scene", ONE_COLLECTIVE)
def test_a_collective_is_recorded_once_with_its_operation_and_size(scenes, scene):
    seen = scenes.of(scene)
    assert seen.kind.tolist() == [Kind.COLLECTIVE]
    assert (seen.op[0], seen.bytes_in[0], seen.bytes_out[0]) == ONE_COLLECTIVE[scene]


def test_torch_does_not_warn_of_kernels_in_the_jobs_log(scenes):
    assert "registered" not in scenes.log


@pytest.mark.parametrize("scene", [name for name in ONE_COLLECTIVE if name != "mesh"])
def test_both_ranks_agree_on_a_collectives_identity(scenes, scene):
    first, second = scenes.both(scene)
    assert (first.group[0], first.group_seq[0]) == (second.group[0], second.group_seq[0])


@pytest.mark.parametrize("scene", ["broadcast", "reduce", "gather", "scatter"])
def test_the_root_is_a_global_rank_on_every_member(scenes, scene):
    assert [seen.peer_or_root[0] for seen in scenes.both(scene)] == [1, 1]


def test_a_root_that_gathers_shows_what_it_received(scenes):
    assert scenes.of("gather", 1).bytes_out[0] == 2 * BYTES
    assert scenes.of("scatter", 1).bytes_in[0] == 2 * BYTES


def test_an_operation_without_a_root_has_none(scenes):
    assert scenes.of("all_reduce").peer_or_root[0] == NO_PEER


def test_the_element_type_is_recorded(scenes):
    assert scenes.of("all_reduce").dtype[0] == FLOAT32


@pytest.mark.skipif(
    "async_op" not in str(torch.ops.c10d.allreduce_.default._schema),
    reason="this torch does not tell an operation whether its caller blocks",
)
def test_a_blocking_call_ends_when_its_caller_goes_on(scenes):
    flags = scenes.of("all_reduce").flags[0]
    assert flags & Flag.HOST_BLOCKED
    assert not flags & Flag.ASYNC


def test_a_barrier_without_a_work_has_blocked_its_caller(scenes):
    assert scenes.of("monitored_barrier").flags[0] & Flag.HOST_BLOCKED


def test_a_call_that_does_not_block_is_marked(scenes):
    for scene in ("all_reduce async", "functional", "data parallel"):
        assert scenes.of(scene).flags[0] & Flag.ASYNC


def test_a_backward_waits_from_when_it_has_computed_all(scenes):
    phases = scenes.of("computing on", kinds=[Kind.PHASE])
    waits = phases.select(phases.op == Phase.SYNC)
    assert len(waits)
    assert (waits.enter_ns >= scenes.span("after the last gradient").exit_ns[0]).all()


def test_a_forward_waits_for_the_buffers_of_its_module(scenes):
    broadcasts = scenes.of("buffers", rank=1)
    phases = scenes.of("buffers", rank=1, kinds=[Kind.PHASE])
    waits = phases.select(phases.op == Phase.SYNC)
    assert broadcasts.op.tolist() == [Op.BROADCAST] * 2  # of floats and of integers
    assert waits.enter_ns.tolist() == [broadcasts.enter_ns[1]]
    root = scenes.of("buffers", rank=0)
    assert waits.exit_ns[0] >= root.enter_ns[1]  # on the same clock


def test_coalesced_operations_are_one_and_say_so(scenes):
    assert scenes.of("coalesced").flags[0] & Flag.COALESCED
    assert not scenes.of("all_reduce").flags[0] & Flag.COALESCED


def test_objects_show_up_as_their_sizes_and_their_bytes(scenes):
    seen = scenes.of("objects")
    assert seen.op.tolist() == [Op.ALL_GATHER, Op.ALL_GATHER]
    assert seen.dtype.tolist() == [INT64, UINT8]


@pytest.mark.parametrize("scene", ["send and recv", "isend and irecv"])
def test_a_message_is_recorded_at_both_ends(scenes, scene):
    sender, receiver = scenes.both(scene)
    assert (sender.op[0], sender.peer_or_root[0], sender.bytes_in[0]) == (Op.SEND, 1, BYTES)
    assert (receiver.op[0], receiver.peer_or_root[0], receiver.bytes_in[0]) == (Op.RECV, 0, BYTES)


def test_a_receive_from_anybody_has_no_peer(scenes):
    assert scenes.of("recv from anybody", 1).peer_or_root.tolist() == [NO_PEER]


def test_messages_are_told_apart_by_their_tag(scenes):
    assert [seen.payload[0] for seen in scenes.both("send and recv")] == [7, 7]


def test_messages_of_a_pair_are_counted_in_order_at_both_ends(scenes):
    events = scenes.trace.events
    plain = (events.kind == Kind.POINT_TO_POINT) & (events.payload == 0)
    sends = events.select(plain & (events.rank == 0) & (events.op == Op.SEND))
    first = int(sends.group_seq[0])
    assert sends.group_seq.tolist() == list(range(first, first + len(sends)))


def test_a_batch_shows_each_of_its_messages(scenes):
    for rank in range(2):
        seen = scenes.of("batch", rank)
        assert sorted(seen.op.tolist()) == [Op.SEND, Op.RECV]
        assert set(seen.peer_or_root.tolist()) == {1 - rank}


def test_a_failed_collective_is_marked_and_the_next_one_is_not(scenes):
    for rank in range(2):
        assert scenes.of("failing", rank).flags[0] & Flag.FAILED
        assert not scenes.of("after a failure", rank).flags[0] & Flag.FAILED


def test_every_record_of_a_job_that_ended_has_an_end(scenes):
    events = scenes.trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT)
    assert (events.exit_ns >= events.enter_ns).all()


def test_no_identity_of_a_group_is_used_twice_even_when_it_is_made_again(scenes):
    for rank in range(2):
        events = scenes.trace.of_kind(Kind.COLLECTIVE)
        mine = events.select(events.rank == rank)
        named = list(zip(mine.group.tolist(), mine.group_seq.tolist(), strict=True))
        assert len(set(named)) == len(named)


def test_the_default_group_counts_on_after_it_was_destroyed_and_made_again(scenes):
    before, after = scenes.of("before the end"), scenes.of("again")
    assert (after.group[0], after.group_seq[0]) == (before.group[0], before.group_seq[0] + 1)


def test_destroying_a_group_leaves_the_others_numbers_alone(scenes):
    events = scenes.trace.of_kind(Kind.COLLECTIVE)
    world = scenes.of("all_reduce").group[0]
    mine = events.select((events.rank == 0) & (events.group == world))
    assert np.diff(mine.group_seq.astype(np.int64)).tolist() == [1] * (len(mine) - 1)


def test_groups_made_later_are_named_and_know_their_members(scenes):
    groups = scenes.trace.groups
    late, mesh = (groups[scenes.of(scene, 1).group[0]] for scene in ("late group", "mesh"))
    assert (late.name, late.ranks) == ("late", (0, 1))
    assert mesh.ranks == (1,)


def test_nothing_of_ours_failed_and_nothing_is_unseen(scenes, mechanism):
    for rank in range(2):
        facts = scenes.trace.ranks[rank].facts
        assert facts["failures"] == []
        assert facts["hooks"]["mechanism"] == mechanism
        assert facts["hooks"]["unseen"] == []  # gather_into_tensor came with torch 2.14
