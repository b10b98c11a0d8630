"""Findings about the fabric have the contract's shape too."""

import json
from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import LAYERS, PATTERNS
from evenstep.trace.spool.layout import Op, Phase
from tests.diagnose.synthetic import MS, World

BASE = World(ranks=8, steps=80, noise=0.01, style="blocking")
WORLDS = {
    "fabric_contention": replace(
        BASE, fabric=lambda move: 6 * MS * (3 if move.at_ns / 0.9e9 % 1 < 0.4 else 1)
    ),
    "incast": replace(
        BASE,
        after_backward=((Op.ALL_TO_ALL, 10**6),),
        fabric=lambda m: MS * (50 if m.op is Op.ALL_TO_ALL and m.step % 3 == 0 else 1),
    ),
    "collective_topology_mismatch": replace(
        BASE, nodes=(0, 1) * 4, fabric=lambda move: move.size_bytes
    ),
    "bandwidth_bound": replace(BASE, fabric=lambda move: 0.3 * move.size_bytes),
    "latency_bound": replace(
        BASE, buckets=40, bucket_bytes=(1000, 100_000), fabric=lambda move: 0.5 * MS
    ),
    "synchronization_oscillation": BASE.delayed(
        Phase.FORWARD, (np.arange(80) % 2 * 30 * MS)[:, None]
    ),
}


@pytest.fixture(params=WORLDS, scope="module")
def printed(request):
    found = json.loads(
        json.dumps(diagnose(WORLDS[request.param].trace()).to_json(), allow_nan=False)
    )
    assert found["findings"][0]["mode"] == request.param
    return found


def test_values_are_in_their_ranges(printed):
    for finding in printed["findings"]:
        assert finding["layer"] in LAYERS
        assert finding["when"]["pattern"] in (*PATTERNS, None)
        assert 0 <= finding["severity"] <= 1
        assert 0 <= finding["confidence"] <= 1
        for entry in (*finding["effect"]["projected"], *finding["options"]):
            middle = entry.get("share", entry.get("gain"))
            assert middle is None or 0 <= entry["low"] <= middle <= entry["high"] <= 1


def test_a_part_of_the_whole_is_attributed_and_a_remedy_given(printed):
    assert sum(finding["severity"] for finding in printed["findings"]) <= 1 + 1e-3
    for finding in printed["findings"]:
        assert all((finding["observation"], finding["cause"], finding["options"]))


@pytest.mark.parametrize("op", [Op.ALL_REDUCE, Op.ALL_TO_ALL, Op.GATHER])
def test_sizes_that_were_not_recorded_are_not_guessed(op):
    world = replace(BASE, nodes=(0, 1) * 4, bucket_bytes=(0,), after_backward=((op, 0),) * 20)
    found = diagnose(replace(world, fabric=lambda move: MS).trace()).findings
    fabric = {"latency_bound", "bandwidth_bound", "collective_topology_mismatch", "incast"}
    assert not fabric & {finding.mode for finding in found}


STYLES = ("overlapped", "blocking", "gathered", "grid")
EXTRAS = ((), ((Op.ALL_REDUCE, 8),), ((Op.GATHER, 1000), (Op.BROADCAST, 4000)))


@pytest.mark.parametrize("seed", range(24))
def test_a_fabric_that_merely_varies_has_no_finding_above_the_threshold(seed):
    random = np.random.default_rng(seed)
    style = STYLES[seed % 4]
    world = World(
        ranks=int(random.choice([2, 4, 8])),
        steps=int(random.choice([20, 60])),
        style=style,
        tensor_parallel=2 if style == "grid" else 1,
        noise=random.choice([0, 0.01, 0.02]),
        seed=seed,
        exit_lag_ns=random.choice([0, 0.2]) * MS,
        ranks_per_node=int(random.choice([1, 2, 64])),
        clocks={1: (1e9, 2e-5), 2: (-4e8, -3e-5)},
        bucket_bytes=(25_000_000, 3_000_000),
        after_backward=EXTRAS[seed % 3],
        fabric=lambda move: (0.1 * MS + move.size_bytes / 50) * (1 + random.exponential(0.2)),
    )
    assert all(finding.severity < 0.05 for finding in diagnose(world.trace()).findings)
