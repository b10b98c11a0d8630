"""Measurements of one rank, a matrix product and copies, and between ranks: all-reduces, messages.

Inside a job all ranks measure after the same steps, on their training threads and without
communication, so a rank delays the others only by as much as its machine is slower. The device is
synchronized first, so that it runs nothing else. The caller imports torch.

Between ranks every rank makes the same number of calls: decisions use a maximum over all ranks.
Pairs are scheduled by the circle method, so that every team meets every other once: one team stays,
the others move by one place each round. With n teams there are n - 1 rounds of n / 2 disjoint
pairs; an odd number needs one more round, and one team rests in each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median_high
from typing import Any

FEWEST, MOST = 10, 400  # repeats
#: Time of each measurement with warm-up; the last repeat may exceed it: < 20 ms in total.
BUDGET_NS = {"compute": 4_000_000, "memory": 6_000_000, "host_copy": 4_000_000}

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ProbeDevice:
    """The device of a rank, and the size of the measurements on it."""

    torch: Any
    kind: str  # "cpu" or "cuda" (also AMD's)
    index: int = 0
    in_job: bool = False  # within a job, which needs memory and time

    @property
    def place(self) -> Any:
        return self.torch.device(self.kind, self.index if self.kind != "cpu" else None)

    @property
    def side(self) -> int:
        """Side of the square matrices: 5 ms on a core, 2 ms on a GPU with 1,000 TFLOP/s; in a job
        an eighth of that."""
        return (512 if self.kind == "cpu" else 8_192) // (2 if self.in_job else 1)

    @property
    def copied_bytes(self) -> int:
        """Bytes of a copy: beyond all caches; in a job beyond those of a core or GPU."""
        if self.in_job:
            return 16_000_000 if self.kind == "cpu" else 64_000_000
        return 64_000_000 if self.kind == "cpu" else 1_000_000_000

    def wait(self) -> None:
        if self.kind != "cpu":
            self.torch.cuda.synchronize(self.place)

    def describe(self) -> str:
        if self.kind == "cpu":
            return f"cpu, {self.torch.get_num_threads()} threads"
        return str(self.torch.cuda.get_device_name(self.place))


def choose(torch: Any, wanted: str, local_rank: int) -> ProbeDevice:
    """Return the device of a rank: its GPU if there is one, unless "cpu" is wanted."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return ProbeDevice(torch, "cpu")
    index = local_rank % max(torch.cuda.device_count(), 1)
    torch.cuda.set_device(index)
    return ProbeDevice(torch, "cuda", index)


def multiply(torch: Any, a: Any, b: Any, out: Any) -> None:
    torch.mm(a, b, out=out)


def product(device: ProbeDevice) -> Work:
    """Return a matrix product of 2 side³ operations with preallocated operands."""
    torch = device.torch
    dtype = torch.float32 if device.kind == "cpu" else torch.bfloat16
    shape = (device.side, device.side)
    a, b, out = (torch.ones(shape, dtype=dtype, device=device.place) for _ in range(3))
    return lambda: multiply(torch, a, b, out)


def memory_copy(device: ProbeDevice, *, from_host: bool = False) -> Work:
    """Return a copy of `copied_bytes` within the device's memory, or from pinned host memory."""
    torch = device.torch
    place = {"pin_memory": True} if from_host else {"device": device.place}
    source = torch.ones(device.copied_bytes, dtype=torch.uint8, **place)
    target = torch.zeros_like(source, device=device.place)
    return lambda: target.copy_(source, non_blocking=True)


def time_repeats(
    work: Work, device: ProbeDevice, budget_ns: int, *, warm_up: int = 3, fewest: int = FEWEST
) -> list[int]:
    """Return the times (ns) of as many repeats as fit into the budget, at least `fewest`."""
    end, found = time.perf_counter_ns() + budget_ns, list[int]()
    for _ in range(warm_up):
        work()
    device.wait()
    while len(found) < fewest or (time.perf_counter_ns() + found[-1] < end and len(found) < MOST):
        start = time.perf_counter_ns()
        work()
        device.wait()
        found.append(time.perf_counter_ns() - start)
    return found


