"""Process groups: entered into the spool at first use, counted from their own counter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.recorder import LONGEST_NAME
from evenstep.hooks.wrapping import replace_attribute
from evenstep.trace.ranks import group_uid
from evenstep.trace.spool.spool import Spool

#: By name of the group: its number of collectives, by our counter and by its backend's.
Counts = dict[str, tuple[int, int]]


class Groups:
    """The groups of this rank's collectives.

    A group is entered at its first collective, whenever it was made. Its sequence starts from the
    group's own counter, so that ranks that attach at different times agree on identities. Where a
    group is destroyed and made again (same ranks, same name), counting goes on: an identity is
    never used twice.
    """

    def __init__(self, spool: Spool, distributed: Any) -> None:
        self._spool = spool
        self._distributed = distributed
        self._known: dict[str, GroupState] = {}
        self._ended: dict[str, int] = {}  # uid of a destroyed group -> its sequence at that time
        self._entering = threading.Lock()  # two threads may use a new group at once

    def state(self, group: Any) -> GroupState:
        """The state of a `ProcessGroup`, entered at its first use."""
        known = self._known.get(group.group_name)
        return known if known is not None else self._first_use(group)

    def widths(self) -> dict[int, int]:
        """The size of each group, by its index in the spool's table."""
        return {state.index: len(state.ranks) for state in tuple(self._known.values())}

    def forget(self) -> None:
        """Drop the groups that torch has destroyed."""
        names = self._distributed.distributed_c10d._world.pg_names
        alive = {str(name) for name in names.values()}
        for name in [name for name in self._known if name not in alive]:
            self.renew(name)

    def renew(self, name: str) -> None:
        """A group of this name is made: the one known by it has been destroyed."""
        old = self._known.pop(name, None)
        if old is not None:
            self._ended[old.uid] = old.sequence

    def counts(self) -> Counts:
        """The number of collectives of each group."""
        found: Counts = {}
        for name, state in tuple(self._known.items()):
            try:
                group = self._distributed.distributed_c10d._resolve_process_group(name)
            except Exception:  # it has been destroyed, or was never torch's own
                continue
            found[name] = state.sequence, self._sequence(group)
        return found

    def skip(self, before: Counts) -> None:
        """Count collectives since `before` that were not recorded."""
        for name, (_, theirs) in self.counts().items():
            if name in before:
                ours, then = before[name]
                self._known[name].count_from(ours + theirs - then)

    def _first_use(self, group: Any) -> GroupState:
        name = str(group.group_name)
        with self._entering:
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = self._enter(group, name)
            return known

    def _enter(self, group: Any, name: str) -> GroupState:
        ranks = self._ranks(group)
        described = str(getattr(group, "group_desc", "") or "")[:LONGEST_NAME]
        return GroupState.entered(
            self._spool, name, ranks, shown=described if described != "undefined" else "",
            sequence=self._ended.get(group_uid(ranks, name), 0) + self._sequence(group),
            backend=str(group.name()),
        )  # fmt: skip

    def _ranks(self, group: Any) -> tuple[int, ...]:
        try:
            return tuple(self._distributed.get_process_group_ranks(group))
        except Exception:  # made outside torch.distributed's registry
            return tuple(range(group.size()))

    @staticmethod
    def _sequence(group: Any) -> int:
        try:
            return int(group._get_sequence_number_for_group())
        except Exception:  # a backend without a counter: identities count from attach
            return 0


def watch_groups(distributed_c10d: Any, made: Callable[[str], None]) -> Callable[[], None]:
    """Call `made(name)` for every group made from now on; return how to stop.

    All groups pass through `_register_process_group`: the default group, subgroups, splits, device
    meshes. `made` must not raise.
    """
    original = distributed_c10d._register_process_group

    def register(name: str, group: Any) -> Any:
        result = original(name, group)
        made(str(name))
        return result

    return replace_attribute(distributed_c10d, "_register_process_group", register)
