"""A fluid network from its definition: what the engine of `evenstep.simulate` is judged by.

Shares no code with it. Between two events every rate is constant; rates are max-min fair: all rise
together, and a message stops rising when one of its links is full. All of it is worked out anew at
every event, so it is slow and short.
"""

from __future__ import annotations

from dataclasses import dataclass, field


def fair_rates(links_of: list[tuple[int, ...]], capacity: list[float]) -> list[float]:
    """Max-min fair: all rise together until a link is full; those on it stop there."""
    rates, rising = [0.0] * len(links_of), set(range(len(links_of)))
    left = list(capacity)
    while rising:
        users: dict[int, int] = {}
        for one in rising:
            for link in links_of[one]:
                users[link] = users.get(link, 0) + 1
        step = min(left[link] / count for link, count in users.items())
        most = step * (1 + 1e-12)
        full = {link for link, count in users.items() if left[link] <= count * most}
        for link, count in users.items():
            left[link] -= step * count
        for one in rising:
            rates[one] += step
        rising = {one for one in rising if not full.intersection(links_of[one])}
    return rates


@dataclass
class Message:
    """From one participant to another over links, `latency` behind its last byte."""

    source: int
    target: int
    size: float
    links: tuple[int, ...]
    latency: float


@dataclass
class Collective:
    """Rounds of messages between participants, each of which belongs to a rank.

    A participant sends what a round has for it, and goes on when all it sends and receives in that
    round is delivered. A posted round's message waits for both of its ends.
    """

    rank_of: list[int]
    rounds: list[list[Message]]
    posted: bool = False


@dataclass
class Operation:
    """Computes for `length`, or takes part in a collective; in order of its stream."""

    stream: int
    length: float = 0.0
    collective: int = -1
    needs: tuple[int, ...] = ()


@dataclass
class _Flight:
    collective: int
    round: int
    message: Message
    left: float
    rate: float = 0.0


@dataclass
class Simulation:
    """Runs `programs[rank]`, a list of operations; `ends` is when each of these was over."""

    capacity: list[float]
    collectives: list[Collective]
    programs: list[list[Operation]]
    begin: list[float]
    now: float = 0.0
    ends: list[list[float | None]] = field(default_factory=list)

    def run(self) -> list[list[float | None]]:
        """Until every rank is through."""
        self.ends = [[None] * len(program) for program in self.programs]
        self.started: set[tuple[int, int]] = set()
        self.computing: list[tuple[float, int, int]] = []
        self.flying: list[_Flight] = []
        self.arriving: list[tuple[float, _Flight]] = []
        self.at: dict[tuple[int, int], int] = {}  # round of a participant
        self.got: dict[tuple[int, int, int], int] = {}  # delivered to it of a round
        self.sent: set[tuple[int, int, int]] = set()
        while True:
            while self._happen():
                pass
            if all(end is not None for ends in self.ends for end in ends):
                return self.ends
            self._share()
            self._pass()

    # -- what happens at one moment -----------------------------------------------------------

    def _happen(self) -> bool:
        return self._start() | self._send() | self._go_on()

    def _start(self) -> bool:
        moved = False
        for rank, program in enumerate(self.programs):
            for place, operation in enumerate(program):
                if (rank, place) in self.started or not self._is_ready(rank, place):
                    continue
                self.started.add((rank, place))
                moved = True
                if operation.collective < 0:
                    begin = max(self.now, self.begin[rank])
                    self.computing.append((begin + operation.length, rank, place))
                else:
                    for p, owner in enumerate(self.collectives[operation.collective].rank_of):
                        if owner == rank:
                            self.at[operation.collective, p] = 0
        return moved

    def _is_ready(self, rank: int, place: int) -> bool:
        if self.now < self.begin[rank] and self.programs[rank][place].collective >= 0:
            return False
        own = self.programs[rank]
        earlier = [i for i in range(place) if own[i].stream == own[place].stream]
        return all(self.ends[rank][i] is not None for i in [*earlier, *own[place].needs])

    def _send(self) -> bool:
        moved = False
        for number, index in sorted({(number, index) for (number, _), index in self.at.items()}):
            found = self.collectives[number]
            if index < len(found.rounds):
                for m, message in enumerate(found.rounds[index]):
                    here = self.at.get((number, message.source)) == index
                    there = self.at.get((number, message.target)) == index
                    if (number, index, m) in self.sent or not here:
                        continue
                    if found.posted and not there:
                        continue
                    self.sent.add((number, index, m))
                    self.flying.append(_Flight(number, index, message, message.size))
                    moved = True
        return moved

    def _go_on(self) -> bool:
        moved = False
        for (number, p), index in list(self.at.items()):
            found = self.collectives[number]
            if index < len(found.rounds):
                needed = sum((m.source == p) + (m.target == p) for m in found.rounds[index])
                if self.got.get((number, p, index), 0) == needed:
                    self.at[number, p] = index + 1
                    moved = True
        for rank, program in enumerate(self.programs):
            for place, operation in enumerate(program):
                if (rank, place) not in self.started or self.ends[rank][place] is not None:
                    continue
                if operation.collective < 0:
                    continue
                found = self.collectives[operation.collective]
                own = [p for p, owner in enumerate(found.rank_of) if owner == rank]
                if all(self.at[operation.collective, p] == len(found.rounds) for p in own):
                    self.ends[rank][place] = self.now
                    moved = True
        return moved

    # -- rates, and time ----------------------------------------------------------------------

    def _share(self) -> None:
        flying = [flight for flight in self.flying if flight.message.links]
        rates = fair_rates([flight.message.links for flight in flying], self.capacity)
        for flight, rate in zip(flying, rates, strict=True):
            flight.rate = rate

    def _pass(self) -> None:
        moments = [end for end, _, _ in self.computing] + [end for end, _ in self.arriving]
        moments += [begin for begin in self.begin if begin > self.now]
        for flight in self.flying:
            alone = not flight.message.links or flight.left <= 0
            moments.append(self.now if alone else self.now + flight.left / flight.rate)
        later = min(moments)
        for flight in self.flying:
            flight.left -= flight.rate * (later - self.now)
        self.now = later
        near = later + 1e-9 * max(1.0, later) * 1e-3
        for flight in list(self.flying):
            rest = flight.left / flight.rate if flight.rate else 0.0
            if not flight.message.links or later + rest <= near:
                self.flying.remove(flight)
                self.arriving.append((later + flight.message.latency, flight))
        for item in list(self.arriving):
            if item[0] <= near:
                self.arriving.remove(item)
                for end in (item[1].message.source, item[1].message.target):
                    key = (item[1].collective, end, item[1].round)
                    self.got[key] = self.got.get(key, 0) + 1
        for item in list(self.computing):
            if item[0] <= near:
                self.computing.remove(item)
                self.ends[item[1]][item[2]] = self.now
