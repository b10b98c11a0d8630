"""Worlds drawn at random, told to the engine and to `brute_force` in their own words."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.simulate.wires.interface import (
    COLLECTIVE,
    COMPUTE,
    Carriage,
    MessageVolley,
    StepPlan,
)
from tests.simulate.brute_force import Collective, Message, Operation, Simulation

KINDS = ("ring", "tree", "halving_doubling", "shift", "direct", "server", "hierarchical", "mesh")


class Drawn:
    """A world of one or two jobs on shared links."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.sizes = self._sizes()
        self.ranks = sum(self.sizes)
        self.place = self.random.permutation(self.ranks)  # node of each rank
        self._draw_links()
        self.rings: dict[int, int] = {}  # ranks of each ring that is told as one
        self.common: set[int] = set()  # links that several of them take
        self.collectives: list[Collective] = []
        self.groups: list[list[int]] = []  # of each rank, by collective
        self.programs: list[list[Operation]] = [[] for _ in range(self.ranks)]
        self.begin = (self.random.random(self.ranks) * self.random.choice([0, 0, 500])).tolist()
        first = 0
        for size in self.sizes:
            self._draw_job(range(first, first + size))
            first += size

    def _sizes(self) -> list[int]:
        return [int(self.random.integers(2, 9)) for _ in range(self.random.integers(1, 3))]

    def _draw_links(self) -> None:
        """Cards, then links of leaves up and down, few enough that they are shared."""
        self.per_leaf = int(self.random.integers(1, 5))
        self.leaves = -(-self.ranks // self.per_leaf)
        self.spines = int(self.random.integers(1, 3))
        nic = float(self.random.choice([1.0, 2.0, 12.5]))
        over = float(self.random.choice([0.5, 1.0, 4.0]))
        cards = [nic] * (2 * self.ranks)
        uplinks = [nic / over] * (2 * self.leaves * self.spines)
        self.capacity = np.array(cards + uplinks)
        if self.random.random() < 0.5:
            self.capacity *= 0.5 + self.random.random(len(self.capacity))
        self.latency = float(self.random.choice([0.0, 0.0, 1.0, 37.0]))

    def _route(self, source: int, target: int) -> tuple[int, ...]:
        one, other = int(self.place[source]), int(self.place[target])
        if one == other:
            return ()
        up, down = one // self.per_leaf, other // self.per_leaf
        path = [one]
        if up != down:
            spine = (one * 7 + other) % self.spines
            first = 2 * self.ranks
            path += [first + up * self.spines + spine]
            path += [first + (self.leaves + down) * self.spines + spine]
        return (*path, self.ranks + other)

    def _message(self, source: int, target: int, size: float) -> Message:
        route = self._route(source, target)
        return Message(source, target, size, route, self.latency * len(route))

    # -- jobs --------------------------------------------------------------------------------------

    def _draw_job(self, members: range) -> None:
        noisy = self.random.random() < 0.7
        for _ in range(self.random.integers(1, 4)):
            compute = float(self.random.integers(0, 300))
            issued = {rank: len(self.programs[rank]) for rank in members}
            for rank in members:
                extra = float(self.random.random() * 200) if noisy else 0.0
                self.programs[rank].append(Operation(0, compute + extra))
            stream = int(self.random.integers(1, 3))
            for _ in range(self.random.integers(1, 3)):
                number = self._draw_collective(list(members))
                for rank in members:
                    if self.groups[number][rank] >= 0:
                        self.programs[rank].append(
                            Operation(stream, collective=number, needs=(issued[rank],))
                        )
            if self.random.random() < 0.7:  # wait for it
                for rank in members:
                    last = len(self.programs[rank]) - 1
                    self.programs[rank].append(Operation(0, 0.0, needs=(last,)))

    def _draw_collective(self, members: list[int]) -> int:
        kind = str(self.random.choice(KINDS))
        size = float(self.random.choice([0.0, 100.0, 1000.0, 1000.0]))
        group = [-1] * self.ranks
        if kind == "mesh" and len(members) >= 4:
            half = len(members) // 2
            lists = [members[:half], members[half : 2 * half]]
            rings = [self._rounds("ring", ranks, size) for ranks in lists]
            rounds = [[*one, *other] for one, other in zip(*rings, strict=True)]
        else:
            lists = [members]
            rounds = self._rounds("ring" if kind == "mesh" else kind, members, size)
        for number, ranks in enumerate(lists):
            for rank in ranks:
                group[rank] = number
        inside = sorted(rank for ranks in lists for rank in ranks)
        local = {rank: p for p, rank in enumerate(inside)}
        turned = [
            [Message(local[m.source], local[m.target], m.size, m.links, m.latency) for m in each]
            for each in rounds
        ]
        self.collectives.append(Collective(inside, turned, posted=bool(self.random.random() < 0.2)))
        self.groups.append(group)
        return len(self.collectives) - 1

    def _rounds(self, kind: str, ranks: list[int], size: float) -> list[list[Message]]:
        n = len(ranks)
        order = [int(rank) for rank in self.random.permutation(ranks)]
        at = dict(enumerate(order))
        message = self._message
        if kind == "ring":
            one = [message(at[i], at[(i + 1) % n], size / n) for i in range(n)]
            return [one] * (2 * (n - 1))
        if kind == "tree":
            up = [[message(at[i], at[(i - 1) // 2], size)] for i in range(n - 1, 0, -1)]
            return up + [[message(at[(i - 1) // 2], at[i], size)] for i in range(1, n)]
        if kind == "halving_doubling":
            power = 1 << (n.bit_length() - 1)
            distances = [power >> k for k in range(1, power.bit_length())]
            halves = [[message(at[i], at[i ^ d], size * d / power) for i in range(power)]
                      for d in distances]  # fmt: skip
            return halves + halves[::-1]
        if kind == "shift":
            return [[message(at[i], at[(i + k) % n], size) for i in range(n)] for k in range(1, n)]
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
        if kind == "direct":
            return [[message(at[i], at[j], size / n) for i, j in pairs]]
        if kind == "server":
            held = range(max(1, n // 3))
            push = [message(at[i], at[j], size) for i, j in pairs if j in held]
            return [push, [message(m.target, m.source, m.size) for m in push]]
        half = max(1, n // 2)
        local = [message(at[i], at[(i // half) * half], size) for i in range(n) if i % half]
        heads = [at[i] for i in range(0, n, half)]
        across = [message(a, b, size / 2) for a, b in zip(heads, np.roll(heads, -1), strict=True)]
        return [local, across, across, [message(m.target, m.source, m.size) for m in local]]

    # -- told ------------------------------------------------------------------------------------

    def by_definition(self) -> list[list[float | None]]:
        """What the definition says."""
        return Simulation(self.capacity.tolist(), self.collectives, self.programs, self.begin).run()

    def told(self, make: Any, *, closed: bool = False) -> list[list[float]]:
        """What a `World` says, each job's whole program being one step."""
        world = make(self.capacity, tuple(self.sizes))
        flows = [world.flow(self._carriage(n, closed=closed)) for n in range(len(self.groups))]
        first = 0
        for job, size in enumerate(self.sizes):
            ranks = range(first, first + size)
            world.job(job, np.array(self.begin[first : first + size]))
            plan, value = self._plan(ranks, flows)
            world.feed(job, world.graph(plan), value, np.ones(len(flows)))
            world.final(job)
            first += size
        while world.run(1 << 40) != -1:
            pass
        ends: list[list[float]] = []
        for job, size in enumerate(self.sizes):
            found = world.take(job)
            assert found is not None
            first = len(ends)
            ends += [
                found[1][: len(self.programs[first + rank]), rank].tolist() for rank in range(size)
            ]
        return ends

    def _carriage(self, number: int, *, closed: bool) -> Carriage:
        found = self.collectives[number]
        group = np.array(self.groups[number])
        stages = []
        rounds, repeats, ring = found.rounds, 1, self.rings.get(number, 0)
        if ring:
            rounds, repeats = found.rounds[:1], len(found.rounds)
        for messages in rounds:
            hops = [len(m.links) for m in messages]
            narrow = [min((self.capacity[list(m.links)]), default=np.inf) for m in messages]
            bytes_, latency = (np.array([getattr(m, name) for m in messages])
                               for name in ("size", "latency"))  # fmt: skip
            stages.append(
                MessageVolley(
                    np.array([m.source for m in messages], int),
                    np.array([m.target for m in messages], int),
                    bytes_, latency, latency + bytes_ / np.array(narrow),
                    np.concatenate([[0], np.cumsum(hops)]),
                    np.array([link for m in messages for link in m.links], int),
                    ring, found.posted, repeats,
                    np.array([link in self.common for m in messages for link in m.links])
                    if ring else None,
                )
            )  # fmt: skip
        return Carriage(np.array(found.rank_of), group, tuple(stages), closed=closed)

    def _plan(self, ranks: range, flows: list[int]) -> tuple[StepPlan, np.ndarray[Any, Any]]:
        programs = [self.programs[rank] for rank in ranks]
        operations = [operation for program in programs for operation in program]
        kinds = [COMPUTE if o.collective < 0 else COLLECTIVE for o in operations]
        needs = [need for o in operations for need in o.needs]
        plan = StepPlan(
            role=np.arange(len(programs)),
            start=np.concatenate([[0], np.cumsum([len(program) for program in programs])]),
            kind=np.array(kinds),
            stream=np.array([o.stream for o in operations]),
            instance=np.array([max(o.collective, 0) for o in operations]),
            soft=np.full(len(operations), -1),
            need_start=np.concatenate([[0], np.cumsum([len(o.needs) for o in operations])]),
            need=np.array(needs, int),
            back=np.zeros(len(needs), int),
            flow=np.array(flows),
        )
        value = np.zeros((int(np.diff(plan.start).max()), len(programs)))
        for column, program in enumerate(programs):
            for row, operation in enumerate(program):
                value[row, column] = operation.length
        return plan, value


class Spliced(Drawn):
    """Jobs that exchange around rings, most of whose messages have their links to themselves."""

    pool = 3  # links that anybody may take
    own = 3  # links of every rank; of more collectives some share these

    def _sizes(self) -> list[int]:
        return [int(self.random.integers(4, 10)) for _ in range(self.random.integers(1, 4))]

    def _draw_links(self) -> None:
        """A link of its own behind every rank, then a few that anybody may take."""
        self.latency = float(self.random.choice([0.0, 1.0, 37.0]))
        own = self.random.choice([1.0, 2.0, 2.0, 5.0], self.own * self.ranks)
        self.capacity = np.append(own, self.random.choice([0.7, 1.0, 3.0], self.pool))
        if self.random.random() < 0.3:
            self.capacity *= 0.5 + self.random.random(len(self.capacity))

    def _draw_messages(self, n: int) -> tuple[float, int, Any]:
        """Bytes of a collective, most common links of a message, and which take such links."""
        size = float(self.random.choice([20.0, 100.0, 1000.0, 5000.0]))
        return size, 2, self.random.random(n) < self.random.choice([0.1, 0.25, 0.6])

    def _draw_collective(self, members: list[int]) -> int:
        """Links of its own for each collective, or those of the job's others."""
        number, n = len(self.collectives), len(members)
        size, most, shared = self._draw_messages(n)
        order = [int(rank) for rank in self.random.permutation(members)]
        pool = self.capacity.size - self.pool
        messages = []
        for i, rank in enumerate(order):
            links = [rank + self.ranks * (number % self.own)]
            if shared[i]:
                taken = self.random.permutation(self.pool)[: self.random.integers(1, most + 1)]
                links += [pool + int(link) for link in taken]
            messages.append(
                Message(rank - members[0], order[(i + 1) % n] - members[0], size / n,
                        tuple(links), self.latency * len(links))
            )  # fmt: skip
        group = [-1] * self.ranks
        for rank in members:
            group[rank] = 0
        rounds = int(self.random.choice([n - 1, 2 * (n - 1)]))
        self.common |= set(range(pool, self.capacity.size))
        if number >= self.own:  # whose links others have, too
            self.common |= set(range(pool))
        self.rings[number] = n
        self.collectives.append(Collective(members, [messages] * rounds))
        self.groups.append(group)
        return number


class Halved(Spliced):
    """The same where all links that anybody may take are alike: long messages over two of them,
    each beside short ones of another ring."""

    pool, own = 4, 18

    def _sizes(self) -> list[int]:
        return [int(size) for size in self.random.choice([8, 12, 16, 24], 3)]

    def _draw_links(self) -> None:
        super()._draw_links()
        self.capacity[: -self.pool], self.capacity[-self.pool :] = 5.0, 1.0

    def _draw_messages(self, n: int) -> tuple[float, int, Any]:
        is_long = self.random.random() < 0.4
        shared = self.random.permutation(n) < n // 4
        return n * (200.0 if is_long else 2.0), 1 + is_long, shared


def furthest(found: list[list[float]], expected: list[list[float | None]]) -> float:
    """The largest relative difference of two answers."""
    worst = 0.0
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert other is not None
            worst = max(worst, abs(one - other) / max(abs(other), 1.0))
    return worst
