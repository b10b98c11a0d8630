"""Kinds of value of a job's settings, in addition to those of `evenstep.values`."""

from __future__ import annotations

import re

from evenstep import values
from evenstep.agent.settings import selection
from evenstep.values import ValueKind

AUTO, OFF, PACE = "auto", "off", "pace"
NAMED = ("gc", "token", PACE, "cores", "power")  # actions


def _actions(value: object) -> str:
    """Actions in the order of `NAMED`, or off."""
    text = str(value).strip().lower()
    names = {part.strip() for part in text.split(",")}
    if text == OFF:
        return text
    if text == AUTO:
        names = set(NAMED)
    if isinstance(value, bool) or not names <= set(NAMED):
        raise ValueError(value)
    return ",".join(name for name in NAMED if name in names)


def link(value: object) -> str:
    """A link group, with the address of its server if it has one; raises `ValueError`."""
    text = str(value)
    found = re.fullmatch(r"[\w.-]{1,64}(@[\w.:\[\]-]+:(\d{1,5}))?", text, re.ASCII)
    if isinstance(value, bool) or not found or not int(found[2] or 0) < 1 << 16:
        raise ValueError(value)
    return text


COUNT = values.count(1)
LINK = ValueKind("a name of letters, digits, dots and dashes, or NAME@HOST:PORT", link)
RANKS = ValueKind("ranks such as 0-7,16, or all", selection.ranks_text)
NODES = ValueKind("nodes such as gpu0[01-16],login1, or all", selection.nodes_text)
NAMES = ValueKind("names separated by commas, or all", selection.names_text)
ACTIONS = ValueKind(f"some of {','.join(NAMED)}, auto for all of them, or off", _actions)
COUNT_OR_ALL = ValueKind(
    f"{COUNT.expects}, or all", lambda value: None if value == selection.ALL else COUNT.parse(value)
)
