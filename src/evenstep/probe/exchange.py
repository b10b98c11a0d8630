"""What ranks measure together: all-reduces of all sizes, and messages between two.

Every rank makes the same number of calls: whatever decides it is agreed on by a maximum over all.
Pairs meet in a round-robin, so that every team plays every other once, by the circle method: one
team stays, the others move on by one place each round. With n teams there are n - 1 rounds of n / 2
disjoint pairs, one more with an odd number, where one team rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenstep.probe.kernels import ProbeDevice

_SMALLEST_BYTES, _STEP = 8, 8
_LARGEST_BYTES = {"cpu": 8 * 8**7, "cuda": 8 * 8**9}  # 17 MB and 1.07 GB
_BATCH_NS = 2_000_000  # back-to-back operations in one time, as nccl-tests takes them
_FEWEST_BATCHES, _MOST_BATCHES, _MOST_OPERATIONS = 5, 50, 100
_MESSAGE_BYTES = {"cpu": 4_000_000, "cuda": 64_000_000}
_PINGS, _WARM_PINGS, _SENDS = 10, 2, 2
FEWEST_PASSES, MOST_PASSES = 2, 15

Pair = tuple[int, int]  # the lower team first


@dataclass(frozen=True, slots=True)
class Sweep:
    """All-reduces over a group, by size."""

    sizes: tuple[int, ...]  # bytes
    times_ns: tuple[tuple[float, ...], ...]  # of one operation, batch by batch


@dataclass(slots=True)
class Meetings:
    """What one rank measured with others; times one way, pass by pass."""

    message_bytes: int
    latency_ns: dict[int, list[float]] = field(default_factory=dict)  # by partner
    sent_ns: dict[int, list[float]] = field(default_factory=dict)
    received_ns: dict[int, list[float]] = field(default_factory=dict)


class Exchange:
    """The process group, and what can be timed on it."""

    def __init__(self, device: ProbeDevice, rank: int) -> None:
        import torch.distributed as distributed

        self._d: Any = distributed
        self._device, self._rank = device, rank
        self._torch = device.torch

    def agree(self, *values: float) -> list[float]:
        """The largest of each over all ranks."""
        tensor = self._torch.tensor(values, dtype=self._torch.float64, device=self._device.place)
        self._d.all_reduce(tensor, op=self._d.ReduceOp.MAX)
        return [float(value) for value in tensor.tolist()]

    # -- all-reduces -------------------------------------------------------------------------------

    def sweep(self, budget_ns: int, group: Any = None) -> Sweep:
        """From 8 bytes to the largest that fits into the budget, by factors of 8."""
        sizes, times = list[int](), list[tuple[float, ...]]()
        begun, size = time.perf_counter_ns(), _SMALLEST_BYTES
        while size <= _LARGEST_BYTES[self._device.kind]:
            tensor = self._floats(size)
            self._reduced(tensor, 1, group)  # the first one makes connections and buffers
            once = self._reduced(tensor, 1, group)
            once, spent = self.agree(once, float(time.perf_counter_ns() - begun))
            left = budget_ns - spent
            if sizes and once * _FEWEST_BATCHES > left:
                break
            times.append(self._batches(tensor, once, left / 2, group))
            sizes.append(size)
            size *= _STEP
        return Sweep(tuple(sizes), tuple(times))

    def _batches(self, tensor: Any, once: float, budget_ns: float, group: Any) -> tuple[float, ...]:
        """Half of what is left goes to each size: few to the quick ones, which need less."""
        operations = int(min(max(_BATCH_NS / max(once, 1.0), 1), _MOST_OPERATIONS))
        fitting = budget_ns / max(once * operations, 1.0)
        batches = int(min(max(fitting, _FEWEST_BATCHES), _MOST_BATCHES))
        return tuple(self._reduced(tensor, operations, group) for _ in range(batches))

    def _reduced(self, tensor: Any, operations: int, group: Any) -> float:
        """Time of one all-reduce among several back to back, ns."""
        self._device.wait()
        start = time.perf_counter_ns()
        for _ in range(operations):
            self._d.all_reduce(tensor, group=group)
        self._device.wait()
        return (time.perf_counter_ns() - start) / operations

    def _floats(self, size_bytes: int) -> Any:
        return self._torch.zeros(
            size_bytes // 4, dtype=self._torch.float32, device=self._device.place
        )

    # -- pairs -------------------------------------------------------------------------------------

    def meet(self, teams: Sequence[int], budget_ns: int) -> tuple[Meetings, int]:
        """Every team with every other, several times over; also how many rounds were left out."""
        found = Meetings(_MESSAGE_BYTES[self._device.kind])
        schedule = rounds(teams)
        if not schedule:
            return found, 0
        self._play(schedule[0], Meetings(found.message_bytes))  # makes buffers
        begun = time.perf_counter_ns()
        left_out = played(
            schedule,
            budget_ns,
            lambda: self.agree(float(time.perf_counter_ns() - begun))[0],
            lambda pairs: self._play(pairs, found),
        )
        return found, left_out

    def _play(self, pairs: Sequence[Pair], found: Meetings) -> None:
        """A round; all begin at once, so that nobody waits for a partner that still plays."""
        partner = opponent(pairs, self._rank)
        if partner is None:
            return
        if self._rank < partner:
            self._lead(partner, found)
        else:
            self._follow(partner, found.message_bytes)

    def _lead(self, partner: int, found: Meetings) -> None:
        small, large = self._floats(8), self._floats(found.message_bytes)
        pings = [self._there_and_back(small, small, partner) for _ in range(_PINGS + _WARM_PINGS)]
        pings = sorted(pings[_WARM_PINGS:])
        least = pings[0] / 2  # what is taken off a least time has to be one, or little is left
        sent = min(self._there_and_back(large, small, partner) for _ in range(_SENDS))
        received = min(self._there_and_back(small, large, partner) for _ in range(_SENDS))
        found.latency_ns.setdefault(partner, []).append(pings[_PINGS // 2] / 2)
        found.sent_ns.setdefault(partner, []).append(max(sent - least, 1.0))
        found.received_ns.setdefault(partner, []).append(max(received - least, 1.0))

    def _follow(self, partner: int, message_bytes: int) -> None:
        small, large = self._floats(8), self._floats(message_bytes)
        for _ in range(_PINGS + _WARM_PINGS):
            self._answer(small, small, partner)
        for _ in range(_SENDS):
            self._answer(large, small, partner)
        for _ in range(_SENDS):
            self._answer(small, large, partner)

    def _there_and_back(self, sent: Any, received: Any, partner: int) -> float:
        self._device.wait()
        start = time.perf_counter_ns()
        self._d.send(sent, partner)
        self._d.recv(received, partner)
        self._device.wait()
        return float(time.perf_counter_ns() - start)

    def _answer(self, received: Any, sent: Any, partner: int) -> None:
        self._d.recv(received, partner)
        self._d.send(sent, partner)
        self._device.wait()


# -- who measures with whom ------------------------------------------------------------------------


def rounds(teams: Sequence[int]) -> list[list[Pair]]:
    """Disjoint pairs of each round; every pair stands in exactly one of them."""
    circle: list[int | None] = [*sorted(teams)]
    if len(circle) < 2:
        return []
    if len(circle) % 2:
        circle.append(None)
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        meetings = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([_ordered(a, b) for a, b in meetings if a is not None and b is not None])
        circle[1:] = [circle[-1], *circle[1:-1]]
    return found


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def played(
    schedule: Sequence[list[Pair]],
    budget_ns: float,
    spent_ns: Callable[[], float],
    play: Callable[[list[Pair]], None],
) -> int:
    """Play all rounds, several times over, within a budget; how many rounds were left out of it.

    `spent_ns` tells what is spent, the same to every rank, and all come together in it. As many
    rounds as the budget lets be played twice are played at all: in each of them a team meets one
    more, and who meets but one other cannot be told from the link between the two.
    """
    chosen = list[list[Pair]]()
    for pairs in schedule:
        if spent_ns() * FEWEST_PASSES > budget_ns and chosen:
            break
        play(pairs)
        chosen.append(pairs)
    for passes in range(1, MOST_PASSES):
        spent = spent_ns()
        if passes >= FEWEST_PASSES and spent * (passes + 1) / passes > budget_ns:
            break
        for number, pairs in enumerate(chosen):
            if number:
                spent_ns()
            play(pairs)
    return len(schedule) - len(chosen)


def opponent(pairs: Sequence[Pair], team: int) -> int | None:
    """Whom a team meets in a round."""
    return next((a + b - team for a, b in pairs if team in (a, b)), None)
