"""Delays: which rank was late in which step, why, and what it cost.

A cell is a rank's step. Time that a record explains (a pause, a wait for input, a checkpoint, a
wait for a core) is taken out of the cell's own work first; the *excess* is the rest less the median
of the other ranks' in the same step. Late cells are those of chronically late ranks, and single
ones far outside the noise. Their cost is what a replay of the graph gains without them: overlapped
waits count once, compute hides some, and a rank held up in one group is late in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from evenstep.diagnose.lateness.cost import Costs
from evenstep.diagnose.lateness.oscillation import late_in_turns
from evenstep.diagnose.lateness.thresholds import (
    CHRONIC_SHARE,
    CHRONIC_STEPS,
    FEWEST_STEPS,
    NEAR_STEPS,
    above_others,
    above_peers,
    beyond_others,
    chronic_ranks,
    late_threshold,
    local_median,
    middle_of_others,
    noise_of,
    unsteady,
    usual_excess,
    usual_lateness,
    usual_of,
)
from evenstep.diagnose.levels import CLEARLY, ERRORS, MINOR, NAMED
from evenstep.diagnose.measure.grid import StepGrid, in_phase
from evenstep.statistics.interval import MAD_SIGMA
from evenstep.statistics.trend import linear, rank_values
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase


class Cause(IntEnum):
    """Why a cell is late. All but `WORK` are recorded."""

    COLLECTOR = 1
    INPUT = 2
    CHECKPOINT = 3
    WORK = 4
    CONTENTION = 5
    STOP = 6


#: Phases of a rank's own work; the first wins a tie.
WORK_PHASES = (Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.EVALUATION, Phase.OTHER)


@dataclass(slots=True)
class Delays:
    """Attribution of a grid; arrays are (steps, ranks)."""

    grid: StepGrid
    excess_ns: Array  # unrecorded own work above the median of the other ranks'
    late_ns: dict[Cause, Array]  # how late a cell is, without noise; 0 where it is not late
    loss_ns: dict[Cause, Array]  # what the job lost to that
    phase: Array  # of `Phase`: where the excess lies
    by_phase_ns: Array  # (phases, ranks): mean excess in each phase of work
    rest_ns: Array  # (steps,): further loss to uneven work, of no rank in particular
    chronic: Array  # (ranks,) bool
    usual: Array  # (steps, ranks) bool: as late as the rank is whenever it is
    noise_ns: float  # standard deviation of a rank's own work
    beyond: Array  # (steps, ranks) bool: later than the rank chronically is
    waits_ns: Array  # for a core, of a rank and its loader: (steps, ranks)
    starved_ns: Array  # input that is such a wait

    def cells(self, cause: Cause) -> Array:
        """Mask of the cells that are late for a cause."""
        return np.asarray(self.late_ns[cause] > 0)

    @property
    def any(self) -> Array:
        """Mask of the cells that are late for any cause."""
        return np.asarray(sum(self.late_ns.values()) > 0)

    @property
    def all_loss_ns(self) -> Array:
        """What the job lost to each cell's lateness for all causes."""
        return np.asarray(sum(self.loss_ns.values()))


def attribute(grid: StepGrid, costs: Costs, *, contended: bool) -> Delays:
    """Find late cells and what they cost. `contended`: ranks compete for cores on their hosts."""
    if not grid.start_ns.size:
        return _no_delays(grid)
    step = float(np.median(costs.seen_ns if grid.graph.device.any() else grid.step_ns))
    late, work = {}, grid.work_ns.astype(float)
    waits = _core_waits(grid, contended=contended)
    explained = np.zeros(grid.shape)
    programs = [part.lanes for part in costs.parts]
    for cause, whole, beyond in _recorded_causes(grid, *waits, programs):
        left = work - explained
        beyond = np.minimum(beyond, np.clip(whole, 0, left))
        late[cause] = np.where(beyond > CHRONIC_SHARE / 2 * step, beyond, 0.0)
        explained += np.clip(whole - _hidden(grid, late[cause], programs), 0, left)
    work -= explained
    excess, (behind, ahead) = beyond_others(work), costs.at_barriers_ns(grid.graph.own_ns)
    ahead, behind = grid.from_sampled(ahead), grid.from_sampled(behind)
    made_up = np.clip(behind - local_median(excess), 0.0, ahead) * (behind > 0)  # for nothing
    excess = excess + made_up
    noise = min(noise_of(work), noise_of(excess))  # one has what all share, one what others have
    turns = late_in_turns(excess, NAMED * step)
    chronic = chronic_ranks(excess, step, programs, contended=contended) & ~turns.any(axis=0)
    varies = excess if len(chronic) > 2 else work  # of two ranks, one mirrors the other's delays
    varying = unsteady(varies)
    steady = ~(chronic | varying | turns.any(axis=0))
    event = late_threshold(excess[:, steady], step, noise)
    least = np.full(len(varying), event)
    if varying.any() and steady.any():  # ranks of two levels: late cells are nearer to the higher
        usual = usual_lateness(varies, steady)
        often = np.quantile(excess, 1 - CHRONIC_STEPS, axis=0)
        often -= np.median(excess[:, steady].mean(axis=0))
        chronic &= ~varying | (often >= usual / 2)
        varying &= ~chronic & (usual >= max(NAMED * step, CLEARLY * noise))
        least[varying] = np.minimum(usual / 2, event)[varying]
    delay, as_ever = _delay(work, excess, chronic | turns | (excess > least), event, made_up)
    is_late = (excess > least) | as_ever
    late[Cause.WORK] = np.where(is_late, delay, 0.0)
    usual, as_ever = as_ever | chronic, as_ever & chronic
    loss, rest = _cost(grid, costs, late, usual)
    phase, by_phase = _by_phase(grid, costs, made_up / np.maximum(ahead, 1.0), as_ever)
    beyond = is_late & ~as_ever
    return Delays(
        grid, excess, late, loss, phase, by_phase, rest, chronic, usual, noise, beyond, *waits
    )


