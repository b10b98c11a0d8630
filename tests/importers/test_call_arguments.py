"""What the arguments of a profiled collective say of its group, its size and its ends."""

import pytest

from evenstep.importers.draft import MOST_BYTES
from evenstep.importers.kineto.calls import (
    CallArguments,
    GroupKey,
    address,
    call_of,
    group_of,
    groups_of,
    ranks_of,
)
from evenstep.importers.trace_events import Args
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import DType, Op

TP = GroupKey("tp", range(2, 9, 2))  # ranks 2, 4, 6, 8


@pytest.mark.parametrize(
    ("args", "members"),
    [
        ({"group_ranks": "[4, 2]"}, [2, 4]),
        ({"rank_start": 2, "rank_stride": 3, "group_size": 3}, [2, 5, 8]),
        ({"rank_start": 2, "rank_stride": 3, "group_size": 1}, [2]),
        ({"group_size": 4}, [0, 1, 2, 3]),  # as many as there are
        ({"group_size": 3}, None),  # which three nobody knows
        ({"group_ranks": "[0, 1, ..., 63]", "group_size": 64}, None),
        ({"rank_start": 0, "rank_stride": 1 << 20, "group_size": 3}, None),
    ],
)
def test_a_group_is_told_by_its_members_their_stride_or_its_size(args, members):
    found = group_of(Args(group_name="7", **args), {}, world=4)
    assert (None if found is None else list(found.ranks)) == members


def test_a_group_that_the_file_lists_is_the_one_of_that_name():
    assert group_of(Args(group_name=7, group_ranks="[0]"), {"7": TP}, world=4) is TP
    assert group_of(Args(group_ranks="[0]"), {"7": TP}, world=4) is None


@pytest.mark.parametrize("said", ["[3, 1, 2]", [3, 1, 2], (3, 2, 1, 1)])
def test_neighbours_are_a_range_however_they_are_listed(said):
    assert ranks_of(said) == range(1, 4)


@pytest.mark.parametrize("said", ["[", "{}", [-1], [True], [1 << 20], 3, None])
def test_what_is_no_list_of_ranks_names_none(said):
    assert not ranks_of(said)


def test_two_groups_of_one_description_and_the_same_ranks_have_names_of_their_own():
    entries = [{"pg_name": name, "pg_desc": "dp", "ranks": [0, 1]} for name in ("1", "2")]
    found = groups_of({"distributedInfo": {"pg_config": entries}})
    assert [key.name for key in found.values()] == ["dp", "dp (2)"]


def test_bytes_are_elements_times_their_type():
    said = call_of(Args(dtype="BFloat16", elements_in=10, elements_out=40, sequence=3), {}, 2)
    assert (said.bytes_in, said.bytes_out, said.dtype) == (20, 80, int(DType.BFLOAT16))
    assert said.sequence == 3
    by_shape = call_of(Args(dims=b"[[2, 3], [[4], [5]]]", types=b'["float", "half"]'), {}, 2)
    assert (by_shape.bytes_in, by_shape.dtype) == (4 * 6 + 2 * 9, int(DType.FLOAT32))


@pytest.mark.parametrize("dims", [b"7", b"[[true]]", b"[[-1]]", b"[[]]", b"[", b"[7]"])
def test_a_shape_that_is_none_has_no_bytes(dims):
    assert call_of(Args(dims=dims, types=b'["float"]'), {}, 2).bytes_in == 0


@pytest.mark.parametrize(
    ("op", "inputs", "root", "peer", "tag"),
    [
        (Op.BROADCAST, b"[0, 0, 2]", 6, -1, 0),
        (Op.REDUCE, b"[0, 0, 0, 3]", 8, -1, 0),
        (Op.SEND, b"[0, 0, 1, 9]", -1, 4, 9),
        (Op.RECV, b'[0, 0, "1"]', -1, 4, 0),
        (Op.BROADCAST, b"[0, 0, 4]", -1, -1, 0),  # beyond the group
        (Op.BROADCAST, b"[0, 0]", -1, -1, 0),
        (Op.ALL_REDUCE, b"[0, 0, 2]", -1, -1, 0),
        (Op.SEND, b"no", -1, -1, 0),
    ],
)
def test_roots_and_peers_are_places_in_the_group(op, inputs, root, peer, tag):
    found = address(CallArguments(TP), int(op), Args(inputs=inputs))
    assert (found.root, found.source, found.destination, found.tag) == (root, peer, peer, tag)


def test_what_a_call_does_not_say_is_not_known():
    assert tuple(call_of(Args(), {}, 2)) == (None, 0, 0, int(DType.OTHER), -1, -1, -1, -1, 0)


def test_what_cannot_be_is_not_believed():
    said = call_of(
        Args(dtype="Float", elements_in=-5, elements_out=1 << 62, source=MOST_RANKS,
             destination=MOST_RANKS - 1), {}, 2,
    )  # fmt: skip
    assert (said.bytes_in, said.bytes_out) == (0, MOST_BYTES)
    assert (said.source, said.destination) == (-1, MOST_RANKS - 1)


@pytest.mark.parametrize(("place", "root"), [(0, 2), (1, 5), (2, -1), (-1, -1)])
def test_a_root_is_told_by_its_place_in_the_group(place, root):
    assert call_of(Args(group_name="1", group_ranks="[5, 2]", root=place), {}, 8).root == root
