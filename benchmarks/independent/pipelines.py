"""Pipelines: stages that pass micro-batches on as messages, under a schedule."""

from __future__ import annotations

from benchmarks.independent.job import Job
from benchmarks.independent.machine import ALL_REDUCE, BACKWARD, FORWARD, OPTIMIZER
from benchmarks.independent.stacks import Stack


def schedule(kind: str, stage: int, stages: int, micro: int) -> list[tuple[str, int]]:
    """What a stage does in order: ("F" or "B", micro-batch)."""
    if kind == "gpipe":
        return [("F", i) for i in range(micro)] + [("B", i) for i in range(micro)]
    ahead = min(stages - 1 - stage, micro)  # 1F1B (PipeDream-Flush)
    order = [("F", i) for i in range(ahead)]
    for number in range(micro - ahead):
        order += [("F", ahead + number), ("B", number)]
    return order + [("B", i) for i in range(micro - ahead, micro)]


class Pipeline(Stack):
    """Stages × replicas: rank = stage · replicas + replica. Gradients are reduced per stage."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.stages = int(self.shape["stages"])
        self.micro = int(self.shape["micro"])
        self.kind = str(self.shape.get("schedule", "1f1b"))
        self.replicas = job.spec.world // self.stages
        grid = job.ranks.reshape(self.stages, self.replicas)
        self.grid = grid
        self.line = job.communicator(str(self.shape.get("name", "mesh_pp")), grid.T)
        self.data = job.communicator("mesh_dp", grid) if self.replicas > 1 else None
        ends = grid[[0, -1]].T
        self.embedding = (
            job.communicator("embedding", ends) if self.shape.get("embedding") else None
        )
        seconds = 0.02 * job.spec.step_s / self.micro
        self.activations = self.bytes_for(self.line, "message", seconds)
        self.orders: dict[tuple, int] = {}

    def step(self) -> None:
        self.input()
        self._micro_batches()
        job, spec = self.job, self.job.spec
        if self.data is not None:
            nbytes = self.bytes_for(
                self.data, "all_reduce", 0.4 * spec.transfer_share * spec.step_s
            )
            self.collective(self.data, ALL_REDUCE, nbytes, "dp", blocking=True)
        if self.embedding is not None:
            nbytes = self.bytes_for(self.embedding, "all_reduce", 0.01 * spec.step_s)
            self.collective(self.embedding, ALL_REDUCE, nbytes, "embedding", blocking=True)
        if self.shape.get("clip", True):
            self.collective(self.everyone, ALL_REDUCE, 8, "clip", blocking=True)
        with job.machine.phase(OPTIMIZER):
            job.compute("optimizer", OPTIMIZER, 0.03 * spec.step_s)

    def _micro_batches(self) -> None:
        """Run every stage's order as far as its messages are sent, until all are done."""
        todo = [schedule(self.kind, s, self.stages, self.micro) for s in range(self.stages)]
        done = [0] * self.stages
        self.sent: dict[tuple[str, int, int], object] = {}
        outgoing: list = []
        while any(done[s] < len(todo[s]) for s in range(self.stages)):
            for stage in range(self.stages):
                while done[stage] < len(todo[stage]) and self._ready(
                    stage, *todo[stage][done[stage]]
                ):
                    self._one(stage, *todo[stage][done[stage]], outgoing)
                    done[stage] += 1
        self.job.machine.finish_sends(outgoing)

    def _source(self, stage: int, what: str) -> int | None:
        source = stage - 1 if what == "F" else stage + 1
        return source if 0 <= source < self.stages else None

    def _ready(self, stage: int, what: str, number: int) -> bool:
        source = self._source(stage, what)
        return source is None or (what, source, number) in self.sent

    def _one(self, stage: int, what: str, number: int, outgoing: list) -> None:
        """Receive, compute, send: one micro-batch of one stage, of all replicas."""
        job, machine = self.job, self.job.machine
        ranks = self.grid[stage]
        phase, share = (FORWARD, 0.32) if what == "F" else (BACKWARD, 0.63)
        source = self._source(stage, what)
        tag = 0 if what == "F" else 1
        comm = self.line.number
        if source is not None:
            label = f"message {what} {source} {number}"
            seconds = job.transfer(self.line, "message", self.activations, label)
            order = self._order(source, stage, tag, "r")
            machine.receive(
                ranks, self.sent[what, source, number], comm, tag, order, self.activations, seconds
            )
        weight = self.shape.get("weights", [1.0] * self.stages)[stage]
        with machine.phase(phase, ranks):
            seconds = weight * share * job.spec.step_s / self.micro
            job.compute(f"{what} {stage} {number}", phase, seconds, ranks, kernels=8)
        target = stage + 1 if what == "F" else stage - 1
        if 0 <= target < self.stages:
            order = self._order(stage, target, tag, "s")
            sent = machine.send(ranks, self.grid[target], comm, tag, order, self.activations)
            self.sent[what, stage, number] = sent
            outgoing.append(sent)

    def _order(self, source: int, target: int, tag: int, side: str) -> int:
        """Number of this message among those of its pair, direction and tag."""
        key = (source, target, tag, side)
        self.orders[key] = self.orders.get(key, 0) + 1
        return self.orders[key]


def bubble(stages: int, micro: int) -> float:
    """Share of a step that a stage of an even pipeline idles: (p − 1) / (m + p − 1)."""
    return (stages - 1) / (micro + stages - 1)
