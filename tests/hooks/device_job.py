"""Collectives on a fake device, recorded by compiled kernels; prints what they recorded.

`python -m tests.hooks.device_job RECORDER DEVICE SPOOL`: the two libraries, and a file to be made.
"""

import ctypes
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch.native import Functions, NativeGroups, NativeKernels, Session
from evenstep.trace.spool.layout import WORD_DEVICE_ENTER, WORD_DEVICE_EXIT
from evenstep.trace.spool.spool import Spool

ROUNDS, CALLS = 5, 3  # what is pending is read after each round


def group_on(device: str) -> dist.ProcessGroup:
    c10d = torch._C._distributed_c10d
    fake, kind = c10d.FakeProcessGroup, c10d.ProcessGroup.BackendType.CUSTOM
    group = c10d.ProcessGroup(0, 1)
    group._register_backend(
        torch.device(device), kind, getattr(fake, "_create_internal", fake)(0, 1)
    )
    group._set_default_backend(kind)
    group._set_group_name("fake")
    return group


def stamps_of(spool: Spool, seq: int) -> list[int]:
    base = spool.word_of(seq)
    return [spool.words[base + word] for word in (WORD_DEVICE_ENTER, WORD_DEVICE_EXIT)]


def main(recorder_path: str, device_path: str, spool_path: str) -> None:
    device = ctypes.CDLL(device_path)
    for name in ("now", "busy"):
        getattr(device, f"fake_{name}").argtypes = [ctypes.c_double]
    spool = Spool.create(Path(spool_path), {}, ring_bytes=1 << 16, summary_bytes=1 << 16)
    session = Session(Functions(Path(recorder_path)), spool)
    Recorder(spool, session.compiled)  # whose thread is the training thread
    failures: list[Exception] = []
    NativeGroups(session, dist)
    kernels = NativeKernels(session, failures.append)
    kernels.install()
    group, options = group_on("cuda"), dist.AllreduceOptions()
    tensor, stamps, events = torch.ops.evenstep_fake.tensor(), [], []
    for at in range(ROUNDS):
        first = spool.last_number() + 1
        for call in range(CALLS):
            device.fake_now(10.0 * at + call)
            device.fake_busy(10.0 * at + call + 0.5)  # the host is half a millisecond ahead
            group.allreduce([tensor], options)
        device.fake_now(10.0 * at + 9)
        kernels.poll()
        stamps += [stamps_of(spool, seq) for seq in range(first, spool.last_number() + 1)]
        events.append([device.fake_made(), device.fake_destroyed()])
    batches = []
    for issued, waits_until in ((100.0, 105.0), (200.0, 200.0)):
        device.fake_now(issued)
        kernels.begin_batch()
        group.allreduce([tensor], options)
        batch = kernels.end_batch()
        device.fake_now(issued + 1)
        kernels.batch_reached(batch)
        device.fake_busy(waits_until)
        kernels.batch_ended(batch, True)
        device.fake_now(issued + 9)
        kernels.poll()
        batches.append(stamps_of(spool, spool.last_number()))
    said = {"stamps": stamps, "events": events, "batches": batches}
    print(json.dumps(said | {"failures": list(map(str, failures))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
