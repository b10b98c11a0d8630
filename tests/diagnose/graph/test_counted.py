"""Orders, counts, lengths and medians on random small numbers, against counting one by one."""

import numpy as np
import pytest

from evenstep.diagnose.graph.gaps import weighted_median
from evenstep.diagnose.graph.schedule import depths
from evenstep.diagnose.graph.structure import (
    Intervals,
    TimeLine,
    grouped_order,
    length_before,
    means,
    overlap_length,
    quantiles,
    row_numbers,
    union_length,
)

SEEDS = pytest.mark.parametrize("seed", range(6))


@SEEDS
@pytest.mark.parametrize("unit", [1, 2**60])
def test_values_up_to_one(seed, unit):
    """Times that fit side by side, and such as do not."""
    random = np.random.default_rng(seed)
    for _ in range(20):
        count, asked = random.integers(1, 12, 2)
        number = np.sort(random.integers(0, 4, count))
        values = random.integers(-2, 3, count) * unit
        values = values[np.lexsort([values, number])]
        of, at = random.integers(0, 5, asked), random.integers(-2, 4, asked) * unit
        found = TimeLine(number, values).before(of, at).tolist()
        both = list(zip(number.tolist(), values.tolist(), strict=True))
        assert found == [
            sum(one <= pair for one in both) for pair in zip(of.tolist(), at.tolist(), strict=True)
        ]


@SEEDS
@pytest.mark.parametrize(("low", "high"), [(0, 4), (-2, 2), (2**16 - 2, 2**16 + 2)])
def test_orders_of_groups(seed, low, high):
    random = np.random.default_rng(seed)
    for sorted_ in (False, True) * 10:
        group = random.integers(low, high, 9)
        one, other = random.integers(0, 3, (2, 9))
        if sorted_:  # but for what is in another group
            order = np.lexsort([other, one])
            group, one, other = group[order], one[order], other[order]
        assert grouped_order(group, one, other).tolist() == np.lexsort([other, one, group]).tolist()


@SEEDS
def test_lengths_of_intervals(seed):
    random = np.random.default_rng(seed)
    for _ in range(20):
        sets = []
        for count in random.integers(0, 6, 2):
            cell, start, end = random.integers(0, 3, count), *random.integers(-5, 9, (2, count))
            sets.append(Intervals(cell, start, end))
        points = [
            {
                (c, t)
                for c, a, b in zip(*(x.tolist() for x in one), strict=True)
                for t in range(a, b)
            }
            for one in sets
        ]

        def lengths(of):
            return [sum(cell == one for one, _ in of) for cell in range(3)]

        assert union_length(sets[0], 3).tolist() == lengths(points[0])
        assert overlap_length(*sets, 3).tolist() == lengths(points[0] & points[1])
        cell, time = random.integers(0, 3, 7), random.integers(-6, 11, 7)
        assert length_before(sets[0], cell, time).tolist() == [
            sum(c == one and t < until for one, t in points[0])
            for c, until in zip(cell.tolist(), time.tolist(), strict=True)
        ]


@SEEDS
def test_levels_of_groups(seed):
    random = np.random.default_rng(seed)
    for _ in range(20):
        count = int(random.integers(0, 12))
        group, values = random.integers(0, 4, count), random.integers(0, 9, count).astype(float)
        weight = random.integers(0, 3, count)
        share = random.uniform(0, 1)
        each = [sorted(values[group == one].tolist()) for one in range(5)]
        lower = [one[int(share * (len(one) - 1))] if one else 0 for one in each]
        assert quantiles(values, group, share, 5).tolist() == lower
        mean = [np.mean(one) if one else 0 for one in each[: int(group.max(initial=-1)) + 1]]
        assert means(values, group) == pytest.approx(mean)
        repeated = np.repeat(np.arange(count), weight)
        each = [sorted(values[repeated][group[repeated] == one].tolist()) for one in range(5)]
        middle = [one[(len(one) - 1) // 2] if one else 0 for one in each]
        assert weighted_median(values, weight, group, 5).tolist() == middle
        table = np.stack([group, weight])
        same = (table[:, :, None] == table[:, None]).all(axis=0)
        number = row_numbers(group, weight)
        assert ((number[:, None] == number) == same).all()


@SEEDS
def test_longest_paths(seed):
    """Where nothing is circular; of two that wait for each other the earlier one comes first."""
    random = np.random.default_rng(seed)
    for _ in range(10):
        source = random.integers(0, 7, 9)
        target = source + random.integers(1, 4, 9)
        longest = [0] * 10
        for node in range(10):
            before = [longest[one] + 1 for one in source[target == node]]
            longest[node] = max(before, default=0)
        order = random.permutation(10)  # of the nodes' numbers
        found = depths(order[source], order[target], 10, np.zeros(10))
        assert found[order].tolist() == longest
    first = int(random.integers(2))
    time_ns = np.array([5, 5 - 2 * first + 1])
    assert depths(np.array([0, 1]), np.array([1, 0]), 2, time_ns).tolist() == [first, 1 - first]
