"""The rows in JSON as programs write it, however deep: named as its own words say."""

import pytest

from evenstep.importers.json_rows import MOST_AROUND, rows


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"rank": 0, "time_s": 1.5}, [{"rank": 0, "time_s": 1.5}]),
        ({"0": 1, "1": 2}, [{"0": 1, "1": 2}]),  # a plain object is a row, whatever its names
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ({"job": "x", "rows": [{"a": 1}, {"a": 2}]}, [{"job": "x", "a": 1}, {"job": "x", "a": 2}]),
        ({"a": 1, "rows": [{"a": 2}]}, [{"a": 2}]),  # what is nearest counts
        # an object of others has its name before theirs
        ({"rows": [{"step": 3, "timings": {"forward_ms": 7, "more": {"x": 1}}}]},
         [{"step": 3, "timings/forward_ms": 7, "timings/more/x": 1}]),
        # lists of times, and what is as long beside them
        ({"step_time": [1.0, 2.0], "loss": [9, 8], "names": ["a"], "run": "x"},
         [{"step": 0, "run": "x", "step_time": 1.0, "loss": 9},
          {"step": 1, "run": "x", "step_time": 2.0, "loss": 8}]),
        ({"step": 5, "time_ms": [7, 9]},
         [{"rank": 0, "step": 5, "time_ms": 7}, {"rank": 1, "step": 5, "time_ms": 9}]),
        ({"loss": [3, 4]}, [{}]),  # in which no time is named
        ({"seconds": [], "run": 1}, [{"run": 1}]),
        ({"tokens_per_step": 9, "time_s": [1, 2]},  # which numbers no step
         [{"step": 0, "tokens_per_step": 9, "time_s": 1},
          {"step": 1, "tokens_per_step": 9, "time_s": 2}]),
        # by ranks, whatever they are called
        ({"run": {"per_rank_ms": [[7, 8], [9]], "step_time_by_rank": [1.5]}},
         [{"step": 0, "rank": 0, "run/ms": 7}, {"step": 1, "rank": 0, "run/ms": 8},
          {"step": 0, "rank": 1, "run/ms": 9}, {"rank": 0, "run/step_time": 1.5}]),
        ({"rank0": [0.5, 0.6], "rank1": [0.7]},
         [{"step": 0, "rank": 0, "step_time": 0.5}, {"step": 1, "rank": 0, "step_time": 0.6},
          {"step": 0, "rank": 1, "step_time": 0.7}]),
        ({"run": "x", "times": {"0": {"step_ms": [1, 2]}, "1": {"step_ms": [3]}}},
         [{"step": 0, "run": "x", "rank": 0, "step_ms": 1},
          {"step": 1, "run": "x", "rank": 0, "step_ms": 2},
          {"step": 0, "run": "x", "rank": 1, "step_ms": 3}]),
        ({"global_rank_2": {"a": 1}, "Worker 3": {"a": 2}},
         [{"rank": 2, "a": 1}, {"rank": 3, "a": 2}]),
        ({"rank0": {"a": 1}, "other": {"a": 2}}, [{"rank0/a": 1, "other/a": 2}]),
        # numbers of objects of "steps" are steps, and of a known step ranks
        ({"steps": {"4": {"time": 1}, "5": {"time": 2}}},
         [{"step": 4, "time": 1}, {"step": 5, "time": 2}]),
        ({"train_iter": {"7": {"a": 1}}}, [{"step": 7, "a": 1}]),
        ({"steps": {"rank4": {"time": 1}}}, [{"rank": 4, "time": 1}]),  # it says what it is
        ({"step": 1, "steps": {"4": {"time": 1}}}, [{"step": 1, "rank": 4, "time": 1}]),
        ({"other": {"4": {"time": 1}}}, [{"rank": 4, "time": 1}]),
        ({"step_time": {"by_rank": {"4": {"ms": 1}}}}, [{"rank": 4, "ms": 1}]),  # the nearest name
        # columns of a table as objects by row, as pandas writes them
        ({"step": {"0": 5, "1": 6}, "time_s": {"0": 0.5, "1": 0.6}},
         [{"step": 5, "time_s": 0.5}, {"step": 6, "time_s": 0.6}]),
    ],
)  # fmt: skip
def test_each_row_has_the_values_around_it(value, expected):
    assert list(rows(value)) == expected


def test_of_many_values_around_the_first_are_in_each_row():
    around = {f"v{number}": number for number in range(MOST_AROUND + 1)}
    (row,) = rows({**around, "rows": [{"a": 1}]})
    assert row == {f"v{number}": number for number in range(MOST_AROUND)} | {"a": 1}
