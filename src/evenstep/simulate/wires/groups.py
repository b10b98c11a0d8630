"""Groups of one partition whose rings share links but begin at different times.

As long as they begin together, all are as slow as the links they share make them. One that begins
when others are through has the links to itself: here each group is a coflow of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow, Stage
from evenstep.simulate.fabric.network import Network, Routes
from evenstep.simulate.wires import sharing

Array = npt.NDArray[Any]

MOST_GROUPS = 64
TOGETHER = 0.01  # of the duration: groups that begin within it begin together


class Groups:
    """The groups of a flow, and how long each takes beside which others."""

    def __init__(self, flow: Flow, network: Network) -> None:
        self._network = network
        self._flow = flow
        single = len(flow.stages) == 1 and 1 < len(flow.members) <= MOST_GROUPS
        self._stages = _split(flow) if single else []
        self._lengths: dict[tuple[int, ...], list[float]] = {}
        loads = np.sum([stage.load > 0 for stage in self._stages], axis=0)
        self.shares = bool(single and loads.max(initial=0) > 1)

    def ends(self, starts: Array) -> Array | None:
        """When groups that begin at these times are through; None where it makes no difference."""
        if not self.shares or np.ptp(starts) <= TOGETHER * self._flow.duration_ns:
            return None
        left = np.ones(len(starts))
        ends = np.zeros(len(starts))
        waiting = sorted(range(len(starts)), key=lambda group: float(starts[group]))
        active: list[int] = []
        now = float(starts.min())
        while waiting or active:
            while waiting and starts[waiting[0]] <= now:
                active.append(waiting.pop(0))
            lengths = np.array(self._length(active))
            ahead = left[active] * lengths
            until = now + float(ahead.min(initial=np.inf))
            if waiting:
                until = min(until, float(starts[waiting[0]]))
            left[active] -= (until - now) / lengths
            now = until
            through = [group for group in active if left[group] <= 1e-9]
            ends[through] = now
            active = [group for group in active if group not in through]
        return ends

    def _length(self, active: list[int]) -> list[float]:
        """How long the whole collective would take each of the groups under way."""
        key = tuple(active)
        if key not in self._lengths:
            stages = [self._stages[group] for group in active]
            claims = [sharing.claim(stage) for stage in stages]
            self._lengths[key] = [
                sharing.round_ns(stage, place, claims, self._network)
                * stage.round.repeats
                * self._flow.pace
                + self._flow.launch_ns
                for place, stage in enumerate(stages)
            ]
        return self._lengths[key]


def _split(flow: Flow) -> list[Stage]:
    """The flow's round, group by group."""
    whole = flow.stages[0]
    group = np.zeros(len(flow.tail_ns), np.int64)
    group[flow.members.reshape(-1)] = np.repeat(np.arange(len(flow.members)), flow.members.shape[1])
    of_message = group[whole.round.source]
    sizes = np.broadcast_to(whole.round.bytes, whole.round.source.shape)
    return [_part(whole, of_message == index, sizes) for index in range(len(flow.members))]


def _part(whole: Stage, mine: Array, sizes: Array) -> Stage:
    entries = mine[whole.routes.message]
    hops = np.diff(whole.routes.start)[mine]
    link = whole.routes.link[entries]
    load = np.bincount(
        link, weights=np.repeat(sizes[mine], hops), minlength=len(whole.load)
    ).astype(float)
    item = whole.round._replace(
        source=whole.round.source[mine], target=whole.round.target[mine], bytes=sizes[mine]
    )
    routes = Routes(np.concatenate([[0], np.cumsum(hops)]), link)
    return Stage(item, routes, whole.latency_ns[mine], whole.hop_ns[mine], load)
