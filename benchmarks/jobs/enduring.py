"""One rank that issues a million collectives on ten thousand groups, with children and a fork."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import evenstep
from evenstep.attachment import agent

STEP = 1000  # collectives of a step
CHILDREN = 8


def resident_mb() -> float:
    """Anonymous memory of this process: the mapped trace is not among it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


def child(number: int) -> None:
    """A process of its own, which trains nothing and must end well."""
    assert agent.current() is None
    assert torch.ones(number + 1).sum().item() == number + 1


def forked() -> bool:
    """Whether a fork in the middle of a step computes, records nothing and ends well."""
    pid = os.fork()
    if pid == 0:
        dist.all_reduce(torch.ones(1))
        os._exit(0 if agent.current() is None else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def main() -> None:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("compiled", "python"))
    parser.add_argument("--collectives", type=int, required=True)
    parser.add_argument("--groups", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        assert evenstep.attach(out=out, compiled=args.way == "compiled", verdict=False)
        tensor, early_mb = torch.ones(1), 0.0
        for number in range(1, args.collectives + 1):
            dist.all_reduce(tensor)
            if number % STEP == 0:
                evenstep.step()
            if number == args.collectives // 10:
                early_mb = resident_mb()
        grown_mb = resident_mb() - early_mb
        before_mb = resident_mb()
        for _ in range(args.groups):
            group = dist.new_group([0])
            dist.all_reduce(tensor, group=group)
            dist.destroy_process_group(group)
        groups_mb = resident_mb() - before_mb
        spawn = multiprocessing.get_context("spawn")
        children = [spawn.Process(target=child, args=(number,)) for number in range(CHILDREN)]
        fork_well = forked()
        for one in children:
            one.start()
        for one in children:
            one.join()
        well = sum(one.exitcode == 0 for one in children)
        attached = agent.current()
        failure = "detached" if attached is None else attached.failure
        evenstep.detach()
        events = evenstep.load(out).events
        print(json.dumps({
            "grown_mb": grown_mb, "groups_mb": groups_mb, "failure": failure,
            "children_well": well,
            "children": well == CHILDREN and fork_well,
            "recorded": int(events.group_seq[events.group == 0].max()) + 1,
        }))  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
