"""Sizes of what MPI programs send, which may be any object; no MPI is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evenstep.hooks.mpi.calls import nbytes
from evenstep.hooks.mpi.requests import Requests, Ticket


class Unwilling:
    @property
    def nbytes(self):
        raise RuntimeError("not computed yet")


@pytest.mark.parametrize(
    "sent",
    [Unwilling(), SimpleNamespace(nbytes=lambda: 8), SimpleNamespace(nbytes=float("nan")), {}],
)
def test_an_object_that_does_not_tell_its_size_has_none(sent):
    assert nbytes(sent) == 0


def test_a_buffer_tells_its_size():
    assert [nbytes(b"abc"), nbytes(memoryview(b"abcd")), nbytes([bytearray(5), None])] == [3, 4, 5]


def test_what_another_thread_has_taken_is_no_failure():
    failures = []
    requests = Requests(None, print, print, lambda: True, failures.append)
    requests.opened(SimpleNamespace(handle=1), Ticket(1))
    requests._open[1].clear()
    wait = requests.one(lambda request: True, tests=False)
    assert wait(SimpleNamespace(handle=1)) is True
    assert not failures
