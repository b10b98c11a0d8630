"""Communicators as the shim described them, named so that all their members agree."""

from __future__ import annotations

from typing import Any, NamedTuple

from evenstep.trace.ranks import format_ranks, group_uid


class Communicator(NamedTuple):
    """Who takes part, under which name."""

    name: str  # the same on every member, and of no other communicator
    shown: str
    ranks: tuple[int, ...]  # global, in the order of the communicator's own

    @property
    def uid(self) -> str:
        """The identity all members agree on."""
        return group_uid(self.ranks, self.name)

    def described(self) -> dict[str, Any]:
        """As a spool's table of groups has it."""
        return {
            "uid": self.uid, "name": self.shown, "ranks": format_ranks(self.ranks), "base": 0,
            "backend": "mpi",
        }  # fmt: skip


def communicators(lines: list[dict[str, Any]]) -> dict[int, Communicator]:
    """The communicators of a description, by the rank's own number.

    One is named by its origin, by the call that made it and, of those made alike with the same
    ranks, by its number: its members have seen the same calls in the same order.
    """
    found: dict[int, Communicator] = {}
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    for line in lines:
        if "communicator" not in line:
            continue
        ranks = tuple(rank for rank in line["ranks"] if rank >= 0)
        parent = found.get(line["parent"])
        name = line["name"] or "communicator"
        if parent is not None:
            name = f"{parent.name}.{line['by']}"
        key = (name, tuple(sorted(ranks)))
        number = counts[key] = counts.get(key, 0) + 1
        name = name if number == 1 else f"{name} ({number})"
        found[line["communicator"]] = Communicator(name, line["name"] or name, ranks)
    return found