class PeriodicProbe:
    """Measurements after every `every` steps on GPU `index` of torch, or on the CPU if None."""

    def __init__(self, torch: Any, index: int | None, *, every: int) -> None:
        kind = "cpu" if index is None else "cuda"
        self._device = ProbeDevice(torch, kind, index or 0, in_job=True)
        self._every = every
        self._works: dict[str, Work] = {}

    def after(self, steps: int) -> dict[str, float]:
        """Median time (ns) of each measurement by metric; {} if none is due or a CUDA graph is
        captured. The first call allocates 33 MB, on a GPU 230 MB and 64 MB pinned."""
        device = self._device
        if device.kind != "cpu" and device.torch.cuda.is_current_stream_capturing():
            return {}
        if not self._works:
            self._works = {"compute": product(device), "memory": memory_copy(device)}
            if device.kind != "cpu":
                self._works["host_copy"] = memory_copy(device, from_host=True)
        if steps % self._every:
            return {}
        device.wait()  # for the job's kernels, which are not part of the budget
        times = {
            name: time_repeats(work, device, BUDGET_NS[name], warm_up=1, fewest=1)
            for name, work in self._works.items()
        }
        return {f"probe.{name}_ns": float(median_high(each)) for name, each in times.items()}


# -- between ranks ---------------------------------------------------------------------------------

_SMALLEST_BYTES, _STEP = 8, 8
_LARGEST_BYTES = {"cpu": 8 * 8**7, "cuda": 8 * 8**9}  # 17 MB and 1.07 GB
_BATCH_NS = 2_000_000  # back-to-back operations timed together, as in nccl-tests
_FEWEST_BATCHES, _MOST_BATCHES, _MOST_OPERATIONS = 5, 50, 100
_MESSAGE_BYTES = {"cpu": 4_000_000, "cuda": 64_000_000}
_PINGS, _WARM_PINGS, _SENDS = 10, 2, 2
FEWEST_PASSES, MOST_PASSES = 2, 15

Pair = tuple[int, int]  # the lower team first


@dataclass(slots=True)
class PairTimes:
    """Times of messages between one rank and its partners: one way, for each pass."""

    message_bytes: int
    latency_ns: dict[int, list[float]] = field(default_factory=dict)  # by partner
    sent_ns: dict[int, list[float]] = field(default_factory=dict)
    received_ns: dict[int, list[float]] = field(default_factory=dict)


