"""One process, one rank, many short lives of the agent, each in a folder of its name.

python -m tests.agent.solo_job FOLDER FULL_DISK        (writes FOLDER/results.json)
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Dataset

import evenstep
from evenstep.attachment import agent
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind
from tests.agent.training import BATCH, batch, model_and_optimizer, train

STEPS = 5
PATIENCE_S = 30.0
RUN_ID = "single"  # of a process that no launcher started
SPOOL = "attempt-000/rank-00000.spool"


class Lines(logging.Handler):
    """Keeps what evenstep says."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


class Rubbish(Dataset):
    """Samples whose making leaves something to collect, and collects it."""

    def __len__(self):
        return 3 * BATCH

    def __getitem__(self, index):
        loop = []
        loop.append(loop)
        gc.collect()
        return batch(index)[0]


class Job:
    """The scenes; each returns what its test wants to know."""

    def __init__(self, folder, full_disk):
        self.folder = Path(folder)
        self.full_disk = full_disk
        self.lines = Lines()
        logging.getLogger("evenstep").addHandler(self.lines)
        self.results = {}

    def play(self):
        self.results["before_init"] = self.before_init()
        for name in SCENES:
            self.lines.said.clear()
            self.results[name] = getattr(self, name)()
            evenstep.detach()
        (self.folder / "results.json").write_text(json.dumps(self.results))
        self.attach("at_exit")
        train(1)

    def attach(self, name, **settings):
        return evenstep.attach(out=self.folder / name, sample_period_s=3600, **settings)

    def before_init(self):
        told = [self.attach("before_init"), agent.current() is None]
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        first = agent.current()
        told += [first is not None, self.attach("elsewhere"), agent.current() is first]
        train(STEPS)
        evenstep.detach()
        return [*told, agent.current() is None, (self.folder / "elsewhere").exists()]

    def without(self):
        return train(STEPS)

    def off(self):
        return [self.attach("off", pace_mode="off"), train(STEPS)]

    def observe(self):
        return [self.attach("observe"), train(STEPS)]

    def on(self):
        return [self.attach("on", pace_mode="on"), train(STEPS)]

    def restored(self):
        train(1)  # whatever torch makes at first use is there
        before = settled(lambda now, last: now == last)
        self.attach("restored")
        train(1)
        during = replaceable()
        evenstep.detach()
        evenstep.detach()
        after = settled(lambda now, last: now == before)
        return {
            "replaced": [name for name in before if before[name] != during[name]],
            "left": [name for name in before if before[name] != after[name]],
        }

    def accumulation(self):
        self.attach("accumulation")
        model, optimizer = model_and_optimizer()
        for step in range(STEPS):
            with model.no_sync():
                model(batch(step)).mean().backward()
            model(batch(step)).mean().backward()
            optimizer.step()

    def two_optimizers(self):
        self.attach("two_optimizers")
        model, first = model_and_optimizer()
        second = torch.optim.Adam(model.parameters())
        for step in range(STEPS):
            model(batch(step)).mean().backward()
            first.step()
            second.step()
            second.step()

    def scaler(self, fused=False):
        self.attach("fused_scaler" if fused else "scaler")
        model, _ = model_and_optimizer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu")
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(batch(step)).mean() * (float("inf") if step in (1, 3) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    def fused_scaler(self):
        self.scaler(fused=True)

    def evaluation(self):
        self.attach("evaluation")
        parts = model_and_optimizer()
        train(2, parts=parts)
        parts[0].eval()
        with torch.no_grad():
            for step in range(40):
                parts[0](batch(step))
        parts[0].train()
        torch.save(parts[0].state_dict(), self.folder / "weights.pt")
        train(2, parts=parts)

    def middle(self):
        parts = model_and_optimizer()
        before = train(3, parts=parts)
        sequence = dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
        self.attach("middle")
        return [before + train(2, first=3, parts=parts), sequence]

    def session(self):
        self.attach("session")
        parts = model_and_optimizer()
        for step in range(3):
            with evenstep.span("mine"):
                train(1, first=step, parts=parts)
            evenstep.log(loss=step)
            evenstep.step()
        train(2, parts=parts)
        evenstep.step()

    def forked(self):
        self.attach("forked")
        parts = model_and_optimizer()
        losses = train(1, parts=parts)
        gc.disable()  # looking at the spool may bring on a collection of the parent's own
        before = self.written("forked")
        child = os.fork()
        if not child:
            gc.collect()
            evenstep.log(loss=1.0)
            with evenstep.span("child"):
                parts[1].step()
                evenstep.step()
            torch.save({}, self.folder / "child.pt")
            evenstep.detach()
            os._exit(0)
        status, same = os.waitpid(child, 0)[1], before == self.written("forked")
        gc.enable()
        return [status, same, losses + train(STEPS - 1, first=1, parts=parts)]

    def fork_workers(self):
        return self.workers("fork")

    def spawn_workers(self):
        return self.workers("spawn")

    def workers(self, how):
        self.attach(f"{how}_workers")
        loader = DataLoader(Rubbish(), BATCH, num_workers=1, multiprocessing_context=how)
        model, optimizer = model_and_optimizer()
        gc.disable()
        for samples in loader:
            model(samples).mean().backward()
            optimizer.step()
        gc.enable()
        return self.written(f"{how}_workers")

    def written(self, name):
        """Records of the scene's spool by kind, the background threads' left out."""
        kinds = read_spool(self.folder / name / SPOOL).records["kind"].tolist()
        told = sorted(set(kinds) - {Kind.SAMPLE, Kind.PACING, Kind.STACK})
        return {Kind(kind).name: kinds.count(kind) for kind in told}

    def broken_collective(self):
        return self.broken("collective")

    def broken_end_step(self):
        return self.broken("end_step")

    def broken(self, method):
        self.attach(f"broken_{method}", compiled=False)  # which goes past the recorder's methods
        calls = []

        def fail(*_, **__):
            calls.append(1)
            raise ArithmeticError("ours")

        setattr(agent.current().recorder, method, fail)
        return [train(STEPS), list(self.lines.said), len(calls)]

    def call_under_way(self):
        """A collective that another thread is in while this one detaches."""
        self.attach("call_under_way")
        held, freed = threading.Event(), threading.Event()

        def slow(*_):
            held.set()
            freed.wait()

        agent.current().gate = None
        agent.current().gate_by(slow)
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))
        thread.start()
        held.wait(60)
        evenstep.detach()
        freed.set()
        thread.join()
        return [train(STEPS), list(self.lines.said)]

    def bad_settings(self):
        told = [evenstep.attach(pace_mode="sideways"), evenstep.attach(no_such_thing=1)]
        told.append(evenstep.attach(pace_max_delay=0.5, out=self.folder / "refused"))
        losses = train(STEPS)
        told.append(self.attach("after_bad_settings", pace_max_delay=0.1))
        return [told, losses, list(self.lines.said), (self.folder / "refused").exists()]

    def unwritable(self):
        told = evenstep.attach(out=Path(__file__) / "run")
        return [told, train(STEPS), list(self.lines.said)]

    def full(self):
        if not self.full_disk:
            return None
        told = evenstep.attach(out=Path(self.full_disk) / "run")
        return [told, train(STEPS), list(self.lines.said)]

    def full_buffered(self):
        if not self.full_disk:
            return None
        told = evenstep.attach(out=Path(self.full_disk) / "buffered", spool="buffered")
        losses = train(STEPS)
        evenstep.detach()
        return [told, losses, list(self.lines.said)]

    def claimed(self):
        told = [evenstep.attach(out=self.folder / "off") for _ in range(2)]
        return [told, train(STEPS), list(self.lines.said)]

    def renumbered(self):
        """The process group is made anew: as it was, then with other ranks."""
        self.attach("renumbered")
        dist.destroy_process_group()
        told = []
        for backend, store, rank, world in (
            ("gloo", dist.HashStore(), 0, 1), ("fake", FakeStore(), 2, 4)
        ):  # fmt: skip
            dist.init_process_group(backend, store=store, rank=rank, world_size=world)
            told.append(list(self.lines.said))
            dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return told

    def switched_off(self):
        os.environ["EVENSTEP"] = "0"
        told = self.attach("switched_off")
        del os.environ["EVENSTEP"]
        return [told, (self.folder / "switched_off").exists()]


