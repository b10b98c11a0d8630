"""Kineto profiles as torch.profiler writes them, small and made to measure. Times in µs."""

import gzip
import json

DATA = ("..", "shared", "data", "kineto")


class Profile:
    """One rank's profile in the making; every method returns the event it adds."""

    def __init__(self, rank=0, world=2, backend="nccl"):
        self.events = []
        self.header = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": backend, "rank": rank, "world_size": world},
            "host_name": "here",
        }
        self.launches = 0

    def host(self, name, ts, dur, cat="cpu_op", tid=1, **args):
        event = {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur}
        self.events.append(event | {"args": args})
        return self.events[-1]

    def note(self, name, ts, dur, tid=1, **args):
        return self.host(name, ts, dur, "user_annotation", tid, **args)

    def step(self, number, ts, dur):
        return self.note(f"ProfilerStep#{number}", ts, dur)

    def kernel(self, name, launched, ts, dur, tid=1, device=0, stream=7, **args):
        """A kernel, and the call that launched it."""
        self.launches += 1
        ids = {"correlation": self.launches, "device": device, "stream": stream}
        self.host("cudaLaunchKernel", launched, 1, "cuda_runtime", tid, **ids)
        event = {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream}
        self.events.append(event | {"ts": ts, "dur": dur, "args": ids | args})
        return self.events[-1]

    def graph(self, launched, kernels):
        """One launch of a CUDA graph of kernels, each (name, ts, dur, stream)."""
        self.launches += 1
        self.host("cudaGraphLaunch", launched, 10, "cuda_runtime", correlation=self.launches)
        for name, ts, dur, stream in kernels:
            ids = {"correlation": self.launches, "device": 0, "stream": stream}
            event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream}
            self.events.append(event | {"ts": ts, "dur": dur, "args": ids})

    def collective(
        self, called, ts, dur, name="allreduce", elements=1000, tid=1, stream=20, **args
    ):
        """A call of a process group, and its kernel."""
        ranks = list(range(self.header["distributedInfo"].get("world_size", 2)))
        says = {
            "Collective name": name, "dtype": "Float", "In msg nelems": elements,
            "Out msg nelems": elements, "Group size": len(ranks), "Process Group Name": "0",
            "Process Group Description": "default_pg", "Process Group Ranks": str(ranks),
        } | args  # fmt: skip
        self.host("record_param_comms", called, 10, tid=tid, **says)
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return self.kernel(kernel, called + 5, ts, dur, tid, stream=stream)

    def document(self):
        return self.header | {"traceEvents": self.events}

    def write(self, path):
        data = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def two_steps(rank=0, late=0, first=3, **settings):
    """Two steps of 1 ms: compute from 100 to 500 µs, an all-reduce from 400 to 600 + late."""
    profile = Profile(rank, **settings)
    for number in (first, first + 1):
        begin = 1000 * number
        profile.step(number, begin, 1000)
        profile.note("## forward ##", begin + 10, 290)
        profile.note("## backward ##", begin + 300, 400)
        profile.note("Optimizer.step#SGD.step", begin + 800, 100)
        profile.kernel("void gemm(float*)", begin + 50, begin + 100, 400)
        profile.collective(begin + 310, begin + 400 + late, 200 - late)
    return profile
