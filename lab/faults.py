"""What goes wrong in a job on purpose: one vocabulary, whoever carries it out.

A fault is said once, in plain values. `extra_s` is the pure part that every rank asks: how much
longer a phase takes here, in this step. The rest (processes, links) is the business of a tier. The
labelled corpus of the diagnosis speaks the same vocabulary, so a cause that can be injected is a
cause that is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evenstep.errors import ConfigError
from evenstep.scenario.schema import choice, count, number, text
from evenstep.trace.ranks import parse_ranks
from evenstep.values import refusal

MODEL_SHARE = {"forward": 1 / 3, "backward": 2 / 3}  # of what a longer batch costs
PHASES = ("input", "forward", "backward", "optimizer")


class Meaning(NamedTuple):
    """What a fault does, and where it can be carried out."""

    text: str
    fabrics: tuple[str, ...] = ("fair", "tcp", "mpi")
    in_rank: bool = True  # a rank's own code carries it out; else the tier does


KINDS: dict[str, Meaning] = {
    "slow_rank": Meaning("ranks take longer in a phase; `every`, `during` and `ramp` say when"),
    "slow_core": Meaning("ranks get only `share` of a core: a CPU quota", in_rank=False),
    "rotating_rank": Meaning("another rank takes longer, in turn every `every` steps"),
    "collector": Meaning("ranks collect garbage for `delay_ms`, each at steps of its own"),
    "cpu_hog": Meaning("so many processes compute beside the ranks: `share` of all cores",
                       in_rank=False),
    "throttled_link": Meaning("a link has only `share` of its capacity", ("fair", "tcp"), False),
    "lossy_buffer": Meaning("the queue before a link is too small and loses", ("tcp",), False),
    "bursty_neighbour": Meaning("flows that do not yield come and go on a link",
                                ("fair", "tcp"), False),
    "neighbour_job": Meaning("another job computes and exchanges on the same links",
                             ("fair", "tcp"), False),
    "paused_rank": Meaning("ranks are stopped for `delay_ms` every `every` steps (SIGSTOP)",
                           in_rank=False),
    "input_stall": Meaning("the loader of ranks comes late"),
    "uneven_lengths": Meaning("batches differ: a rank's forward and backward take up to `delay_ms` "
                              "longer, anew in each step"),
    "checkpoint": Meaning("rank 0 saves a checkpoint for `delay_ms` every `every` steps"),
    "evaluation": Meaning("rank 0 evaluates alone for `delay_ms` every `every` steps"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    kind: str = choice("slow_rank", "what goes wrong", tuple(KINDS))
    job: int = count(0, "number of the job it concerns")
    ranks: str = text("", 'who is concerned, as in "1,3-4"; empty: rank 1, or all where all are')
    phase: str = choice("backward", "of slow_rank and rotating_rank: what takes longer", PHASES)
    delay_ms: float = number(10.0, "how much longer; of pauses: how long")
    every: int = count(1, "steps of one period", least=1)
    during: int = count(1, "steps of each period in which it happens", least=1)
    ramp_steps: int = count(0, "of slow_rank: grows from nothing to twice as much in so many steps")
    share: float = number(0.5, "of a core, of all cores, or of a link", high=1.0, above=True)
    first_step: int = count(0, "begins here")
    last_step: int = count(0, "ends after this step; 0: never")
    link: int = count(0, "of links: whose leaf's")
    flows: float = number(1.0, "of bursty_neighbour: how many flows", high=64)
    on_ms: float = number(100.0, "of bursty_neighbour: mean time on", above=True)
    off_ms: float = number(900.0, "of bursty_neighbour: mean time off", above=True)
    compute_ms: float = number(40.0, "of neighbour_job: between two exchanges", above=True)
    exchange_ms: float = number(20.0, "of neighbour_job: its exchange alone", above=True)

    def check(self, place: str, ranks_of: Sequence[int], fabric: str) -> None:
        """Raises `ConfigError` where the fault does not fit the jobs or the fabric."""
        if self.job >= len(ranks_of):
            raise refusal(f"{place}.job", f"below {len(ranks_of)}, the number of jobs",
                                 self.job)  # fmt: skip
        if fabric not in KINDS[self.kind].fabrics:
            where = " and ".join(KINDS[self.kind].fabrics)
            raise ConfigError(
                f"{place}.kind {self.kind} cannot be made on fabric {fabric}, only on {where}"
            )
        self.who(ranks_of[self.job], place)
        if self.during > self.every:
            raise refusal(f"{place}.during", f"at most every, which is {self.every}",
                                 self.during)  # fmt: skip

    def who(self, world: int, place: str = "faults") -> frozenset[int]:
        """The ranks concerned. Raises `ConfigError` for what is no list of ranks of the job."""
        if not self.ranks:
            return frozenset({1 % world} if self.kind in _ONE else range(world))
        if self.ranks == "all":
            return frozenset(range(world))
        try:
            found = frozenset(parse_ranks(self.ranks.replace(" ", "")))
        except ValueError:
            found = frozenset()
        if not found or max(found) >= world:
            raise refusal(f"{place}.ranks", f'ranks below {world}, as in "0,2-3", or "all"',
                                 self.ranks)  # fmt: skip
        return found

    def happens(self, step: int) -> bool:
        """Whether it is there in this step."""
        inside = self.first_step <= step and (not self.last_step or step <= self.last_step)
        return inside and (step - self.first_step) % self.every < self.during


_ONE = ("slow_rank", "slow_core", "paused_rank", "input_stall")


class RankFaults:
    """What a rank's own code has to ask about its faults: pure, and the same in every host."""

    def __init__(self, faults: Iterable[Fault], rank: int, world: int, *, seed: int = 0) -> None:
        self._faults = [fault for fault in faults if KINDS[fault.kind].in_rank]
        self._rank, self._world, self._seed = rank, world, seed

    def extra_s(self, phase: str, step: int) -> float:
        """How much longer than normal a phase takes on this rank in this step."""
        return sum(self._extra_s(fault, phase, step) for fault in self._faults)

    def _extra_s(self, fault: Fault, phase: str, step: int) -> float:
        delay_s = fault.delay_ms * 1e-3
        if fault.kind == "rotating_rank":
            turn = (step - fault.first_step) // fault.every % self._world
            mine = phase == fault.phase and turn == self._rank and step >= fault.first_step
            return delay_s if mine else 0.0
        if not fault.happens(step) or self._rank not in fault.who(self._world):
            return 0.0
        if fault.kind == "slow_rank" and phase == fault.phase:
            grown = 2 * (step - fault.first_step) / fault.ramp_steps if fault.ramp_steps else 1.0
            return delay_s * min(grown, 2.0)
        if fault.kind == "input_stall" and phase == "input":
            return delay_s
        if fault.kind == "uneven_lengths" and phase in MODEL_SHARE:
            return MODEL_SHARE[phase] * delay_s * uniform(self._seed, self._rank, step)
        return 0.0

    def alone_s(self, kind: str, step: int) -> float:
        """How long rank 0 saves (`checkpoint`) or evaluates (`evaluation`) after this step."""
        if self._rank:
            return 0.0
        return sum(f.delay_ms * 1e-3 for f in self._faults if f.kind == kind and f.happens(step))

    def collects_s(self, step: int) -> float:
        """How long this rank collects garbage after this step: each at steps of its own."""
        return sum(
            fault.delay_ms * 1e-3
            for fault in self._faults
            if fault.kind == "collector"
            and self._rank in fault.who(self._world)
            and (step - fault.first_step) % fault.every == _slot(self._rank, self._world, fault)
        )


def _slot(rank: int, world: int, fault: Fault) -> int:
    """Ranks spread evenly over the period."""
    return rank * fault.every // world


def uniform(*key: int) -> float:
    """A number from 0 to 1 that depends on the key alone."""
    from hashlib import blake2b

    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
