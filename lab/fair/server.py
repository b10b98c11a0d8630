"""The emulated fabric: grants transfers to ranks, each when a fair link would have carried it.

A transfer begins when the last rank says it entered, not when we heard of it, and ends when the
fluid does; only the last hop, from here to the rank, is as slow as this machine is.
"""

from __future__ import annotations

import heapq
import select
import socket
from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from time import monotonic_ns

from lab.board import Board
from lab.fair.disturbances import Disturbance, Neighbour
from lab.fair.jobs import JobState
from lab.fair.link import Fabric
from lab.fair.messages import MOST_BYTES, READ, Grant, ask_of, pack

LONGEST_SLEEP_S = 0.5

Rank = tuple[int, int]  # job, rank


class Server:
    """Serves the ranks on their sockets until all have left."""

    def __init__(
        self,
        fabric: Fabric,
        jobs: Sequence[JobState],
        sockets: Mapping[Rank, socket.socket],
        disturbances: Sequence[Disturbance],
        board: Board,
        *,
        storage: tuple[int, ...] = (),
        card: float = 0.0,
    ) -> None:
        self._fabric, self._jobs, self._board = fabric, jobs, board
        self._ranks = {channel: rank for rank, channel in sockets.items()}
        self._sockets = dict(sockets)
        self._disturbances = disturbances
        self._neighbours = {d.key: d for d in disturbances if isinstance(d, Neighbour)}
        self._storage, self._card = storage, card
        self._begins: list[tuple[int, int, Hashable, float]] = []  # (when, number, key, bytes)
        self._numbers = count()
        self.lost = False  # a rank has left
        for number in range(len(jobs)):
            self._tell_step(number)

    @property
    def started(self) -> bool:
        """Whether every job has exchanged something."""
        return all(state.started for state in self._jobs)

    def serve(self) -> None:
        """One round: sleep until something is due or said, then catch up."""
        due_s = (self._due_ns() - monotonic_ns()) * 1e-9
        ready, _, _ = select.select(
            list(self._ranks), (), (), max(0.0, min(due_s, LONGEST_SLEEP_S))
        )
        for channel in ready:
            self._hear(channel)
        now_ns = monotonic_ns()
        while (due_ns := self._due_ns()) <= now_ns:
            self._pass(max(due_ns, self._fabric.now_ns))

    @property
    def over(self) -> bool:
        """Whether all ranks have left."""
        return not self._ranks

    def _due_ns(self) -> float:
        begins = self._begins[0][0] if self._begins else float("inf")
        others = min((d.due_ns for d in self._disturbances), default=float("inf"))
        return min(begins, others, self._fabric.next_end_ns)

    def _hear(self, channel: socket.socket) -> None:
        job, rank = self._ranks[channel]
        data = channel.recv(MOST_BYTES)
        if not data:
            self.lost = True
            del self._ranks[channel], self._sockets[job, rank]
            channel.close()
            return
        ask = ask_of(data)
        state = self._jobs[job]
        if ask.kind == READ:
            self._begin(ask.sent_ns, ("read", job, rank), ask.nbytes)
        elif state.enter(rank, ask):
            self._begin(state.entered_ns, ("job", job), state.nbytes)

    def _begin(self, when_ns: int, key: Hashable, nbytes: float) -> None:
        heapq.heappush(self._begins, (when_ns, next(self._numbers), key, nbytes))

    def _pass(self, until_ns: float) -> None:
        """Let time pass to the next event, and carry it out."""
        for key in self._fabric.advance(until_ns):
            self._ended(key)
        while self._begins and self._begins[0][0] <= until_ns:
            _, _, key, nbytes = heapq.heappop(self._begins)
            self._fabric.begin(key, nbytes, self._links_of(key), self._card)
        for disturbance in self._disturbances:
            if disturbance.due_ns <= until_ns:
                disturbance.act(self._fabric)

    def _links_of(self, key: Hashable) -> tuple[int, ...]:
        assert isinstance(key, tuple)
        return self._storage if key[0] == "read" else self._jobs[key[1]].links

    def _ended(self, key: Hashable) -> None:
        if key in self._neighbours:
            self._neighbours[key].ended(self._fabric.now_ns)
            return
        assert isinstance(key, tuple)
        if key[0] == "read":
            self._grant(key[1:], pack(Grant()))
            return
        job = key[1]
        step = self._jobs[job].step
        grant = pack(self._jobs[job].leave(self._board.block))
        for rank in range(self._jobs[job].job.ranks):
            self._grant((job, rank), grant)
        if self._jobs[job].step != step:
            self._tell_step(job)

    def _grant(self, rank: Rank, grant: bytes) -> None:
        channel = self._sockets.get(rank)
        if channel is not None:
            try:
                channel.send(grant)
            except OSError:  # it has gone; reading from it will tell
                return

    def _tell_step(self, job: int) -> None:
        for disturbance in self._disturbances:
            disturbance.stepped(job, self._jobs[job].step, self._fabric)
