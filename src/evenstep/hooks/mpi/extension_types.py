"""Methods of a C extension's types replaced, and restored.

Such types refuse to be assigned to. Their dictionary does not, and every instance looks its methods
up there, whoever made it: so there is nothing that a replaced class would miss. Only CPython has
that dictionary within reach; elsewhere `replace` raises.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any


class Replacements:
    """Methods that were replaced; `restore` puts back those that are still ours."""

    def __init__(self) -> None:
        self._done: list[tuple[type, str, Any, Any]] = []

    def replace(self, owner: type, name: str, method: Any) -> None:
        """Put `method` in place of the one that `owner` itself defines. Raises TypeError."""
        self._done.append((owner, name, method, owner.__dict__[name]))
        _assign(owner, name, method)

    def restore(self) -> None:
        """Put everything back."""
        while self._done:
            owner, name, method, original = self._done.pop()
            if owner.__dict__.get(name) is method:
                _assign(owner, name, original)


def _assign(owner: type, name: str, method: Any) -> None:
    try:
        setattr(owner, name, method)
        return
    except TypeError:  # immutable
        pass
    found = gc.get_referents(owner.__dict__)
    if not found or not isinstance(found[0], dict):
        raise TypeError(f"the methods of {owner.__name__} cannot be replaced in this Python")
    found[0][name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
    if owner.__dict__.get(name) is not method:
        raise TypeError(f"the methods of {owner.__name__} cannot be replaced in this Python")