def _core_waits(grid: StepGrid, *, contended: bool) -> tuple[Array, Array]:
    """How long each rank, and its loader meanwhile, waits for a core in each step, and how much of
    that is input, (steps, ranks), ns: where cores are short, what goes with the rank's own waits by
    least squares; none where both may have nothing in common (Spearman 1904)."""
    loading, ready = grid.phase_ns[Phase.INPUT], grid.run_delay_ns
    varies, more = (each - each.mean(axis=0) for each in (loading, ready))
    alike = linear(rank_values(varies), rank_values(more))
    if not contended or alike * len(loading) ** 0.5 < CLEARLY:
        return ready, np.zeros(grid.shape)
    expected = (varies * more).sum() / (more * more).sum() * ready.mean(axis=0)
    part = np.clip(expected / np.maximum(loading.mean(axis=0), 1), 0.0, 1.0)
    elsewhere = 1 - part * loading / np.maximum(grid.duration_ns, 1)  # it is as likely there
    return ready * np.maximum(elsewhere, 0.0) + part * loading, part * loading


def _recorded_causes(
    grid: StepGrid, waits_ns: Array, starved_ns: Array, programs: Sequence[Array]
) -> list[tuple[Cause, Array, Array]]:
    """Each recorded cause with its time in every cell, and the part that makes the rank late: above
    the others', and of input, which some programs alone load, its peers' where it has any. Who
    computes more waits more often for a core, and longer evaluates what all do: that part is its
    work's."""
    evaluates = grid.phase_ns[Phase.EVALUATION]
    common = middle_of_others(evaluates)[:, None]
    alike = common >= MINOR * evaluates
    mine = np.where(alike, np.minimum(evaluates, common), evaluates)
    writing = grid.phase_ns[Phase.CHECKPOINT] + mine
    # processor time may count threads that spin meanwhile, and work what is no computing
    spent = [np.median(one, axis=0) for one in (grid.cpu_ns, grid.work_ns - grid.run_delay_ns)]
    spent = [np.maximum(one, 1.0)[None, :] for one in spent]
    more = np.min([np.maximum(above_others(one), 0.0) / one for one in spent], axis=0)
    ready = above_others(waits_ns) - more * waits_ns
    loading = grid.phase_ns[Phase.INPUT] - starved_ns
    # a beat before a stop is part of its record
    stood = np.clip(above_others(grid.work_ns), 0, grid.stood_ns)
    return [
        (Cause.STOP, stood, stood),
        (Cause.COLLECTOR, grid.pause_ns, grid.pause_ns),
        (Cause.CHECKPOINT, writing, above_others(writing)),
        (Cause.INPUT, loading, above_peers(loading, programs)),
        (Cause.CONTENTION, ready, ready),
    ]


def _hidden(grid: StepGrid, held: Array, programs: Sequence[Array]) -> Array:
    """The part of what held hosts up, (steps, ranks), that their devices hid by going on: what such
    steps do not work longer than calm ones, or with few calm ones than calm ranks of the program.
    It counts where its median stands out of the noise, and at most twice that."""
    work, found = grid.work_ns, np.zeros(held.shape)
    if not grid.graph.device.any():
        return found
    calm, usual = np.where(held > 0, np.nan, work), np.full(held.shape, np.nan)
    for ranks in programs:
        told = np.flatnonzero((held[:, ranks] <= 0).any(axis=1))
        usual[np.ix_(told, ranks)] = np.nanmedian(calm[np.ix_(told, ranks)], axis=1)[:, None]
    often = np.count_nonzero(~np.isnan(calm), axis=0) >= FEWEST_STEPS
    usual[:, often] = np.nanmedian(calm[:, often], axis=0)
    hidden = np.where((held > 0) & grid.graph.device, held - (work - usual), np.nan)
    cells = np.count_nonzero(~np.isnan(hidden), axis=0)
    known = cells >= FEWEST_STEPS
    hidden = hidden[:, known]
    middle = np.nanmedian(hidden, axis=0)
    error = MAD_SIGMA * np.nanmedian(np.abs(hidden - middle), axis=0)
    error *= np.sqrt(np.pi / 2 / cells[known])
    most = np.where(middle > ERRORS * error, 2 * middle, 0.0)
    found[:, known] = np.nan_to_num(np.clip(hidden, 0.0, most))
    return found


