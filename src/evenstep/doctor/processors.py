"""Checks of processors: enough cores for ranks and threads, and how ranks wait."""

from __future__ import annotations

from collections.abc import Iterator

from evenstep.doctor.check import Check, fine, or_ok, skip, wrong
from evenstep.doctor.host import Host
from evenstep.host.sources.cpu import CpuController
from evenstep.words import plural

_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
_PROXIES = 2  # cores that a rank with a GPU keeps busy: Python and NCCL's proxy thread


def checks(host: Host) -> Iterator[Check]:
    cores = usable_cores(host)
    if not cores:
        yield skip("processors.threads", "the host does not list its processors")
        return
    yield _threads(host, cores)
    none = fine("processors.waiting", "ranks have cores to wait on")
    yield from or_ok(_waiting(host, cores), none)
    yield _quota(host)


def usable_cores(host: Host) -> float:
    """Return the cores this process may use, by affinity and cgroup quota."""
    quota = CpuController(str(host.root)).quota_cores()
    allowed = float(len(host.cpus))
    return min(allowed, quota) if quota else allowed


def threads_per_rank(host: Host) -> int | None:
    """OpenMP threads of a rank; None if it uses all cores. torchrun sets OMP_NUM_THREADS to 1 for
    several ranks unless it is set."""
    given = host.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    return 1 if "TORCHELASTIC_RUN_ID" in host.environ else None


def _threads(host: Host, cores: float) -> Check:
    ranks, threads = host.ranks, threads_per_rank(host)
    if ranks is None:
        why = f"the number of ranks on this host is unknown ({cores:g} cores)"
        return skip("processors.threads", f"{why}; give it with --ranks")
    room = {"ranks": ranks, "cores": cores, "each_rank": max(int(cores // ranks), 1)}
    if ranks > cores:
        return wrong("processors.threads.too_many", **room, fitting=max(int(cores), 1))
    if threads is None and ranks > 1:
        return wrong("processors.threads.unset", **room, cpus=len(host.cpus))
    if threads and ranks * threads > cores:
        return wrong("processors.threads.threads", **room, threads=threads)
    if host.gpu_count and cores < _PROXIES * ranks:
        wanted = _PROXIES * ranks
        return wrong("processors.threads.few", **room, wanted=wanted, each=_PROXIES)
    said = plural(threads, "thread") if threads else "all cores as threads"
    return fine("processors.threads", f"{plural(ranks, 'rank')} × {said} on {cores:g} cores")


def _waiting(host: Host, cores: float) -> Iterator[Check]:
    """Check for threads that spin while they wait although cores are short."""
    ranks, threads = host.ranks or 1, threads_per_rank(host) or 1
    full = ranks * threads >= cores and ranks > 1
    policy = host.environ.get("OMP_WAIT_POLICY", "").lower()
    block = host.environ.get("KMP_BLOCKTIME", "").lower()
    if full and (policy == "active" or block == "infinite"):
        name = "OMP_WAIT_POLICY=active" if policy == "active" else "KMP_BLOCKTIME=infinite"
        yield wrong("processors.waiting.spin", name=name, threads=ranks * threads, cores=cores)
    if any(name in host.environ for name in _MPI) and ranks > cores:
        yield wrong("processors.waiting.polls", ranks=ranks, cores=cores)


def _quota(host: Host) -> Check:
    controller = CpuController(str(host.root))
    quota, throttled = controller.quota_cores(), controller.throttled()
    if quota is None:
        return fine("processors.quota", "no quota on CPU time")
    if throttled and throttled[0]:
        times, stood_ns = throttled
        return wrong("processors.quota.stopped", times=times, stood_s=stood_ns / 1e9, quota=quota)
    if quota < len(host.cpus):
        each = max(int(quota // (host.ranks or 1)), 1)
        return wrong("processors.quota.below", quota=quota, cpus=len(host.cpus), threads=each)
    return fine("processors.quota", f"quota of {quota:g} cores, not exceeded so far")
