"""Process groups as they are met: named once in the spool, counted from their own counter."""

from __future__ import annotations

from typing import Any

from evenstep.agent.recorder import GroupState
from evenstep.trace.ranks import format_ranks, group_uid
from evenstep.trace.spool import Spool


class Groups:
    """The groups this rank has issued something on.

    A group is met at its first collective, whenever it was made. Its sequence starts from the
    group's own counter, so that ranks that attach at different moments agree on identities.
    """

    def __init__(self, spool: Spool, distributed: Any) -> None:
        self._spool = spool
        self._distributed = distributed
        self._known: dict[str, GroupState] = {}

    def state(self, group: Any) -> GroupState:
        """What is known of a `ProcessGroup`; met now if need be."""
        known = self._known.get(group.group_name)
        return known if known is not None else self._meet(group)

    def forget(self) -> None:
        """Groups were destroyed: a name may come back with other members."""
        self._known.clear()

    def _meet(self, group: Any) -> GroupState:
        name = str(group.group_name)
        ranks = self._ranks(group)
        described = str(getattr(group, "group_desc", "") or "")
        uid = group_uid(ranks, name)
        sequence = self._sequence(group)
        index = self._spool.add_group(
            {
                "uid": uid,
                "name": described if described not in ("", "undefined") else name,
                "ranks": format_ranks(ranks),
                "base": sequence,
                "backend": str(group.name()),
            }
        )
        state = GroupState(index, uid, ranks, sequence)
        self._known[name] = state
        return state

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
