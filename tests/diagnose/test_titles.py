"""A finding is called by its cause, and says where."""

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import When, Where
from evenstep.diagnose.sentences import make_finding, place_of
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import World

MS = 1_000_000


@pytest.mark.parametrize(
    ("where", "pattern", "place"),
    [
        (Where(), None, ""),
        (Where(ranks=(1,)), "chronic", " on rank 1"),
        (Where(ranks=(0, 1), nodes=("gpu012",)), "chronic", " on gpu012"),
        (Where(links=("leaf0-leaf1",)), None, " on leaf0-leaf1"),
        (Where(ranks=(0, 1)), "rotating", ", one rank after the other"),
    ],
)
def test_a_title_ends_with_where(where, pattern, place):
    assert place_of(where, When(pattern=pattern)) == place


def test_a_finding_is_called_by_its_cause():
    finding = make_finding(
        "input_pipeline.everybody", Share(0.1, 0.1, 0.1),
        numbers={"usual": 5 * MS, "who": "every rank", "short": ""},
        where=Where(nodes=("gpu012",)), when=When(), options={"workers": None},
    )  # fmt: skip
    assert finding.title == "Slow input pipeline on gpu012"
    assert finding.observation == "every rank waits 5 ms for its DataLoader in the median step"
    assert finding.options[0].gain is None


@pytest.mark.parametrize(("period", "told"), [({}, []), ({"period": 0.5}, ["contention_period"])])
def test_evidence_is_of_the_numbers_that_are_given(period, told):
    numbers = {"factor": 2.0, "steps": 0.25, "at": "", "again": "", "neighbour": "other traffic"}
    finding = make_finding(
        "fabric_contention", Share(0.1, 0.1, 0.1), numbers=numbers | period, when=When(),
        options={"apart": None},
    )  # fmt: skip
    assert [one.metric for one in finding.evidence] == [
        "transfer_slowdown", "steps_contended", *told,
    ]  # fmt: skip
    assert (finding.evidence[1].measured, finding.evidence[1].unit) == (0.25, "share")


def test_a_straggler_is_called_by_what_it_does_longer():
    found = diagnose(World().slow(1, Phase.BACKWARD, 50 * MS).trace()).findings[0]
    assert found.title == "Slow backward on rank 1"


def test_who_is_slower_at_all_that_it_does_is_called_so():
    slow = World(noise=0.01).slow(1, Phase.FORWARD, 4 * MS).slow(1, Phase.BACKWARD, 8 * MS)
    found = diagnose(slow.trace()).findings[0]
    assert found.title == "Slow compute on rank 1"
    assert "all its work takes longer, by 12" in found.cause
    assert "clocks, temperature" in found.options[0].action


def test_one_delay_is_in_its_step_and_place_though_other_phases_took_longer_there_too():
    world = World(ranks=2, steps=120)
    one = world.everywhere()
    one[80, 1] = MS
    world = world.delayed(Phase.OTHER, 600 * one)
    for phase, half in ((Phase.FORWARD, 10), (Phase.BACKWARD, 20), (Phase.OPTIMIZER, 2)):
        world = world.delayed(phase, half * one)
    found = diagnose(world.trace()).findings[0]
    assert found.title == "Delay in the training loop on rank 1"
    assert found.cause.startswith("rank 1 (node node0) enters last: 632 ms more in step 80 in your")
