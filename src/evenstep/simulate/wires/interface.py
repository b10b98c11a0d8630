"""Input and output types of a world of jobs on links, shared by its two engines.

Times are ns, rates GB/s.
"""

from __future__ import annotations

from typing import NamedTuple

from evenstep.trace.columns import Array

STUCK, PAUSED = -1, -2  # results of `run` besides the number of a job
#: Kinds of operations: compute; a collective; compute that a collective in flight slows down; a
#: return to the moment its needs were over (work since is discarded); a collective that its stream
#: does not wait for; of these one at a time is sent, the last of those ready on all ranks.
COMPUTE, COLLECTIVE, SLOWED, DROP, URGENT = range(5)
STREAMS = 4  # of a rank: compute, and three of communication


class MessageVolley(NamedTuple):
    """Messages of one round, repeated `repeats` times.

    `gate` is the participant that sends, `other` the participant that also waits for delivery (-1:
    none). Message m takes links `link[route[m]:route[m + 1]]`. `hop_ns` is its duration where no
    other traffic is on its links. `ring` is the length of the rings in which the messages are laid
    out, row by row (0: no rings): position i sends message i. `posted` messages leave when both
    ends are in the round.
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
    shared: Array | None = None  # of `link`: others may be there at the same time; None: on all


class Carriage(NamedTuple):
    """A collective of groups of ranks, laid on links.

    `rank` of each participant, ascending, one for each rank of a group. `group` of each rank of
    the world, -1: none. `closed`: no other traffic can use its links meanwhile. `joined`:
    no rank begins before the last of its group has entered. `spared` ranks of a group are not
    waited for. Each message takes `steady` GB/s regardless of other traffic; 0: `weight` fair
    shares. A `lasting` message occupies its share for as many ns as it has bytes, whatever its
    rate, and costs other jobs no goodput.
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
    """The operations of a step. Those of role i are `start[i]` to `start[i + 1] - 1`.

    Operation o needs operations `need[need_start[o]:need_start[o + 1]]` of its rank, numbered
    within the role, each from `back` steps earlier. `flow` is the number of each instance's
    `Carriage`.
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
