"""A finding is called by its cause, and says where."""

from dataclasses import replace

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import Effect, Finding, When, Where
from evenstep.diagnose.titles import title_of
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import World

MS = 1_000_000
PLAIN = Finding("workload_imbalance", "model", 0.1, 1.0, "", "", Where(), When(), Effect(0.1))


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({}, "Uneven work"),
        ({"cause": "garbage collection: rank 1 collects", "where": Where(ranks=(1,))},
         "Garbage collection on rank 1"),
        ({"cause": "rank 1 (node a) enters last: 5 ms more", "mode": "straggler"}, "Late entry"),
        ({"where": Where(ranks=(0, 1), nodes=("gpu012",))}, "Uneven work on gpu012"),
        ({"when": When(pattern="rotating"), "where": Where(ranks=(0, 1))},
         "Uneven work, one rank after the other"),
    ],
)  # fmt: skip
def test_a_title_is_the_cause_and_where(change, title):
    assert title_of(replace(PLAIN, **change)) == title


def test_a_straggler_is_called_by_what_it_does_longer():
    found = diagnose(World().slow(1, Phase.BACKWARD, 50 * MS).trace()).findings[0]
    assert found.title == "Slow backward on rank 1"
