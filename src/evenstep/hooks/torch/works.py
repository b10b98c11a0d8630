"""Works whose operations end when they are waited for.

gloo's messages have no future. NCCL launches the operations of a batch (`batch_isend_irecv`) when
it is complete: torch gives one Work for all of them, without a future, and an event after a single
call is passed before that operation has begun. What is known is when the stream that has waited for
the Work goes on. Where it did not have to wait, the operation ended behind its work, nobody knows
when: it is recorded without a length, as one that delays nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from sys import getrefcount
from typing import Any, Protocol, TypeVar

from evenstep.hooks.wrapping import replace_attribute, undo

LIMIT = 64  # works that are kept: they hold tensors
_OURS = 2  # our references to a kept work: that of the entry, and the argument's

Item = TypeVar("Item")


class KeptWorks(OrderedDict[int, tuple[Any, Item]]):
    """Works and what is recorded when they are waited for; `drop` gets it where nobody will."""

    def __init__(self, drop: Callable[[Item], object]) -> None:
        super().__init__()
        self._drop = drop

    def keep(self, work: Any, item: Item) -> None:
        """Keep a work until it is waited for; beyond `LIMIT` the oldest is dropped."""
        self.let_go(full=len(self) >= LIMIT)
        self[id(work)] = (work, item)

    def of(self, work: Any) -> Item | None:
        return self.get(id(work), (None, None))[1]

    def waited(self, work: Any) -> Item | None:
        return self.pop(id(work), (None, None))[1]

    def let_go(self, *, full: bool = False) -> None:
        """Drop works that only we hold: they hold their tensors."""
        for key, entry in list(self.items()):
            if (full or getrefcount(entry[0]) <= _OURS) and self.pop(key, None) is not None:
                self._drop(entry[1])
                full = False  # only the oldest is dropped in any case


class BatchRecorder(Protocol):
    """Collects the marks of this thread's operations while a batch is open."""

    def begin_batch(self) -> object:
        """Collect from now on."""

    def end_batch(self) -> Any:
        """Stop collecting; return what was collected, false where there is nothing."""

    def batch_reached(self, batch: Any) -> object:
        """The current stream is about to wait for the batch."""

    def batch_ended(self, batch: Any, waited: bool) -> object:
        """The current stream waits for the batch's end; or nobody will."""


class Batches:
    """Ends of the operations that torch launches together."""

    def __init__(self, recorder: BatchRecorder, give_up: Callable[[Exception], None]) -> None:
        self._recorder = recorder
        self._give_up = give_up
        self.kept: KeptWorks[Any] = KeptWorks(lambda batch: recorder.batch_ended(batch, False))

    def patch(self, group_type: Any) -> Callable[[], None]:
        """Follow the batches of all groups; return how to stop."""
        done = [
            _follow(group_type, name, then)
            for name, then in (("_start_coalescing", self._begun), ("_end_coalescing", self._ended))
            if hasattr(group_type, name)
        ]
        return lambda: undo(done)

    def reached(self, work: Any) -> None:
        """A thread is about to call `Work.wait`."""
        batch = self.kept.of(work)
        if batch is not None:
            self._recorder.batch_reached(batch)

    def waited(self, work: Any) -> None:
        """A thread has returned from `Work.wait`."""
        batch = self.kept.waited(work)
        if batch is not None:
            self._recorder.batch_ended(batch, True)

    def let_go(self) -> None:
        """Drop batches that nobody will wait for; for the background thread."""
        self.kept.let_go()

    def _begun(self, _: Any) -> None:
        try:
            self._recorder.begin_batch()
        except Exception as error:
            self._give_up(error)

    def _ended(self, work: Any) -> None:
        try:
            batch = self._recorder.end_batch()
            if batch and work is not None:
                self.kept.keep(work, batch)
            elif batch:
                self._recorder.batch_ended(batch, False)
        except Exception as error:
            self._give_up(error)


def _follow(owner: Any, name: str, then: Callable[[Any], None]) -> Callable[[], None]:
    """Call `then` with each result of a method, None if it raises; return how to restore it."""
    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        result = None
        try:
            result = original(*args, **kwargs)
        finally:
            then(result)
        return result

    return replace_attribute(owner, name, method)
