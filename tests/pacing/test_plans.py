from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.observation import MOST_PLANS, PLAN_LEAD_WINDOWS, PLAN_STEPS, Plan, PlanBook
from evenstep.pacing.random_trial import ALWAYS, LONGEST_SCALE, PAIR, SPANS

PLANS = st.builds(
    Plan,
    first_step=st.integers(0, 2**40),
    last_step=st.integers(2**40, 2**41),
    attempt=st.integers(0, 2**31),
    world=st.integers(1, 2**31),
    span=st.sampled_from(SPANS),
    scale=st.integers(0, LONGEST_SCALE),
)


def plan(first: int, last: int, **fields: int) -> Plan:
    return Plan(first, last, **{"attempt": 0, "world": 4, "span": ALWAYS, **fields})


def book() -> PlanBook:
    return PlanBook(attempt=0, world=4)


@given(PLANS)
def test_a_plan_survives_its_journey(sent: Plan) -> None:
    assert Plan.unpack(sent.pack()) == sent


@given(st.binary(max_size=64))
def test_foreign_bytes_are_no_plan(data: bytes) -> None:
    assert Plan.unpack(data) is None


@given(PLANS, st.integers(0, 29), st.integers(0, 255))
def test_a_damaged_plan_is_refused_or_still_a_plan(sent: Plan, at: int, byte: int) -> None:
    data = bytearray(sent.pack())
    data[at] = byte
    found = Plan.unpack(bytes(data))
    assert found is None or found.first_step <= found.last_step


def test_a_plan_is_in_force_from_its_first_to_its_last_step() -> None:
    held = book()
    assert held.adopt(plan(64, 95), asked_step=10)
    assert [held.at(step) is not None for step in (63, 64, 95, 96)] == [False, True, True, False]


def test_a_plan_that_comes_after_its_first_step_is_refused_whole() -> None:
    held = book()
    assert not held.adopt(plan(64, 95), asked_step=64)
    assert held.at(80) is None


def test_plans_of_another_attempt_or_world_are_refused() -> None:
    assert not book().adopt(plan(64, 95, attempt=1), asked_step=0)
    assert not book().adopt(plan(64, 95, world=8), asked_step=0)


def test_a_second_plan_for_the_same_steps_is_refused() -> None:
    held = book()
    held.adopt(plan(64, 95), asked_step=0)
    assert not held.adopt(plan(64, 95, span=PAIR), asked_step=0)
    assert held.at(64).span == ALWAYS


def test_few_plans_are_held_at_a_time() -> None:
    held = book()
    adopted = [held.adopt(plan(i, i), asked_step=-1) for i in range(10)]
    assert sum(adopted) == MOST_PLANS


def test_one_plan_per_window_is_published_two_windows_ahead() -> None:
    made = [book().next(step, ALWAYS) for step in range(2 * PLAN_STEPS)]
    ahead = [found.first_step - step for step, found in enumerate(made) if found]
    assert ahead == [PLAN_LEAD_WINDOWS * PLAN_STEPS] * 2


@given(least=st.integers(0, 2000))
def test_plans_of_quick_steps_last_as_long_as_it_takes_to_pass_them_on(least: int) -> None:
    made = [book().next(step, ALWAYS, least_steps=least) for step in range(4096)]
    plans = [(step, plan) for step, plan in enumerate(made) if plan]
    lengths = {plan.last_step - plan.first_step + 1 for _, plan in plans}
    assert len(lengths) == 1
    assert max(least, PLAN_STEPS) <= min(lengths) <= 2 * max(least, PLAN_STEPS)
    assert all(plan.first_step - step == 2 * min(lengths) for step, plan in plans)


def test_a_book_without_plans_takes_one_for_the_very_next_step() -> None:
    assert book().adopt(plan(1, 32), asked_step=0)
