"""Read a pickle of plain values without running any code in it.

A pickle is a program for a stack machine, and some of its instructions import and call whatever
they name. This machine is Python's own, written in Python, restricted to the instructions that
build plain values: numbers, text, lists, tuples, dictionaries. It has no instruction that imports
or calls anything. Sizes that a pickle claims are checked against the bytes that exist, and nothing
is allocated on a claim.

A value can also do harm by its shape: keys with colliding hashes, nesting that overflows the stack,
shared parts that unfold exponentially. So keys are text, numbers or None, and the size and depth of
the value are checked before it is returned.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from evenstep.errors import TraceError

MOST_INSTRUCTIONS = 16_000_000  # a ring of 20,000 entries with their stacks takes 6,000,000
MOST_CONTAINERS = 2_000_000  # 65,536 entries of 30 lists and dictionaries each
MOST_NESTED = 32  # a ring nests 6 deep: file, entries, entry, frames, frame, text
MOST_SHARED = 64  # most values per byte of the pickle, shared parts counted at each use

_READS = 3 * MOST_INSTRUCTIONS  # an instruction has at most a code, a size and data of that size
_MOST_MARKS = 4 * MOST_NESTED  # open at a time
_KEY_BELOW = 1 << 63  # longer integers can be made to collide, which takes quadratic time
_DAMAGE = (
    *(LookupError, ValueError, TypeError, AttributeError, EOFError, OverflowError),
    *(struct.error, pickle.UnpicklingError),
)
_Step = Callable[[Any], None]
_Python: Any = pickle._Unpickler  # the machine in Python, whose instructions can be replaced


def loads(data: bytes, place: str) -> Any:
    """The value in a pickle of plain values. `place` names the file in messages.

    Raises `TraceError` for a pickle that would import or call something, and for a damaged one.
    """
    program = _Program(data, place)
    try:
        value = _Machine(program, encoding="bytes").load()
        _weigh(value, MOST_SHARED * len(data))
        return value
    except _DAMAGE:
        raise TraceError(
            f"{place} is a damaged pickle: it breaks off or makes no sense at byte "
            f"{program.tell()}; copy it again"
        ) from None


class _Program(io.BytesIO):
    """The bytes of a pickle; raises EOFError where fewer bytes exist than are read."""

    def __init__(self, data: bytes, place: str) -> None:
        super().__init__(data)
        self.data, self.place, self.reads = data, place, 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        if self.reads > _READS:
            raise self.too_much()
        piece = super().read(size)
        if len(piece) != size:
            raise EOFError
        return piece

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError
        return line

    def too_much(self) -> TraceError:
        """The error of a pickle larger than any ring."""
        return TraceError(
            f"{self.place} holds more than a flight recorder's ring ever does; it was not read "
            f"beyond byte {self.tell()}"
        )

    def refusal(self, stack: list[Any]) -> TraceError:
        """The error of an instruction that would import or call what it or the stack names."""
        at = self.tell() - 1
        parts = [
            line.decode("ascii", "replace") for line in self.data[at + 1 : at + 201].split(b"\n")
        ]
        if self.data[at : at + 1] == pickle.STACK_GLOBAL:
            parts = stack[-2:]
        named = ".".join(part[:60] for part in parts[:2] if isinstance(part, str) and part)
        return TraceError(
            f"{self.place} was refused: at byte {at} this pickle asks to run "
            f"{named if named.isprintable() and named else 'code'}, which a dump of plain values "
            "never does; nothing of it was run"
        )


class _Machine(_Python):  # type: ignore[misc]
    """Python's machine; `dispatch` has its instructions by their code."""

    def __init__(self, program: _Program, *, encoding: str) -> None:
        super().__init__(program, encoding=encoding)
        self.program, self.containers = program, 0
        self.stack: list[Any] = []
        self.metastack: list[list[Any]] = []

    def refuse(self) -> NoReturn:
        raise self.program.refusal(self.stack)

    def frame(self) -> None:
        self.program.read(8)  # the frame's length, which is not used

    def mark(self) -> None:
        if len(self.metastack) > _MOST_MARKS:
            raise ValueError
        _PLAIN[pickle.MARK[0]](self)

    def set_item(self) -> None:
        self._set([self.stack.pop(-2), self.stack.pop()])

    def set_items(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if not isinstance(target, dict) or not all(map(_is_key, keys)):
            raise TypeError
        target.update(zip(keys, items[1::2], strict=True))

    def dictionary(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self._set(items)


def _is_key(value: Any) -> bool:
    """Whether a value may be a key: of a type that a ring uses, with no slow hash."""
    if isinstance(value, int):
        return -_KEY_BELOW <= value < _KEY_BELOW
    return value is None or isinstance(value, (str, float, bytes))


def _weigh(value: Any, most: int) -> None:
    """Check a value, visiting each container once. Raises ValueError if it contains itself, nests
    deeper than `MOST_NESTED`, or unfolds to more than `most` values."""
    known: dict[int, tuple[int, int]] = {}  # by id: unfolded values and depth; 0, 0: being visited
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
    """Number of unfolded values of a container, and its depth, from those of its parts."""
    parts = [known.get(id(part), (1, 0)) for part in _parts(container)]
    return 1 + sum(size for size, _ in parts), 1 + max((depth for _, depth in parts), default=0)


def _count(step: _Step) -> _Step:
    """Make an instruction that creates a container count it."""

    def counted(machine: _Machine) -> None:
        machine.containers += 1
        if machine.containers > MOST_CONTAINERS:
            raise machine.program.too_much()
        step(machine)

    return counted


_PLAIN: Mapping[int, _Step] = _Python.dispatch
#: Instructions that build plain values (`pickletools` describes them), as they are …
_BUILDING = (
    *(pickle.PROTO, pickle.STOP, pickle.POP, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.INT, pickle.LONG, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.LONG4, pickle.FLOAT, pickle.BINFLOAT, pickle.SHORT_BINUNICODE, pickle.BINUNICODE),
    *(pickle.BINUNICODE8, pickle.UNICODE, pickle.SHORT_BINSTRING, pickle.BINSTRING),
    *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8, pickle.EMPTY_TUPLE),
    *(pickle.APPEND, pickle.APPENDS, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT),
    *(pickle.MEMOIZE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
)
#: … those that are counted, and those that import, call or use the host program: never executed.
_CONTAINING = (
    *(pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.LIST, pickle.TUPLE),
    *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)
_CALLING = (
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD, pickle.INST, pickle.OBJ),
    *(pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID),
    *(pickle.BINPERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)
_Machine.dispatch = {
    **{code[0]: _PLAIN[code[0]] for code in _BUILDING},
    **{code[0]: _count(_PLAIN[code[0]]) for code in _CONTAINING},
    **{code[0]: _Machine.refuse for code in _CALLING}, pickle.FRAME[0]: _Machine.frame,
    pickle.MARK[0]: _Machine.mark, pickle.SETITEM[0]: _Machine.set_item,
    pickle.SETITEMS[0]: _Machine.set_items, pickle.DICT[0]: _count(_Machine.dictionary),
}  # fmt: skip
