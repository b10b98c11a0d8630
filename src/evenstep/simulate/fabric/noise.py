"""Noise: factors on the phases of ranks, and delays added to them, step by step.

Random numbers are counter-based (Philox, Salmon et al. 2011): a draw is a function of seed, source
and step alone, so neither the order of evaluation nor the number of threads changes a byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from evenstep.scenario.parts import Noise
from evenstep.scenario.scenario import Scenario, nodes_in
from evenstep.simulate.fabric.machines import Machines
from evenstep.simulate.fabric.placement import Placement
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

_FIRST_STREAM = 1000
_SMALLEST = 0.05  # least factor
_AFFECTED = {
    "compute": (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER),
    "model": (Phase.FORWARD, Phase.BACKWARD),
    **{name: (Phase[name.upper()],) for name in ("input", "forward", "backward", "optimizer")},
}


class RandomNumbers:
    """The random numbers of one source, by step."""

    def __init__(self, seed: int, stream: int) -> None:
        self._bits = np.random.Philox(key=(seed, stream))
        self._state = self._bits.state  # as it begins: nothing drawn
        self._generator = np.random.Generator(self._bits)

    def at(self, step: int) -> np.random.Generator:
        """Those of a step; valid until another step is asked for."""
        self._state["state"]["counter"][3] = step
        self._bits.state = self._state
        return self._generator


@dataclass(slots=True)
class Disturbance:
    """Noise of one step: factor and delay of each phase, (ranks,).

    `pause_ns` is the part of the forward's delay that is garbage collection.
    """

    factor: dict[Phase, Array]
    delay_ns: dict[Phase, Array]
    pause_ns: Array | None = None


class NoiseContext(NamedTuple):
    """Settings of a noise source, its units (ranks, nodes or racks) and its random numbers."""

    noise: Noise
    unit: Array  # of each rank
    units: int
    mask: Array  # affected ranks
    random: Callable[[int], np.random.Generator]  # by step


#: Step to a factor or a delay in ns for each unit; of daemons for each rank, also from the moments
#: in ns at which each began the step before and begins it (NaN: not yet)
Draw = Callable[..., Array]


def _normal(of: NoiseContext) -> Draw:
    return lambda step: 1 + of.noise.sigma * of.random(step).standard_normal(of.units)


def _lognormal(of: NoiseContext) -> Draw:
    sigma = of.noise.sigma
    return lambda step: np.exp(sigma * of.random(step).standard_normal(of.units) - sigma**2 / 2)


def _pareto(of: NoiseContext) -> Draw:
    """1 + scale × (X - 1) / E[X - 1], X Pareto: the mean excess is `scale`."""
    alpha, scale = of.noise.alpha, of.noise.scale
    return lambda step: 1 + scale * (alpha - 1) * of.random(step).pareto(alpha, of.units)


def _hits(of: NoiseContext) -> Draw:
    chance, delay_ns = of.noise.probability, of.noise.delay_ms * 1e6
    return lambda step: (of.random(step).random(of.units) < chance) * delay_ns


def _daemon(of: NoiseContext) -> Draw:
    """A daemon runs once a period, with a phase of its own on each unit; a step is delayed by
    the runs since the step before."""
    period, phase = of.noise.period_ms * 1e6, of.random(0).random(of.units)[of.unit]

    def draw(_: int, since: Array, now: Array) -> Array:
        runs = np.floor(now / period + phase) - np.floor(since / period + phase)
        return np.asarray(np.nan_to_num(runs) * of.noise.delay_ms * 1e6)

    return draw


def _drift(of: NoiseContext) -> Draw:
    """First-order autoregression: correlation e^(-1/steps) from step to step."""
    keep = math.exp(-1 / of.noise.steps)
    state = of.random(2**40).standard_normal(of.units)

    def draw(step: int) -> Array:
        nonlocal state
        fresh = of.random(step).standard_normal(of.units)
        state = keep * state + math.sqrt(1 - keep**2) * fresh
        return 1 + of.noise.sigma * state

    return draw


def _thermal(of: NoiseContext) -> Draw:
    """The factor is approached as the device warms up; without named ranks, to varying degree."""
    noise = of.noise
    degree = np.ones(of.units) if noise.ranks else of.random(0).random(of.units)

    def draw(step: int) -> Array:
        warmth = 1 - math.exp(-max(step - noise.first_step, 0) / noise.steps)
        return np.asarray(1 + (noise.factor - 1) * degree * warmth)

    return draw


def _slow(of: NoiseContext) -> Draw:
    factor = np.full(of.units, of.noise.factor)
    return lambda _: factor


def _rotating(of: NoiseContext) -> Draw:
    """One unit is slow at a time, the next after `every` steps, in an order drawn once."""
    place = np.argsort(of.random(0).permutation(of.units))  # of each unit in this order
    return lambda step: np.where(place == step // of.noise.every % of.units, of.noise.factor, 1.0)


def _collector(of: NoiseContext) -> Draw:
    """A pause every few steps, in different steps on each unit unless aligned."""
    every, delay_ns = of.noise.every, of.noise.delay_ms * 1e6
    drawn = of.random(0).integers(0, every, of.units)
    offset = np.full(of.units, every - 1) if of.noise.aligned else drawn
    return lambda step: (step % every == offset) * delay_ns


def _recorded(of: NoiseContext) -> Draw:
    values, shape = np.array(of.noise.values), (of.noise.draws, of.units)
    return lambda step: values[of.random(step).integers(0, len(values), shape)].mean(axis=0)


_DRAWN = (
    *(_normal, _lognormal, _pareto, _hits, _daemon, _drift),
    *(_thermal, _slow, _rotating, _collector, _recorded),
)
SOURCES: dict[str, Callable[[NoiseContext], Draw]] = {one.__name__[1:]: one for one in _DRAWN}
LIGHT = frozenset({"normal", "lognormal", "slow", "recorded"})  # any few steps tell the others
DELAYS = frozenset({"hits", "daemon", "collector"})  # the others are factors


def are_alike(scenario: Scenario) -> bool:
    """Whether the steps are independent draws of one distribution without rare or heavy parts."""
    light = all(
        one.kind in LIGHT and not one.first_step and not one.last_step for one in scenario.noise
    )
    return light and not scenario.neighbours and scenario.strategy.kind == "synchronous"


class NoiseSources:
    """All noise sources of a scenario; steps have to be asked for in order."""

    def __init__(self, scenario: Scenario, placement: Placement) -> None:
        noises = [*scenario.noise, *_implied_noise(scenario)]
        settings = [
            _setting(noise, placement, RandomNumbers(scenario.run.seed, stream))
            for stream, noise in enumerate(noises, _FIRST_STREAM)
        ]
        self._sources = [(one, SOURCES[one.noise.kind](one)) for one in settings]
        self._fixed = _fixed_factors(scenario, placement)
        self.reads_clock = any(noise.kind == "daemon" for noise in noises)

    def at(self, step: int) -> Disturbance:
        """The disturbance of a step, without daemons."""
        return self._added(Disturbance(dict(self._fixed), {}), step)

    def with_daemons(self, step: int, found: Disturbance, since: Array, now: Array) -> Disturbance:
        """The same with daemons, where ranks began the step before at `since` and this at `now`;
        none where that is NaN."""
        return self._added(replace(found, delay_ns=dict(found.delay_ns)), step, since, now)

    def _added(self, found: Disturbance, step: int, *moments: Array) -> Disturbance:
        for setting, draw in self._sources:
            noise = setting.noise
            if (noise.kind == "daemon") != bool(moments):
                continue
            value = draw(step, *moments)
            if step < noise.first_step or (noise.last_step and step > noise.last_step):
                continue
            if not moments:
                value = value[setting.unit]
            if noise.kind in DELAYS:
                _delay(found, noise, np.where(setting.mask, value, 0.0))
            else:
                factor = np.maximum(np.where(setting.mask, value, 1.0), _SMALLEST)
                for phase in _AFFECTED[noise.phase]:
                    found.factor[phase] = found.factor.get(phase, 1.0) * factor
        return found


def _delay(found: Disturbance, noise: Noise, value: Array) -> None:
    """Add a delay to the first phase that it affects."""
    phase = _AFFECTED[noise.phase][0]
    found.delay_ns[phase] = found.delay_ns.get(phase, 0.0) + value
    if noise.kind == "collector":
        found.pause_ns = value if found.pause_ns is None else found.pause_ns + value


def _setting(noise: Noise, placement: Placement, random: RandomNumbers) -> NoiseContext:
    ranks = len(placement.gpu)
    unit = {"rank": np.arange(ranks), "node": placement.node, "rack": placement.rack}[noise.scope]
    unit = np.unique(unit, return_inverse=True)[1].reshape(-1)
    named = nodes_in(noise.ranks, "noise.ranks")
    if not named and noise.kind == "slow":
        named = (0,)
    mask = np.isin(unit, unit[list(named)]) if named else np.ones(ranks, bool)
    return NoiseContext(noise, unit, int(unit.max()) + 1, mask, random.at)


def _implied_noise(scenario: Scenario) -> list[Noise]:
    """Noise of unequal batches: work in forward and backward that varies by rank and step."""
    work = scenario.work
    found = []
    if work.batch_spread:
        found.append(Noise(kind="normal", sigma=work.batch_spread, phase="model"))
    if work.sequence_lengths:
        lengths, share = np.array(work.sequence_lengths, float), work.attention_share
        each = (1 - share) * lengths / lengths.mean() + share * lengths**2 / (lengths**2).mean()
        values, samples = tuple(each.tolist()), max(work.samples_per_rank, 1)
        found.append(Noise(kind="recorded", values=values, draws=samples, phase="model"))
    return found


def _fixed_factors(scenario: Scenario, placement: Placement) -> dict[Phase, Array]:
    """Factors of every step, of the machines that ranks are on."""
    cluster = scenario.cluster
    factor = Machines(cluster).factor(placement.gpu)
    slow = np.isin(placement.node, nodes_in(cluster.slow_nodes, "cluster.slow_nodes"))
    factor = np.where(slow, factor * cluster.slow_nodes_factor, factor)
    if bool((factor == 1).all()):
        return {}
    return dict.fromkeys(_AFFECTED["compute"], factor)
