"""What a user may ask to be different: `rank:3=median`, `op:all_reduce=floor`, `bucket=25MB`."""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from evenstep.errors import UsageError
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.spool.layout import Op

#: One example of everything that can be asked, as a message names it.
FORMS: tuple[str, ...] = (
    "rank:3=median",
    "rank:3=ideal",
    "rank:3=x1.5",
    "node:gpu012=median",
    "node:gpu012=x1.5",
    "stage:3=ideal",
    "stage:3=x1.5",
    "stages=balanced",
    "work=balanced",
    "dp:1=ideal",
    "dp:1=x1.5",
    "optype:forward-compute=ideal",
    "optype:forward-compute=x1.5",
    "op:all_reduce=floor",
    "op:all_reduce=x0.5",
    "gc=aligned",
    "gc=off",
    "bucket=25MB",
    "algorithm=tree",
    "algorithm=ring",
    "algorithm=hierarchical",
    "remove:rank:7",
    "input=hidden",
)
_NUMBERED = ("rank", "stage", "dp")
_WHOLE = ("stages", "work", "gc", "bucket", "algorithm", "input")  # of which there is one
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]?)B")
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


class Spec(NamedTuple):
    """One change: what of (`subject`, `target` or `numbers`), and how it is to be."""

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
    allowed = _changes(subject)
    if not allowed:
        raise _misunderstood(text, "nothing of this kind can be changed")
    if not equals:
        raise _misunderstood(text, "what it is to be must follow an equals sign")
    if bool(target) == (subject in _WHOLE) or (colon and not target):
        raise _misunderstood(text, f"{subject}: {'there is only one' if target else 'which one?'}")
    factor = _factor(right) if "x" in allowed else None
    size = _size_bytes(right) if subject == "bucket" else 0
    if right not in allowed - {"x"} and factor is None and not size:
        raise _misunderstood(text, f"{subject} cannot be {right!r}")
    if subject == "op" and target.upper() not in Op.__members__:
        raise _misunderstood(text, f"there is no operation {target!r}")
    numbers = _numbers(text, subject, target)
    if factor is not None:
        return Spec(text, subject, target, numbers, "x", factor, 0)
    return Spec(text, subject, target, numbers, right, 1.0, size)


def _removal(text: str) -> Spec:
    subject, colon, target = text.strip().removeprefix("remove:").partition(":")
    if subject != "rank" or not colon:
        raise _misunderstood(text, "only ranks can be removed")
    return Spec(text, "remove", target, _numbers(text, subject, target), "removed", 1.0, 0)


def _changes(subject: str) -> set[str]:
    """What a subject can become, from the forms: "x" stands for a factor."""
    parts = [form.partition("=") for form in FORMS if not form.startswith("remove:")]
    mine = {right for left, _, right in parts if left.partition(":")[0] == subject}
    return {"x" if right.startswith("x") else right for right in mine}


def _factor(text: str) -> float | None:
    try:
        value = float(text.removeprefix("x")) if text.startswith("x") else -1.0
    except ValueError:
        return None
    return value if 0 <= value < 1e6 else None


def _size_bytes(text: str) -> int:
    """Bytes of "25MB"; 0 where it is no size."""
    found = _SIZE.fullmatch(text)
    return int(float(found[1]) * _BYTES[found[2]]) if found else 0


def _numbers(text: str, subject: str, target: str) -> tuple[int, ...]:
    if subject not in _NUMBERED:
        return ()
    if not re.fullmatch(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*", target):
        raise _misunderstood(text, f"{target!r} is no number of a {subject}")
    return tuple(parse_ranks(target))


def _misunderstood(text: str, why: str) -> UsageError:
    near = difflib.get_close_matches(text, FORMS, n=1, cutoff=0.0)[0]
    subject = text.partition("=")[0].partition(":")[0]
    same = [form for form in FORMS if form.partition("=")[0].partition(":")[0] == subject]
    near = difflib.get_close_matches(text, same, n=1, cutoff=0.0)[0] if same else near
    return UsageError(f"--what-if {text!r} is not understood: {why}; the nearest form is {near}")