def recorded_ns(late: dict[Cause, Array]) -> Array:
    """How late each cell is for causes that are recorded."""
    return np.asarray(sum(cells for cause, cells in late.items() if cause != Cause.WORK))


def _cost(
    grid: StepGrid, costs: Costs, late: dict[Cause, Array], usual: Array
) -> tuple[dict[Cause, Array], Array]:
    """What each late cell cost, a stretch's loss to a cause shared in proportion; and what evening
    all work would save beyond all of them, per step.

    A cause costs the mean of what it saves when it is removed first and when it is removed last.
    """
    present = [cause for cause, cells in late.items() if cells.any()]
    known, usual = recorded_ns(late)[grid.sampled], usual[grid.sampled]
    changes = [
        costs.relieved(cause, late[cause][grid.sampled], usual & (cause == Cause.WORK), known)
        for cause in present
    ]
    others = [costs.combined([*changes[:at], *changes[at + 1 :]]) for at in range(len(changes))]
    whole = costs.combined(changes)
    asked = [whole, costs.even(whole), *([*changes, *others] if len(present) > 1 else [])]
    saved = [grid.from_sampled(each) for each in costs.saved(asked)]
    loss = {cause: np.zeros(grid.shape) for cause in late}
    for at, cause in enumerate(present):
        gain = saved[0]
        if len(present) > 1:
            gain = (saved[2 + at] + saved[0] - saved[2 + len(present) + at]) / 2
        loss[cause] = _share_out(late[cause], gain)
    return loss, saved[1] - saved[0]


def _share_out(cells: Array, gain: Array) -> Array:
    """The gain in each stretch of steps, shared by its late cells in proportion."""
    found = np.zeros(cells.shape)
    stretches = max(len(cells) // NEAR_STEPS, 1)
    for rows in np.array_split(np.arange(len(cells)), stretches):
        total = cells[rows].sum()
        found[rows] = cells[rows] * (max(float(gain[rows].sum()), 0.0) / total if total > 0 else 0)
    return found


def _delay(
    work: Array, excess: Array, cells: Array, event: float, made_up: Array
) -> tuple[Array, Array]:
    """How late each cell is, without noise: of these, several of a rank, the usual excess of those
    around, in proportion to their work; and which are as late as that, give or take the noise."""
    cells = cells & (cells.sum(axis=0) >= FEWEST_STEPS)
    always = np.asarray(cells.all(axis=0))
    part = usual_of(excess / np.maximum(work, 1.0), cells)
    more = np.where(always, usual_excess(work, always) + made_up, part * work)
    as_ever = cells & (np.abs(excess - more) <= event)
    return np.where(as_ever, np.maximum(more, 0.0), np.maximum(excess, 0.0)), as_ever


def _no_delays(grid: StepGrid) -> Delays:
    cells = np.zeros(grid.shape)
    none = dict.fromkeys(Cause, cells)
    chronic = np.zeros(len(grid.ranks), bool)
    nothing = np.zeros(len(grid.steps))
    return Delays(
        grid, cells, none, none, cells.astype(int), cells[:1], nothing, chronic, cells > 0, 0.0,
        cells > 0, cells, cells,
    )  # fmt: skip


def _by_phase(grid: StepGrid, costs: Costs, part: Array, as_ever: Array) -> tuple[Array, Array]:
    """The phase in which a cell, or `as_ever` its rank, exceeds the other ranks most, beyond that
    part of what it is ahead by at other barriers, if in any; the mean excess: (phases, ranks)."""
    phases = {phase: above_others(grid.phase_ns[phase]) for phase in WORK_PHASES[:-1]}
    for phase in phases if part.any() else ():
        ahead = grid.from_sampled(costs.at_barriers_ns(in_phase(grid, phase))[1])
        phases[phase] = phases[phase] + part * ahead
    known = sum(value for phase, value in grid.phase_ns.items() if phase is not Phase.OTHER)
    known = known - grid.phase_ns[Phase.SYNC] + grid.blocked_ns
    unclaimed = np.maximum(grid.duration_ns - known - grid.held_ns, 0)
    phases[Phase.OTHER] = above_others(unclaimed)
    names, more = np.array([int(phase) for phase in phases]), np.stack(list(phases.values()))
    means, late = more.mean(axis=1), as_ever.any(axis=0)
    usual = np.stack([local_median(each) for each in more[:, :, late]])
    more[:, :, late] = np.where(as_ever[:, late], usual, more[:, :, late])
    return np.where(more.max(axis=0) > 0, names[np.argmax(more, axis=0)], Phase.OTHER), means
