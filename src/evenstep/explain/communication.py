"""Topics about moving bytes: all-reduce, its bus bandwidth, rings over racks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep import allreduce
from evenstep.errors import UsageError
from evenstep.explain import links
from evenstep.explain.measures import COUNT, POSITIVE, RANKS, SIZE, TIME, TIME_ABOVE_0
from evenstep.explain.topic import Answer, CitedFormula, Parameter, Quantity, Topic
from evenstep.simulate.formulas import contention


def _allreduce(values: Mapping[str, Any]) -> Answer:
    size, ranks, wire = values["bytes"], values["ranks"], links.link(values)
    found = links.all_reduce(size, ranks, values)
    each = found.cost.time_ns + values["launch_ns"]
    count = values["per_layer"] * values["layers"]
    bus = allreduce.bus_gBps(size, ranks, each) if each and ranks > 1 else None
    rows = [
        Quantity("time_ns", each, "ns", f"one all-reduce, {values['algorithm']}"),
        Quantity("latency_ns", found.cost.latency_ns, "ns", "of it, waiting for messages to start"),
        Quantity("transfer_ns", found.cost.transfer_ns, "ns", "of it, moving bytes"),
        Quantity("rounds", found.cost.rounds, "", "messages that follow one another"),
        Quantity("pass_ns", size / wire.gBps, "ns", "one pass over the link, S/B: the least"),
        Quantity("limit_ns", allreduce.limit_ns(size, wire.gBps), "ns", "2S/B: a ring's limit"),
        Quantity("bus_gBps", bus, "GB/s", "bus bandwidth as nccl-tests prints it"),
        Quantity("collectives", count, "", "all-reduces in a step"),
        Quantity("total_ns", each * count, "ns", "all of them, one after another"),
    ]
    for name in links.comparable(values):
        if name != values["algorithm"]:
            time_ns = links.all_reduce(size, ranks, values, name).cost.time_ns + values["launch_ns"]
            key = f"{name.replace('-', '_')}_ns"
            rows.append(Quantity(key, time_ns, "ns", f"the same by {name}"))
    return Answer(rows, [found.formula], _notes(values))


def _notes(values: Mapping[str, Any]) -> list[str]:
    notes = ["α is the latency, B the link's speed in one direction, S the bytes, n the ranks."]
    ranks = values["ranks"]
    if values["algorithm"] == "halving-doubling" and ranks & (ranks - 1):
        notes.append("With a number of ranks that is no power of two, folding the rest in adds up "
                     "to 2(α + S/B).")  # fmt: skip
    if values["latency_ns"] == 0:
        notes.append("Latency is taken as 0; give --latency to see when it matters.")
    return notes


def _busbw(values: Mapping[str, Any]) -> Answer:
    bus = allreduce.bus_gBps(values["bytes"], values["ranks"], values["time_ns"])
    rows = [
        Quantity("algorithm_gBps", values["bytes"] / values["time_ns"], "GB/s", "bytes ÷ time"),
        Quantity("bus_gBps", bus, "GB/s", "comparable with the speed of the link"),
    ]
    if values["peak_gBps"]:
        rows.append(Quantity("share", bus / values["peak_gBps"], "share", "of the peak"))
    formula = CitedFormula("busbw = S/t × 2(n−1)/n", "nccl-tests, doc/PERFORMANCE.md")
    return Answer(rows, [formula])


def _rank_order(values: Mapping[str, Any]) -> Answer:
    ranks, rack = values["ranks"], values["ranks_per_rack"]
    if rack > ranks:
        raise UsageError(f"--ranks-per-rack {rack} is more than --ranks {ranks}")
    shuffled = contention.crossings(ranks, rack, ordered=False)
    ordered = contention.crossings(ranks, rack, ordered=True)
    rows = [
        Quantity(
            "random_crossings", shuffled, "", "hops of a ring that leave a rack, random order"
        ),
        Quantity("ordered_crossings", ordered, "", "the same in rack order"),
        Quantity("per_rack_random", shuffled * rack / ranks, "", "that share one rack's uplink"),
        Quantity("per_rack_ordered", ordered * rack / ranks, "", "the same in rack order"),
    ]
    formula = CitedFormula("random n(n−r)/(n−1), in order ⌈n/r⌉", "a hop leaves with (n−r)/(n−1)")
    return Answer(rows, [formula], ["n ranks, r of them in a rack."])


_SIZE = Parameter("bytes", SIZE, "bytes each rank contributes", required=True)
_RANKS = Parameter("ranks", RANKS, "ranks that take part", required=True)

ALLREDUCE = Topic(
    "allreduce",
    "how long an all-reduce takes, by algorithm",
    (
        _SIZE, _RANKS, *links.LINK,
        Parameter("launch", TIME, "cost of launching one", "0"),
        Parameter("per-layer", COUNT, "all-reduces of one layer", "1"),
        Parameter("layers", COUNT, "layers of the model", "1"),
    ),
    _allreduce,
    "--bytes 20GB --gBps 50 --ranks 512",
)  # fmt: skip
BUSBW = Topic(
    "busbw",
    "bus bandwidth of a measured all-reduce",
    (
        _SIZE, _RANKS,
        Parameter("time", TIME_ABOVE_0, "how long it took", required=True),
        Parameter("peak-gBps", POSITIVE, "what the link could do"),
    ),
    _busbw,
    "--bytes 8GiB --ranks 8 --time 31307us",
)  # fmt: skip
RANK_ORDER = Topic(
    "rank-order",
    "how often a ring crosses racks, in random order and in rack order",
    (_RANKS, Parameter("ranks-per-rack", RANKS, "ranks below one switch", required=True)),
    _rank_order,
    "--ranks 512 --ranks-per-rack 32",
)
