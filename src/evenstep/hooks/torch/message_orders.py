"""Number messages by pair and tag: the n-th is the same on both ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import count

LIMIT = 4096  # kinds counted: a program may use a new tag each time, so the least recent is dropped

#: Index of the group, peer, operation, tag.
Like = tuple[int, int, int, int]


class MessageOrders:
    """Counts messages of each kind; every operation is atomic under the interpreter's lock."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._orders: OrderedDict[Like, Callable[[], int]] = OrderedDict()

    @property
    def counted(self) -> bool:
        """Whether any messages were counted."""
        return bool(self._orders)

    def next(self, kind: Like) -> int:
        """The number of messages of this kind before this one."""
        orders = self._orders
        order = orders.setdefault(kind, count().__next__)()
        with suppress(KeyError):  # another thread has dropped it
            orders.move_to_end(kind)
            if len(orders) > self._limit:
                orders.popitem(last=False)
        return order
