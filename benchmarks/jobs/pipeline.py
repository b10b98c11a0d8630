"""Operation tables of pipeline-parallel jobs that never ran: their program, run event by event.

The program is known here, so a job can be run again with other durations: what a replay that only
sees the table must find. Nothing of evenstep's is used but the names of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.trace.columns import Columns
from evenstep.trace.operations import COLUMNS, ROLES, Role

NAMES = (*ROLES, "fused-kernel")
Op = tuple[Any, ...]  # (type, dp, stage, number in its type)


@dataclass(kw_only=True)
class Pipeline:
    """A job of `dp` × `pp` workers with `vpp` virtual stages each; `micro` micro-batches a step."""

    dp: int = 2
    pp: int = 4
    vpp: int = 1
    micro: int = 4
    steps: int = 2
    overlapping: bool = False  # gradients are reduced behind backward
    gathering_last: bool = False  # parameters are gathered for the step that follows
    following: bool = False  # workers agree on nothing and begin a step when they have ended theirs
    seed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by type; drawn at random elsewhere
    stage_factor: dict[int, float] = field(default_factory=dict)  # of computes

    def schedule(self, stage: int) -> list[tuple[str, int, int]]:
        """(direction, virtual stage, micro-batch) in the order of one-forward-one-backward."""
        total = self.micro * self.vpp
        if self.vpp == 1:
            warm = min(self.pp - stage - 1, total)
        else:
            warm = min((self.pp - stage - 1) * 2 + (self.vpp - 1) * self.pp, total)
        forward = [self._place(n, last_first=False) for n in range(total)]
        backward = [self._place(n, last_first=True) for n in range(total)]
        order = [("forward", *forward[n]) for n in range(warm)]
        for n in range(total - warm):
            order += [("forward", *forward[warm + n]), ("backward", *backward[n])]
        return order + [("backward", *backward[n]) for n in range(total - warm, total)]

    def _place(self, n: int, *, last_first: bool) -> tuple[int, int]:
        """Virtual stage and micro-batch of the n-th compute (Narayanan et al. 2021, 2.2)."""
        group, within = divmod(n, self.pp * self.vpp) if self.vpp > 1 else (0, n)
        chunk, place = divmod(within, self.pp) if self.vpp > 1 else (0, within)
        return (self.vpp - 1 - chunk if last_first else chunk), group * self.pp + place

    # -- the program of a step -----------------------------------------------------------------

    def program(self) -> tuple[dict[Op, list[Op]], dict[Op, Any], dict[Op, tuple[int, int, int]]]:
        """What each operation follows, whom it begins with, and its mc, gmc and micro-batch."""
        after: dict[Op, list[Op]] = {}
        together: dict[Op, Any] = {}
        where: dict[Op, tuple[int, int, int]] = {}
        for dp in range(self.dp):
            for stage in range(self.pp):
                self._worker(dp, stage, after, together, where)
        return after, together, where

    def _worker(self, dp: int, stage: int, after: Any, together: Any, where: Any) -> None:
        order = self.schedule(stage)
        latest: dict[str, Op] = {}  # by stream
        count: dict[str, int] = {}
        posted: dict[str, Op] = {}  # the last compute by direction
        warm = next((i for i, item in enumerate(order) if item[0] == "backward"), 0)
        computes: list[Op] = []

        def add(name: str, stream: str, *before: Op) -> Op:
            op = (name, dp, stage, count.get(name, 0))
            count[name] = op[3] + 1
            chain = [latest[stream]] if stream in latest else []
            after[op] = [*chain, *before]
            latest[stream] = op
            together[op] = op
            return op

        gathered = {}
        for mc in range(0 if self.gathering_last else self.vpp):
            op = gathered[mc] = add("params-all-gather", "dp")
            where[op] = (mc, -1, -1)
            together[op] = ("params", stage, op[3])
        for direction, mc, mb in order:
            gmc = mc * self.pp + stage
            ahead = 1 if direction == "forward" else -1
            before: list[Op] = []
            first_backward = [computes[warm - 2]] if 2 <= warm <= len(computes) else []
            if 0 <= gmc - ahead < self.pp * self.vpp:
                recv = add(f"{direction}-recv", f"{direction}-recv", *posted.get(direction, ()))
                if direction == "backward" and recv[3] == 0:
                    after[recv] += first_backward
                together[recv] = ("message", direction, dp, gmc, mb)
                before = [recv]
            if direction == "forward" and mc in gathered:
                before.append(gathered.pop(mc))
            op = add(f"{direction}-compute", "compute", *before)
            where[op] = (mc, gmc, mb)
            computes.append(op)
            posted[direction] = (op,)
            if 0 <= gmc + ahead < self.pp * self.vpp:
                send = add(f"{direction}-send", f"{direction}-send", op)
                if direction == "backward" and send[3] == 0:
                    after[send] += first_backward
                together[send] = ("message", direction, dp, gmc + ahead, mb)
        self._tail(dp, stage, add, together, where, computes)

    def _tail(
        self, dp: int, stage: int, add: Any, together: Any, where: Any, computes: list[Op]
    ) -> None:
        latest_backward: dict[int, Op] = {
            where[op][0]: op for op in computes if op[0] == "backward-compute"
        }
        reduced: list[Op] = []

        def reduce_gradients(*before: Op) -> None:
            for mc in reversed(range(self.vpp)):
                behind = (latest_backward[mc],) if self.overlapping else before
                op = add("grads-reduce-scatter", "dp", *behind)
                where[op] = (mc, -1, -1)
                together[op] = ("grads", stage, op[3])
                reduced.append(op)
                before = (op,)

        if self.overlapping:
            reduce_gradients()
        op = add("gc", "tail", computes[-1])
        op = add("layernorm-grads-all-reduce", "tail", *reduced[-1:])
        if self.pp > 1 and stage in (0, self.pp - 1):
            op = add("embedding-grads-all-reduce", "tail")
            together[op] = ("embedding", dp)
        if self.overlapping:
            op = add("separate-grads-all-reduce", "tail")
            together[op] = ("separate", stage)
        else:
            reduce_gradients(op)
        if not self.following:
            op = add("optimizer-clip-main-grad", "tail", reduced[-1])
            together[op] = "clip"
        done = add("optimizer", "tail", reduced[-1])
        for mc in range(self.vpp if self.gathering_last else 0):
            op = add("params-all-gather", "dp", done)
            where[op] = (mc, -1, -1)
            together[op] = ("params", stage, op[3])

    # -- running it ----------------------------------------------------------------------------

    def durations(self) -> dict[tuple[int, Op], float]:
        """Seconds of each operation of each step; the ends of a message take the same."""
        draw = np.random.default_rng(self.seed)
        after, together, _ = self.program()
        found: dict[tuple[int, Op], float] = {}
        for step in range(self.steps):
            shared: dict[Any, float] = {}
            for op in after:
                factor = self.stage_factor.get(op[2], 1.0) if "compute" in op[0] else 1.0
                usual = self.seconds.get(op[0], 0.1 if "compute" in op[0] else 0.01)
                spread = 0.0 if self.seconds else draw.uniform(-0.5, 0.5)
                value = shared.setdefault(together[op], usual * factor * (1 + spread))
                found[step, op] = value
        return found

    def run(
        self, durations: dict[tuple[int, Op], float]
    ) -> dict[tuple[int, Op], tuple[float, float]]:
        """Start and end of each operation, event by event."""
        after, _, _ = self.program()
        order = self._order()
        times: dict[tuple[int, Op], tuple[float, float]] = {}
        left: dict[tuple[int, int], float] = {}  # by worker
        for step in range(self.steps):
            ended: dict[Op, float] = {}
            for ops in order:
                starts = {
                    op: max([left.get(op[1:3], 0.0), *(ended[x] for x in after[op])]) for op in ops
                }
                for op, start in starts.items():
                    ended[op] = max(starts.values()) + durations[step, op]
                    times[step, op] = (start, ended[op])
            for op, end in ended.items() if self.following else ():
                left[op[1:3]] = max(left.get(op[1:3], 0.0), end)
        return times

    def _order(self) -> list[list[Op]]:
        """Operations that go together, each behind all that it waits for."""
        after, together, _ = self.program()
        todo: dict[Any, list[Op]] = {}
        for op, key in together.items():
            todo.setdefault(key, []).append(op)
        order: list[list[Op]] = []
        over: set[Op] = set()
        while todo:
            ready = [key for key, ops in todo.items() if all(over >= {*after[op]} for op in ops)]
            if not ready:
                raise AssertionError("the program waits for itself")
            order += [todo.pop(key) for key in ready]
            over.update(*order[-len(ready) :])
        return order

    def lengths(self, durations: dict[tuple[int, Op], float]) -> list[float]:
        """Seconds of each step."""
        longest = [0.0] * self.steps
        for (step, _), (_, end) in self.run(durations).items():
            longest[step] = max(longest[step], end)
        return np.diff(longest, prepend=0.0).tolist() if self.following else longest

    def table(self, durations: dict[tuple[int, Op], float] | None = None) -> Columns:
        """The run as a table with the columns of `evenstep.trace.operations`."""
        times = self.run(durations or self.durations())
        _, _, where = self.program()
        rows = []
        for (step, op), (start, end) in times.items():
            name, dp, stage, number = op
            mc, gmc, mb = where.get(op, (-1, -1, -1))
            role = ROLES.get(name, Role.OTHER)
            at = (dp, stage, dp * self.pp + stage, step, role, NAMES.index(name))
            rows.append((*at, start, end - start, number, mc, gmc, mb))
        columns = zip(*rows, strict=True)
        return Columns(
            {name: np.array(values) for name, values in zip(COLUMNS, columns, strict=True)}
        )
