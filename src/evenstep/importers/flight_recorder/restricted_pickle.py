"""Reading a pickle without ever running what is in it.

A pickle is a program for a small machine with a stack, and some of its instructions import and
call whatever they name. This machine knows only the instructions that build plain values: numbers,
text, lists, tuples, dictionaries. There is no instruction here that could import or call anything,
so there is nothing to escape from. Sizes that a pickle claims are checked against the bytes that
are there, and nothing is allocated on a claim.

A value can also do harm by its shape: a key that takes for ever to hash, a depth that overflows the
stack of whoever walks it, shared parts that unfold to more than there are atoms. So keys are text,
numbers or None, and what has been built is weighed before it is handed out.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from evenstep.errors import TraceError

MOST_INSTRUCTIONS = 16_000_000  # a ring of 20,000 entries with their stacks takes 6,000,000
MOST_CONTAINERS = 2_000_000  # 65,536 entries of 30 lists and dictionaries each
MOST_NESTED = 32  # a ring nests 6 deep: file, entries, entry, frames, frame, text
MOST_SHARED = 64  # times what a pickle unfolds to, shared parts counted wherever they stand

_NEWEST = 5
_LONGEST_INTEGER = 64  # bytes
_KEY_BELOW = 1 << 63  # longer integers can be made to have one hash and so to take quadratic time
_Step = Callable[["_Machine"], None]


def loads(data: bytes, place: str) -> Any:
    """The value in a pickle of plain values. `place` names the file in messages.

    Raises `TraceError` for a pickle that would import or call something, and for a damaged one.
    """
    machine = _Machine(data, place)
    try:
        value = machine.run()
        _weigh(value, MOST_SHARED * len(data))
        return value
    except (IndexError, struct.error, UnicodeDecodeError, ValueError, TypeError, KeyError):
        raise machine.damaged() from None


class _Stop(Exception):  # noqa: N818 - the regular end
    """The program has ended."""


class _Machine:
    """The stack, the memory and the place in the program."""

    def __init__(self, data: bytes, place: str) -> None:
        self.data = data
        self.place = place
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack, ascending
        self.memory: list[Any] = []  # picklers number what they remember from 0 (or 1), one by one
        self.containers = 0

    def run(self) -> Any:
        data, steps = self.data, _STEPS
        for _ in range(MOST_INSTRUCTIONS):
            code = data[self.at]
            self.at += 1
            step = steps.get(code)
            if step is None:
                raise self._refusal(code)
            try:
                step(self)
            except _Stop:
                return self.stack.pop()
        raise self.too_much()

    def too_much(self) -> TraceError:
        """What is said of a pickle that no ring fills."""
        return TraceError(
            f"{self.place} holds more than a flight recorder's ring ever does; it was not read "
            f"beyond byte {self.at}"
        )

    def damaged(self) -> TraceError:
        """What is said of a pickle that does not add up."""
        return TraceError(
            f"{self.place} is a damaged pickle: it breaks off or makes no sense at byte {self.at}; "
            "copy it again"
        )

    def _refusal(self, code: int) -> TraceError:
        if bytes([code]) not in _CALLING:
            return self.damaged()
        wanted = self._wanted(code)
        return TraceError(
            f"{self.place} was refused: at byte {self.at - 1} this pickle asks to run {wanted}, "
            "which a dump of plain values never does; nothing of it was run"
        )

    def _wanted(self, code: int) -> str:
        """What the refused instruction names, as far as it can be told."""
        if bytes([code]) == pickle.STACK_GLOBAL:
            parts = self.stack[-2:]
        else:
            parts = [part.decode("ascii", "replace") for part in self._lines(2)]
        named = ".".join(str(part)[:60] for part in parts if isinstance(part, str) and part)
        return named if named.isprintable() and named else "code"

    def _lines(self, number: int) -> list[bytes]:
        return self.data[self.at : self.at + 200].split(b"\n")[:number]

    # -- operands ----------------------------------------------------------------------------------

    def take(self, size: int) -> bytes:
        """The next bytes of the program; there must be so many."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise ValueError
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.at)
        piece = self.data[self.at : end]
        self.at = end + 1
        return piece

    def items(self) -> list[Any]:
        """What lies above the last mark."""
        height = self.marks.pop()
        taken = self.stack[height:]
        del self.stack[height:]
        return taken

    def integer(self, size: int) -> None:
        if size > _LONGEST_INTEGER:
            raise ValueError
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def text(self, size: int) -> None:
        self.stack.append(self.take(size).decode("utf-8", "surrogatepass"))

    def put(self, index: int) -> None:
        if index == 1 and not self.memory:
            self.memory.append(None)
        if not 0 <= index <= len(self.memory):
            raise ValueError
        self.memory[index : index + 1] = [self.stack[-1]]

    def get(self, index: int) -> None:
        if index < 0:
            raise ValueError
        self.stack.append(self.memory[index])

    def build(self, container: Any) -> None:
        self.containers += 1
        if self.containers > MOST_CONTAINERS:
            raise self.too_much()
        self.stack.append(container)

    def tuple(self, size: int) -> None:
        if len(self.stack) < size:
            raise ValueError
        taken = self.stack[len(self.stack) - size :]
        del self.stack[len(self.stack) - size :]
        self.build(tuple(taken))

    def extend(self, taken: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(taken)

    def set_items(self, taken: list[Any]) -> None:
        target = self.stack[-1]
        keys = taken[::2]
        if not isinstance(target, dict) or not all(map(_is_key, keys)):
            raise TypeError
        target.update(zip(keys, taken[1::2], strict=True))


def _is_key(value: Any) -> bool:
    """Whether it is what a ring's dictionaries are keyed by, and quickly hashed."""
    if isinstance(value, int):
        return -_KEY_BELOW <= value < _KEY_BELOW
    return value is None or isinstance(value, (str, float, bytes))


def _weigh(value: Any, most: int) -> None:
    """Walk what was built, each container once. Raises ValueError where it contains itself, nests
    deeper than `MOST_NESTED`, or unfolds to more than `most` values."""
    known: dict[int, tuple[int, int]] = {}  # by id: values it unfolds to, and how deep; 0, 0: open
    path = [(value, iter(_parts(value)))]
    known[id(value)] = 0, 0
    while path:
        container, rest = path[-1]
        for part in rest:
            if not isinstance(part, (list, tuple, dict)) or not part:
                continue
            if id(part) not in known:
                known[id(part)] = 0, 0
                path.append((part, iter(_parts(part))))
                break
            if not known[id(part)][0]:
                raise ValueError
        else:
            known[id(container)] = _weight(container, known)
            if known[id(container)][0] > most or known[id(container)][1] > MOST_NESTED:
                raise ValueError
            path.pop()


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _weight(container: Any, known: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """Values that a container unfolds to and its depth, those of its parts being known."""
    parts = [known.get(id(part), (1, 0)) for part in _parts(container)]
    return 1 + sum(size for size, _ in parts), 1 + max((depth for _, depth in parts), default=0)


def _protocol(machine: _Machine) -> None:
    if machine.unsigned(1) > _NEWEST:
        raise ValueError


def _stop(_: _Machine) -> None:
    raise _Stop


def _integer_line(machine: _Machine) -> None:
    line = machine.line()
    known: dict[bytes, Any] = {b"00": False, b"01": True}
    machine.stack.append(known[line] if line in known else int(line[:40].rstrip(b"L")))


def _pair(machine: _Machine) -> list[Any]:
    value = machine.stack.pop()
    return [machine.stack.pop(), value]


def _pushing(value: Any) -> _Step:
    return lambda machine: machine.stack.append(value)


def _reading(layout: str) -> _Step:
    form = struct.Struct(layout)
    return lambda machine: machine.stack.append(form.unpack(machine.take(form.size))[0])


def _text(size: int) -> _Step:
    return lambda machine: machine.text(machine.unsigned(size))


def _bytes(size: int) -> _Step:
    return lambda machine: machine.stack.append(machine.take(machine.unsigned(size)))


def _put(size: int) -> _Step:
    return lambda machine: machine.put(machine.unsigned(size))


def _get(size: int) -> _Step:
    return lambda machine: machine.get(machine.unsigned(size))


def _popped(machine: _Machine) -> None:
    machine.stack.pop()


def _dictionary(machine: _Machine) -> None:
    taken = machine.items()
    machine.build({})
    machine.set_items(taken)


#: Every instruction that builds plain values (`pickletools` describes them), by its code.
_STEPS: dict[int, _Step] = {
    code[0]: step
    for code, step in (
        (pickle.PROTO, _protocol),
        (pickle.FRAME, lambda m: m.unsigned(8) and None),
        (pickle.STOP, _stop),
        (pickle.MARK, lambda m: m.marks.append(len(m.stack))),
        (pickle.POP, _popped),
        (pickle.NONE, _pushing(None)),
        (pickle.NEWTRUE, _pushing(True)),
        (pickle.NEWFALSE, _pushing(False)),
        (pickle.INT, _integer_line),
        (pickle.LONG, _integer_line),
        (pickle.BININT, _reading("<i")),
        (pickle.BININT1, _reading("<B")),
        (pickle.BININT2, _reading("<H")),
        (pickle.LONG1, lambda m: m.integer(m.unsigned(1))),
        (pickle.LONG4, lambda m: m.integer(m.unsigned(4))),
        (pickle.FLOAT, lambda m: m.stack.append(float(m.line()[:400]))),
        (pickle.BINFLOAT, _reading(">d")),
        (pickle.SHORT_BINUNICODE, _text(1)),
        (pickle.BINUNICODE, _text(4)),
        (pickle.BINUNICODE8, _text(8)),
        (pickle.UNICODE, lambda m: m.stack.append(m.line().decode("raw-unicode-escape"))),
        (pickle.SHORT_BINSTRING, _bytes(1)),
        (pickle.BINSTRING, _bytes(4)),
        (pickle.SHORT_BINBYTES, _bytes(1)),
        (pickle.BINBYTES, _bytes(4)),
        (pickle.BINBYTES8, _bytes(8)),
        (pickle.EMPTY_LIST, lambda m: m.build([])),
        (pickle.EMPTY_DICT, lambda m: m.build({})),
        (pickle.EMPTY_TUPLE, _pushing(())),
        (pickle.LIST, lambda m: m.build(m.items())),
        (pickle.TUPLE, lambda m: m.build(tuple(m.items()))),
        (pickle.DICT, _dictionary),
        (pickle.TUPLE1, lambda m: m.tuple(1)),
        (pickle.TUPLE2, lambda m: m.tuple(2)),
        (pickle.TUPLE3, lambda m: m.tuple(3)),
        (pickle.APPEND, lambda m: m.extend([m.stack.pop()])),
        (pickle.APPENDS, lambda m: m.extend(m.items())),
        (pickle.SETITEM, lambda m: m.set_items(_pair(m))),
        (pickle.SETITEMS, lambda m: m.set_items(m.items())),
        (pickle.PUT, lambda m: m.put(int(m.line()[:20]))),
        (pickle.BINPUT, _put(1)),
        (pickle.LONG_BINPUT, _put(4)),
        (pickle.MEMOIZE, lambda m: m.put(len(m.memory))),
        (pickle.GET, lambda m: m.get(int(m.line()[:20]))),
        (pickle.BINGET, _get(1)),
        (pickle.LONG_BINGET, _get(4)),
    )
}

#: Instructions that import, call or hand over to a host: never executed.
_CALLING = frozenset(
    {pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD, pickle.INST, pickle.OBJ}
    | {pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4}
    | {pickle.PERSID, pickle.BINPERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER}
)
