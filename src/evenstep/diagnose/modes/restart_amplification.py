"""`restart_amplification`: work done again and time lost between the attempts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.measure.attempts import PRICE, Attempt, attempts_of
from evenstep.diagnose.measure.effects import AttemptsAccount, account, cadence, restarts
from evenstep.diagnose.modes.intervention import Gain, finding_of
from evenstep.diagnose.sentences import say
from evenstep.statistics.interval import Share


def find(case: Case) -> list[Finding]:
    """One finding for all restarts of the run."""
    attempts = attempts_of(case.trace.run)
    if len(attempts) < 2:
        return []
    total = account(attempts)
    if total.elapsed_s <= 0:
        return []
    share = _share(total)
    return finding_of(
        case, "restart_amplification", Gain(share), numbers=_numbers(attempts, total), at=When(),
        options=_options(attempts, total, share), evidence=_evidence(case, attempts, total),
    )  # fmt: skip


def _share(total: AttemptsAccount) -> Share:
    """Share of the elapsed time that is lost; its high end counts work that may be lost, too."""
    value = min(total.lost_s / total.elapsed_s, 1.0)
    unsure_s = total.unsure_steps * total.running_s / max(total.steps, 1)
    return Share(value, value, min((total.lost_s + unsure_s) / total.elapsed_s, 1.0))


def _numbers(attempts: Sequence[Attempt], total: AttemptsAccount) -> dict[str, Any]:
    best, before = cadence(attempts, total), attempts[:-1]
    preempted = [one.preempted for one in before if one.preempted]
    verdicts = [one["verdict"] for one in restarts(attempts)]
    steadiness = next((word for word in ("amplified", "reset") if word in verdicts), None)
    gap_s = sum(loss.gap_s for loss in total.losses)
    why = "seen" if any(loss.seen for loss in total.losses) else "unseen"
    why = "slow" if why == "seen" and gap_s > sum(loss.work_s for loss in total.losses) else why
    return {
        "attempts": len(attempts),
        "elapsed": total.elapsed_s * 1e9,
        "again": total.lost_steps + total.unsure_steps,
        "up_to": "up to " if total.unsure_steps else "",
        "steps": total.steps,
        "restarts": words.plural(len(total.losses), "restart"),
        "gap": 1e9 * gap_s,
        "amplification": total.amplification,
        "why": say(
            f"restart_amplification.{why}",
            each=1e9 * gap_s / len(total.losses), first=f"attempt-{attempts[0].number:03d}",
        ),
        "failed": f"attempt {before[-1].number}: {failure}; "
        if (failure := before[-1].failure)
        else "",
        "preempted": say(
            "restart_amplification.preempted",
            number=len(preempted), of=len(before), signals=" and ".join(sorted(set(preempted))),
        ) if preempted else "",
        "steadiness": say(f"restart_amplification.{steadiness}") if steadiness else "",
        "often": "more often" if best and best.best_s < (best.now_s or 0.0) else "less often",
        "best": best and best.best_s * 1e9,
        "now": best and best.now_s and best.now_s * 1e9,
        "write": best and best.checkpoint_s * 1e9,
    }  # fmt: skip


def _options(
    attempts: Sequence[Attempt], total: AttemptsAccount, share: Share
) -> dict[str, Share | None]:
    """Remedies with what each gives back at most, the best first."""
    gap_s = sum(loss.gap_s for loss in total.losses)
    gap = min(gap_s / total.elapsed_s, 1.0)
    again = min(sum(loss.work_s for loss in total.losses) / total.elapsed_s, 1.0)
    best = cadence(attempts, total)
    gains: dict[str, Share | None] = {"faster": Share(gap, 0.0, gap)}
    if best is None:
        gains = {"resume": Share(again, 0.0, again) if again else None, **gains}
    elif gain := best.saved(gap_s / len(total.losses)):
        gains = {"cadence": Share(min(gain, share.value), nan, nan), **gains}
    return dict(sorted(gains.items(), key=lambda item: -item[1].value if item[1] else 0.0))


def _evidence(case: Case, attempts: Sequence[Attempt], total: AttemptsAccount) -> list[Evidence]:
    ranks = attempts[-1].ranks
    per_step_s = total.elapsed_s / total.net_steps
    running_s = total.running_s / max(total.steps, 1)
    hours = 1000 * ranks / 3600
    items = [
        Evidence("attempts", len(attempts), 1, "attempts"),
        Evidence("steps_done_again", total.lost_steps, 0, "steps"),
        Evidence("time_lost", total.lost_s * 1e9, 0, "ns"),
        Evidence("restart_amplification", total.amplification, 1.0, "factor"),
        Evidence("time_to_restart", 1e9 * max(loss.gap_s for loss in total.losses), None, "ns"),
        Evidence("rank_hours_per_1000_steps", per_step_s * hours, running_s * hours, "h"),
    ]
    price = case.trace.run.get(PRICE)
    if isinstance(price, int | float):
        paid, due = (price * hours * each for each in (per_step_s, running_s))
        items.append(Evidence("cost_per_1000_steps", paid, due, "money"))
    return items + _energy(attempts, total) + _cadence(attempts, total) + _sides(attempts)


def _energy(attempts: Sequence[Attempt], total: AttemptsAccount) -> list[Evidence]:
    """Energy per step that counts, where every attempt has its counter."""
    parts = [one.energy_joules for one in attempts if one.energy_joules is not None]
    if len(parts) < len(attempts):
        return []
    net, done = sum(parts) / total.net_steps, sum(parts) / max(total.steps, 1)
    return [Evidence("energy_per_step_that_counts", net, done, "J")]


def _cadence(attempts: Sequence[Attempt], total: AttemptsAccount) -> list[Evidence]:
    best = cadence(attempts, total)
    if best is None:
        return []
    now = None if best.now_s is None else round(best.now_s * 1e9)
    return [
        Evidence("time_between_checkpoints", now, best.best_s * 1e9, "ns"),
        Evidence("checkpoint_time", best.checkpoint_s * 1e9, None, "ns"),
        Evidence("mean_time_between_failures", best.between_failures_s * 1e9, None, "ns"),
    ]


def _sides(attempts: Sequence[Attempt]) -> list[Evidence]:
    """CV and rate of steps after the last restart, beside those before it."""
    before, after = attempts[-2], attempts[-1]
    return [
        Evidence("cv_after_restart", after.cv_at_start, before.cv_at_end, "1"),
        Evidence("throughput_after_restart", after.rate_at_start, before.rate_at_end, "steps/s"),
    ]
