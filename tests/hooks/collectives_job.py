"""One rank of a job that does everything once, each thing under a span of its name.

python -m tests.hooks.collectives_job FOLDER MECHANISM RANK WORLD
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.install import COMPILED, TorchHooks
from evenstep.hooks.torch.native import NativeGroups, new_session
from evenstep.trace.spool.spool import Spool

TIMEOUT = timedelta(seconds=300)


class Job:
    """The rank's part in every scene. Tensors have 8 float32 elements: 32 bytes."""

    def __init__(self, folder: Path, mechanism: str, rank: int, world: int) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self.other = 1 - rank
        identity = {"rank": rank, "world": world, "run_id": "scenes", "boot_id": "one"}
        path = folder / "attempt-000" / f"rank-{rank:05d}.spool"
        self.spool = Spool.create(path, identity, ring_bytes=1_000_000, summary_bytes=100_000)
        session, why = new_session(torch, self.spool) if mechanism == COMPILED else (None, "")
        assert (session is not None) == (mechanism == COMPILED), why
        self.recorder = Recorder(self.spool, session and session.compiled)
        self.failures: list[Exception] = []
        # Groups: up to torch 2.6 one that goes, the interpreter's lock held, waits for a thread of
        # its own, which waits for that lock where it drops the last collective's tensors.
        self.kept: list[Any] = []
        groups = NativeGroups(session, dist) if session else Groups(self.spool, dist)
        observed: Any = SimpleNamespace(
            recorder=self.recorder, end_step=print, give_up=self.failures.append, gate=None
        )
        self.hooks = TorchHooks(torch, observed, groups, session=session)

    def play(self) -> None:
        """All scenes; hooks go in after the default group is made, as with a late attach."""
        self.connect("first")
        self.hooks.install()
        for scene in (
            self.blocking,
            self.rooted,
            self.shapes,
            self.barriers,
            self.messages,
            self.functional_ones,
            self.objects,
            self.coalesced,
            self.data_parallel,
            self.buffers,
            self.computing_on,
            self.failing,
            self.subgroups,
        ):
            scene()
        with self.scene("before the end"):
            dist.all_reduce(ones(8))
        dist.destroy_process_group()
        self.connect("second")
        with self.scene("again"):
            dist.all_reduce(ones(8))
        dist.destroy_process_group()
        self.hooks.remove()
        self.spool.add_fact("hooks", self.hooks.describe())
        self.spool.add_fact("failures", [repr(failure) for failure in self.failures])
        self.spool.add_fact("closed", {})

    def connect(self, name: str) -> None:
        store = f"file://{self.folder}/{name}.store"
        dist.init_process_group(
            "gloo", store, rank=self.rank, world_size=self.world, timeout=TIMEOUT
        )

    @contextlib.contextmanager
    def scene(self, name: str) -> Iterator[None]:
        seq = self.recorder.span_begins(name)
        yield
        self.spool.close(seq, monotonic_ns())

    def blocking(self) -> None:
        with self.scene("all_reduce"):
            dist.all_reduce(ones(8))
        with self.scene("all_reduce async"):
            dist.all_reduce(ones(8), async_op=True).wait()

    def rooted(self) -> None:
        both = [ones(8), ones(8)]
        with self.scene("broadcast"):
            dist.broadcast(ones(8), src=1)
        with self.scene("reduce"):
            dist.reduce(ones(8), dst=1)
        with self.scene("gather"):
            dist.gather(ones(8), both if self.rank == 1 else None, dst=1)
        with self.scene("scatter"):
            dist.scatter(ones(8), both if self.rank == 1 else None, src=1)

    def shapes(self) -> None:
        with self.scene("all_gather"):
            dist.all_gather([ones(8), ones(8)], ones(8))
        with self.scene("all_gather_into_tensor"):
            dist.all_gather_into_tensor(ones(16), ones(8))
        with self.scene("reduce_scatter_tensor"):
            dist.reduce_scatter_tensor(ones(4), ones(8))
        with self.scene("all_to_all_single"):
            dist.all_to_all_single(ones(8), ones(8))
        with self.scene("sparse"):
            dist.all_reduce(ones(8).to_sparse())

    def barriers(self) -> None:
        with self.scene("barrier"):
            dist.barrier()
        with self.scene("monitored_barrier"):
            dist.monitored_barrier()
        dist.monitored_barrier()  # so that no other wait ends the one before

    def messages(self) -> None:
        first = self.rank == 0
        with self.scene("send and recv"):
            dist.send(ones(8), 1, tag=7) if first else dist.recv(ones(8), 0, tag=7)
        with self.scene("isend and irecv"):
            (dist.isend(ones(8), 1) if first else dist.irecv(ones(8), 0)).wait()
        with self.scene("recv from anybody"):
            dist.send(ones(8), 1) if first else dist.recv(ones(8))
        with self.scene("batch"):
            swap = [
                dist.P2POp(dist.isend, ones(8), self.other),
                dist.P2POp(dist.irecv, ones(8), self.other),
            ]
            for work in dist.batch_isend_irecv(swap):
                work.wait()

    def functional_ones(self) -> None:
        with self.scene("functional"):
            functional.wait_tensor(functional.all_reduce(ones(8), "sum", dist.group.WORLD))
        with self.scene("inference mode"), torch.inference_mode():
            dist.all_reduce(ones(8))

    def objects(self) -> None:
        with self.scene("objects"):
            dist.all_gather_object([None, None], {"rank": self.rank})

    def coalesced(self) -> None:
        with self.scene("coalesced"), dist._coalescing_manager():
            dist.all_reduce(ones(8))
            dist.all_reduce(ones(4))

    def data_parallel(self) -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4, bias=False))
        with self.scene("data parallel"):
            model(ones(2, 4)).sum().backward()

    def buffers(self) -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4))
        if self.rank == 0:
            time.sleep(0.05)  # the root of the broadcast
        with self.scene("buffers"):
            model(ones(2, 4))

    def computing_on(self) -> None:
        job = self

        class Last(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, tensor: Any) -> Any:
                return tensor.clone()

            @staticmethod
            def backward(_: Any, *gradients: Any) -> Any:
                with job.scene("after the last gradient"):
                    return gradients

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4, bias=False))
        with self.scene("computing on"):
            model(Last.apply(ones(2, 4).requires_grad_())).sum().backward()

    def failing(self) -> None:
        with self.scene("failing"), contextlib.suppress(RuntimeError):
            dist.all_gather_into_tensor(ones(3), ones(8))
        with self.scene("after a failure"):
            dist.all_reduce(ones(8))

    def subgroups(self) -> None:
        late = dist.new_group([0, 1], group_desc="late")
        with self.scene("late group"):
            dist.all_reduce(ones(8), group=late)
        mesh = dist.device_mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
        self.kept += [late, mesh]
        with self.scene("mesh"):
            dist.all_reduce(ones(8), group=mesh.get_group("a"))
        dist.destroy_process_group(late)
        with self.scene("after a group's end"):
            dist.all_reduce(ones(8))


def ones(*shape: int) -> Any:
    """A tensor of ones."""
    return torch.ones(*shape)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Job(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).play()
