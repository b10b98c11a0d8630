"""How jobs share links: max-min fairness between coflows, and between single flows.

A coflow's messages keep pace with its slowest one, so it has one rate x for all, and takes
m x of a link that m of its messages cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Stage
from evenstep.simulate.fabric.network import Network

Array = npt.NDArray[Any]

LEAST_SHARE = 0.05  # of a link that traffic which does not yield leaves to the others


class Claim(NamedTuple):
    """What one job asks of the links at the moment."""

    messages: Array  # crossing each link, in units of its largest message
    steady: float = 0.0  # GB/s of each message, taken whatever others do; 0: fair


def claim(stage: Stage, steady: float = 0.0) -> Claim:
    """The claim of a round in flight."""
    largest = float(np.max(stage.round.bytes, initial=0.0))
    return Claim(stage.load / largest if largest > 0 else stage.load, steady)


def coflow_rates(claims: Sequence[Claim], capacity: Array) -> list[float]:
    """Rate of a message of every coflow, in GB/s, by progressive filling (Bertsekas & Gallager
    1992, 6.5.2). Those that take a steady rate come first."""
    rates = [item.steady for item in claims]
    left = capacity.copy()
    for item in claims:
        if item.steady:
            left = np.maximum(left - item.steady * item.messages, LEAST_SHARE * capacity)
    waiting = [index for index, item in enumerate(claims) if not item.steady]
    while waiting:
        asked = np.sum([claims[index].messages for index in waiting], axis=0)
        level = np.divide(left, asked, out=np.full_like(left, np.inf), where=asked > 0)
        lowest = float(level.min())
        full = level <= lowest * (1 + 1e-12)
        stopped = [i for i in waiting if bool((claims[i].messages[full] > 0).any())]
        if not stopped or not np.isfinite(lowest):
            for index in waiting:
                rates[index] = float("inf")
            return rates
        for index in stopped:
            rates[index] = lowest
            left = np.maximum(left - lowest * claims[index].messages, 0.0)
        waiting = [index for index in waiting if index not in stopped]
    return rates


def round_ns(stage: Stage, mine: int, claims: Sequence[Claim], network: Network) -> float:
    """How long a round takes beside the others' claims; `claims[mine]` is its own."""
    present = np.sum([item.messages > 0 for item in claims], axis=0)
    capacity = network.capacity
    if network.fabric.incast_goodput < 1:
        capacity = capacity * network.fabric.incast_goodput ** np.maximum(present - 1, 0)
    rates = coflow_rates(claims, capacity)
    others = np.zeros_like(capacity)
    for index, (item, rate) in enumerate(zip(claims, rates, strict=True)):
        if index != mine and np.isfinite(rate):
            others += rate * item.messages
    left = np.maximum(capacity - others, LEAST_SHARE * capacity)
    time = np.divide(stage.load, left, out=np.zeros_like(left), where=stage.load > 0)
    return float((stage.latency_ns + stage.routes.worst(time)).max(initial=0.0))


def flow_rates(routes_of: Array, link: Array, capacity: Array, flows: int) -> Array:
    """Max-min fair rate of single flows, in GB/s. `link[i]` is a link of flow `routes_of[i]`."""
    rate = np.full(flows, np.inf)
    left = capacity.astype(float).copy()
    while len(link):
        asked = np.bincount(link, minlength=len(left))
        level = np.divide(left, asked, out=np.full(len(left), np.inf), where=asked > 0)
        lowest = level.min()
        full = level <= lowest * (1 + 1e-9)
        stopped = np.zeros(flows, bool)
        stopped[routes_of[full[link]]] = True
        rate[stopped] = lowest
        done = stopped[routes_of]
        left = np.maximum(left - np.bincount(link[done], minlength=len(left)) * lowest, 0.0)
        routes_of, link = routes_of[~done], link[~done]
    return rate
