"""The two rules against contention, by their own formulas (pacing study, "The controller")."""

from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.buckets import Contended
from evenstep.pacing.gap import Gaps
from evenstep.pacing.phase import Phase

MS = 1_000_000


def met(lead_ms: int, *, whole: bool = False) -> Contended:
    return Contended(80 * MS + lead_ms * MS, lead_ms * MS, lead_ms * MS, whole, 80 * MS)


def phase(*leads_ms: int, whole: bool = False) -> Phase:
    made = Phase("run", 0)
    for lead in leads_ms:
        made.learn(met(lead, whole=whole))
    return made


def rule(bound_ms: int = 1000) -> Gaps:
    return Gaps(10 * MS, 11 * MS, (1.0,) * 8, bound_ms * MS)


def test_a_job_that_meets_nobody_is_not_held() -> None:
    assert phase(*[0] * 20).delay_ns == 0


def test_three_leads_in_a_row_make_the_job_yield_by_the_last_and_a_tenth() -> None:
    assert phase(10, 10).delay_ns == 0
    assert phase(10, 10, 12).delay_ns == int(12 * MS + 0.1 * 12 * MS)


def test_a_single_short_lead_makes_nobody_yield() -> None:
    assert phase(10, 2, 10).delay_ns == 0  # 2 ms of 80 are below 3 %


def test_after_a_jump_only_the_integral_is_held() -> None:
    made = phase(10, 10, 10)
    made.learn(met(0))
    assert made.delay_ns == MS


def test_the_integral_fades_where_there_is_no_lead() -> None:
    assert phase(10, 10, 10, *[0] * 60).delay_ns < 10_000


def test_who_collides_with_every_bucket_draws_how_far_to_go() -> None:
    delay = phase(20, 20, 20, whole=True).delay_ns - 2 * MS
    assert 10 * MS <= delay <= 20 * MS


def test_ranks_of_one_run_draw_the_same() -> None:
    assert phase(20, 20, 20, whole=True).delay_ns == phase(20, 20, 20, whole=True).delay_ns


def test_a_pause_keeps_the_integral_and_forgets_the_leads() -> None:
    made = phase(10, 10, 10)
    made.pause()
    made.learn(met(10))
    assert made.delay_ns == MS


def test_a_rule_at_rest_has_forgotten() -> None:
    made = phase(10, 10, 10)
    made.rest()
    assert (made.delay_ns, made.integral_ns) == (0, 0.0)


def test_the_pause_shrinks_from_the_first_bucket_to_the_last() -> None:
    # e = 8 ms; e (1 - (b + 1) / 8)²
    assert [rule().after(b, 18 * MS) for b in range(8)] == [
        left * left * MS // 8 for left in (7, 6, 5, 4, 3, 2, 1, 0)
    ]


def test_a_bucket_that_is_not_contended_is_followed_at_once() -> None:
    assert rule().after(0, 11 * MS) == 0


def test_no_pause_is_longer_than_three_times_the_reference() -> None:
    assert rule().after(0, 900 * MS) == 30 * MS


def test_a_first_bucket_loses_its_usual_wait() -> None:
    # 18 ms less 4 ms of wait: e = 4
    assert rule()._replace(first_wait_ns=4 * MS).after(0, 18 * MS) == 4 * MS * 49 // 64
    assert rule()._replace(first_wait_ns=None).after(0, 18 * MS) == 0


@given(st.lists(st.integers(-(10**9), 10**12), min_size=8, max_size=8), st.integers(0, 10**9))
def test_all_pauses_of_a_step_stay_within_the_bound(took: list[int], bound: int) -> None:
    gaps, spent = Gaps(10 * MS, 11 * MS, (1.0,) * 8, bound), 0
    for bucket, duration in enumerate(took):
        pause = gaps.after(bucket, duration, spent)
        assert pause >= 0
        spent += pause
    assert spent <= bound


@given(st.lists(st.integers(0, 10**10), max_size=60))
def test_a_phase_is_never_negative(leads: list[int]) -> None:
    made = Phase("run", 0)
    for lead in leads:
        made.learn(Contended(lead, lead, lead, lead % 2 == 0, 80 * MS))
        assert made.delay_ns >= 0
