"""Processors: enough of them for the ranks and their threads, and how ranks wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evenstep.doctor.check import Check, Subject, or_ok
from evenstep.doctor.host import Host
from evenstep.host.cgroup import CpuController
from evenstep.host.sysfs import format_cpus

_THREADS = Subject("processors.threads", "torch.distributed.run documentation, OMP_NUM_THREADS")
_WAITING = Subject("processors.waiting", "OpenMP 5.0, OMP_WAIT_POLICY; Open MPI and MPICH FAQ")
_QUOTA = Subject("processors.quota", "Linux kernel, CFS bandwidth control")
_PRESSURE = Subject("processors.pressure", "Linux kernel, Pressure Stall Information")
_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
_BUSY_PERCENT = 10.0  # of time in which somebody waited for a core
_PROXIES = 2  # cores a GPU's rank keeps busy: Python, and NCCL's proxy thread


def checks(host: Host) -> Iterator[Check]:
    """Everything about cores."""
    cores = usable_cores(host)
    if not cores:
        yield _THREADS.skipped("the host does not list its processors")
        return
    yield _threads(host, cores)
    yield from or_ok(_waiting(host, cores), _WAITING.ok("ranks have cores to wait on"))
    yield _quota(host)
    yield _pressure(host)


def usable_cores(host: Host) -> float:
    """Cores this process may use: its affinity, and the quota of its control group."""
    quota = CpuController(str(host.root)).quota_cores()
    allowed = float(len(host.cpus))
    return min(allowed, quota) if quota else allowed


def threads_per_rank(host: Host) -> int | None:
    """Threads of a rank's parallel regions; None where each takes all cores.

    torchrun sets OMP_NUM_THREADS to 1 for several ranks unless it is set.
    """
    given = host.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    return 1 if "TORCHELASTIC_RUN_ID" in host.environ else None


def _threads(host: Host, cores: float) -> Check:
    ranks, threads = host.ranks, threads_per_rank(host)
    if ranks is None:
        return _THREADS.skipped(
            f"how many ranks this host gets is not known ({cores:g} cores); name it with --ranks"
        )
    fitting = max(int(cores // ranks), 1)
    mend = f"export OMP_NUM_THREADS={fitting}"
    if ranks > cores:
        return _THREADS.problem(
            f"{ranks} ranks on {cores:g} cores",
            "ranks take turns: whoever is not on a core makes all others wait",
            f"start at most {max(int(cores), 1)} ranks here, or ask for more cores",
        )
    if threads is None and ranks > 1:
        return _THREADS.warning(
            f"OMP_NUM_THREADS is not set: {ranks} ranks with {len(host.cpus)} threads each on "
            f"{cores:g} cores, unless torchrun starts them",
            "threads of different ranks push each other off their cores, and steps jitter",
            mend,
        )
    if threads and ranks * threads > cores:
        return _THREADS.problem(
            f"{ranks} ranks × {threads} threads on {cores:g} cores",
            "threads of different ranks push each other off their cores, and steps jitter",
            mend,
        )
    if host.gpu_count and cores < _PROXIES * ranks:
        return _THREADS.warning(
            f"{cores:g} cores for {ranks} ranks with a GPU each",
            "beside Python each rank has a thread that drives the network, and loaders",
            f"ask for {_PROXIES * ranks} cores or more, as with srun --cpus-per-task={_PROXIES}",
        )
    said = f"{threads} thread{'s' if threads != 1 else ''}" if threads else "all cores as threads"
    return _THREADS.ok(f"{ranks} rank{'s' if ranks != 1 else ''} × {said} on {cores:g} cores")


def _waiting(host: Host, cores: float) -> Iterator[Check]:
    """Threads that spin while they wait, where others need the core."""
    ranks, threads = host.ranks or 1, threads_per_rank(host) or 1
    full = ranks * threads >= cores and ranks > 1
    policy = host.environ.get("OMP_WAIT_POLICY", "").lower()
    block = host.environ.get("KMP_BLOCKTIME", "").lower()
    if full and (policy == "active" or block == "infinite"):
        name = "OMP_WAIT_POLICY=active" if policy == "active" else "KMP_BLOCKTIME=infinite"
        yield _WAITING.warning(
            f"{name} with {ranks * threads} threads on {cores:g} cores",
            "idle threads spin on cores that other ranks need",
            "export OMP_WAIT_POLICY=passive; unset KMP_BLOCKTIME",
        )
    if any(name in host.environ for name in _MPI) and ranks > cores:
        yield _WAITING.problem(
            f"{ranks} MPI ranks on {cores:g} cores",
            "MPI polls while it waits: a waiting rank keeps a late one off its core",
            "start fewer ranks; with Open MPI: mpirun --mca mpi_yield_when_idle 1",
        )
    yield from _binding(host, ranks)


def _binding(host: Host, ranks: int) -> Iterator[Check]:
    """All ranks' threads bound to the same cores."""
    bound = host.environ.get("GOMP_CPU_AFFINITY") or _explicit(host.environ.get("KMP_AFFINITY", ""))
    if bound and ranks > 1:
        yield Subject("processors.binding", "GNU and Intel OpenMP documentation").warning(
            f"threads are bound to the list {bound} on each of {ranks} ranks",
            "every rank gets the same cores while others stay idle",
            "unset GOMP_CPU_AFFINITY KMP_AFFINITY; let the launcher bind ranks "
            "(srun --cpu-bind=cores, mpirun --bind-to core)",
        )
    allowed = host.cpus
    if ranks > 1 and len(allowed) == 1 and "LOCAL_RANK" not in host.environ:
        yield Subject("processors.binding").problem(
            f"this process may use processor {format_cpus(allowed)} alone, for {ranks} ranks",
            "ranks started from here inherit it and share one core",
            "taskset -c 0-$(($(nproc --all)-1)) COMMAND, or ask the scheduler for more cores",
        )


def _explicit(affinity: str) -> str:
    match = re.search(r"proclist=\[([^\]]*)\]", affinity)
    return match[1] if match else ""


def _quota(host: Host) -> Check:
    controller = CpuController(str(host.root))
    quota, throttled = controller.quota_cores(), controller.throttled()
    if quota is None:
        return _QUOTA.ok("no quota on CPU time")
    if throttled and throttled[0]:
        return _QUOTA.warning(
            f"the control group was stopped {throttled[0]} times, {throttled[1] / 1e9:.1f} s in "
            f"all, at its quota of {quota:g} cores",
            "a stopped rank holds up all others for up to 100 ms at a time",
            "raise the limit (Kubernetes: resources.limits.cpu, or requests alone), or use fewer "
            "threads",
        )
    if quota < len(host.cpus):
        return _QUOTA.advice(
            f"quota of {quota:g} cores on {len(host.cpus)} processors",
            "libraries count processors, start that many threads, and are then stopped",
            f"export OMP_NUM_THREADS={max(int(quota // (host.ranks or 1)), 1)}",
        )
    return _QUOTA.ok(f"quota of {quota:g} cores, not exceeded so far")


def _pressure(host: Host) -> Check:
    match = re.search(r"some avg10=([\d.]+)", host.text("proc/pressure/cpu") or "")
    if match is None:
        return _PRESSURE.skipped("the kernel does not measure pressure (psi=1 switches it on)")
    percent = float(match[1])
    if percent > _BUSY_PERCENT:
        return _PRESSURE.warning(
            f"in {percent:g} % of the last 10 s something waited for a core",
            "other work on this host will make its ranks late",
            "find it with: top -o %CPU",
        )
    return _PRESSURE.ok(f"something waited for a core in {percent:g} % of the last 10 s")
