"""Stretches of time: laws against a count of single nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.importers.merging import cut, leaf_lengths, subtract, unite

STRETCHES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12).map(
    lambda pairs: tuple(
        np.array([[a for a, _ in pairs], [a + b for a, b in pairs]], np.int64).reshape(2, -1)
    )
)


def points(stretches):
    return {ns for start, end in zip(*stretches, strict=True) for ns in range(start, end)}


@given(STRETCHES)
def test_a_union_covers_the_same_and_is_disjoint_and_ordered(stretches):
    start, end = unite(*stretches)
    assert points((start, end)) == points(stretches)
    assert (start < end).all()
    assert (end[:-1] < start[1:]).all()


@given(STRETCHES, STRETCHES)
def test_without_is_set_difference(one, other):
    assert points(subtract(*one, *other)) == points(one) - points(other)


@given(STRETCHES, st.lists(st.integers(0, 60), max_size=8))
def test_cutting_keeps_what_is_covered_and_leaves_no_edge_inside(stretches, edges):
    start, end = cut(*unite(*stretches), np.array(edges, np.int64))
    assert points((start, end)) == points(stretches)
    assert not any(a < edge < b for a, b in zip(start, end, strict=True) for edge in edges)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_leaf_times_of_nested_stretches_add_up_to_the_outermost(sizes, depth):
    start, end, at = [0], [0], depth
    for size in sizes:  # beside one another, each nested `depth` deep, a nanosecond apart
        for level in range(depth):
            start.append(at + level)
            end.append(at + level + size + 2 * (depth - level))
        at = end[-depth] + 1
    end[0] = at
    leaf = leaf_lengths(np.array(start), np.array(end))
    assert leaf.sum() == end[0]
    assert list(leaf[depth::depth]) == [size + 2 for size in sizes]


def test_a_stretch_that_others_fill_has_no_time_of_its_own():
    assert leaf_lengths(np.array([0, 0, 5]), np.array([9, 5, 9])).tolist() == [0, 5, 4]


TREES = st.recursive(
    st.integers(0, 3).map(lambda own: [own]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)


def nested(tree, at, rows):
    """The end of a stretch from `at` on; single numbers in a tree are time of its own."""
    row = len(rows)
    rows.append((at, at, 0))
    own = 0
    for part in tree:
        if isinstance(part, int):
            at, own = at + part, own + part
        else:
            at = nested(part, at, rows)
    rows[row] = (rows[row][0], at, own)
    return at


@given(st.lists(TREES, max_size=3), st.randoms())
def test_a_stretch_has_the_time_that_none_in_it_has(trees, random):
    rows, at = [], 0
    for tree in trees:
        at = nested(tree, at, rows)
    rows = [row for row in rows if row[1] > row[0]]
    random.shuffle(rows)
    start, end = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2).T
    leaf = leaf_lengths(start, end).tolist()
    for row in {(a, b) for a, b, _ in rows}:
        mine = [own for (a, b, _), own in zip(rows, leaf, strict=True) if (a, b) == row]
        assert sum(mine) == sum(own for a, b, own in rows if (a, b) == row)
        assert max(mine) == sum(mine)  # of those that are alike, one has it all


@given(STRETCHES)
def test_stretches_that_cross_have_no_more_than_their_length(stretches):
    start, end = stretches
    leaf = leaf_lengths(start, end)
    assert ((leaf >= 0) & (leaf <= end - start)).all()
