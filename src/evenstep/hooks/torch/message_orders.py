"""Messages counted among their like: the n-th of its pair and tag is the same on both ends."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import count

LIMIT = 4096  # kinds counted; a program may use a new tag every time, so the longest unused goes

#: Index of the group, peer, operation, tag.
Like = tuple[int, int, int, int]


class MessageOrders:
    """How many messages of each kind there were. Each step is one that no thread can come into."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._orders: OrderedDict[Like, Callable[[], int]] = OrderedDict()

    @property
    def counted(self) -> bool:
        """Whether there were any."""
        return bool(self._orders)

    def next(self, kind: Like) -> int:
        """Number of messages of this kind before this one."""
        orders = self._orders
        order = orders.setdefault(kind, count().__next__)()
        with suppress(KeyError):  # another thread let it go, as the longest unused
            orders.move_to_end(kind)
            if len(orders) > self._limit:
                orders.popitem(last=False)
        return order
