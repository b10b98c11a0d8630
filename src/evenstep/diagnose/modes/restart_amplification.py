"""`restart_amplification`: work done again and time lost between the attempts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Option, When, Where
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Case, found
from evenstep.diagnose.measure.attempts import PRICE, Attempt, known
from evenstep.diagnose.measure.restarts import AttemptsAccount, account, cadence, restart_verdict
from evenstep.diagnose.modes.mode import Mode
from evenstep.statistics.interval import Share

HOUR_S = 3600.0


def find(case: Case) -> list[Finding]:
    """One finding for all restarts of the run, where they cost anything worth saying."""
    attempts = known(case.trace.run)
    if len(attempts) < 2:
        return []
    total = account(attempts)
    if total.elapsed_s <= 0 or total.lost_s / total.elapsed_s < SMALLEST_SHARE:
        return []
    share = _share(total)
    return [
        found(
            "restart_amplification",
            "runtime",
            share,
            observation=_observation(attempts, total),
            cause=_cause(attempts, total),
            where=Where(),
            when=When(),
            options=_options(attempts, total, share),
            evidence=_evidence(case, attempts, total),
        )
    ]


def _share(total: AttemptsAccount) -> Share:
    """Of the elapsed time; work that may not have been lost at all is left out of the low end."""
    value = min(total.lost_s / total.elapsed_s, 1.0)
    certain = sum(loss.gap_s + (loss.work_s if loss.seen else 0.0) for loss in total.losses)
    return Share(value, min(certain / total.elapsed_s, value), value)


def _observation(attempts: Sequence[Attempt], total: AttemptsAccount) -> str:
    restarts = len(total.losses)
    gap_s = sum(loss.gap_s for loss in total.losses)
    return (
        f"{len(attempts)} attempts in {words.duration(total.elapsed_s * 1e9)}: "
        f"{total.lost_steps:,} of {total.steps:,} steps were done again and {restarts} "
        f"{'restart' if restarts == 1 else 'restarts'} took {words.duration(gap_s * 1e9)}, so that "
        f"a step that counts takes {total.amplification:.3g} times as long as one that runs"
    )


def _cause(attempts: Sequence[Attempt], total: AttemptsAccount) -> str:
    preempted = [one.preempted for one in attempts[:-1] if one.preempted]
    verdicts = [restart_verdict(before, after) for before, after in pairwise(attempts)]
    text = (
        "each failure throws the run back to its last checkpoint"
        if any(loss.seen for loss in total.losses)
        else "no checkpoint was seen: all work before a restart is taken to be lost"
    )
    if preempted:
        signals = " and ".join(sorted(set(preempted)))
        text += (
            f"; {len(preempted)} of {len(attempts) - 1} attempts before were preempted ({signals})"
        )
    if "amplified" in verdicts:
        text += "; the run comes back less steady than it was"
    elif "reset" in verdicts:
        text += "; the run comes back steadier than it was"
    return text


def _options(attempts: Sequence[Attempt], total: AttemptsAccount, share: Share) -> list[Option]:
    restart_s = sum(loss.gap_s for loss in total.losses) / len(total.losses)
    options = []
    best = cadence(attempts, total)
    gain = best.saved(restart_s) if best is not None else None
    if best is not None and gain:
        assert best.now_s is not None  # else there is no gain
        more = "more often" if best.best_s < best.now_s else "less often"
        options.append(
            Option(
                f"checkpoint {more}: every {words.duration(best.best_s * 1e9)} instead of every "
                f"{words.duration(best.now_s * 1e9)}",
                round(min(gain, share.value), 4),
                None,
                None,
                f"{words.duration(best.checkpoint_s * 1e9)} for each checkpoint, counted",
                "waste C/τ + τ/(2M) + R/M at Daly's τ against now; M from these attempts",
            )
        )
    if best is None:
        again = sum(loss.work_s for loss in total.losses) / total.elapsed_s
        options.append(
            Option(
                "write checkpoints and resume from the last one",
                round(min(again, 1.0), 4),
                0.0,
                round(min(again, 1.0), 4),
                "one write now and then",
                "no work done again; checkpoints themselves not counted",
            )
        )
    gap = sum(loss.gap_s for loss in total.losses) / total.elapsed_s
    options.append(
        Option(
            "restart faster: spare nodes, cached images and data, fast rendezvous",
            round(min(gap, 1.0), 4),
            0.0,
            round(min(gap, 1.0), 4),
            "spare capacity",
            "at most the time between the last step of an attempt and the first of the next",
        )
    )
    return sorted(options, key=lambda option: -(option.gain or 0.0))


def _evidence(case: Case, attempts: Sequence[Attempt], total: AttemptsAccount) -> list[Evidence]:
    ranks = attempts[-1].ranks
    per_step_s = total.elapsed_s / total.net_steps
    running_s = total.running_s / max(total.steps, 1)
    hours = 1000 * ranks / HOUR_S
    items = [
        Evidence("attempts", len(attempts), 1, "attempts"),
        Evidence("steps_done_again", total.lost_steps, 0, "steps"),
        Evidence("time_lost", round(total.lost_s * 1e9), 0, "ns"),
        Evidence("restart_amplification", round(total.amplification, 4), 1.0, "factor"),
        Evidence(
            "time_to_restart", round(1e9 * max(loss.gap_s for loss in total.losses)), None, "ns"
        ),
        Evidence(
            "rank_hours_per_1000_steps", _short(per_step_s * hours), _short(running_s * hours), "h"
        ),
    ]
    price = case.trace.run.get(PRICE)
    if isinstance(price, int | float):
        paid, due = (price * hours * each for each in (per_step_s, running_s))
        items.append(Evidence("cost_per_1000_steps", _short(paid), _short(due), "money"))
    return items + _energy(attempts, total) + _cadence(attempts, total) + _sides(attempts)


def _energy(attempts: Sequence[Attempt], total: AttemptsAccount) -> list[Evidence]:
    """Energy per step that counts, where every attempt has its counter."""
    parts = [one.energy_joules for one in attempts]
    if any(part is None for part in parts):
        return []
    joules = sum(part or 0.0 for part in parts)
    net, done = joules / total.net_steps, joules / max(total.steps, 1)
    return [Evidence("energy_per_step_that_counts", _short(net), _short(done), "J")]


def _cadence(attempts: Sequence[Attempt], total: AttemptsAccount) -> list[Evidence]:
    best = cadence(attempts, total)
    if best is None:
        return []
    now = None if best.now_s is None else round(best.now_s * 1e9)
    return [
        Evidence("time_between_checkpoints", now, round(best.best_s * 1e9), "ns"),
        Evidence("checkpoint_time", round(best.checkpoint_s * 1e9), None, "ns"),
        Evidence("mean_time_between_failures", round(best.between_failures_s * 1e9), None, "ns"),
    ]


def _sides(attempts: Sequence[Attempt]) -> list[Evidence]:
    """CV and rate after the last restart, beside those before it."""
    before, after = attempts[-2], attempts[-1]
    return [
        Evidence("cv_after_restart", _short(after.cv_at_start), _short(before.cv_at_end), "1"),
        Evidence(
            "throughput_after_restart",
            _short(after.rate_at_start),
            _short(before.rate_at_end),
            "steps/s",
        ),
    ]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


MODE = Mode(
    name="restart_amplification",
    layer="runtime",
    symptom="The job is up most of the time, and yet progress is much slower than its step time.",
    look_at=(
        "steps done again after each restart, and the time until the first step",
        "time between checkpoints beside Young's and Daly's optimum",
        "CV and throughput before and after each restart",
        "rank-hours, cost and energy per step that counts",
    ),
    remedy=(
        "checkpoint at Daly's interval, asynchronously",
        "restart faster: spare nodes, cached images and data",
        "find what fails: which rank or node ended first in each attempt",
    ),
    confirm="over the next failures, elapsed time per step that counts falls as predicted.",
    find=find,
    without_steps=True,
)
