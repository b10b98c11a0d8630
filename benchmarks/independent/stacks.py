"""The ways people train in parallel: what a step does, on hosts or on devices."""

from __future__ import annotations

from benchmarks.independent.job import Job
from benchmarks.independent.machine import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BACKWARD,
    FORWARD,
    INPUT,
    OPTIMIZER,
    REDUCE_SCATTER,
    Communicator,
)


class Stack:
    """A job's program. `step` runs one training step; everything else is set up once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.shape = job.spec.shape
        self.everyone = job.communicator("default_pg", job.ranks[None, :])

    def step(self) -> None:
        """One training step of every rank."""
        raise NotImplementedError

    def input(self) -> None:
        """Ask the loader for a batch."""
        with self.job.machine.phase(INPUT):
            self.job.compute("input", INPUT, 4e-3 * self.job.spec.step_s, on_host=True)

    def optimizer(self) -> None:
        """Update the parameters."""
        with self.job.machine.phase(OPTIMIZER):
            self.job.compute("optimizer", OPTIMIZER, 0.05 * self.job.spec.step_s)

    def bytes_for(self, comm: Communicator, kind: str, seconds: float) -> int:
        """How many bytes such a collective moves in so many seconds on a quiet fabric."""
        spec = self.job.spec
        rate = (spec.node_gbyte if comm.link == "node" else spec.net_gbyte) * 1e9
        size = comm.size
        moved = {"all_reduce": 2 * (size - 1) / size, "message": 1.0}.get(kind, (size - 1) / size)
        return max(int(seconds * rate / moved), 64)

    def collective(self, comm: Communicator, op: int, nbytes: int, label: str, *, blocking: bool):
        """Issue one; sizes are those of the larger side."""
        kind = "all_reduce" if op == ALL_REDUCE else "other"
        seconds = self.job.transfer(comm, kind, nbytes, label)
        small = max(nbytes // comm.size, 1)
        sides = {ALL_GATHER: (small, nbytes), REDUCE_SCATTER: (nbytes, small)}.get(
            op, (nbytes, nbytes)
        )
        return self.job.machine.collective(
            comm, op, sides[0], seconds, self.job.late(label), blocking=blocking, bytes_out=sides[1]
        )


class DataParallel(Stack):
    """DDP: gradients in buckets, issued during backward, or one after the other behind it."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.buckets = int(self.shape.get("buckets", 5))
        total = job.spec.transfer_share * job.spec.step_s
        self.nbytes = self.bytes_for(self.everyone, "all_reduce", total / self.buckets)
        self.fused = int(self.shape.get("fused", 0))

    def step(self) -> None:
        job, machine, spec = self.job, self.job.machine, self.job.spec
        self.input()
        with machine.phase(FORWARD):
            job.compute("forward", FORWARD, 0.32 * spec.step_s)
        if spec.blocking:
            with machine.phase(BACKWARD):
                job.compute("backward", BACKWARD, 0.63 * spec.step_s)
            self.reduce_blocking()
            for number in range(1 if self.fused else int(self.shape.get("small", 0))):
                self.collective(self.everyone, ALL_REDUCE, 256, f"small {number}", blocking=True)
            if self.shape.get("norm"):
                self.collective(self.everyone, ALL_REDUCE, 8, "norm", blocking=True)
        else:
            with machine.phase(BACKWARD):
                self.backward_overlapped()
        self.optimizer()

    def reduce_blocking(self) -> None:
        """All buckets one after the other, each waited for."""
        if self.fused and not self.shape.get(
            "small"
        ):  # what many small collectives would be as one
            self.collective(
                self.everyone, ALL_REDUCE, self.nbytes * self.buckets, "b0", blocking=True
            )
            return
        for number in range(self.buckets):
            label = f"b{number}"
            self.collective(self.everyone, ALL_REDUCE, self.nbytes, label, blocking=True)

    def backward_overlapped(self) -> None:
        """Each bucket leaves as soon as its gradients are there."""
        job, spec = self.job, self.job.spec
        pending = []
        for number in range(self.buckets):
            piece = 0.63 * spec.step_s / self.buckets
            job.compute(f"backward {number}", BACKWARD, piece, kernels=max(20 // self.buckets, 4))
            pending.append(
                self.collective(
                    self.everyone, ALL_REDUCE, self.nbytes, f"b{number}", blocking=False
                )
            )
        job.machine.wait(pending, job.seen("b"), ddp=True)


class Sharded(Stack):
    """FSDP: parameters of a layer are gathered before it computes, gradients scattered after."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.layers = int(self.shape.get("layers", 6))
        self.prefetch = bool(self.shape.get("prefetch", True))
        self.replicas: Communicator | None = None
        self.shards = self.everyone
        if self.shape.get("hybrid"):
            per = job.spec.per_node
            grid = job.ranks.reshape(-1, per)
            self.shards = job.communicator("mesh_shard", grid)
            self.replicas = job.communicator("mesh_replicate", grid.T)
        each = job.spec.transfer_share * job.spec.step_s / (3 * self.layers)
        self.nbytes = self.bytes_for(self.shards, "other", each)

    def step(self) -> None:
        machine = self.job.machine
        self.input()
        with machine.phase(FORWARD):
            self.layers_of("forward", FORWARD, 0.32, list(range(self.layers)), scatter=False)
        with machine.phase(BACKWARD):
            self.layers_of("backward", BACKWARD, 0.63, list(range(self.layers))[::-1], scatter=True)
        self.optimizer()

    def gather(self, layer: int, when: str):
        """Begin to gather a layer's parameters."""
        label = f"{when} gather {layer}"
        blocking = not self.prefetch
        return self.collective(self.shards, ALL_GATHER, self.nbytes, label, blocking=blocking)

    def layers_of(
        self, when: str, phase: int, share: float, order: list[int], *, scatter: bool
    ) -> None:
        """All layers in this order; the next is gathered while one computes."""
        job, machine = self.job, self.job.machine
        coming = self.gather(order[0], when)
        scattered = []
        for place, layer in enumerate(order):
            if self.prefetch:
                machine.wait([coming], job.seen(when))
            if self.prefetch and place + 1 < len(order):
                coming = self.gather(order[place + 1], when)
            job.compute(f"{when} {layer}", phase, share * job.spec.step_s / self.layers, kernels=8)
            if scatter:
                label = f"scatter {layer}"
                blocking = not self.prefetch
                scattered.append(
                    self.collective(
                        self.shards, REDUCE_SCATTER, self.nbytes, label, blocking=blocking
                    )
                )
            if not self.prefetch and place + 1 < len(order):
                coming = self.gather(order[place + 1], when)
        if scattered and self.prefetch:
            machine.wait(scattered, job.seen("scatter"), ddp=False)
        if scattered and self.replicas is not None:
            nbytes = self.bytes_for(self.replicas, "all_reduce", 0.03 * job.spec.step_s)
            self.collective(self.replicas, ALL_REDUCE, nbytes, "replicate", blocking=True)


class TensorParallel(Stack):
    """Many blocking all-reduces of activations in a small group, gradients over the others."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.tp = int(self.shape.get("tp", job.spec.per_node))
        self.layers = int(self.shape.get("layers", 4))
        grid = job.ranks.reshape(-1, self.tp)
        self.tensor = job.communicator("mesh_tp", grid)
        self.data = job.communicator("mesh_dp", grid.T) if len(grid) > 1 else None
        each = 0.08 * job.spec.step_s / (4 * self.layers)
        self.nbytes = self.bytes_for(self.tensor, "all_reduce", each)
        total = job.spec.transfer_share * job.spec.step_s * 0.6
        self.gradients = self.bytes_for(self.data, "all_reduce", total / 2) if self.data else 0

    def step(self) -> None:
        job, machine = self.job, self.job.machine
        self.input()
        with machine.phase(FORWARD):
            self.blocks("forward", FORWARD, 0.32)
        with machine.phase(BACKWARD):
            pending = self.blocks("backward", BACKWARD, 0.63)
            machine.wait(pending, job.seen("dp"), ddp=True)
        self.optimizer()

    def blocks(self, when: str, phase: int, share: float) -> list:
        """Layers of two blocks, each of which ends with an all-reduce."""
        pending = []
        piece = share * self.job.spec.step_s / (2 * self.layers)
        for layer in range(self.layers):
            for half in ("a", "m"):
                label = f"{when} {layer}{half}"
                self.job.compute(label, phase, piece, kernels=5)
                self.collective(self.tensor, ALL_REDUCE, self.nbytes, label, blocking=True)
            if phase == BACKWARD and self.data and (layer + 1) % max(self.layers // 2, 1) == 0:
                label = f"dp {layer}"
                pending.append(
                    self.collective(self.data, ALL_REDUCE, self.gradients, label, blocking=False)
                )
        return pending


class Hierarchical(Stack):
    """Gradients scattered within a node, reduced across nodes, gathered within a node."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        grid = job.ranks.reshape(-1, job.spec.per_node)
        self.inner = job.communicator("intra_node", grid)
        self.outer = job.communicator("inter_node", grid.T)
        self.buckets = int(self.shape.get("buckets", 3))
        each = job.spec.transfer_share * job.spec.step_s / self.buckets
        self.inner_bytes = self.bytes_for(self.inner, "other", 0.2 * each)
        self.outer_bytes = self.bytes_for(self.outer, "all_reduce", 0.6 * each)

    def step(self) -> None:
        job, machine = self.job, self.job.machine
        self.input()
        with machine.phase(FORWARD):
            job.compute("forward", FORWARD, 0.32 * job.spec.step_s)
        with machine.phase(BACKWARD):
            job.compute("backward", BACKWARD, 0.63 * job.spec.step_s)
        for number in range(self.buckets):
            self.collective(
                self.inner, REDUCE_SCATTER, self.inner_bytes, f"rs{number}", blocking=True
            )
            self.collective(self.outer, ALL_REDUCE, self.outer_bytes, f"ar{number}", blocking=True)
            self.collective(self.inner, ALL_GATHER, self.inner_bytes, f"ag{number}", blocking=True)
        self.optimizer()


class Experts(Stack):
    """Mixture of experts: two all-to-alls a layer within a group, gradients over everybody."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.layers = int(self.shape.get("layers", 3))
        size = int(self.shape.get("experts", min(8, job.spec.world)))
        grid = job.ranks.reshape(-1, size)
        self.experts = job.communicator("mesh_ep", grid)
        each = 0.6 * job.spec.transfer_share * job.spec.step_s / (4 * self.layers)
        self.nbytes = self.bytes_for(self.experts, "other", each)
        total = 0.4 * job.spec.transfer_share * job.spec.step_s
        self.gradients = self.bytes_for(self.everyone, "all_reduce", total)

    def step(self) -> None:
        job, machine = self.job, self.job.machine
        self.input()
        with machine.phase(FORWARD):
            self.blocks("forward", FORWARD, 0.32)
        with machine.phase(BACKWARD):
            self.blocks("backward", BACKWARD, 0.63)
            pending = [
                self.collective(self.everyone, ALL_REDUCE, self.gradients, "dp", blocking=False)
            ]
            machine.wait(pending, job.seen("dp"), ddp=True)
        self.optimizer()

    def blocks(self, when: str, phase: int, share: float) -> None:
        """Attention, tokens out, experts, tokens back."""
        piece = share * self.job.spec.step_s / self.layers
        for layer in range(self.layers):
            for part, weight in (("attention", 0.4), ("experts", 0.6)):
                label = f"{when} {part} {layer}"
                self.job.compute(label, phase, weight * piece, kernels=6)
                self.collective(self.experts, ALL_TO_ALL, self.nbytes, label, blocking=True)


STACKS: dict[str, type[Stack]] = {
    "ddp": DataParallel,
    "unmarked": DataParallel,
    "fsdp": Sharded,
    "tensor": TensorParallel,
    "unmarked_tensor": TensorParallel,
    "hierarchical": Hierarchical,
    "moe": Experts,
}
