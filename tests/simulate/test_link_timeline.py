"""The spans of a timeline add up to the steps they show."""

from evenstep.reproduce.link_pacing import TimelineSpan, timeline
from evenstep.reproduce.link_worlds import LinkJob, LinkWorld

LONE = LinkWorld(jobs=(LinkJob(compute=1.0, exchange=0.4, ranks=3),))
TWO = LinkWorld(jobs=(LinkJob(compute=1.0, exchange=0.6), LinkJob(compute=1.02, exchange=0.6)))


def total(spans: list[TimelineSpan], kind: str, rank: int = 0) -> float:
    return sum(span.end - span.begin for span in spans if (span.kind, span.rank) == (kind, rank))


def test_a_lone_job_computes_and_exchanges_and_nothing_else() -> None:
    spans = timeline(LONE, first_step=5, steps=2)
    for rank in range(3):
        assert abs(total(spans, "compute", rank) - 2.0) < 1e-9
        assert abs(total(spans, "exchange", rank) - 0.8) < 1e-9
    assert {span.kind for span in spans} == {"compute", "exchange"}


def test_early_ranks_wait_until_the_last_has_entered() -> None:
    job = LinkJob(compute=1.0, exchange=0.4, jitter=0.05, ranks=2)
    spans = timeline(LinkWorld(jobs=(job,)), first_step=3, steps=1)
    busy = [total(spans, "compute", rank) + total(spans, "wait", rank) for rank in range(2)]
    assert abs(busy[0] - busy[1]) < 1e-9
    assert min(total(spans, "wait", rank) for rank in range(2)) == 0


def test_other_jobs_are_shown_for_the_same_time() -> None:
    spans = timeline(TWO, first_step=10, steps=3)
    until = max(span.end for span in spans if span.job == 0)
    others = [span for span in spans if span.job == 1]
    assert min(span.begin for span in others) == 0
    assert abs(max(span.end for span in others) - until) < 1e-9


def test_a_job_that_waits_for_the_token_shows_it() -> None:
    spans = timeline(TWO, first_step=80, steps=60, guarded=False)
    assert total(spans, "wait") > 0
    free = timeline(TWO, first_step=80, steps=60)
    assert total(spans, "exchange") < total(free, "exchange")
