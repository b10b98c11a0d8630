"""Which rank a file is of, by its path."""

from pathlib import Path

import pytest

from evenstep.importers.file_ranks import (
    absent,
    in_rank_folders,
    misfits,
    rank_of,
    ranks_by_paths,
    ranks_or_numbers,
)
from evenstep.trace.ranks import MOST_RANKS, natural


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a-rank3.json"], [3]),
        (["rank3/trace.json", "rank10/trace.json"], [3, 10]),
        (["rank3/trace.json"], [3]),
        (["rank8_run/trace.json"], [None]),
        (["rank_3/day/trace.json", "rank_10/day/trace.json"], [3, 10]),
        (["rank8_run/gpu0.json", "rank8_run/gpu1.json", "rank8_run/gpu3.json"], [0, 1, 3]),
        (["gpu0.json", "gpu5.json"], [None, None]),  # too few of six to be sure
        (["host_4711.json", "host_4712.json"], [None, None]),  # processes
        (["n0_gpu0.json", "n0_gpu1.json", "n1_gpu0.json", "n1_gpu1.json"], [None] * 4),
        (["frank3.json", "b.json"], [None, None]),
        ([f"n{n}/local_rank{g}.json" for n in (0, 1) for g in (0, 1)], [None] * 4),
        (["rank1.json", "trace.json"], [1, None]),
    ],
)
def test_a_path_tells_the_rank_where_only_one_reading_is_left(names, expected):
    paths = [Path("/runs/2024", name) for name in names]
    found = ranks_by_paths(paths)
    assert [found.get(path) for path in paths] == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["nccl_trace_3", "nccl_trace_130"], [3, 130]),
        (["rank1.json", "trace_7.json"], [1, 7]),
        (["a-2024.csv", "b-2024.csv"], [None, None]),  # the same number is of no rank
    ],
)
def test_else_distinct_numbers_at_the_ends_of_names_are_ranks(names, expected):
    paths = [Path("/runs", name) for name in names]
    assert [ranks_or_numbers(paths).get(path) for path in paths] == expected


def test_paths_are_sorted_as_people_number_them():
    paths = [Path(f"node{n}/{k}") for n in (10, 9) for k in ("t11", "t2")]
    assert [str(path) for path in sorted(paths, key=natural)] == [
        "node9/t2", "node9/t11", "node10/t2", "node10/t11",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["run/rank0/t.json", "run/rank1/t.json"], True),
        (["run/rank0/day/t.json", "run/rank1/day/t.json"], True),
        (["run/rank0/t.json", "other/rank1/t.json"], False),
        (["run/rank0/a/b/t.json", "run/rank1/a/b/t.json"], True),
        (["run/rank0/a/b/c/t.json", "run/rank1/a/b/c/t.json"], False),  # too far up
        (["run1/t.json", "run2/t.json"], False),
        (["rank0/t.json", "rank0/sub/t.json"], False),
    ],
)
def test_a_folder_for_each_rank_is_told_from_a_folder_for_each_run(names, expected):
    assert in_rank_folders([Path(name) for name in names]) == expected


def test_digits_without_end_are_compared_as_far_as_a_number_goes():
    assert natural(Path("r" + "9" * 4500)) == ["r", 10**18 - 1, ""]


HOUR = 3_600_000_000_000


@pytest.mark.parametrize(
    ("files", "left_out", "world"),
    [
        ([(4, 0), (4, HOUR), (0, 0)], {}, 4),
        ([(4, 0), (4, 0), (4, HOUR + 1)], {2: "1 h away from most others"}, 4),
        ([(4, 0), (4, 3 * HOUR), (4, 3 * HOUR)], {0: "3 h away"}, 4),
        ([(0, 0), (0, 2 * HOUR)], {1: "2 h away"}, 0),  # of two, the earlier counts
        ([(2, 0), (4, 0), (4, 0)], {0: "of a run of 2 ranks, not of 4"}, 4),
        ([(2, 0), (4, 0)], {1: "of a run of 4 ranks, not of 2"}, 2),  # of a tie, the first
        ([(0, 0), (4, 0)], {}, 4),
    ],
)
def test_a_file_of_another_run_than_most_is_told_by_its_size_and_its_time(files, left_out, world):
    paths = [Path(f"f{number}") for number in range(len(files))]
    found, main = misfits(dict(zip(paths, files, strict=True)))
    assert main == world
    assert {paths.index(path) for path in found} == set(left_out)
    for number, said in left_out.items():
        assert f"left out: {paths[number]} is " in found[paths[number]]
        assert said in found[paths[number]]


@pytest.mark.parametrize(
    ("ranks", "world", "said"),
    [
        (range(4), 4, None), ([], 0, None), ([0, 2, 3], 4, "rank 1 of 4 left"),
        ([0, 3], 4, "ranks 1-2 of 4 left"), ([0, 2], 4, "ranks 1,3 of 4 left"),
    ],
)  # fmt: skip
def test_ranks_without_a_file_are_named(ranks, world, said):
    found = absent(ranks, world)
    assert len(found) == (said is not None)
    assert all(one.startswith(f"{said} no file here: give all") for one in found)


def test_many_ranks_without_a_file_are_named_as_far_as_there_is_room():
    (said,) = absent(range(0, 200, 2), 200)
    shown = said.removeprefix("ranks ").partition(" of 200")[0]
    numbers = shown.removesuffix(" …").split(",")
    assert shown.endswith(" …")
    assert numbers == [str(number) for number in range(1, 2 * len(numbers), 2)]
    assert 50 < len(shown) < 60


@pytest.mark.parametrize(
    ("value", "rank"),
    [(0, 0), (7, 7), (MOST_RANKS - 1, MOST_RANKS - 1), (MOST_RANKS, None), (-1, None),
     (True, None), ("3", None), (3.0, None)],
)  # fmt: skip
def test_a_rank_is_a_whole_number_of_some_size(value, rank):
    assert rank_of(value) == rank
