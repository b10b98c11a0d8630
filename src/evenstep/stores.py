"""A second client of a job's store, for another thread."""

from __future__ import annotations

from typing import Any


def second_client(store: Any) -> Any:
    """A second client of the same store: a thread that waits in a client blocks its other users.

    Stores of torch 2.6 have no `clone`: their second client is one more connection, or the same
    file, without the prefix, which they do not tell. Raises AttributeError for a store of another
    kind, and the errors of a connection.
    """
    if hasattr(store, "clone"):
        return store.clone()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "port"):
        return type(store)(store.host, store.port, wait_for_workers=False)
    return type(store)(store.path)
