"""Random jobs of host threads or of devices, executed by longest paths: the reference for graphs.

A job is one list of acts for all its ranks; each rank carries out those that it takes part in, in
order, with work of its own before each. What a rank goes on from, and what an operation begins
after, is written down here once more: nothing is shared with the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from evenstep.diagnose.graph.structure import Graph
from evenstep.trace.spool.layout import Flag, Op
from tests.diagnose.graph.by_hand import Run
from tests.diagnose.synthetic import MS

TO_ALL = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.BARRIER)
FROM_ROOT, TO_ROOT = (Op.BROADCAST, Op.SCATTER), (Op.REDUCE, Op.GATHER)
WORK_NS, TOOK_NS = (1 * MS, 9 * MS), (1 * MS, 5 * MS)
APART_NS = 0.45 * MS  # of what a thread comes to and what it could wait for there


class Act(NamedTuple):
    """`what`: "call" (blocks), "enter" (in the background), "wait" for what the act number `of`
    entered. A message goes from the root to the other of the first two of its group."""

    what: str
    group: int = 0
    op: Op = Op.ALL_REDUCE
    root: int = -1
    of: int = -1


class Job(NamedTuple):
    """`groups`: ranks; `named`: waits say what they were for; `meets`: who sends is blocked until
    the receiver has come and has it."""

    ranks: int
    groups: tuple[tuple[int, ...], ...]
    acts: tuple[Act, ...]
    steps: int
    named: bool
    meets: bool

    def members(self, act: Act) -> list[int]:
        """The ranks that take part; a wait is of those alone that need what it waits for."""
        if act.what == "wait":
            return self.waiting(self.acts[act.of])
        return list(self.groups[act.group])[: 2 if act.op == Op.SEND else None]

    def needed(self, act: Act) -> list[int]:
        """The ranks that have to come before the operation begins."""
        if act.op in FROM_ROOT or (act.op == Op.SEND and not self.meets):
            return [act.root]
        return self.members(act)

    def waiting(self, act: Act) -> list[int]:
        """The ranks that need its end."""
        if act.op in FROM_ROOT or (act.op == Op.SEND and not self.meets):
            return [one for one in self.members(act) if one != act.root]
        return [act.root] if act.op in TO_ROOT else self.members(act)

    def each(self) -> Iterator[tuple[int, int, Act, tuple[Any, ...], int]]:
        """Step, number, act, what names its operations, and how many of that name were before."""
        count: Counter[tuple[Any, ...]] = Counter()
        for step in range(self.steps):
            for number, act in enumerate(self.acts):
                message = act.op == Op.SEND
                name = message, act.group, act.root if message else -1
                yield step, number, act, name, count[name]
                count[name] += act.what != "wait"


class Executed(NamedTuple):
    """When things happened, ns since the start. Of acts (steps, acts): when the last came that it
    needs, and when it was over; of ranks' acts (steps, acts, ranks), nan where a rank takes no
    part: when each came there, when it went on, and when its host had issued it; of ranks' steps
    (steps, ranks): the end."""

    entered: Any
    over: Any
    came: Any
    went: Any
    issued: Any
    ends: Any


def draw(random: np.random.Generator) -> Job:
    """A job of two to four ranks in up to three groups."""
    ranks = int(random.integers(2, 5))
    groups = [tuple(range(ranks))]
    for _ in range(int(random.integers(0, 3))):
        size = int(random.integers(2, ranks + 1))
        groups.append(tuple(sorted(random.choice(ranks, size, replace=False).tolist())))
    named, meets = (bool(random.integers(2)) for _ in range(2))
    acts, open_ = [], []
    for _ in range(int(random.integers(2, 8))):
        group = int(random.integers(len(groups)))
        kinds = [TO_ALL, FROM_ROOT, TO_ROOT, (Op.SEND,)][random.choice(4, p=[0.5, 0.1, 0.1, 0.3])]
        op = kinds[random.integers(len(kinds))]
        root = int(random.choice(groups[group][: 2 if op == Op.SEND else None]))
        behind = bool(random.integers(2))
        open_ += [len(acts)] if behind else []
        acts.append(Act("enter" if behind else "call", group, op, root))
        if open_ and random.random() < 0.4:
            some = random.permutation(open_)[: random.integers(1, len(open_) + 1)].tolist()
            acts += [Act("wait", of=of) for of in (some if named else open_)]
            open_ = [of for of in open_ if named and of not in some]
    acts += [Act("wait", of=of) for of in open_]
    steps = int(random.integers(3, 6))
    return Job(ranks, tuple(groups), tuple(acts), steps, named, meets)


def durations(job: Job, random: np.random.Generator) -> tuple[Any, Any]:
    """Work before every act and before the end of the step (steps, acts + 1, ranks), and how long
    each act's operation takes (steps, acts): of messages always as long."""
    work = random.integers(*WORK_NS, (job.steps, len(job.acts) + 1, job.ranks))
    took = random.integers(*TOOK_NS, (job.steps, len(job.acts)))
    took[:, [act.op == Op.SEND for act in job.acts]] = 2 * MS
    return work.astype(float), took.astype(float)


