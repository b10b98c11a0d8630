"""Phase and gaps inside the pacer, by what it allows and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing import Decision, Pacer, PacerSettings, Plan, Reason, Stance, StepObservation

MS = 1_000_000
ALONE, MET = (2 * MS,) * 8, (3 * MS,) * 8


def pacer(controller: str = "auto", **fields: object) -> Pacer:
    chosen = {"mode": "on", "controller": controller, "run_id": "r", "world": 1, **fields}
    return Pacer(PacerSettings(**chosen))


def seen(step: int, buckets: tuple[int, ...], serial: int = 7, **fields: object) -> StepObservation:
    found = StepObservation(step, 100 * MS, 80 * MS, buckets_ns=buckets, serial=serial)
    return found._replace(**fields)


def drive(
    made: Pacer, steps: int, *, first: int = 0, met: int = 2, pause_ns: int = 0, **fields
) -> list[Decision]:
    """Steps of which one in `met` meets another job (0: none); where allowed it pauses so long."""
    found = []
    for step in range(first, first + steps):
        found.append(made.decide(step))
        contended = met and step // 5 % met == 0
        realised = {"gaps_ns": pause_ns} if found[-1].gaps else {}
        made.observe(seen(step, MET if contended else ALONE, **fields, **realised))
    return found


def acts(decisions: list[Decision]) -> bool:
    return any(found.gaps is not None or found.delay_ns > 0 for found in decisions)


@pytest.mark.parametrize("controller", ["phase", "gap", "auto"])
@pytest.mark.parametrize("guarded", [False, True])
def test_without_contention_nothing_is_held(controller: str, guarded: bool) -> None:
    made = pacer(controller, guarded=guarded)
    drive(made, 500, met=0)
    assert made.account.held_ns == 0
    assert not any(found.delay_ns for found in drive(made, 50, first=500, met=0))


def test_auto_pauses_where_buckets_have_completed_and_shifts_where_they_overlap() -> None:
    serial, overlapped = pacer(), pacer()
    assert any(found.gaps for found in drive(serial, 300, serial=7))
    assert not any(found.gaps for found in drive(overlapped, 300, serial=0))
    assert (serial.account.applicable, overlapped.account.applicable) == (1.0, 0.0)


def test_phase_holds_before_the_step_and_never_pauses() -> None:
    found = drive(pacer("phase", guarded=False), 300)
    assert any(made.delay_ns > 0 and made.reason is Reason.PHASE for made in found)
    assert not any(made.gaps for made in found)


def test_a_trial_that_does_not_lower_the_loss_is_ended() -> None:
    made = pacer("gap")  # contention goes on whatever is paused
    said = []
    for n in range(20):
        acted = acts(drive(made, 50, first=50 * n, pause_ns=2 * MS))
        said.append((made.account.contention, acted))
    assert ("on trial", True) in said
    assert ("does not pay", False) in said


@pytest.mark.parametrize("change", [{"world": 8}, {"batch": 64}])
def test_a_change_of_world_or_batch_forgets_the_trial(change: dict) -> None:
    made = pacer()
    drive(made, 150, batch=32)
    drive(made, 2, first=150, **{"batch": 32, **change})
    assert made.account.contention == "untested"


def test_around_a_checkpoint_nothing_pauses() -> None:
    made = pacer("gap", guarded=False)
    drive(made, 100)
    made.observe(seen(100, MET, steady=False))
    assert made.decide(101).gaps is None


def test_off_and_killed_allow_no_pause() -> None:
    made = pacer("gap", guarded=False)
    drive(made, 100)
    made.kill()
    assert not acts(drive(made, 50, first=100))
    assert not acts(drive(pacer("gap", guarded=False, mode="off"), 200))


def test_observing_proposes_and_pauses_nothing() -> None:
    assert not acts(drive(pacer("gap", guarded=False, mode="observe"), 200))


@given(st.lists(st.integers(10**6, 10**7), min_size=8, max_size=8))
def test_with_sharing_all_ranks_act_by_the_plan_alone(first: list[int]) -> None:
    ranks = [pacer(sharing=True, world=2, rank=rank) for rank in range(2)]
    for rank, made in enumerate(ranks):
        for step in range(64):
            made.decide(step)
            buckets = tuple(t * (1 + rank * step % 3) for t in first)
            made.observe(seen(step, buckets, world=2))
        made.adopt(Plan(64, 95, 0, 2, Stance.ON, 4 * MS))
    for step in range(64, 96):
        found = [made.decide(step) for made in ranks]
        assert {(made.delay_ns, made.gaps) for made in found} == {(4 * MS, None)}


def test_with_sharing_nothing_pauses_without_a_plan() -> None:
    assert not acts(drive(pacer("gap", guarded=False, sharing=True, rank=0), 200))


def test_the_leader_publishes_whether_to_pause() -> None:
    found = drive(pacer("gap", guarded=False, sharing=True), 200)
    assert any(made.plan.gaps for made in found if made.plan)


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=4))
def test_alone_ranks_disagree_by_less_than_the_bound(waits: list[int]) -> None:
    # each rank sees the same buckets, but waited differently in the first
    made = [pacer("phase", guarded=False) for _ in waits]
    for step in range(120):
        found = [rank.decide(step).delay_ns for rank in made]
        assert max(found) - min(found) <= max(rank.bound_ns for rank in made)
        for rank, wait in zip(made, waits, strict=True):
            buckets = MET if step // 5 % 2 else ALONE
            rank.observe(seen(step, (buckets[0] + wait, *buckets[1:])))


def test_what_a_phase_costs_is_for_its_trial_not_for_the_ledger() -> None:
    made = pacer("phase", guarded=False)
    for step in range(300):
        held = made.decide(step).delay_ns
        made.observe(seen(step, MET if step // 5 % 2 else ALONE, delay_ns=held))
    assert made.account.held_ns > 0
    assert made.account.booked_ns == 0
