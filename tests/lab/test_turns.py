"""A pacer for each arm behind one face: each sees its own blocks, and nobody else's plans."""

from __future__ import annotations

from evenstep.pacing import PacerSettings, Plan, StepObservation
from lab.turns import TurnPacer

STEP_NS, WAIT_NS = 50_000_000, 20_000_000


def pacer(arm_of_step):
    """Nothing, and the paper's rule without a guard."""
    rule = PacerSettings(mode="on", controller="paper", guarded=False, world=2)
    return TurnPacer([PacerSettings(mode="off", world=2), rule], arm_of_step)


def walk(turns, steps):
    """Decisions of a rank that always waits for another."""
    delays = []
    for step in range(steps):
        turns.observe(StepObservation(step, STEP_NS, STEP_NS - WAIT_NS, WAIT_NS))
        delays.append(turns.decide(step + 1).delay_ns)
    return delays


def test_only_the_arm_whose_turn_it_is_holds():
    delays = walk(pacer(lambda step: step // 100 % 2), 400)
    assert max(delays[0:99]) == max(delays[200:299]) == 0
    assert max(delays[100:199]) > 0  # it learns in some 32 steps


def test_what_an_arm_has_learnt_is_kept_for_its_next_turn():
    delays = walk(pacer(lambda step: step // 100 % 2), 320)
    first, second = (
        next(index for index, delay in enumerate(delays[begin:]) if delay) for begin in (99, 299)
    )
    assert second < first


def test_every_step_is_counted_in_the_arm_that_decided_it():
    turns = pacer(lambda step: step // 10 % 2)
    walk(turns, 40)
    assert [told["steps"] for told in turns.told([None, None])] == [20, 20]


def test_a_plan_is_adopted_by_the_arm_that_made_it():
    shared = {"mode": "on", "sharing": True, "world": 2}
    arms = [PacerSettings(**shared), PacerSettings(**shared)]
    turns = TurnPacer(arms, lambda step: step // 100)
    plan = Plan(10, 41, attempt=1, world=2, span=1)
    assert turns.adopt(plan)
    assert not turns.adopt(plan._replace(attempt=2))


def test_the_kill_switch_stops_every_arm():
    turns = pacer(lambda step: 1)
    turns.kill()
    assert max(walk(turns, 200)) == 0