class Exchange:
    """Measurements on the process group."""

    def __init__(self, device: ProbeDevice, rank: int) -> None:
        import torch.distributed as distributed

        self._d: Any = distributed
        self._device, self._rank = device, rank
        self._torch = device.torch

    def agree(self, *values: float) -> list[float]:
        """Return the maximum of each value over all ranks."""
        tensor = self._torch.tensor(values, dtype=self._torch.float64, device=self._device.place)
        self._d.all_reduce(tensor, op=self._d.ReduceOp.MAX)
        return [float(value) for value in tensor.tolist()]

    # -- all-reduces -------------------------------------------------------------------------------

    def sweep(self, budget_ns: int, group: Any = None) -> dict[str, Any]:
        """Time all-reduces of 8 bytes and up, by factors of 8, as far as the budget allows: their
        `sizes` (bytes), and `times_ns` of one operation for each batch."""
        sizes, times = list[int](), list[tuple[float, ...]]()
        begun, size = time.perf_counter_ns(), _SMALLEST_BYTES
        while size <= _LARGEST_BYTES[self._device.kind]:
            tensor = self._floats(size)
            self._reduced(tensor, 1, group)  # the first one creates connections and buffers
            once = self._reduced(tensor, 1, group)
            once, spent = self.agree(once, float(time.perf_counter_ns() - begun))
            left = budget_ns - spent
            if sizes and once * _FEWEST_BATCHES > left:
                break
            times.append(self._batches(tensor, once, left / 2, group))
            sizes.append(size)
            size *= _STEP
        return {"sizes": sizes, "times_ns": times}

    def _batches(self, tensor: Any, once: float, budget_ns: float, group: Any) -> tuple[float, ...]:
        """Time batches of one size within half of the remaining budget."""
        operations = int(min(max(_BATCH_NS / max(once, 1.0), 1), _MOST_OPERATIONS))
        fitting = budget_ns / max(once * operations, 1.0)
        batches = int(min(max(fitting, _FEWEST_BATCHES), _MOST_BATCHES))
        return tuple(self._reduced(tensor, operations, group) for _ in range(batches))

    def _reduced(self, tensor: Any, operations: int, group: Any) -> float:
        """Return the time per all-reduce of several back to back (ns)."""
        self._device.wait()
        start = time.perf_counter_ns()
        for _ in range(operations):
            self._d.all_reduce(tensor, group=group)
        self._device.wait()
        return (time.perf_counter_ns() - start) / operations

    def _floats(self, size_bytes: int) -> Any:
        kind, place = self._torch.float32, self._device.place
        return self._torch.zeros(size_bytes // 4, dtype=kind, device=place)

    # -- pairs -------------------------------------------------------------------------------------

    def time_pairs(self, teams: Sequence[int], budget_ns: int) -> tuple[PairTimes, int]:
        """Time messages between all pairs of teams; also return the number of omitted rounds."""
        found = PairTimes(_MESSAGE_BYTES[self._device.kind])
        schedule = rounds(teams)
        if not schedule:
            return found, 0
        self._run_round(schedule[0], PairTimes(found.message_bytes))  # creates buffers
        begun = time.perf_counter_ns()

        def spent_ns() -> float:
            return self.agree(float(time.perf_counter_ns() - begun))[0]

        run = partial(self._run_round, found=found)
        return found, run_rounds(schedule, budget_ns, spent_ns, run)

    def _run_round(self, pairs: Sequence[Pair], found: PairTimes) -> None:
        """Run one round; all pairs start together, so that no rank waits for a busy partner."""
        partner = partner_of(pairs, self._rank)
        if partner is None:
            return
        if self._rank < partner:
            self._lead(partner, found)
        else:
            self._follow(partner, found.message_bytes)

    def _messages(self, message_bytes: int) -> list[tuple[Any, Any]]:
        """What the leader sends and gets back, one after the other."""
        small, large = self._floats(8), self._floats(message_bytes)
        pings = [(small, small)] * (_WARM_PINGS + _PINGS)
        return [*pings, *[(large, small)] * _SENDS, *[(small, large)] * _SENDS]

    def _lead(self, partner: int, found: PairTimes) -> None:
        pairs = self._messages(found.message_bytes)
        times = [self._there_and_back(*pair, partner) for pair in pairs]
        pings = sorted(times[_WARM_PINGS : _WARM_PINGS + _PINGS])
        sent, received = min(times[-2 * _SENDS : -_SENDS]), min(times[-_SENDS:])
        least = pings[0] / 2  # subtracted from minimum times, so it must be a minimum too
        found.latency_ns.setdefault(partner, []).append(pings[_PINGS // 2] / 2)
        found.sent_ns.setdefault(partner, []).append(max(sent - least, 1.0))
        found.received_ns.setdefault(partner, []).append(max(received - least, 1.0))

    def _follow(self, partner: int, message_bytes: int) -> None:
        for received, sent in self._messages(message_bytes):
            self._d.recv(received, partner)
            self._d.send(sent, partner)
            self._device.wait()

    def _there_and_back(self, sent: Any, received: Any, partner: int) -> float:
        self._device.wait()
        start = time.perf_counter_ns()
        self._d.send(sent, partner)
        self._d.recv(received, partner)
        self._device.wait()
        return float(time.perf_counter_ns() - start)


# -- schedule of pairs -----------------------------------------------------------------------------


def rounds(teams: Sequence[int]) -> list[list[Pair]]:
    """Return disjoint pairs for each round; every pair is in exactly one round."""
    circle: list[int | None] = [*sorted(teams)]
    if len(circle) < 2:
        return []
    if len(circle) % 2:
        circle.append(None)
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        meetings = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = ((a, b) for a, b in meetings if a is not None and b is not None)
        found.append([(min(pair), max(pair)) for pair in pairs])
        circle[1:] = [circle[-1], *circle[1:-1]]
    return found


def run_rounds(
    schedule: Sequence[list[Pair]],
    budget_ns: float,
    spent_ns: Callable[[], float],
    run: Callable[[list[Pair]], None],
) -> int:
    """Run rounds several times within a budget; return the number of omitted rounds.

    `spent_ns` returns the time spent, the same on every rank, and synchronizes the ranks. As many
    rounds are run as fit twice into the budget: each of them has another partner for every team,
    and a team with a single partner cannot be told from the link to it.
    """
    chosen = list[list[Pair]]()
    for pairs in schedule:
        if spent_ns() * FEWEST_PASSES > budget_ns and chosen:
            break
        run(pairs)
        chosen.append(pairs)
    for passes in range(1, MOST_PASSES):
        spent = spent_ns()
        if passes >= FEWEST_PASSES and spent * (passes + 1) / passes > budget_ns:
            break
        for number, pairs in enumerate(chosen):
            if number:
                spent_ns()
            run(pairs)
    return len(schedule) - len(chosen)


def partner_of(pairs: Sequence[Pair], team: int) -> int | None:
    """Return the partner of a team in a round; None if it rests."""
    return next((a + b - team for a, b in pairs if team in (a, b)), None)