SCENES = [
    name for name in vars(Job) if not name.startswith("_")
    and name not in ("play", "attach", "before_init", "workers", "written", "broken")
]  # fmt: skip


def replaceable():
    """Everything the agent may replace or add to, by name, as comparable values."""
    from torch.nn.parallel.distributed import DistributedDataParallel
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    c10d = dist.distributed_c10d
    places = [
        (torch.autograd, "_engine_run_backward"), (torch.nn.Module, "train"), (torch, "save"),
        (torch.serialization, "save"), (dataloader._BaseDataLoaderIter, "__next__"),
        (dataloader.DataLoader, "__iter__"), (DistributedDataParallel, "_pre_forward"),
        (DistributedDataParallel, "_post_forward"), (dist.checkpoint, "save"),
        (dist.checkpoint, "async_save"), (torch._C._distributed_c10d.Work, "wait"),
        (sys, "unraisablehook"), (dist, "init_process_group"), (c10d, "init_process_group"),
        (dist, "destroy_process_group"), (c10d, "destroy_process_group"), (dist, "all_reduce"),
        (c10d, "_register_process_group"),
    ]  # fmt: skip
    kernel = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")
    return {f"{getattr(o, '__name__', o)}.{name}": id(getattr(o, name)) for o, name in places} | {
        "gc.callbacks": list(map(id, gc.callbacks)),
        "sys.meta_path": list(map(id, sys.meta_path)),
        "optimizer hooks": [
            list(optimizer._global_optimizer_pre_hooks),
            list(optimizer._global_optimizer_post_hooks),
        ],
        "dispatcher": kernel,
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


def settled(enough):
    """What is replaced, looked at until it is as it should be: threads take a while to end."""
    now, due = replaceable(), time.monotonic() + PATIENCE_S
    while time.monotonic() < due:
        time.sleep(0.05)
        last, now = now, replaceable()
        if enough(now, last):
            break
    return now


if __name__ == "__main__":
    torch.set_num_threads(1)
    Job(*sys.argv[1:]).play()
