import json

from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing import StepObservation
from evenstep.pacing.account import RankLedger, TrialVerdict

TRANSFER = 50
RANKS = 3
#: own work and wished delay of every rank, step after step
STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 200)), min_size=RANKS, max_size=RANKS),
    max_size=80,
)


def seen(step: int, **fields: int | None) -> StepObservation:
    return StepObservation(step, **{"step_ns": 1000, "work_ns": 900, **fields})


def book(ledger: RankLedger, one: StepObservation) -> None:
    ledger.book(one.step_ns, one.delay_ns, waited=one.waited)


def replay(steps: list, ledgers: list) -> tuple[int, int, list[int]]:
    """Brute force: (true loss, elapsed, surplus of the allowance at each step)."""
    lost = elapsed = 0
    surplus = []
    for step, ranks in enumerate(steps):
        work = [u for u, _ in ranks]
        delays = [min(d, ledgers[i].room_ns) for i, (_, d) in enumerate(ranks)]
        last = max(u + d for u, d in zip(work, delays, strict=True))
        lost, elapsed = lost + last - max(work), elapsed + last + TRANSFER
        for i, ledger in enumerate(ledgers):
            wait = last - work[i] - delays[i]
            fields = {"delay_ns": delays[i], "in_flight_ns": wait + TRANSFER}
            fields |= {"step_ns": last + TRANSFER, "floor_lower_ns": TRANSFER}
            book(ledger, seen(step, **fields))
        surplus.append(int(0.01 * elapsed) + 400 + RANKS - lost)
    return lost, elapsed, surplus


def accounts() -> list[RankLedger]:
    ledgers = [RankLedger(share=0.01, ranks=RANKS) for _ in range(RANKS)]
    for ledger in ledgers:
        ledger.credit_ns = 400
    return ledgers


@given(STEPS)
def test_together_the_ranks_book_at_least_what_the_job_lost(steps: list) -> None:
    ledgers = accounts()
    lost, _, _ = replay(steps, ledgers)
    assert sum(ledger.loss_ns for ledger in ledgers) >= lost


@given(STEPS)
def test_the_true_loss_never_exceeds_what_all_ranks_may_lose(steps: list) -> None:
    _, _, surplus = replay(steps, accounts())
    assert min(surplus, default=0) >= 0


@given(STEPS)
def test_no_rank_books_more_than_its_allowance(steps: list) -> None:
    ledgers = accounts()
    replay(steps, ledgers)
    assert all(ledger.loss_ns <= ledger.allowance_ns for ledger in ledgers)


def test_a_delay_spent_waiting_anyway_costs_nothing() -> None:
    ledger = accounts()[0]
    book(ledger, seen(0, delay_ns=100, in_flight_ns=161, floor_lower_ns=50, margin_ns=110))
    assert ledger.loss_ns == 0


def test_a_wait_within_its_margin_is_not_believed() -> None:
    ledger = accounts()[0]
    book(ledger, seen(0, delay_ns=100, in_flight_ns=160, floor_lower_ns=50, margin_ns=110))
    assert ledger.loss_ns == 100


def test_an_unknown_time_in_flight_is_booked_in_full() -> None:
    ledger = accounts()[0]
    book(ledger, seen(0, delay_ns=100, in_flight_ns=None, floor_lower_ns=50))
    assert ledger.loss_ns == 100


def test_a_step_may_be_held_for_what_is_left() -> None:
    ledger = RankLedger(share=0.01, ranks=1)
    assert ledger.room_ns == 0
    ledger.credit_ns = 150
    assert ledger.room_ns == 150
    book(ledger, seen(0, delay_ns=160))  # overslept: 10 beyond, and 1,000 ns of steps give 10
    assert ledger.room_ns == 0


def test_a_verdict_is_plain_json_with_and_without_an_interval() -> None:
    known = TrialVerdict("pays", 7, 0.1, 0.05, 0.15)
    assert known.plain == {"word": "pays", "pairs": 7, "gain": 0.1, "low": 0.05, "high": 0.15}
    for open_ended in (known._replace(low=-float("inf")), known._replace(high=float("inf"))):
        assert open_ended.plain == {**known.plain, "low": None, "high": None}
        json.dumps(open_ended.plain, allow_nan=False)
