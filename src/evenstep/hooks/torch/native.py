"""Record collectives by compiled kernels, without entering the interpreter.

`recorder.cpp` writes entries and ends; Python runs once for each group, and on the background
thread. Kernels stay registered for the life of the process: they pass every call through when
nothing is recorded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from evenstep.agent.recording.collector import resent
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.phases import EVENT_WORDS, MOST_EVENTS, WORDS, Compiled, Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch import library
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.operations import OPERATIONS
from evenstep.trace.spool.layout import HEARTBEAT_OFFSET, Flag
from evenstep.trace.spool.spool import Spool

AROUND, WAITING, OPTIMIZER_IN, OPTIMIZER_OUT, STEP = range(5)  # hooks of Python's functions

_ARMED, _FAILURES = Word.ARMED, Word.FAILURES
_DEVICES, _KEPT = Word.DEVICES, Word.KEPT
_Pointer, _u64 = ctypes.c_void_p, ctypes.c_uint64

#: Functions of the library: what each returns and takes.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "observe": (ctypes.c_bool, (ctypes.c_char_p, *[ctypes.c_int] * 3, ctypes.c_bool)),
    "observe_waits": (ctypes.c_bool, ()),
    "open": (_Pointer, (_u64,)),
    "words": (_Pointer, (_Pointer,)),
    "events": (_Pointer, (_Pointer,)),
    "arm": (None, (_Pointer, _Pointer)),
    "number": (_u64, (_Pointer,)),
    "thread": (ctypes.c_uint16, (_Pointer,)),
    "hook": (ctypes.py_object, (ctypes.c_int, ctypes.py_object, ctypes.c_bool)),
    "meet": (None, (_Pointer, _Pointer)),
    "group": (_Pointer, (_Pointer, ctypes.c_char_p, ctypes.c_uint32, _Pointer, _u64, _u64)),
    "retire": (None, (_Pointer,)),
    "sequence": (_u64, (_Pointer,)),
    "gate": (None, (_Pointer, _Pointer)),
    "set_apart": (None, (_Pointer, _Pointer)),
    "look": (None, (_Pointer,)),
    "capture": (None, (_Pointer, _u64)),
    "batch": (_u64, (_Pointer, ctypes.c_bool)),
    "batch_reached": (None, (_Pointer, _u64)),
    "batch_ended": (None, (_Pointer, _u64, ctypes.c_bool)),
    "failure": (ctypes.c_char_p, (_Pointer,)),
}
#: Functions that may take long: they release the interpreter's lock.
_SLOW: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "poll": (None, (_Pointer,)),
    "rest": (_u64, (_Pointer, _Pointer, _u64, _u64, ctypes.c_int)),
    "close": (_u64, (_Pointer,)),
}


class Functions:
    """The library's functions, without their prefix. Raises OSError where it cannot be loaded."""

    def __init__(self, path: Path) -> None:
        for kind, table in ((ctypes.PyDLL, _FUNCTIONS), (ctypes.CDLL, _SLOW)):
            loaded = kind(str(path))
            for name, (returns, takes) in table.items():
                function = getattr(loaded, f"evenstep_{name}")
                function.restype, function.argtypes = returns, takes
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Session:
    """Compiled recording into one spool; made before anything is recorded in it."""

    def __init__(self, functions: Functions, spool: Spool) -> None:
        self.functions = functions
        self.spool = spool
        self.handle = functions.open(spool.regions.ring_capacity)
        self.words = _shared_words(functions.words(self.handle), WORDS)
        handle, number = self.handle, functions.number
        self._ring = spool.count_by(lambda: number(handle), lambda: self.words[Word.NUMBER])
        rest, beat = functions.rest, self._ring - spool.regions.ring_offset + HEARTBEAT_OFFSET
        self.compiled = Compiled(
            self.words,
            _shared_words(functions.events(self.handle), MOST_EVENTS * EVENT_WORDS),
            lambda: functions.thread(handle),
            partial(self.hook, STEP),
            None if spool.buffered else lambda *until: rest(handle, beat, *until),
        )
        self.give_up: Callable[[Exception], None] | None = None  # gets our failures
        self._called: dict[tuple[str, int], Any] = {}  # keeps alive what the kernels call

    def arm(self) -> None:
        """Record from now on."""
        self.functions.arm(self.handle, self._ring)

    def set_apart(self) -> None:
        """Record the calls of this thread here, while the word `ARMED` says so."""
        self.functions.set_apart(self.handle, self._ring)

    def hook(self, which: int, recorder: Recorder, *parts: object, method: bool = False) -> Any:
        """A hook of Python's functions with its parts, as recorder.cpp names them; `method`: to be
        an attribute of a class."""
        given = (self.handle, self._safely(recorder.catch_up), *parts)
        return self.functions.hook(which, given, method)

    def hook_wait(
        self, recorder: Recorder, original: Any, before: Callable[[Any], None],
        after: Callable[[Any], None],
    ) -> Any:  # fmt: skip
        """A `Work.wait`, for `original`. While the word `WAITS` says so, it calls `before` and
        `after` with the work."""
        told = (self._safely(before), self._safely(after))
        return self.hook(WAITING, recorder, original, *told, method=True)

    def close(self) -> None:
        """Stop recording. The ring stays mapped while a running collective may write its end."""
        if self.functions.close(self.handle):
            self.spool.keep_mapped()

    def gate_by(self, gate: Callable[[], None] | None) -> None:
        """Call `gate` before each collective, in Python; None: nothing."""
        made = None if gate is None else ctypes.CFUNCTYPE(None)(self._safely(gate))
        self.functions.gate(self.handle, made)
        self._called["gate", id(made)] = made  # a replaced one may still be about to be called

    def meet_by(self, meet: Callable[[str, int], None]) -> None:
        """Call `meet` with the name and size of a group at its first use."""

        def met(name: bytes, size: int) -> None:
            meet(name.decode(), size)

        made = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int)(self._safely(met))
        self.functions.meet(self.handle, made)
        self._called["meet", 0] = made

    def _safely(self, call: Callable[..., object]) -> Callable[..., None]:
        def called(*args: Any) -> None:
            try:
                call(*args)
            except BaseException as error:  # what leaves a callback from C is lost
                if resent(error):
                    return
                self.words[_ARMED] = 0
                if self.give_up is not None and isinstance(error, Exception):
                    self.give_up(error)

        return called


