"""Functions of a module replaced by ones that say when they have returned, and restored."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from evenstep.agent.recording.collector import signal_behind

log = logging.getLogger("evenstep")


class Wrapped:
    """What was wrapped, so that it can be restored."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._telling = False  # a script may hold a wrapper for longer than it is in place

    def __bool__(self) -> bool:
        return bool(self._undo)

    def around(
        self,
        module: Any,
        name: str,
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
        holders: str = "",
    ) -> None:
        """Call `before` and `after` around `module.name`; a failure of theirs is one line of log.

        Every module whose name begins with `holders` and that holds a reference gets the wrapper.
        """
        original = getattr(module, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._telling:
                _tell(before, name)
            result = original(*args, **kwargs)
            if self._telling:
                _tell(after, name)
            return result

        wrapper.__wrapped__ = original  # type: ignore[attr-defined]
        wrapper.__name__, wrapper.__doc__ = name, original.__doc__
        owners = [module]
        if holders:
            modules = list(sys.modules.items())  # another thread may be importing
            owners += [held for key, held in modules if key.startswith(holders)]
        self._telling = True
        for owner in dict.fromkeys(owners):
            if getattr(owner, name, None) is original:
                setattr(owner, name, wrapper)
                self._undo.append(_restorer(owner, name, wrapper, original))

    def restore(self) -> None:
        """Put back what nobody has wrapped again since; from now on, wrappers tell nothing."""
        self._telling = False
        while self._undo:
            self._undo.pop()()


def undo(done: list[Callable[[], None]]) -> None:
    """Undo the last thing first; one that fails is one line of log, and the others still go."""
    while done:
        try:
            done.pop()()
        except Exception as error:
            log.warning("evenstep: restoring: %s", error)


def _tell(whom: Callable[[], None] | None, name: str) -> None:
    try:
        if whom is not None:
            whom()
    except Exception as error:
        if signal_behind(error) is not None:  # of a handler of the script's
            raise
        log.warning("evenstep: at %s: %s", name, error)


def _restorer(owner: Any, name: str, wrapper: Any, original: Any) -> Callable[[], None]:
    def restore() -> None:
        if getattr(owner, name, None) is wrapper:
            setattr(owner, name, original)

    return restore
