"""Wrap functions of modules with a call after them, and restore them."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from evenstep.agent.recording.collector import signal_behind

log = logging.getLogger("evenstep")


class Wrapped:
    """Wrapped functions, which `restore` restores."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._armed = False  # a script may hold a wrapper after it was restored

    def __bool__(self) -> bool:
        return bool(self._undo)

    def around(
        self,
        module: Any,
        name: str,
        *,
        after: Callable[[], None],
        within: Callable[[Mapping[str, Any]], AbstractContextManager[None]] | None = None,
        holders: str = "",
    ) -> None:
        """Call `after` after `module.name`; a failure of its is one line of log. `within`, which
        must not raise, gets a call's arguments by name and returns what both happen in.

        Every module whose name begins with `holders` and that holds a reference gets the wrapper.
        """
        original = getattr(module, name)
        names = inspect.signature(original).parameters if within else ()

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=False)) | kwargs
            with within(given) if within and self._armed else nullcontext():
                result = original(*args, **kwargs)
                if self._armed:
                    _call(after, name)
            return result

        modules = list(sys.modules.items()) if holders else []  # another thread may be importing
        self._armed = True
        self._undo.append(replace_attribute(module, name, wrapper))
        for key, held in modules:
            if key.startswith(holders) and getattr(held, "__dict__", {}).get(name) is original:
                self._undo.append(replace_attribute(held, name, wrapper))

    def restore(self) -> None:
        """Restore functions that were not wrapped again; the other wrappers pass calls through."""
        self._armed = False
        undo(self._undo)


def undo(done: list[Callable[[], None]]) -> None:
    """Undo in reverse order; a failure is one line of log, and the rest is still undone."""
    while done:
        try:
            done.pop()()
        except Exception as error:
            log.warning("evenstep: restoring: %s", error)


def _call(action: Callable[[], None], name: str) -> None:
    try:
        action()
    except Exception as error:
        if signal_behind(error) is not None:  # of a handler of the script's
            raise
        log.warning("evenstep: at %s: %s", name, error)


def replace_attribute(
    owner: Any, name: str, wrapper: Any, assign: Callable[[Any, str, Any], None] = setattr
) -> Callable[[], None]:
    """Put a wrapper in place of `owner.name`; return what restores it where it still stands."""
    original = vars(owner).get(name, getattr(owner, name))  # `getattr` may unwrap it
    assign(owner, name, wrapper)

    def restore() -> None:
        if vars(owner).get(name) is wrapper:
            assign(owner, name, original)

    return restore
