"""Messages between ranks through the job's own store, from the background thread only.

A clone of the store is used: a client is not shareable, and a background `get` would block the
training thread's own. Nothing here blocks: `check`, and only then `multi_get`. Keys carry run,
attempt and window, and a rank deletes its own after two windows. Above `DIRECT_RANKS` ranks the
first rank of each node reads its node's messages and passes on that of the slowest rank and the
median one. Rank 0's orders are under one key, which it overwrites.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns

from evenstep.agent.exchange.messages import (
    Late,
    Orders,
    WindowReport,
    floor_of,
    latest_rank,
    slowest_of,
    window_steps,
)
from evenstep.agent.exchange.node_store import JobStore, gathers_by_node
from evenstep.pacing import Plan
from evenstep.trace.spool.layout import WINDOW_STEPS

KEEP_WINDOWS = 2
PATIENCE = 8  # incomplete windows that are polled; of more, the oldest is dropped


@dataclass(eq=False)
class Sharing:
    """One rank's side. `post` queues a finished window; `exchange` runs on the background thread
    about every `period_s`. `on_window` gets, on rank 0 alone, the reports of every complete window
    and its late rank. `on_orders`, where ranks pace by a common plan, gets rank 0's orders on every
    rank.
    """

    store: JobStore
    prefix: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    threshold: float
    period_s: float
    on_window: Callable[[Sequence[WindowReport], Late | None], None]
    on_orders: Callable[[Orders], None] | None = None

    def __post_init__(self) -> None:
        self._plan: Plan | None = None  # set by the training thread of rank 0
        self._next = Orders()  # to be published by rank 0
        self._delivered = Orders()  # rank 0's last ones, as known here
        self._outbox: deque[WindowReport] = deque(maxlen=PATIENCE)
        self._written: tuple[deque[str], deque[str]] = deque(), deque()  # of whole steps; begun
        self._node_windows: deque[int] = deque(maxlen=PATIENCE)  # not gathered from the node yet
        self._root_windows: deque[int] = deque(maxlen=PATIENCE)  # not gathered by rank 0 yet
        self._by_node = gathers_by_node(self.world, self.local_world)
        self._sent_ns = 0  # when this rank last sent a message

    def window_steps(self, step_ns: int) -> int:
        """Length of a window of steps of `step_ns`.

        Ranks with a common plan learn from quantiles, which take `WINDOW_STEPS` at least.
        """
        least = 1 if self.on_orders is None else WINDOW_STEPS
        return max(window_steps(step_ns, int(self.period_s * 1e9)), least)

    @property
    def due_ns(self) -> int:
        """Since when messages of other ranks are due here (ns); 0: none are."""
        reads = self._root_windows if self.rank == 0 else self._node_windows
        return self._sent_ns if self.local_rank == 0 and reads else 0

    def post(self, report: WindowReport) -> None:
        """Queue a finished window; called on the training thread, never blocks."""
        self._outbox.append(report)

    def publish(self, plan: Plan) -> None:
        """Set rank 0's plan; called on its training thread, never blocks."""
        self._plan = plan

    def exchange(self) -> None:
        """Send queued windows and read those of others. For the background thread."""
        while self._outbox:
            self._sent_ns = monotonic_ns()
            report = self._outbox.popleft()
            self._write(f"{report.window}/r{report.rank}", report)
            for windows in (self._node_windows, self._root_windows):
                windows.append(report.window)
        if self._by_node and self.local_rank == 0:
            self._gather(self._node_windows, self._own_node_keys, self._pass_on)
        if self.rank == 0:
            self._gather(self._root_windows, self._root_keys, self._judge)
        if self.on_orders is not None:
            (self._publish_orders if self.rank == 0 else self._read_orders)(self.on_orders)

    def _publish_orders(self, on_orders: Callable[[Orders], None]) -> None:
        """Publish the newest plan and window; both stay until there are newer ones."""
        orders = self._next._replace(plan=self._plan)
        if orders != self._delivered:
            self.store.set(self._key("orders"), orders.pack())
            self._deliver(orders, on_orders)

    def _read_orders(self, on_orders: Callable[[Orders], None]) -> None:
        key = self._key("orders")
        if self.store.check([key]):
            orders = Orders.unpack(bytes(self.store.multi_get([key])[0]))
            if orders is not None:
                self._deliver(orders, on_orders)

    def _deliver(self, orders: Orders, on_orders: Callable[[Orders], None]) -> None:
        """Pass on the orders that are new."""
        new, self._delivered = orders.since(self._delivered), orders
        if any(new):
            on_orders(new)

    def _gather(
        self,
        windows: deque[int],
        keys_of: Callable[[int], list[str]],
        use: Callable[[list[WindowReport]], None],
    ) -> None:
        """Read the windows that are complete; the others are polled again next time."""
        for window in list(windows):
            keys = keys_of(window)
            if self.store.check(keys):
                windows.remove(window)
                messages = [WindowReport.unpack(bytes(m)) for m in self.store.multi_get(keys)]
                use([message for message in messages if message is not None])

    def _own_node_keys(self, window: int) -> list[str]:
        first = self.rank - self.local_rank
        return [self._key(f"{window}/r{first + i}") for i in range(self.local_world)]

    def _root_keys(self, window: int) -> list[str]:
        if not self._by_node:
            return [self._key(f"{window}/r{rank}") for rank in range(self.world)]
        nodes = self.world // self.local_world
        return [
            self._key(f"{window}/n{node}{part}") for node in range(nodes) for part in ("max", "mid")
        ]

    def _pass_on(self, reports: list[WindowReport]) -> None:
        """Write the node's two messages: its slowest rank's and its median rank's."""
        if not reports:
            return
        ordered = sorted(reports, key=lambda report: report.work_ns)
        node = self.rank // self.local_world
        window = ordered[0].window
        slowest_ns = max(report.entry_low_ns for report in reports)
        latest = ordered[-1]._replace(entry_low_ns=slowest_ns)
        self._write(f"{window}/n{node}max", latest)
        self._write(f"{window}/n{node}mid", ordered[(len(ordered) - 1) // 2])

    def _judge(self, reports: list[WindowReport]) -> None:
        if not any(report.begun for report in reports):
            self._next = Orders(slowest=slowest_of(reports), floor=floor_of(reports))
        unique = list({report.rank: report for report in reports}.values())
        self.on_window(unique, latest_rank(unique, threshold=self.threshold))

    def _write(self, name: str, report: WindowReport) -> None:
        key, written = self._key(name), self._written[report.begun]
        self.store.set(key, report.pack())
        written.append(key)
        per_window = 3 if self._by_node and self.local_rank == 0 else 1
        while len(written) > KEEP_WINDOWS * per_window:
            self.store.delete_key(written.popleft())

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}"
