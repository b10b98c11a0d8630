"""Read a pickle of plain values without running any code in it.

A pickle is a program for a stack machine, and some of its instructions import and call whatever
they name. Python's `pickletools` splits it into instructions, as text to be shown; this machine
knows those that build plain values: numbers, text, lists, tuples, dictionaries. It has none that
imports or calls anything, and nothing is allocated on a size that a pickle claims.

A value can also do harm by its shape: keys with colliding hashes, nesting that overflows the stack,
shared parts that unfold exponentially. So keys are text, numbers or None, and the size and depth of
the value are checked before it is returned.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any

from evenstep.errors import TraceError

MOST_INSTRUCTIONS = 16_000_000  # a ring of 20,000 entries with their stacks takes 6,000,000
MOST_CONTAINERS = 2_000_000  # 65,536 entries of 30 lists and dictionaries each
MOST_NESTED = 32  # a ring nests 6 deep: file, entries, entry, frames, frame, text
MOST_SHARED = 64  # most values per byte of the pickle, shared parts counted at each use

_MOST_MARKS = 4 * MOST_NESTED  # open at a time
_KEY_BELOW = 1 << 63  # longer integers can be made to collide, which takes quadratic time
_DAMAGE = (LookupError, ValueError, TypeError, AttributeError, OverflowError)


def loads(data: bytes, place: str) -> Any:
    """The value in a pickle of plain values. `place` names the file in messages.

    Raises `TraceError` for a pickle that would import or call something, and for a damaged one.
    """
    machine = _Machine(place)
    try:
        value = machine.run(data)
        _weigh(value, MOST_SHARED * len(data), {})
        return value
    except _DAMAGE:
        raise TraceError(
            f"{place} is a damaged pickle: it breaks off or makes no sense at byte "
            f"{machine.at}; copy it again"
        ) from None


class _Machine:
    """The stack of values, with those below each open mark, and the values to be used again."""

    def __init__(self, place: str) -> None:
        self.place, self.at, self.containers = place, 0, 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for count, (code, argument, at) in enumerate(pickletools.genops(data)):
            self.at = at or 0
            if count > MOST_INSTRUCTIONS or self.containers > MOST_CONTAINERS:
                raise TraceError(
                    f"{self.place} holds more than a flight recorder's ring ever does; it was not "
                    f"read beyond byte {self.at}"
                )
            if code.name in _VALUES:
                self.stack.append(_CONSTANTS.get(code.name, argument))
            elif code.name in _STEPS:
                _STEPS[code.name](self, argument)
            else:
                raise self.refusal(code.name, argument)
        return self.stack.pop()

    def refusal(self, code: str, argument: Any) -> TraceError:
        """The error of an instruction that would import or call what it or the stack names."""
        parts = self.stack[-2:] if code == "STACK_GLOBAL" else str(argument or "").split(" ")
        named = ".".join(part[:60] for part in parts if isinstance(part, str) and part)
        return TraceError(
            f"{self.place} was refused: at byte {self.at} this pickle asks to run "
            f"{named if named.isprintable() and named else 'code'}, which a dump of plain values "
            "never does; nothing of it was run"
        )

    def mark(self) -> None:
        if len(self.below) > _MOST_MARKS:
            raise ValueError
        self.below.append(self.stack)
        self.stack = []

    def marked(self) -> list[Any]:
        """Take the values above the last mark."""
        found, self.stack = self.stack, self.below.pop()
        return found

    def last(self, count: int) -> list[Any]:
        """Take so many values."""
        return [self.stack.pop() for _ in range(count)][::-1]

    def push(self, container: Any) -> None:
        self.containers += 1
        self.stack.append(container)

    def extend(self, items: list[Any]) -> None:
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if not isinstance(target, dict) or not all(map(_is_key, keys)):
            raise TypeError
        target.update(zip(keys, items[1::2], strict=True))

    def dictionary(self) -> None:
        items = self.marked()
        self.push({})
        self.update(items)

    def keep(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else place] = self.stack[-1]


#: Instructions that push a value, mostly their argument (`pickletools` describes them) …
_VALUES = frozenset(
    (*("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
     *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
     *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "NONE", "NEWTRUE", "NEWFALSE"))
)  # fmt: skip
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False}  # they have no argument, and nor has NONE
#: … and what others do that build plain values. Any other is refused.
_STEPS: Mapping[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda *_: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.keep),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"),
        lambda machine, place: machine.stack.append(machine.memo[place]),
    ),
    "POP": lambda machine, _: machine.stack.pop(),
    "MARK": lambda machine, _: machine.mark(),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "LIST": lambda machine, _: machine.push(machine.marked()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.marked())),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.last(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.last(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.last(3))),
    "DICT": lambda machine, _: machine.dictionary(),
    "APPEND": lambda machine, _: machine.extend(machine.last(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.marked()),
    "SETITEM": lambda machine, _: machine.update(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.update(machine.marked()),
}


def _is_key(value: Any) -> bool:
    """Whether a value may be a key: of a type that a ring uses, with no slow hash."""
    if isinstance(value, int):
        return -_KEY_BELOW <= value < _KEY_BELOW
    return value is None or isinstance(value, (str, float, bytes))


def _weigh(
    value: Any, most: int, known: dict[int, tuple[int, int]], depth: int = 0
) -> tuple[int, int]:
    """Number of values in a value, shared parts counted at each use, and how deep they nest.

    Raises ValueError beyond `most` or `MOST_NESTED`. `known`: of containers, by their id.
    """
    if not isinstance(value, (list, tuple, dict)):
        return 1, 0
    if depth > MOST_NESTED:
        raise ValueError
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        inner = [part for part in parts if isinstance(part, (list, tuple, dict)) and part]
        found = [_weigh(part, most, known, depth + 1) for part in inner]
        size = 1 + len(value) - len(inner) + sum(count for count, _ in found)
        known[id(value)] = size, 1 + max((nested for _, nested in found), default=0)
    if known[id(value)][0] > most or known[id(value)][1] > MOST_NESTED:
        raise ValueError
    return known[id(value)]
