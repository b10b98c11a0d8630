"""Specifications of changes: `rank:3=median`, `op:all_reduce=floor`, `bucket=25MB`."""

from __future__ import annotations

import difflib
import re
from contextlib import suppress
from typing import NamedTuple

from evenstep.errors import UsageError
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.spool.layout import Op
from evenstep.values import bytes_of

#: Subjects, an example of which one (none where there is only one), and their possible changes. 1.5
#: and 0.5 stand for any factor, 25MB for any size.
_SUBJECTS = {
    "rank": ("3", ("median", "ideal", "x1.5")),
    "node": ("gpu012", ("median", "x1.5")),
    "stage": ("3", ("ideal", "x1.5")),
    "stages": ("", ("balanced",)),
    "work": ("", ("balanced",)),
    "dp": ("1", ("ideal", "x1.5")),
    "optype": ("forward-compute", ("ideal", "x1.5")),
    "op": ("all_reduce", ("floor", "x0.5")),
    "gc": ("", ("aligned", "off")),
    "bucket": ("", ("25MB",)),
    "algorithm": ("", ("tree", "ring", "hierarchical")),
    "input": ("", ("hidden",)),
}
_NUMBERED = ("rank", "stage", "dp")
_REMOVAL = "remove:rank:7"
#: An example of every form, for messages.
FORMS: tuple[str, ...] = (
    *(
        f"{subject}:{which}={change}" if which else f"{subject}={change}"
        for subject, (which, changes) in _SUBJECTS.items()
        for change in changes
    ),
    _REMOVAL,
)


class Spec(NamedTuple):
    """One change: of what (`subject`, `target` or `numbers`), and to what."""

    text: str
    subject: str
    target: str
    numbers: tuple[int, ...]
    change: str  # "x" with a factor
    factor: float
    size_bytes: int


def parse(text: str) -> Spec:
    """Read one specification; raises `UsageError` with the nearest valid form."""
    if text.strip().startswith("remove:"):
        return _removal(text)
    left, equals, right = text.strip().partition("=")
    subject, colon, target = left.partition(":")
    which, changes = _SUBJECTS.get(subject, ("", ()))
    if not changes:
        raise _misunderstood(text, "nothing of this kind can be changed")
    if not equals:
        raise _misunderstood(text, "what it is to be must follow an equals sign")
    if bool(target) != bool(which) or (colon and not target):
        raise _misunderstood(text, f"{subject}: {'there is only one' if target else 'which one?'}")
    factor = _factor(right) if any(change.startswith("x") for change in changes) else None
    size = _size_bytes(right) if subject == "bucket" else 0
    named = right in changes and not right.startswith("x")
    if not named and factor is None and not size:
        raise _misunderstood(text, f"{subject} cannot be {right!r}")
    if subject == "op" and target.upper() not in Op.__members__:
        raise _misunderstood(text, f"there is no operation {target!r}")
    change = right if factor is None else "x"
    numbers = _numbers(text, subject, target)
    return Spec(text, subject, target, numbers, change, 1.0 if factor is None else factor, size)


def _removal(text: str) -> Spec:
    subject, colon, target = text.strip().removeprefix("remove:").partition(":")
    if subject != "rank" or not colon:
        raise _misunderstood(text, "only ranks can be removed")
    return Spec(text, "remove", target, _numbers(text, subject, target), "removed", 1.0, 0)


def _factor(text: str) -> float | None:
    with suppress(ValueError):
        value = float(text.removeprefix("x")) if text.startswith("x") else -1.0
        return value if 0 <= value < 1e6 else None
    return None


def _size_bytes(text: str) -> int:
    """Bytes of "25MB"; 0 for text that is no size with a unit."""
    with suppress(ValueError):
        return bytes_of(text) if text.endswith("B") else 0
    return 0


def _numbers(text: str, subject: str, target: str) -> tuple[int, ...]:
    if subject not in _NUMBERED:
        return ()
    if not re.fullmatch(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*", target):
        raise _misunderstood(text, f"{target!r} is no number of a {subject}")
    return tuple(parse_ranks(target))


def _misunderstood(text: str, why: str) -> UsageError:
    subject = text.partition("=")[0].partition(":")[0]
    same = [form for form in FORMS if form.partition("=")[0].partition(":")[0] == subject]
    near = difflib.get_close_matches(text, same or FORMS, n=1, cutoff=0.0)[0]
    return UsageError(f"--what-if {text!r} is not understood: {why}; the nearest form is {near}")
