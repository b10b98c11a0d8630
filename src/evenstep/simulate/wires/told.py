"""What a world of jobs on links is told, and what it says: the engines share nothing else.

Times are ns, rates GB/s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]

STUCK, PAUSED = -1, -2  # what `run` says besides the number of a job
#: Kinds of operations: work; a collective; work that a collective in flight slows; back to when
#: what it needs was over; a collective that its stream does not wait for, sent when nobody has a
#: later one to send.
COMPUTE, COLLECTIVE, SLOWED, DROP, URGENT = range(5)
STREAMS = 4  # of a rank: compute, and three of communication


class MessageVolley(NamedTuple):
    """MessageVolley that are under way together, `repeats` times one after the other.

    `gate` is the participant that sends, `other` one that waits for it too (-1: none). Message m
    takes `link[route[m]:route[m + 1]]`. `hop_ns` is how long each takes where no link is shared
    with anybody else; of a `ring`, rows of that length, message i is sent by position i. Those
    of one that is `posted` leave when both ends are there.
    """

    gate: Array
    other: Array
    bytes: Array
    latency_ns: Array
    hop_ns: Array
    route: Array
    link: Array
    ring: int = 0
    posted: bool = False
    repeats: int = 1
    shared: Array | None = None  # of a ring: whether others may be on a message's links; None: may


class Carriage(NamedTuple):
    """A collective of groups of ranks. `rank` of each participant, ascending: a rank may take part
    several times at once, as with several channels; `group` of each rank of the world, -1: none.

    `closed` says that nobody else can use its links while it does; of one that is `joined` nobody
    begins before the last of its group is there. `spared` ranks of a group are not waited for.
    Messages take `steady` GB/s whatever others do; 0: so many fair shares as their `weight` says.
    Those that are `lasting` take that for as many ns as they have bytes, however many get through,
    and cost others no goodput.
    """

    rank: Array
    group: Array
    stages: tuple[MessageVolley, ...]
    closed: bool = False
    joined: bool = False
    spared: int = 0
    launch_ns: float = 0.0
    steady: float = 0.0
    weight: float = 1.0
    lasting: bool = False


class StepPlan(NamedTuple):
    """What ranks of a job do in a step. Operations of role i are those from `start[i]` on.

    An operation needs others of its rank, `need[need_start[o]:need_start[o + 1]]` by their place in
    the role, each of `back` steps before. `flow` is the number of each instance's carriage.
    """

    role: Array
    start: Array
    kind: Array
    stream: Array
    instance: Array
    soft: Array
    need_start: Array
    need: Array
    back: Array
    flow: Array
