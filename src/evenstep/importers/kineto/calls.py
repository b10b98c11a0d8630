"""The arguments of a collective: its group, its size, its number in the group's order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from evenstep.importers.content import unquoted, whole
from evenstep.importers.draft import MOST_BYTES
from evenstep.importers.file_ranks import rank_of
from evenstep.importers.kineto.names import element_type
from evenstep.importers.trace_events import Args
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import DType, Op

_ADDRESS: Mapping[int, int] = {
    Op.BROADCAST: 2, Op.REDUCE: 3, Op.GATHER: 3, Op.SCATTER: 3, Op.SEND: 2, Op.RECV: 2,
}  # fmt: skip
_NO_DESCRIPTION = ("", "undefined")


#: Ascending; a range if evenly spaced, so that a few characters never become a million numbers and
#: equal sets compare equal.
Ranks = tuple[int, ...] | range


class GroupKey(NamedTuple):
    """Name and members of a process group in one file."""

    name: str
    ranks: Ranks

    def member(self, place: int) -> int:
        """The global rank of a rank within the group; -1 for what is none."""
        return self.ranks[place] if 0 <= place < len(self.ranks) else -1


class CallArguments(NamedTuple):
    """The arguments of one call; -1 where not stated."""

    group: GroupKey | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    dtype: int = 0
    sequence: int = -1
    source: int = -1
    destination: int = -1
    root: int = -1
    tag: int = 0


def call_of(args: Args, groups: Mapping[str, GroupKey], world: int) -> CallArguments:
    """Parse the arguments of a call."""
    kind, size = element_type(args.dtype) if isinstance(args.dtype, str) else (DType.OTHER, 0)
    bytes_in, bytes_out = _count(args.elements_in) * size, _count(args.elements_out) * size
    if not size:
        kind, bytes_in = tensors(args)
    group = group_of(args, groups, world)
    return CallArguments(
        group=group, bytes_in=min(max(bytes_in, 0), MOST_BYTES),
        bytes_out=min(max(bytes_out, 0), MOST_BYTES), dtype=int(kind),
        sequence=min(whole(args.sequence), MOST_BYTES), source=_rank(args.source),
        destination=_rank(args.destination), root=group.member(whole(args.root)) if group else -1,
    )  # fmt: skip


def address(call: CallArguments, op: int, asked: Args) -> CallArguments:
    """The call with its root or peer, and a message's tag, from the inputs of its operator.

    c10d's operators take them at the positions in `_ADDRESS`, as ranks within the group.
    """
    given = unquoted(asked.inputs)
    at = _ADDRESS.get(op, MOST_RANKS)
    if not isinstance(given, list) or at >= len(given) or call.group is None:
        return call
    rank = call.group.member(whole(given[at]))
    if op not in (Op.SEND, Op.RECV):
        return call._replace(root=rank)
    tag = _count(given[at + 1]) % (1 << 32) if at + 1 < len(given) else 0
    return call._replace(source=rank, destination=rank, tag=tag)


def groups_of(header: Mapping[str, Any]) -> dict[str, GroupKey]:
    """The groups that a file lists in `distributedInfo`, by the name that calls use."""
    info = header.get("distributedInfo")
    config = unquoted(info.get("pg_config")) if isinstance(info, dict) else None
    found: dict[str, GroupKey] = {}
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and (ranks := ranks_of(entry.get("ranks"))):
            name = str(entry.get("pg_name", ""))
            shown = _show_group(name, entry.get("pg_desc"), ranks, found)
            found.setdefault(name, GroupKey(shown, ranks))
    return found


def group_of(args: Args, groups: Mapping[str, GroupKey], world: int) -> GroupKey | None:
    """The group of a call, with members from the file, the call, or implied by the group's size."""
    if not isinstance(args.group_name, str | int):
        return None
    name = str(args.group_name)
    if name in groups:
        return groups[name]
    everyone = range(world if 0 < whole(args.group_size) == world else 0)
    ranks = ranks_of(args.group_ranks) or _strided_ranks(args) or everyone
    return (
        GroupKey(_show_group(name, args.group_description, ranks, groups), ranks) if ranks else None
    )


def ranks_of(value: Any) -> Ranks:
    """Global ranks from a list or its text; empty if it is abbreviated (`[0, 1, ..., 63]`)."""
    value = unquoted(value)
    if not isinstance(value, list | tuple) or not all(rank_of(rank) is not None for rank in value):
        return ()
    ranks = tuple(sorted(set(value)))
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    spaced = range(ranks[0], ranks[-1] + 1, stride) if ranks else range(0)
    return spaced if len(spaced) == len(ranks) and tuple(spaced) == ranks else ranks


def tensors(args: Args) -> tuple[DType, int]:
    """Element type and bytes of the tensors of an annotation."""
    dims, types = unquoted(args.dims), unquoted(args.types)
    if not isinstance(dims, list) or not isinstance(types, list):
        return DType.OTHER, 0
    known = [
        (*element_type(name), _elements(shape))
        for shape, name in zip(dims, types, strict=False)
        if isinstance(name, str)
    ]
    total = sum(size * count for _, size, count in known)
    return (known[0][0] if known else DType.OTHER), total


def _elements(shape: Any) -> int:
    """Number of elements of a shape or of several; 0 for a shape without dimensions."""
    if not isinstance(shape, list) or not shape:
        return 0
    if all(isinstance(part, list) for part in shape):
        return sum(_elements(part) for part in shape)
    if not all(type(part) is int and 0 <= part <= MOST_BYTES for part in shape):
        return 0
    return min(math.prod(shape), MOST_BYTES)


def _show_group(name: str, description: Any, ranks: Ranks, others: Mapping[str, GroupKey]) -> str:
    """The description of a group, with its name if another group has the same description."""
    if not isinstance(description, str) or description in _NO_DESCRIPTION:
        return name
    taken = any(key == GroupKey(description, ranks) for key in others.values())
    return f"{description} ({name})" if taken else description


def _strided_ranks(args: Args) -> range:
    start, stride, size = (whole(v) for v in (args.rank_start, args.rank_stride, args.group_size))
    if start < 0 or stride < 1 or size < 1 or start + stride * (size - 1) >= MOST_RANKS:
        return range(0)
    return range(start, start + stride * (size - 1) + 1, stride if size > 1 else 1)


def _count(value: Any) -> int:
    return max(whole(value), 0)


def _rank(value: Any) -> int:
    number = whole(value)
    return number if number < MOST_RANKS else -1
