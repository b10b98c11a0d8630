"""Other jobs on the same links, and how long our transfers take beside them.

The timeline knows, at one moment, what each neighbour does: it computes until some time, or has
part of an exchange left. Between two events all rates are constant, and a rate depends only on who
is on the links, so there are few of them and each is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.scenario.scenario import Neighbour, Scenario
from evenstep.simulate.fabric.collectives import Request
from evenstep.simulate.fabric.flows import Flow, Stage, lay_on
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.fabric.noise import generator
from evenstep.simulate.fabric.placement import Placement
from evenstep.simulate.wires import sharing

Array = npt.NDArray[Any]

_STREAM = 500
_DONE = 1e-12  # of a transfer; what is left below it is rounding


@dataclass(slots=True)
class Other:
    """One neighbour: its settings, its exchange on the network, and what it is doing."""

    settings: Neighbour
    stage: Stage
    seed: int
    stream: int
    turn: int = 0  # exchanges begun
    left: float = 0.0  # of the exchange under way, in exchanges of mean size; 0: it computes
    until_ns: float = 0.0  # end of its computing
    moved: float = 0.0  # exchanges so far, for the bytes on links

    def __post_init__(self) -> None:
        self.until_ns = self.settings.offset_ms * 1e6 + self._pause_ns()

    @property
    def steady(self) -> float:
        """GB/s of each message where it does not yield."""
        if self.settings.responsive:
            return 0.0
        return self.settings.rate_gBps or float("inf")

    def begin(self) -> None:
        """Start an exchange."""
        self.left = 1.0
        if self.settings.kind == "bursty":
            self.left = float(generator(self.seed, self.stream + 1, self.turn).exponential())

    def end(self, now: float) -> None:
        """The exchange is over; compute until the next."""
        self.left = 0.0
        self.turn += 1
        self.until_ns = now + self._pause_ns()

    def _pause_ns(self) -> float:
        mean = self.settings.compute_ms * 1e6
        random = generator(self.seed, self.stream, self.turn)
        if self.settings.kind == "bursty":
            return mean * float(random.exponential())
        return mean * max(0.05, 1 + self.settings.jitter * float(random.standard_normal()))


class Timeline:
    """Neighbours in order of time. `transfer` takes our own collectives, one after the other."""

    def __init__(self, network: Network, others: list[Other]) -> None:
        self._network = network
        self.others = others
        self._now = 0.0
        self._rates: dict[tuple[int, tuple[int, ...]], tuple[float, ...]] = {}
        self._stages: dict[int, Stage] = {}  # ours, by their identity
        self.peak_gBps = np.zeros(len(network.capacity))  # on each link so far

    def transfer(self, flow: Flow, start_ns: float) -> float:
        """When a collective that begins at `start_ns` is over."""
        self.advance(start_ns)
        start = self._now
        for stage in flow.stages:
            self._run(stage, None, flow.pace)
        self.advance(self._now + flow.launch_ns)
        return start_ns + self._now - start

    def advance(self, until_ns: float) -> None:
        """Let the neighbours go on without us."""
        self._run(None, until_ns)

    def _run(self, stage: Stage | None, until_ns: float | None, share: float = 1.0) -> None:
        """Until that share of our stage is over, or until a moment."""
        left = share if stage is not None else 0.0
        while True:
            self._begin_due()
            rates = self._rates_with(stage)
            ahead = until_ns - self._now if until_ns is not None else left / rates[-1]
            last = True
            for other, rate in zip(self.others, rates, strict=False):
                gap = other.left / rate if other.left else other.until_ns - self._now
                if gap < ahead:
                    ahead, last = gap, False
            ahead = max(ahead, 0.0)
            self._pass(ahead, rates)
            left -= ahead * rates[-1]
            if last:
                return

    def _begin_due(self) -> None:
        for other in self.others:
            while not other.left and other.until_ns <= self._now:
                other.begin()

    def _pass(self, ahead: float, rates: tuple[float, ...]) -> None:
        self._now += ahead
        for other, rate in zip(self.others, rates, strict=False):
            if not other.left:
                continue
            moved = min(ahead * rate, other.left)
            other.moved += moved
            other.left -= moved
            if other.left <= _DONE:
                other.end(self._now)

    def _rates_with(self, stage: Stage | None) -> tuple[float, ...]:
        """Progress per ns of every neighbour, then ours; 0 for one that computes."""
        active = tuple(i for i, other in enumerate(self.others) if other.left)
        key = (id(stage) if stage is not None else 0, active)
        if key not in self._rates:
            if stage is not None:
                self._stages[id(stage)] = stage  # keeps the identity from being used again
            self._rates[key] = self._worked_out(stage, active)
        return self._rates[key]

    def _worked_out(self, stage: Stage | None, active: tuple[int, ...]) -> tuple[float, ...]:
        present = [self.others[index] for index in active]
        stages = [other.stage for other in present] + ([stage] if stage is not None else [])
        claims = [sharing.claim(other.stage, self._steady(other)) for other in present] + (
            [sharing.claim(stage)] if stage is not None else []
        )
        found = [0.0] * (len(self.others) + 1)
        carried = np.zeros_like(self.peak_gBps)
        for place, item in enumerate(stages):
            length = sharing.round_ns(item, place, claims, self._network) * item.round.repeats
            if place < len(present):
                if claims[place].steady:
                    length = float(item.round.bytes) / claims[place].steady * item.round.repeats
                found[active[place]] = 1 / length
            else:
                found[-1] = 1 / length
            carried += item.load * item.round.repeats / length
        self.saw(carried)
        return tuple(found)

    def saw(self, rates_gBps: Array) -> None:  # noqa: N803
        """Links carried that much at a moment."""
        self.peak_gBps = np.maximum(self.peak_gBps, rates_gBps)

    def _steady(self, other: Other) -> float:
        card = self._network.cluster.nic_gBps
        return min(other.steady, card) if other.steady else 0.0

    def messages(self, length_ns: float) -> float:
        """About how many the neighbours send in that time, alone on the network."""
        total = 0.0
        for other in self.others:
            stage = other.stage
            period = other.settings.compute_ms * 1e6 + stage.duration_ns
            total += length_ns / period * len(stage.round.source) * stage.round.repeats
        return total

    @property
    def link_bytes(self) -> Array:
        """What the neighbours have put on each link."""
        total = np.zeros(len(self._network.capacity))
        for other in self.others:
            total += other.moved * other.stage.load * other.stage.round.repeats
        return total


def timeline(scenario: Scenario, network: Network, placement: Placement) -> Timeline | None:
    """The neighbours of a scenario; None where there are none."""
    if not scenario.neighbours:
        return None
    others = []
    for index, settings in enumerate(scenario.neighbours):
        nodes = placement.neighbours[index]
        seats = _seats(network, nodes)
        request = Request(
            "all_reduce", np.arange(len(seats.gpu))[None], seats.node, settings.message_bytes,
            network.cluster.nics_per_node,
        )  # fmt: skip
        flow = lay_on(network, seats, request, "ring")
        others.append(Other(settings, flow.stages[0], scenario.run.seed, _STREAM + 2 * index))
    return Timeline(network, others)


def _seats(network: Network, nodes: Array) -> Placement:
    """All GPUs of some nodes."""
    size = network.cluster.gpus_per_node
    gpu = (nodes[:, None] * size + np.arange(size)).reshape(-1)
    node = gpu // size
    rack = network.core.place(node * network.cluster.nics_per_node)
    return Placement(gpu, node, rack, ())