def execute(job: Job, work: Any, took: Any, issues: Any = None) -> Executed:
    """Carries out the acts one after the other. `issues`: how long hosts take to issue each act
    (steps, acts, ranks); they begin a step when their devices have ended the one before."""
    entered, over = np.full((2, job.steps, len(job.acts)), np.nan)
    came, went, issued = np.full((3, *entered.shape, job.ranks), np.nan)
    now, ends, free = np.zeros(job.ranks), np.zeros((job.steps, job.ranks)), Counter()
    host = np.zeros(job.ranks)
    for step, number, act, name, _ in job.each():
        mine = job.members(act)
        at = step, number, mine
        now[mine] += work[at]
        if issues is not None:
            issued[at] = host[mine] = host[mine] + issues[at]
            now[mine] = np.maximum(now[mine], host[mine])
        came[at] = now[mine]
        if act.what == "wait":
            now[mine] = np.maximum(now[mine], over[step, act.of])
        else:
            begin = entered[step, number] = now[job.needed(act)].max()
            if act.op != Op.SEND:
                begin = max(begin, free[name])
            free[name] = over[step, number] = begin + took[step, number]
            waiting = job.waiting(act) if act.what == "call" else []
            now[waiting] = np.maximum(now[waiting], free[name])
        went[at] = now[mine]
        if number == len(job.acts) - 1:
            ends[step] = now = now + work[step, -1]
            host = now.copy()
    return Executed(entered, over, came, went, issued, ends)


