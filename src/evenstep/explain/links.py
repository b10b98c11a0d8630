"""Options of the links under a collective, shared by several topics; and its cost on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from evenstep import allreduce
from evenstep.allreduce import ALGORITHMS, Cost, Link
from evenstep.errors import UsageError
from evenstep.explain.measures import POSITIVE, RANKS, SHAPE, TIME, choice
from evenstep.explain.topic import CitedFormula, Parameter

_NAMES = (*ALGORITHMS, "hierarchical", "torus")
_HIERARCHICAL = CitedFormula(
    "T = 2S(g−1)/(gB_i) + 2(g−1)α_i + 2(N−1)α + 2S(N−1)/(N·g·B)",
    "rings inside N nodes of g ranks, then g rings between nodes, each of one rank's link",
)
_TORUS = CitedFormula("T = 2Σ(k_d−1)α + 2S(n−1)/(n·2d·B)", "Sack and Gropp 2015, multi-port torus")

LINK = (
    Parameter("gBps", POSITIVE, "link of one rank, 10^9 bytes/s in each direction"),
    Parameter("gbps", POSITIVE, "the same in 10^9 bits/s; give one of the two"),
    Parameter("latency", TIME, "latency of one message", "0"),
    Parameter(
        "algorithm", choice(*_NAMES, double_tree="tree"), f"one of {', '.join(_NAMES)}", "ring"
    ),
    Parameter("ranks-per-node", RANKS, "ranks of one node (hierarchical)"),
    Parameter("node-gBps", POSITIVE, "link of one rank inside its node (hierarchical)"),
    Parameter("node-latency", TIME, "latency inside a node (hierarchical)", "0"),
    Parameter("shape", SHAPE, "sides of a torus (torus)"),
)


class PricedAllReduce(NamedTuple):
    """The formula of an all-reduce and its cost."""

    formula: CitedFormula
    cost: Cost


def link(values: Mapping[str, Any]) -> Link:
    """The link of one rank; raises `UsageError` unless its speed is given exactly once."""
    gigabytes, gigabits = values.get("gBps"), values.get("gbps")
    if (gigabytes is None) == (gigabits is None):
        raise UsageError(
            "give the link's speed once: --gBps in gigabytes per second or --gbps in gigabits "
            "(400 Gb/s are 50 GB/s)"
        )
    speed = float(gigabytes) if gigabytes is not None else float(gigabits or 0) / 8
    return Link(speed, values["latency_ns"])


def all_reduce(
    size_bytes: float, ranks: int, values: Mapping[str, Any], name: str = ""
) -> PricedAllReduce:
    """Cost of one all-reduce by the algorithm of this name, or by that of the options."""
    name, wire = name or values["algorithm"], link(values)
    if name == "hierarchical":
        return PricedAllReduce(_HIERARCHICAL, _hierarchical(size_bytes, ranks, wire, values))
    if name == "torus":
        return PricedAllReduce(_TORUS, _torus(size_bytes, ranks, wire, values))
    text, source, cost = ALGORITHMS[name]
    return PricedAllReduce(CitedFormula(text, source), cost(size_bytes, ranks, wire))


def comparable(values: Mapping[str, Any]) -> list[str]:
    """Names of the algorithms that can be compared under these options."""
    names = [name for name in ALGORITHMS if name != "in-switch"]
    if values["ranks_per_node"] and values["node_gBps"]:
        names.append("hierarchical")
    if values["shape"]:
        names.append("torus")
    if values["algorithm"] not in names:
        names.append(values["algorithm"])
    return names


def _hierarchical(size_bytes: float, ranks: int, outer: Link, values: Mapping[str, Any]) -> Cost:
    per_node, speed = values["ranks_per_node"], values["node_gBps"]
    if not per_node or not speed:
        raise UsageError("--algorithm hierarchical needs --ranks-per-node and --node-gBps")
    if ranks % per_node:
        raise UsageError(
            f"--ranks {ranks} is no multiple of --ranks-per-node {per_node}; nodes must be full"
        )
    inner = Link(speed, values["node_latency_ns"])
    return allreduce.hierarchical(size_bytes, ranks // per_node, per_node, inner=inner, outer=outer)


def _torus(size_bytes: float, ranks: int, wire: Link, values: Mapping[str, Any]) -> Cost:
    shape = values["shape"]
    if not shape:
        raise UsageError("--algorithm torus needs --shape, such as 16x16x16")
    if (places := math.prod(shape)) != ranks:
        raise UsageError(
            f"--shape {'x'.join(map(str, shape))} has {places} places, but --ranks is {ranks}"
        )
    return allreduce.torus(size_bytes, shape, wire)
