"""Steps of counters whose clock shows whole seconds: progress bars, and the `wall` of fairseq.

Rows are the mean of as many steps as make the clock's resolution small. Of several bars in a log
(epochs, evaluations, loading of data) one is the training: of those that take most of the time, the
one with most steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

COARSE_S = 30.0  # shortest interval of a row: a second is little of it
SHORTEST_S = 3.0  # of all that a bar shows
MAIN = 0.5  # share of the longest bar's time that a bar of training has at least
MIXED = 0.2  # share of lines of other processes
ONE_OF_SEVERAL = (
    "several processes write the same steps without their rank: the steps of one are taken; start "
    "each with a log of its own (torchrun --log-dir)"
)
ENDLESS = -1  # total of a bar that shows none: where it begins anew, so does an epoch
RESTARTED = 0.5  # share of the time shown before that a bar which begins anew has at most

Row = tuple[int, int, float, float]  # rank, step, start and seconds


class Tick(NamedTuple):
    """A counter when a line was printed."""

    rank: int
    number: int
    total: int  # of the bar, or `ENDLESS`; 0: of no bar
    elapsed_s: float
    cut_s: float = 0.5  # by which its clock may be late: half a second where it shows whole ones
    once: bool = False  # whether its line is the only one of the bar

    @property
    def ends(self) -> bool:
        """Whether the bar is complete."""
        return 0 < self.total == self.number


Bars = dict[int, dict[int, list[list[Tick]]]]  # lines from a bar's beginning on, by total and rank


def rows(ticks: Sequence[Tick], limits: list[str]) -> tuple[list[Row], float]:
    """The rows of the bar that is the training's, and the seconds per rank of repeated steps."""
    total = _main(_runs(ticks)[0])
    bars, mixed = _runs(list(_without_others(ticks, total)))
    if mixed[total] > MIXED * sum(tick.total == total for tick in ticks):
        limits.append(ONE_OF_SEVERAL)
    told = [_of_rank(runs) for runs in bars[total].values()]
    lost_s = sum(lost for _, lost in told) / len(told)
    return [row for found, _ in told for row in found], lost_s


def _without_others(ticks: Iterable[Tick], total: int) -> Iterator[Tick]:
    """The lines, with the clock of the training's bar less what others took to their end in it."""
    last: dict[int, Tick] = {}
    others: dict[int, dict[int, float]] = {}
    paused_s: dict[int, float] = {}
    for tick in ticks:
        rank = tick.rank
        if tick.total != total:
            if tick.ends:
                others.setdefault(rank, {})[tick.total] = tick.elapsed_s
            yield tick
            continue
        gap_s = tick.elapsed_s - last[rank].elapsed_s if rank in last else -1.0
        taken_s = min(sum(others.pop(rank, {}).values()), gap_s)
        paused_s[rank] = paused_s.get(rank, 0.0) + taken_s if gap_s >= 0 else 0.0
        last[rank] = tick
        yield tick._replace(elapsed_s=tick.elapsed_s - paused_s[rank])


def _runs(ticks: Iterable[Tick]) -> tuple[Bars, Counter[int]]:
    """The lines of each bar from each of its beginnings on, and the number of lines that are of
    other processes, by total."""
    bars: Bars = {}
    mixed: Counter[int] = Counter()
    previous = None
    for tick in ticks:
        runs = bars.setdefault(tick.total, {}).setdefault(tick.rank, [[]])
        last = runs[-1][-1] if runs[-1] else None
        if last and last.ends:
            shown_again = tick.ends and (len(runs[-1]) > 1 or tick == previous) and not tick.once
            runs += [] if shown_again else [[tick]]
        elif not last or (tick.number >= last.number and tick.elapsed_s >= last.elapsed_s):
            runs[-1].append(tick)
        elif tick.number <= last.number and tick.elapsed_s <= RESTARTED * last.elapsed_s:
            runs.append([tick])
        else:
            mixed[tick.total] += 1
        previous = tick
    return bars, mixed


def _main(bars: Bars) -> int:
    """The total of the bar that is the training's."""
    ends = {total: [run[-1] for runs in ranks.values() for run in runs]
            for total, ranks in bars.items()}  # fmt: skip
    spent = {total: sum(tick.elapsed_s for tick in ticks) for total, ticks in ends.items()}
    long = [total for total in bars if spent[total] >= MAIN * max(spent.values())]
    return max(long, key=lambda total: sum(tick.number for tick in ends[total]))


def _of_rank(runs: Sequence[Sequence[Tick]]) -> tuple[list[Row], float]:
    """Rows of one rank's bars, one after the other. One that ended is followed by another epoch,
    one that did not by steps that are done again."""
    found: list[Row] = []
    before = 0
    lost_s = clock_s = 0.0
    for at, run in enumerate(runs):
        last = runs[at - 1][-1] if at else None
        if last and (last.ends or last.total == ENDLESS):
            before += last.number
        elif last and found:
            lost_s += (last.number - run[0].number) * found[-1][3]
            found = [row for row in found if row[1] <= before + run[0].number]
        found += [
            (tick.rank, before + tick.number, clock_s + tick.elapsed_s - seconds, seconds)
            for tick, seconds in _of_run(run, resumed=bool(last and not last.ends))
        ]
        clock_s += run[-1].elapsed_s
    return found, lost_s


def _marks(run: Sequence[Tick], steps: int, seconds: float) -> list[Tick]:
    """Lines that are at least so many steps and seconds apart."""
    marks = [run[0]]
    for tick in run[1:]:
        ahead, later_s = tick.number - marks[-1].number, tick.elapsed_s - marks[-1].elapsed_s
        if ahead >= steps and later_s >= seconds:
            marks.append(tick)
    return marks


def _of_run(run: Sequence[Tick], *, resumed: bool) -> Iterator[tuple[Tick, float]]:
    """Lines and the seconds of a step up to each, from as far back as the clock is exact in most:
    each row stands for as many steps."""
    steps = sorted(after.number - tick.number for tick, after in pairwise(_marks(run, 1, COARSE_S)))
    marks = _marks(run, steps[-1 - len(steps) // 10] if steps else 1, 0.0 if steps else COARSE_S)
    if run[-1].number > marks[-1].number:
        marks[max(len(marks) - 1, 1) :] = [run[-1]]
    whole_s = marks[-1].elapsed_s - marks[0].elapsed_s
    for start, end in pairwise(marks if whole_s >= SHORTEST_S else []):
        yield end, (end.elapsed_s - start.elapsed_s) / (end.number - start.number)
    last = run[-1]
    if whole_s < SHORTEST_S <= last.elapsed_s and last.ends and not resumed:
        yield last, (last.elapsed_s + last.cut_s) / last.number