def _shared_words(address: int, words: int) -> memoryview:
    return memoryview((_u64 * words).from_address(address)).cast("B").cast("Q")


def new_session(torch: Any, spool: Spool) -> tuple[Session | None, str]:
    """A session for this torch, made before any record; or why Python's kernels are used."""
    where = library.find_recorder(Path(torch.__file__).parent)
    if where.path is None:
        return None, where.reason
    try:
        return Session(Functions(where.path), spool), ""
    except (OSError, AttributeError) as error:  # made for another torch, or damaged
        return None, f"{where.path.name} cannot be loaded: {error}"


class NativeGroups(Groups):
    """Groups that compiled kernels ask for at the first use of each."""

    def __init__(self, session: Session, distributed: Any) -> None:
        super().__init__(session.spool, distributed)
        self._session = session
        self._handles: dict[str, int] = {}
        session.meet_by(self._pass_to_kernels)

    def renew(self, name: str) -> None:
        """A group of this name is made: the one known by it has been destroyed."""
        handle = self._handles.pop(name, None)
        if handle is not None:
            functions = self._session.functions
            functions.retire(handle)
            self._known[name].count_from(functions.sequence(handle))
        super().renew(name)

    def _pass_to_kernels(self, name: str, size: int) -> None:
        state = self._state_by_name(name, size)
        functions, members = self._session.functions, len(state.ranks)
        self._handles[name] = functions.group(
            self._session.handle, name.encode(), state.index,
            (ctypes.c_int32 * members)(*state.ranks), members, state.sequence,
        )  # fmt: skip

    def _state_by_name(self, name: str, size: int) -> GroupState:
        try:
            group = self._distributed.distributed_c10d._resolve_process_group(name)
        except Exception:  # made outside torch's registry: members are numbered by themselves
            state = GroupState.entered(self._spool, name, tuple(range(size)))
            return self._known.setdefault(name, state)
        return self.state(group)


class NativeKernels:
    """Compiled kernels in the place of `DispatcherHooks`."""

    def __init__(self, session: Session, give_up: Callable[[Exception], None]) -> None:
        self.session = session
        self.unseen: list[str] = []
        self.batched = False  # whether operations of a device were ever launched together
        session.give_up = give_up
        functions, handle = session.functions, session.handle
        self.capture = partial(functions.capture, handle)  # sets the number of graphs captured
        self.begin_batch = partial(functions.batch, handle, True)  # these as in `BatchRecorder`
        self.batch_reached = partial(functions.batch_reached, handle)
        self.batch_ended = partial(functions.batch_ended, handle)

    def install(self) -> None:
        """Register the kernels, once for the process, and record."""
        self.unseen = _observed_names(self.session.functions)
        self.session.arm()

    def disarm(self) -> None:
        """Pass every call through from now on; also in a forked child, which has its own words."""
        self.session.words[_ARMED] = 0

    def end_batch(self) -> int:
        """Number of the batch that is launched; 0 where it has no operation on a device."""
        batch = int(self.session.functions.batch(self.session.handle, False))
        if batch:
            self.batched = True
            self.session.words[Word.WAITS] = 1
        return batch

    def remove(self) -> None:
        """Stop recording."""
        self.session.close()

    def poll(self) -> None:
        """For the background thread: poll devices, and works without a future."""
        functions, handle, words = self.session.functions, self.session.handle, self.session.words
        if words[_DEVICES]:
            functions.poll(handle)
        if words[_KEPT]:
            functions.look(handle)
        if words[_FAILURES]:
            raise RuntimeError(functions.failure(handle).decode(errors="replace"))


_registered: list[str] | None = None  # operations this torch does not have, once registered


def _observed_names(functions: Functions) -> list[str]:
    global _registered
    if _registered is None:
        always = int(Flag.COALESCED)
        _registered = [
            each.name
            for each in OPERATIONS
            if not functions.observe(
                each.name.encode(), each.op, each.reading, each.coalesced * always, each.message
            )
        ]
        functions.observe_waits()
    return list(_registered)
