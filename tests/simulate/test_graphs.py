"""Steps of scenarios, told to the brute-force fluid network message by message."""

import numpy as np
import pytest

from evenstep.simulate.simulation import set_up, simulate
from tests.simulate.brute_force import Collective, Message, Operation, Simulation
from tests.simulate.worlds import scenario

SLOW = 1.5  # rank 0, by this factor
PIPELINE = ("work.kind=pipeline", "work.message_bytes=2GB", "work.micro_batches=4")


def end_by_definition(setup):
    """When the step is over on all ranks, in ns."""
    graph = setup.graph
    programs = [
        [
            Operation(
                one.stream, one.length_ns * (1 if rank else SLOW), one.instance,
                tuple(need for need, _ in one.needs),
            )
            for one in graph.roles[role].operations
        ]
        for rank, role in enumerate(graph.role.tolist())
    ]  # fmt: skip
    collectives = [_told(flow) for flow in graph.flows]
    capacity = setup.network.capacity.tolist()
    ends = Simulation(capacity, collectives, programs, [0.0] * len(programs)).run()
    return max(max(each) for each in ends)


def _told(flow):
    ranks = sorted({*flow.members.ravel().tolist()})
    local = {rank: place for place, rank in enumerate(ranks)}
    rounds = []
    for stage in flow.stages:
        item, routes = stage.round, stage.routes
        bytes_ = np.broadcast_to(item.bytes, item.source.shape).tolist()
        messages = [
            Message(
                local[source], local[target], bytes_[m],
                tuple(routes.link[routes.start[m] : routes.start[m + 1]].tolist()),
                float(stage.latency_ns[m]),
            )
            for m, (source, target) in enumerate(zip(item.source, item.target, strict=True))
        ]  # fmt: skip
        rounds += [messages] * item.repeats
    return Collective(ranks, rounds)


@pytest.mark.parametrize(
    "sets",
    [
        (*PIPELINE, "cluster.nodes=2", "work.pipeline_parallel=2", "work.interleaved=2"),
        (*PIPELINE, "cluster.nodes=4", "work.pipeline_parallel=4", "work.interleaved=3"),
        (*PIPELINE, "cluster.nodes=3", "work.pipeline_parallel=3", "work.schedule=zero_bubble"),
        (*PIPELINE, "cluster.nodes=2", "cluster.gpus_per_node=4", "cluster.gpu_link_gBps=20",
         "work.pipeline_parallel=2", "work.tensor_parallel=2", "work.layers=2",
         "work.gradient_bytes=1GB"),
        (*PIPELINE, "cluster.nodes=8", "work.pipeline_parallel=2", "work.context_parallel=2",
         "work.expert_parallel=2", "work.layers=2", "work.expert_imbalance=0.5",
         "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2", "fabric.oversubscription=2"),
        ("cluster.nodes=4", "cluster.gpus_per_node=2", "work.kind=fsdp", "work.shard_ranks=2",
         "work.buckets=3", "work.gradient_bytes=2GB", "work.micro_batches=2"),
        ("cluster.nodes=6", "work.buckets=3", "work.gradient_bytes=2GB", "job.placement=random",
         "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2", "fabric.oversubscription=2"),
    ],
    ids=["2 stages of 2 chunks", "4 of 3", "zero bubble", "tensor", "experts", "hybrid", "buckets"],
)  # fmt: skip
def test_a_step_is_over_when_the_definition_says(sets):
    asked = scenario(
        *sets, "work.forward_ms=500", "work.backward_ms=700", "collectives.algorithm=ring",
        "run.steps=1", noise=[{"kind": "slow", "ranks": "0", "factor": SLOW}],
    )  # fmt: skip
    found = simulate(asked).step_time.mean_ns
    assert found == pytest.approx(end_by_definition(set_up(asked)), rel=1e-9)
