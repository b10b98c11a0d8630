"""A client of its own, for another thread, of a job's store."""

from __future__ import annotations

from typing import Any


def second_client(store: Any) -> Any:
    """Another client of the same store: a thread that waits in one blocks every other user of it.

    Stores of older torch (2.6) have no `clone`: theirs is one more connection, or the same file;
    a prefix, which they do not tell, is left out. Raises AttributeError for a store of another
    kind, and what connecting raises.
    """
    if hasattr(store, "clone"):
        return store.clone()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "port"):
        return type(store)(store.host, store.port, wait_for_workers=False)
    return type(store)(store.path)