def draw_of_devices(random: np.random.Generator, steps: int = 16) -> tuple[Job, Any, Any]:
    """A job whose compute waits in one way for each of up to three kinds of collectives: at once,
    but for scattered gradients, before or when it comes to the next of the kind, or at the end of
    the step. And its durations: of the same program, but for 2 % of noise and 10 % in the pace of
    each rank's step, and 5 % of the transfers."""
    ranks = int(random.integers(2, 5))
    half = tuple(range(ranks // 2, ranks)) if ranks > 2 else (0, 1)
    groups = tuple(range(ranks)), half, tuple(range(ranks))
    ops = [*random.permutation(TO_ALL[:2]), Op.REDUCE_SCATTER]
    later = ["before", "next", "end"]
    ways = ["call", random.choice(["call", *later]), random.choice(later)]
    acts, idle, open_ = [], [], [[], [], []]
    for kind in [0, *random.integers(0, 3, random.integers(2, 8)).tolist()]:
        if ways[kind] == "before" and open_[kind]:
            acts.append(Act("wait", of=open_[kind].pop()))
            idle.append(len(acts))
        number, behind = len(acts), ways[kind] != "call"
        acts.append(Act("enter" if behind else "call", kind, Op(ops[kind])))
        if ways[kind] == "next" and open_[kind]:
            idle.append(len(acts))
            acts.append(Act("wait", of=open_[kind].pop()))
        open_[kind] += [number] * behind
    idle += range(len(acts), len(acts) + sum(map(len, open_)))
    acts += [Act("wait", of=of) for of in sorted(of for some in open_ for of in some)]
    job = Job(ranks, groups, tuple(acts), steps, False, True)
    usual = random.integers(*WORK_NS, (1, len(acts) + 1, 1))
    usual[:, idle] = 0
    pace = 1 + 0.1 * random.standard_normal((steps, 1, ranks))
    work = usual * pace * (1 + 0.02 * random.standard_normal((steps, len(acts) + 1, ranks)))
    took = random.integers(*TOOK_NS, len(acts))
    took = took * (1 + 0.05 * random.standard_normal((steps, len(acts))))
    return job, np.rint(work), np.rint(took)


def tells(job: Job, done: Executed) -> bool:
    """Whether the records of a run tell what was waited for: no thread comes to a wait so near to
    the end that it could have waited for it or not; where waits have no names, nothing else was
    over by their ends; and somebody waited for each operation of which not all see the end."""
    open_: list[int] = []
    seen = np.zeros(done.over.shape, bool)
    for step, number, act, _, _ in job.each():
        of = act.of if act.what == "wait" else number
        at = step, number, job.members(act)
        if (np.abs(done.came[at] - done.over[step, of]) < APART_NS).any():
            return False
        seen[step, of] |= (done.went[at] > done.came[at]).any()
        if act.what == "enter":
            open_.append(number)
        elif act.what == "wait":
            open_.remove(of)
            others = done.over[step, [] if job.named else open_]
            if len(others) and others.min() < done.went[at].max() + APART_NS:
                return False
    whole = [act.op in TO_ALL for act in job.acts]
    waits = [act.what == "wait" for act in job.acts]
    return bool((seen | whole | waits).all())


def recorded(job: Job, done: Executed) -> Run:
    """What the ranks of such a run record."""
    run, seqs = Run(job.ranks, *job.groups, backend="gloo" if job.meets else "mpi"), {}
    for step, ends in enumerate(done.ends / MS):
        for rank, end in enumerate(ends):
            run.step(rank, step, done.ends[step - 1, rank] / MS if step else 0.0, end)
    for step, number, act, _, turn in job.each():
        for rank in job.members(act):
            came, went = (one[step, number, rank] / MS for one in (done.came, done.went))
            if act.what == "wait":
                run.wait(rank, step, came, went, parent=seqs[rank, step, act.of] * job.named)
                continue
            seqs[rank, step, number] = len(run.rows) + 1
            behind, waits = act.what == "enter", rank in job.waiting(act)
            leave = done.over[step, number] / MS if behind and waits else went
            if act.op == Op.SEND:
                sends = rank == act.root
                (peer,) = (one for one in job.members(act) if one != rank)
                blocked = Flag.HOST_BLOCKED if waits and sends else Flag(0)
                flags = Flag.ASYNC if behind or not waits else blocked
                op = Op.SEND if sends else Op.RECV
                run.message(rank, step, op, peer, turn, came, leave, flags, group=act.group)
                continue
            root = act.root if act.op in FROM_ROOT + TO_ROOT else -1
            run.collective(
                rank, step, turn, came, leave, act.op, Flag.ASYNC if behind else Flag(0), act.group,
                peer_or_root=root,
            )  # fmt: skip
    return run


def recorded_by_devices(job: Job, done: Executed, random: np.random.Generator) -> Run:
    """What is recorded of such a run, on clocks of devices, which hosts issue some ms ahead where
    it is not known when they do."""
    run, issued = Run(job.ranks, *job.groups), np.zeros(job.ranks)
    for step in range(job.steps):
        for rank in range(job.ranks):
            run.step(rank, step, 0.01 * step, 0.01 * step + 0.009)
    for step, number, act, _, turn in job.each():
        for rank in job.members(act) if act.what != "wait" else ():
            own = np.array([done.came[step, number, rank], done.over[step, number]])
            ahead = own[0] / MS - random.uniform(5, 8)
            issued[rank] = max(issued[rank] + 0.005, ahead)
            if np.isfinite(done.issued[step, number, rank]):
                issued[rank] = done.issued[step, number, rank] / MS
            times = np.rint(own + 1e9 * (rank + 1)).astype(int).tolist()
            run.collective(
                rank, step, turn, issued[rank], own[1] / MS + 0.2, act.op,
                Flag.ASYNC | Flag.ON_DEVICE, act.group, device=0, device_enter_ns=times[0],
                device_exit_ns=times[1],
            )  # fmt: skip
    return run


def numbers(job: Job, found: Graph, first: int = 0) -> Any:
    """The operation of a graph of the steps from the first one on for each act of each step,
    (steps, acts); -1 for waits."""
    table, known = found.operations, {}
    for number, message in enumerate(table.message.tolist()):
        root = int(table.root[number]) if message else -1
        known[message, int(table.group[number]), root, int(table.sequence[number])] = number
    place = np.full((job.steps, len(job.acts)), -1)
    for step, number, act, name, turn in job.each():
        if act.what != "wait" and step >= first:
            place[step, number] = known[*name, turn]
    return place
